"""What detectors need of a store: tables, columns and a window of time, as frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from flightwatch.detectors.contract import Detector
from flightwatch.pipeline.detection.files import frame_of
from flightwatch.pipeline.detection.sample_frames import ARROW_SETTINGS, joined, sample_frame
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.detection_reads import SAMPLED, columns_of, of_nodes, pace_sql, thinned, window_sql

#: Tables whose rows hold until replaced: read whole, not by window.
STANDING = ("placements", "inventory", "config_facts", "links", "process_groups")
COMMON_COLUMNS = ("cluster", "node", "job", "run", "rank", "step", "device")
#: Rows of samples read at once: what the store and the driver hold of them is let go before the next ones.
SLICE_ROWS = 250_000
#: What every reader of samples gets beside the columns it asks for.
SAMPLE_COLUMNS = ("cluster", "node", "device", "parent_device")
#: What `rank_steps` is derived from where it is absent.
_OPS = ("level", "kind", "op", "dur_us", "wait_us", "steps", "axis", "process_group")


def needed_tables(detectors: Iterable[Detector]) -> dict[str, set[str]]:
    """Return table name to the columns that the detectors use of it together."""
    needed: dict[str, set[str]] = {}
    for detector in detectors:
        for table, columns in detector.needs.tables.items():
            needed.setdefault(table, set()).update(columns)
    if "rank_steps" in needed:
        needed.setdefault("op_timings", set(_OPS))
    return needed


def read_window(
    store: Store, needed: dict[str, set[str]], since_of: Callable[[str], int], until_ms: int, shard: int = 0,
    shards: int = 1, most_rows: int | None = None,
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """Read rows with ts in (since, until] of the needed tables.

    Standing tables are read from their beginning; `op_timings` only where there is no `rank_steps`.

    Parameters
    ----------
    since_of: begin of the window of a table, milliseconds since the epoch.
    shard, shards: which of how many parts of the jobs. most_rows: of a table of samples, about; beyond it whole
    sampling intervals are left out evenly (counters lose nothing by it, readings are sparser).

    Raises
    ------
    TransientError: the store is away. ConfigError: the store lacks a table.
    """
    frames: dict[str, pd.DataFrame] = {}
    for table, wanted in needed.items():
        if table == "op_timings" and not frames.get("rank_steps", pd.DataFrame()).empty:
            continue
        since = 0 if table in STANDING else since_of(table)
        columns = columns_of(table, (*wanted, *(SAMPLE_COLUMNS if table in SAMPLED else COMMON_COLUMNS)))
        parameters = {"since": moment(since), "until": moment(until_ms)} | ({"shard": shard} if shards > 1 else {})
        text = window_sql(table, columns, shards)
        if table not in SAMPLED:
            frames[table] = frame_of(table, store.arrow(text, parameters))
            continue
        pace = store.rows(pace_sql(table, shards), parameters)
        frames[table] = _samples(store, table, text, parameters, pace, until_ms - since, most_rows)
    return frames


def _samples(
    store: Store, table: str, text: str, parameters: Mapping[str, object], pace: Sequence[Mapping[str, Any]],
    window_ms: int, most_rows: int | None,
) -> pd.DataFrame:  # fmt: skip
    """Read a table of samples, some nodes at a time, with as many samplings left out as `most_rows` takes."""
    rows, targets = (sum(int(node[name]) for node in pace) for name in ("rows", "targets"))
    every = 1 if most_rows is None else max(1, -(-rows // most_rows))
    if every > 1:
        text = thinned(text, _interval_ms(window_ms, rows, targets), every)
    firsts = _first_nodes(pace, SLICE_ROWS * every)
    parts: list[pd.DataFrame] = []
    for first, end in zip(firsts, [*firsts[1:], ""], strict=True):
        given = {**parameters, "first": first} | ({"end": end} if end else {})
        parts.append(sample_frame(table, store.arrow(of_nodes(text, not end), given, ARROW_SETTINGS)))
    return joined(parts)


def _interval_ms(window_ms: int, rows: int, targets: int) -> int:
    """Return the sampling interval: whole seconds, or tenths below one.

    A row more or less must not move it, or each look would keep other samples. Targets that were not there all the
    time make it look longer: more is kept.
    """
    interval_ms = window_ms * targets / rows
    step_ms = 1000 if interval_ms >= 1000 else 100
    return max(step_ms, round(interval_ms / step_ms) * step_ms)


def _first_nodes(pace: Sequence[Mapping[str, Any]], rows: int) -> list[str]:
    """Return the first node of each slice of about so many rows; the first slice begins before all."""
    firsts, held = [""], 0
    for node in pace:
        if held and held + int(node["rows"]) > rows:
            firsts.append(str(node["node"]))
            held = 0
        held += int(node["rows"])
    return firsts


def moment(ms: int) -> pd.Timestamp:
    """Return milliseconds since the epoch as the store's queries take them."""
    return pd.Timestamp(ms, unit="ms", tz="UTC")
