"""Samples as dense arrays over a common grid of times, and statements that hold for a while.

Shape letters: T times, D targets (devices, nodes, ports, ...).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from flightwatch.detectors.contract import Frames
from flightwatch.detectors.grouped import BoolArray, FloatArray, sorted_median

#: A grid never has more times than this: it gets coarser instead.
MAXIMUM_TIMES = 20_000
#: Cells over which a reading is carried: a lost row and a late one; what holds until something else is told.
A_MOMENT, ALWAYS = 2, MAXIMUM_TIMES
Key = tuple[Any, ...]


@dataclass
class Grid:
    """One table over a grid of times.

    Attributes
    ----------
    keys_D: key of each target (values of the key columns). times_T: end of each cell, milliseconds.
    interval_s: width of a cell, the median interval between a target's samples.
    cluster: name of the cluster, None unknown.
    """

    keys_D: list[Key]
    times_T: FloatArray
    interval_s: float
    cluster: str | None
    _rows: pd.DataFrame
    _cell: np.ndarray[Any, np.dtype[np.int64]]
    _target: np.ndarray[Any, np.dtype[np.int64]]
    _pace_D: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def shape(self) -> tuple[int, int]:
        """Times and targets."""
        return len(self.times_T), len(self.keys_D)

    def has(self, name: str) -> bool:
        """Say whether any value of a column is known."""
        return name in self._rows and bool(self._rows[name].notna().any())

    def column(self, name: str, forward_cells: int = 0) -> FloatArray | None:
        """Return a column as [T, D], the last sample of each cell; None when nothing is known.

        Parameters
        ----------
        forward_cells: how many empty cells a value is carried forward over, times as many for slower targets.
        """
        if not self.has(name):
            return None
        values = pd.to_numeric(self._rows[name], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        dense = np.full(self.shape, np.nan)
        known = np.isfinite(values)
        dense[self._cell[known], self._target[known]] = values[known]
        return carried(dense, forward_cells * self._pace_D) if forward_cells else dense

    def words(self, name: str) -> np.ndarray | None:
        """Return a column of words as [T, D] of objects, None where unknown."""
        if not self.has(name):
            return None
        dense = np.full(self.shape, None, dtype=object)
        values = self._rows[name].astype(object).to_numpy()
        dense[self._cell, self._target] = values
        return dense

    def models(self) -> list[object]:
        """Return the model of each target: "unknown" where it is, "all" where nobody tells."""
        words = self.words("model")
        if words is None:
            return ["all"] * self.shape[1]
        return [next((one for one in words[:, d] if isinstance(one, str)), "unknown") for d in range(self.shape[1])]

    def present(self) -> BoolArray:
        """Say per cell whether a row was there at all, [T, D]."""
        dense = np.zeros(self.shape, dtype=bool)
        dense[self._cell, self._target] = True
        return dense

    def deltas(self, name: str) -> FloatArray | None:
        """Return what a counter grew per cell, [T, D]: NaN before the second sample, without a sample, at resets.

        The cell in which a silent target is heard again holds all that it counted meanwhile.
        """
        values, heard = self.column(name, forward_cells=ALWAYS), self.column(name)
        if values is None or heard is None:
            return None
        grown = np.full_like(values, np.nan)
        grown[1:] = np.diff(values, axis=0)
        # Not heard of is not zero: rows of some nodes come before those of others.
        grown[(grown < 0) | np.isnan(heard)] = np.nan
        return grown


def grid_of(frames: Frames, table: str, keys: Sequence[str], only_parents: bool = True) -> Grid | None:
    """Lay one table out on a grid; None when it has no usable rows.

    Parameters
    ----------
    keys: columns that name a target; rows in which the first is unknown are left out.
    only_parents: leave out virtual children of a device.
    """
    rows = frames.get(table)
    if rows is None or rows.empty or not {"ts", keys[0]} <= set(rows.columns):
        return None
    if only_parents and "parent_device" in rows and rows["parent_device"].notna().any():
        rows = rows[rows["parent_device"].isna()]
    rows = rows[rows["ts"].notna() & rows[keys[0]].notna()]
    if rows.empty:
        return None
    rows = rows.sort_values("ts", kind="stable")
    present = [name for name in keys if name in rows]
    codes, uniques = _targets(rows, present)
    stamps = rows["ts"].to_numpy(dtype=float)
    own_ms = _intervals_ms(stamps, codes, len(uniques))
    interval_ms = max(1000.0, float(np.nanmedian(own_ms))) if np.isfinite(own_ms).any() else 1000.0
    start, end = stamps[0], stamps[-1]
    interval_ms = max(interval_ms, (end - start) / MAXIMUM_TIMES)
    cell = ((stamps - start) // interval_ms).astype(np.int64)
    times = start + (np.arange(int(cell[-1]) + 1) + 1) * interval_ms
    pace = np.maximum(1, np.round(np.nan_to_num(own_ms) / interval_ms)).astype(np.int64)
    order = {name: position for position, name in enumerate(present)}
    named = [tuple(key[order[name]] if name in order else None for name in keys) for key in uniques]
    cluster = rows["cluster"].iloc[0] if "cluster" in rows else None
    text = None if cluster is None or cluster != cluster else str(cluster)
    return Grid(named, np.minimum(times, end), interval_ms / 1000, text, rows, cell, codes, pace)


def _targets(rows: pd.DataFrame, names: list[str]) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[Key]]:
    code = np.zeros(len(rows), dtype=np.int64)
    levels: list[list[Any]] = []
    for name in names:
        part, unique = pd.factorize(rows[name], use_na_sentinel=False)
        code = code * len(unique) + part
        levels.append([_plain(value) for value in list(unique)])
    distinct, inverse = np.unique(code, return_inverse=True)
    keys: list[Key] = []
    for value in distinct.tolist():
        key: list[Any] = []
        for level in reversed(levels):
            value, position = divmod(value, len(level))
            key.append(level[position])
        keys.append(tuple(reversed(key)))
    order = sorted(range(len(keys)), key=lambda i: tuple((part is None, str(type(part)), part) for part in keys[i]))
    place = np.empty(len(keys), dtype=np.int64)
    place[order] = np.arange(len(keys))
    return place[inverse.reshape(-1)], [keys[i] for i in order]


def _plain(value: Any) -> Any:
    if value is None or value != value:
        return None
    if isinstance(value, (float, np.floating)):
        return int(value) if float(value).is_integer() else float(value)
    return value


def _intervals_ms(stamps: FloatArray, codes: np.ndarray[Any, np.dtype[np.int64]], targets: int) -> FloatArray:
    """Return the median interval of each target's samples, NaN for a single one."""
    order = np.lexsort((stamps, codes))
    gaps, of = np.diff(stamps[order]), codes[order][1:]
    kept = (np.diff(codes[order]) == 0) & (gaps > 0)
    middle = pd.Series(gaps[kept]).groupby(of[kept]).median()
    return np.asarray(middle.reindex(range(targets)).to_numpy(dtype=float))


