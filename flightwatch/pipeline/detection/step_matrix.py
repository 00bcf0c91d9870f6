"""`rank_steps` of every run as matrices that are kept between cycles: a cycle reads what has arrived, not the window.

100,000 ranks write a million rows in ten steps; reading a window of hundreds of steps again in each cycle costs more
than everything detectors do with it. What is read is told by the rows' source (bus partition and offset) and by
`received_at`, so late rows are found whatever their step. A row that comes twice changes nothing.

Memory is bounded: the newest steps of each run, so many that all cells fit `cells`, never fewer than `fewest_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from flightwatch.core.vocabulary import DATABASE
from flightwatch.detectors.dense_steps import DenseRun
from flightwatch.detectors.grouped import FloatArray
from flightwatch.pipeline.store.client import Store

IntArray = np.ndarray[Any, np.dtype[np.int64]]

#: What timing detectors read of `rank_steps`; maps are flattened.
CHANNELS = (
    "step_us", "compute_us", "forward_us", "backward_us", "optimizer_us", "data_us", "checkpoint_us", "launch_gap_us",
    "comm_us", "wait_us", "transfer_us", "unattributed_us", "tokens", "loss", "grad_norm", "nonfinite_count",
)  # fmt: skip
MAPS = ("comm_by_axis_us", "work")
#: A map with more keys than this (process groups as axes) says nothing to a detector.
MOST_KEYS = 16
#: Ranks whose clocks say when a step was.
FEW_RANKS = 33


@dataclass
class _Window:
    """One run's matrices: rows from `base` on, as many as `steps_S`, hold the window; those after are room."""

    job: str | None
    run: str | None
    cluster: str | None
    steps_S: IntArray
    ranks_R: IntArray
    node_R: np.ndarray
    device_R: FloatArray
    channels: dict[str, FloatArray] = field(default_factory=dict)
    start_ms_SR: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    base: int = 0
    asynchronous: bool = False
    newest_ms: float = 0.0
    dense: DenseRun | None = None


_COLUMNS = ("ts", "received_at", "src_partition", "src_offset", "cluster", "node", "job", "run", "step", "rank",
            "device", "mode", *CHANNELS, *MAPS)  # fmt: skip
_FROM = (
    f"FROM {DATABASE}.rank_steps WHERE ts > fromUnixTimestamp64Milli({{since}}) "
    "AND ts <= fromUnixTimestamp64Milli({until}) AND ({new}) AND ({where})"
)
_ROWS = "SELECT {columns} " + _FROM
_ABOUT = (
    "SELECT count() AS rows, toUnixTimestamp64Milli(min(ts)) AS oldest, toUnixTimestamp64Milli(max(ts)) AS newest "
    + _FROM
)
#: Room for steps to come, as a part of the window: how seldom it moves to the front.
ROOM = 4
#: Rows read at once, and time between two reads up to which there cannot be many.
SLICE_ROWS, SHORT_MS = 250_000, 120_000


