"""An embedded store with a small cluster in it: racks, a job with placements, steps, samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.schema import arrow_schema

_EMPTY = {"string": "", "list": [], "map": []}


def insert(store: Store, table: str, rows: Iterable[Mapping[str, Any]], token: str) -> None:
    """Insert rows with what tables need besides: times of arrival, cluster, source, empty words."""
    schema = arrow_schema(table)
    cells = []
    for number, row in enumerate(rows):
        values: dict[str, Any] = {
            "cluster": "lab",
            "received_at": row.get("ts"),
            "src_partition": 0,
            "src_offset": number,
        }
        values |= {name: list(value.items()) if isinstance(value, Mapping) else value for name, value in row.items()}
        for field in schema:
            if values.get(field.name) is None and not field.nullable:
                kind = next((word for word in _EMPTY if str(field.type).startswith(word)), "")
                values[field.name] = _EMPTY.get(kind, 0)
        cells.append({field.name: values.get(field.name) for field in schema})
    store.insert_block(table, pa.Table.from_pylist(cells, schema=schema), token)


def small_cluster(store: Store, now_ms: int, job: str = "llm") -> None:
    """Eight nodes, two racks, one cooling zone; a job of 16 ranks on the first four nodes; slow since a minute."""
    begin = now_ms - 40 * 60_000
    insert(
        store, "inventory",
        [{"ts": begin, "node": f"n{n}", "rack": f"r{n // 4}", "cooling_zone": "z0"} for n in range(8)]
        + [{"ts": begin, "node": f"n{n}", "device": d, "serial": f"S{n}-{d}"} for n in range(8) for d in range(4)],
        f"inventory-{job}",
    )  # fmt: skip
    insert(
        store, "placements",
        [{"ts": begin, "node": f"n{r // 4}", "job": job, "run": "a1", "rank": r, "device": r % 4, "tp": r % 2,
          "pp": 0, "dp": r // 2} for r in range(16)],
        f"placements-{job}",
    )  # fmt: skip
    insert(store, "runs", [{"ts": begin, "job": job, "run": "a1", "phase": "train", "started_at": begin,
                            "attrs": {"tenant": "red"}}], f"runs-{job}")  # fmt: skip
    steps: list[dict[str, Any]] = []
    for step in range(240):
        at = begin + 60_000 + step * 10_000
        slow = at > now_ms - 60_000 - 10_000
        steps += [{"ts": at, "node": f"n{r // 4}", "job": job, "run": "a1", "step": step, "rank": r, "device": r % 4,
                   "step_us": 6_250_000.0 if slow else 5_000_000.0} for r in (0, 1, 5, 9)]  # fmt: skip
    insert(store, "rank_steps", [row for row in steps if row["ts"] <= now_ms], f"steps-{job}")
    insert(
        store, "device_samples",
        [{"ts": begin + 60_000 * minute, "node": f"n{n}", "device": d, "temp_c": 60.0 + n}
         for minute in range(40) for n in range(8) for d in range(2)],
        f"samples-{job}",
    )  # fmt: skip