@dataclass(frozen=True)
class Spell:
    """A target for which something held: column, cells of onset, statement and end (None: still holds)."""

    target: int
    begin: int
    said: int
    over: int | None


def spells(active_TD: BoolArray, on_cells: int, off_cells: int) -> Iterator[Spell]:
    """Yield spells: said after `on_cells` cells in a row, over after `off_cells` cells without.

    Parameters
    ----------
    active_TD: cells in which the condition holds; unknown cells must be filled by the caller.
    """
    for target in np.nonzero(active_TD.any(axis=0))[0].tolist():
        column = active_TD[:, target]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], column, [False]]).astype(np.int8)))
        begin = said = -1
        last_end = -1
        for start, end in edges.reshape(-1, 2).tolist():
            if said >= 0 and start - last_end >= off_cells:
                yield Spell(target, begin, said, last_end + off_cells - 1)
                begin = said = -1
            if said < 0 and end - start >= on_cells:
                begin, said = start, start + on_cells - 1
            if said >= 0:
                last_end = end
        if said >= 0:
            over = last_end + off_cells - 1
            yield Spell(target, begin, said, over if over < len(column) else None)


def cells(seconds: float, interval_s: float, minimum: int = 1) -> int:
    """Return how many cells make `seconds`, at least `minimum`."""
    return max(minimum, round(seconds / interval_s))


def robust_sigma(values_TD: FloatArray, floor: float, samples: int = 90) -> float:
    """Return the scatter of the first known `samples` rows about their median, at least `floor`.

    The first rows only: what comes later must not change what was said before.
    """
    known = np.flatnonzero(np.isfinite(values_TD).any(axis=1))[:samples]
    flat = values_TD[known]
    flat = flat[np.isfinite(flat)]
    if not len(flat):
        return floor
    return max(floor, 1.4826 * float(np.median(np.abs(flat - np.median(flat)))))


def carried(values_TD: FloatArray, most_cells: int | np.ndarray[Any, np.dtype[np.int64]]) -> FloatArray:
    """Return values with unknown cells filled by the last known one, at most so many cells later (per target)."""
    index = np.arange(len(values_TD))[:, None]
    last = np.maximum.accumulate(np.where(np.isfinite(values_TD), index, -1), axis=0)
    filled = np.take_along_axis(values_TD, np.maximum(last, 0), axis=0)
    return np.where((last >= 0) & (index - last <= most_cells), filled, np.nan)


def peer_median(values_TD: FloatArray, labels_D: Sequence[object]) -> FloatArray:
    """Return for each target the median of all targets with its label, [T, D]."""
    result = np.full_like(values_TD, np.nan)
    positions: dict[object, list[int]] = {}
    for target, label in enumerate(labels_D):
        positions.setdefault(label, []).append(target)
    for members in positions.values():
        result[:, members] = sorted_median(values_TD[:, members])[:, None]
    return result


def first_median(values_TD: FloatArray, count: int) -> FloatArray:
    """Return each target's own level: the running median of its first `count` cells with values, causal, [T, D].

    Refreshed at every cell up to ten, then at every fifth: a level, not a filter.
    """
    result = np.full_like(values_TD, np.nan)
    known = np.isfinite(values_TD)
    begin = np.where(known.any(axis=0), known.argmax(axis=0), -1)
    for first in np.unique(begin[begin >= 0]).tolist():
        columns = np.flatnonzero(begin == first)
        part = values_TD[first:, columns]
        last = min(count, len(part))
        turns = sorted({*range(min(10, last)), *range(9, last, 5), last - 1})
        for turn, following in zip(turns, [*turns[1:], len(part)], strict=True):
            result[first + turn : first + following, columns] = sorted_median(part[: turn + 1].T)
    return result