class StepMatrix:
    """Windows of all runs of a store.

    Parameters
    ----------
    cells: steps x ranks kept over all runs. fewest_steps: kept of every run whatever its size.
    where: SQL condition that tells which jobs are looked at.
    """

    def __init__(self, store: Store, cells: int = 10_000_000, fewest_steps: int = 100, where: str = "true") -> None:
        self._store, self._cells, self._fewest, self._where = store, cells, fewest_steps, where
        self._windows: dict[tuple[str | None, str | None], _Window] = {}
        self._offsets: dict[int, int] = {}
        self._arrived_ms = self._until_ms = 0
        self.rows_read = 0

    def refresh(self, since_ms: int, until_ms: int) -> list[DenseRun]:
        """Read what arrived since the last call and return the windows of all runs with steps in (since, until].

        Raises
        ------
        TransientError: the store is away; nothing is lost, the next call reads the same again.
        """
        new = self._new()
        self.rows_read = 0
        arrived, offsets = self._arrived_ms, dict(self._offsets)
        # Newest first, slice by slice: after a pause or a start, what a window will not keep is not read.
        for since, until in self._parts(since_ms, until_ms, new):
            table = self._store.arrow(_ROWS.format(columns=", ".join(_COLUMNS), **self._span(since, until), new=new))
            self.rows_read += table.num_rows
            if not table.num_rows:
                continue
            arrived = max(arrived, _newest_arrival(table))
            _note_offsets(table, offsets)
            kept = [self._take(key, rows) for key, rows in _by_run(table)]
            if not any(kept):
                break
        self._arrived_ms, self._offsets, self._until_ms = arrived, offsets, until_ms
        self._forget(since_ms)
        return [self._dense(window) for _, window in sorted(self._windows.items(), key=lambda item: str(item[0]))]

    def _parts(self, since_ms: int, until_ms: int, new: str) -> list[tuple[int, int]]:
        """Cut what is new into times that hold about `SLICE_ROWS` rows each, newest first."""
        if until_ms - self._until_ms <= SHORT_MS:
            return [(since_ms, until_ms)]
        (about,) = self._store.rows(_ABOUT.format(**self._span(since_ms, until_ms), new=new))
        count = int(about["rows"])
        if not count:
            return []
        begin, end = max(since_ms, int(about["oldest"]) - 1), min(until_ms, int(about["newest"]))
        edges = np.linspace(begin, end, -(-count // SLICE_ROWS) + 1).astype(np.int64).tolist()
        return list(pairwise(edges))[::-1]

    def _span(self, since_ms: int, until_ms: int) -> dict[str, int | str]:
        return {"since": since_ms, "until": until_ms, "where": self._where}

    def _new(self) -> str:
        """Return the condition that tells rows that arrived since the last call."""
        known = sorted(self._offsets.items())
        new = f"toUnixTimestamp64Milli(received_at) > {self._arrived_ms}"
        if known:
            partitions, offsets = (f"[{','.join(str(pair[i]) for pair in known)}]" for i in (0, 1))
            new += f" OR toInt64(src_offset) > transform(src_partition, {partitions}, {offsets}, -1)"
        return new

    def _take(self, key: tuple[str | None, str | None], rows: pa.Table) -> bool:
        """Put one run's rows into its window; say whether any of them lies in it."""
        step, rank = _numbers(rows, "step"), _numbers(rows, "rank")
        good = np.isfinite(step) & np.isfinite(rank) & (rank >= 0)
        if not good.any():
            return False
        if not good.all():
            rows, step, rank = rows.filter(pa.array(good)), step[good], rank[good]
        steps, ranks = step.astype(np.int64), rank.astype(np.int64)
        window = self._windows.get(key)
        if window is None:
            empty = np.empty(0, dtype=np.int64)
            window = _Window(key[0], key[1], _first(rows, "cluster"), empty, empty, np.empty(0, object), np.empty(0))
            self._windows[key] = window
        self._make_room(window, _distinct(steps), _distinct(ranks))
        kept = steps >= window.steps_S[0]
        if not kept.any():
            return False
        at = np.searchsorted(window.steps_S, steps[kept]) + window.base
        column = _places(window.ranks_R, ranks[kept])
        if not kept.all():
            rows = rows.filter(pa.array(kept))
        starts = _times(rows)
        window.newest_ms = max(window.newest_ms, float(np.nanmax(starts, initial=0.0)))
        window.start_ms_SR[at, column] = starts
        for name, values in _channels(rows):
            self._channel(window, name)[at, column] = values
        window.node_R[column] = rows["node"].to_numpy(zero_copy_only=False)
        window.device_R[column] = _numbers(rows, "device")
        window.asynchronous = window.asynchronous or bool(pc.any(pc.equal(rows["mode"], "async")).as_py())
        return True

    def _channel(self, window: _Window, name: str) -> FloatArray:
        if name not in window.channels:
            window.channels[name] = np.full(window.start_ms_SR.shape, np.nan, dtype=np.float32)
        return window.channels[name]

    def _make_room(self, window: _Window, steps: IntArray, ranks: IntArray) -> None:
        """Lay the window out for the union of old and new steps and ranks, dropping the oldest steps."""
        same_ranks = len(ranks) == len(window.ranks_R) and np.array_equal(ranks, window.ranks_R)
        all_ranks = window.ranks_R if same_ranks else np.union1d(window.ranks_R, ranks)
        same_ranks = len(all_ranks) == len(window.ranks_R)
        limit = self._limit(window, len(all_ranks))
        all_steps = np.union1d(window.steps_S, steps)[-limit:]
        held, size = len(window.steps_S), len(window.start_ms_SR)
        gone = int(np.searchsorted(window.steps_S, all_steps[0]))
        stay = held - gone
        if same_ranks and stay > 0 and np.array_equal(all_steps[:stay], window.steps_S[gone:]):
            # Only newer steps: the window slides, and moves to the front when its room is used up.
            base = window.base + gone
            if base + len(all_steps) <= size:
                window.base, window.steps_S = base, all_steps
                self._blank(window, stay)
                return
            if len(all_steps) <= size:
                for values in (*window.channels.values(), window.start_ms_SR):
                    _shift(values, base, stay)
                window.base, window.steps_S = 0, all_steps
                self._blank(window, stay)
                return
        self._lay_out(window, all_steps, all_ranks)

    def _blank(self, window: _Window, stay: int) -> None:
        """Forget what the rows for new steps held."""
        for values in (*window.channels.values(), window.start_ms_SR):
            values[window.base + stay : window.base + len(window.steps_S)] = np.nan

    def _lay_out(self, window: _Window, all_steps: IntArray, all_ranks: IntArray) -> None:
        held = slice(window.base, window.base + len(window.steps_S))
        keep = np.isin(window.steps_S, all_steps)
        to_row = np.searchsorted(all_steps, window.steps_S[keep])
        to_column = np.searchsorted(all_ranks, window.ranks_R)
        shape = (len(all_steps) + max(8, len(all_steps) // ROOM), len(all_ranks))
        for name in list(window.channels):
            window.channels[name] = _moved(window.channels[name][held], keep, shape, to_row, to_column)
        window.start_ms_SR = _moved(window.start_ms_SR[held], keep, shape, to_row, to_column)
        if len(all_ranks) != len(window.ranks_R):
            nodes, devices = np.full(len(all_ranks), None, dtype=object), np.full(len(all_ranks), np.nan)
            nodes[to_column], devices[to_column] = window.node_R, window.device_R
            window.node_R, window.device_R, window.dense = nodes, devices, None
        window.base, window.steps_S, window.ranks_R = 0, all_steps, all_ranks

    def _limit(self, window: _Window, ranks: int) -> int:
        """Steps that this run may keep: its share of all cells by its share of all ranks."""
        others = sum(len(one.ranks_R) for one in self._windows.values() if one is not window)
        return max(self._fewest, self._cells // max(1, ranks + others))

    def _forget(self, since_ms: int) -> None:
        for key, window in list(self._windows.items()):
            if window.newest_ms <= since_ms:
                del self._windows[key]

    def _dense(self, window: _Window) -> DenseRun:
        held = slice(window.base, window.base + len(window.steps_S))
        few = slice(None, None, max(1, len(window.ranks_R) // FEW_RANKS))
        places = pd.DataFrame({"rank": window.ranks_R, "node": window.node_R, "device": window.device_R})
        fresh = DenseRun(
            window.job, window.run, window.cluster, window.steps_S, window.ranks_R,
            {name: values[held] for name, values in window.channels.items()}, window.start_ms_SR[held, few], places,
            window.asynchronous,
        )  # fmt: skip
        if window.dense is not None:
            fresh.take_layout_of(window.dense)
        window.dense = fresh
        return fresh


def _newest_arrival(table: pa.Table) -> int:
    arrived = pc.max(table["received_at"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())).as_py()
    return int(arrived or 0)


def _note_offsets(table: pa.Table, offsets: dict[int, int]) -> None:
    """Raise the highest offset seen of each partition."""
    seen = table.group_by("src_partition").aggregate([("src_offset", "max")])
    pairs = zip(seen["src_partition"].to_pylist(), seen["src_offset_max"].to_pylist(), strict=True)
    for partition, offset in pairs:
        offsets[int(partition)] = max(offsets.get(int(partition), -1), int(offset))


def _moved(
    values_SR: FloatArray, keep: np.ndarray, shape: tuple[int, int], to_row: IntArray, to_column: IntArray
) -> FloatArray:
    moved = np.full(shape, np.nan, dtype=values_SR.dtype)
    same = len(to_column) == shape[1]
    for source, row in zip(np.nonzero(keep)[0].tolist(), to_row.tolist(), strict=True):
        if same:
            moved[row] = values_SR[source]
        else:
            moved[row, to_column] = values_SR[source]
    return moved


def _shift(values_SR: FloatArray, base: int, count: int) -> None:
    """Move rows from `base` on to the front, one by one: without a copy of the whole."""
    for row in range(count):
        values_SR[row] = values_SR[base + row]


def _distinct(values: IntArray) -> IntArray:
    """Return sorted distinct values; by a table where their range is small."""
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values) + 1000:
        return np.unique(values)
    present = np.zeros(high - low + 1, dtype=bool)
    present[values - low] = True
    return np.nonzero(present)[0] + low


def _places(sorted_R: IntArray, values: IntArray) -> IntArray:
    """Return where each value stands among sorted ones that hold it."""
    if len(sorted_R) and int(sorted_R[-1]) == len(sorted_R) - 1:
        return values
    return np.searchsorted(sorted_R, values)


def _by_run(table: pa.Table) -> list[tuple[tuple[str | None, str | None], pa.Table]]:
    """Split rows by job and run; an empty word is unknown."""
    pairs = table.select(["job", "run"]).group_by(["job", "run"]).aggregate([]).to_pylist()
    if len(pairs) == 1:
        return [((pairs[0]["job"] or None, pairs[0]["run"] or None), table)]
    found = []
    for pair in pairs:
        mine = pc.and_(pc.equal(table["job"], pair["job"]), pc.equal(table["run"], pair["run"]))
        found.append(((pair["job"] or None, pair["run"] or None), table.filter(mine)))
    return found


def _channels(rows: pa.Table) -> list[tuple[str, FloatArray]]:
    """Return the columns that hold anything, maps flattened."""
    found = [(name, _numbers(rows, name)) for name in CHANNELS if rows[name].null_count < rows.num_rows]
    for name in MAPS:
        found += _flattened(name, rows[name])
    return found


def _flattened(name: str, column: pa.ChunkedArray) -> Sequence[tuple[str, FloatArray]]:
    whole = column.combine_chunks()
    lengths = np.diff(whole.offsets.to_numpy())
    if not lengths.any():
        return []
    row_of = np.repeat(np.arange(len(whole)), lengths)
    keys = whole.keys.cast(pa.string()).dictionary_encode()
    if len(keys.dictionary) > MOST_KEYS:
        return []
    values = whole.items.cast(pa.float64()).to_numpy(zero_copy_only=False)
    codes = keys.indices.to_numpy(zero_copy_only=False)
    found = []
    for code, key in enumerate(keys.dictionary.to_pylist()):
        dense = np.full(len(whole), np.nan, dtype=np.float32)
        mine = codes == code
        dense[row_of[mine]] = values[mine]
        found.append((f"{name}.{key}", dense))
    return found


def _numbers(rows: pa.Table, name: str) -> FloatArray:
    return np.asarray(rows[name].cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=float)


def _times(rows: pa.Table) -> FloatArray:
    moments = rows["ts"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    return np.asarray(moments.to_numpy(zero_copy_only=False), dtype=float)


def _first(rows: pa.Table, name: str) -> str | None:
    value = rows[name][0].as_py()
    return str(value) if value else None
