"""Samples as dense arrays over a common grid of times, and statements that hold for a while.

Shape letters: T times, D targets (devices, nodes, ports, ...).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from flightwatch.detectors.contract import Frames
from flightwatch.detectors.grouped import BoolArray, FloatArray, IntArray, sorted_median
from flightwatch.detectors.shared import KeptArrays, once

#: A grid never has more times than this: it gets coarser instead.
MAXIMUM_TIMES = 20_000
#: Cells over which a reading is carried: a lost row and a late one; what holds until something else is told.
A_MOMENT, ALWAYS = 2, MAXIMUM_TIMES
#: Gaps to be filled no further than this are looked at one by one.
FEW_CELLS = 8
Key = tuple[Any, ...]


@dataclass
class Grid:
    """One table over a grid of times. Arrays that it returns are kept for the next who asks and are read-only.

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
    _chosen: IntArray | None
    _place: IntArray
    _pace_D: IntArray
    _kept: KeptArrays = field(default_factory=KeptArrays, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Times and targets."""
        return len(self.times_T), len(self.keys_D)

    @cached_property
    def devices_of(self) -> Counter[Any]:
        """How many targets each node has."""
        return Counter(key[0] for key in self.keys_D)

    def has(self, name: str) -> bool:
        """Say whether any value of a column is known."""
        return name in self._rows and bool(self._cells_of(self._rows[name].notna().to_numpy()).any())

    def column(self, name: str, forward_cells: int = 0) -> FloatArray | None:
        """Return a column as [T, D], the last sample of each cell; None when nothing is known.

        Parameters
        ----------
        forward_cells: how many empty cells a value is carried forward over, times as many for slower targets.
        """
        return self._kept.get((name, forward_cells), lambda: self._column(name, forward_cells))

    def _column(self, name: str, forward_cells: int) -> FloatArray | None:
        if forward_cells:
            told = self.column(name)
            return None if told is None else carried(told, forward_cells * self._pace_D)
        if not self.has(name):
            return None
        column = self._rows[name]
        if column.dtype.kind != "f":
            column = pd.to_numeric(column, errors="coerce")
        values = self._cells_of(column.to_numpy(dtype=None if column.dtype.kind == "f" else float, na_value=np.nan))
        known = np.isfinite(values)
        dense = np.full(self.shape, np.nan)
        if known.all():
            dense.reshape(-1)[self._place] = values
        else:
            dense.reshape(-1)[self._place[known]] = values[known]
        return dense

    def words(self, name: str) -> tuple[IntArray, list[str]]:
        """Return a column of words as numbers [T, D], -1 where unknown, and the words that they count."""
        dense: IntArray = np.full(self.shape, -1)
        if name not in self._rows:
            return dense, []
        found, unique = pd.factorize(self._rows[name])
        words: list[object] = list(unique)
        # What is no text is no word.
        is_word: BoolArray = np.array([*(isinstance(word, str) for word in words), False])
        dense.reshape(-1)[self._place] = self._cells_of(np.where(is_word[found], found, -1))
        return dense, [str(word) for word in words]

    def models(self) -> list[object]:
        """Return the model of each target: "unknown" where it is, "all" where nobody tells."""
        if not self.has("model"):
            return ["all"] * self.shape[1]
        codes, words = self.words("model")
        first = codes[(codes >= 0).argmax(axis=0), np.arange(self.shape[1])]
        return [words[code] if code >= 0 else "unknown" for code in first.tolist()]

    def present(self) -> BoolArray:
        """Say per cell whether a row was there at all, [T, D]."""
        dense = np.zeros(self.shape, dtype=bool)
        dense.reshape(-1)[self._place] = True
        return dense

    def _cells_of(self, values: np.ndarray) -> np.ndarray:
        return values if self._chosen is None else values[self._chosen]

    def deltas(self, name: str) -> FloatArray | None:
        """Return what a counter grew per cell, [T, D]: NaN before the second sample, without a sample, at resets.

        The cell in which a silent target is heard again holds all that it counted meanwhile.
        """
        return self._kept.get((name, "grown"), lambda: self._deltas(name))

    def _deltas(self, name: str) -> FloatArray | None:
        heard = self.column(name)
        if heard is None:
            return None
        values = carried(heard, ALWAYS * self._pace_D)
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
    key = ("grid", table, tuple(keys), only_parents)
    return once(frames, key, lambda: _grid_of(frames.get(table), keys, only_parents))


def _grid_of(rows: pd.DataFrame | None, keys: Sequence[str], only_parents: bool) -> Grid | None:
    if rows is None or rows.empty or not {"ts", keys[0]} <= set(rows.columns):
        return None
    usable = rows["ts"].notna().to_numpy() & rows[keys[0]].notna().to_numpy()
    if only_parents and "parent_device" in rows:
        usable &= rows["parent_device"].isna().to_numpy()
    if not usable.any():
        return None
    chosen = None if usable.all() else np.flatnonzero(usable)
    stamps = rows["ts"].to_numpy(dtype=float)
    stamps = stamps if chosen is None else stamps[chosen]
    present = [name for name in keys if name in rows]
    codes, uniques = _targets([rows[name] if chosen is None else rows[name].iloc[chosen] for name in present])
    own_ms = _intervals_ms(stamps, codes, len(uniques))
    interval_ms = max(1000.0, float(np.nanmedian(own_ms))) if np.isfinite(own_ms).any() else 1000.0
    start, end = stamps.min(), stamps.max()
    interval_ms = max(interval_ms, (end - start) / MAXIMUM_TIMES)
    times = start + (np.arange(int((end - start) // interval_ms) + 1) + 1) * interval_ms
    place = ((stamps - start) // interval_ms).astype(np.int64) * len(uniques) + codes
    cluster = None
    if "cluster" in rows:
        first = int(stamps.argmin())
        cluster = rows["cluster"].iloc[first if chosen is None else int(chosen[first])]
    if _repeats(place, len(times) * len(uniques)):
        # The last of several samples in a cell counts; where there is one each, order makes no difference.
        order = np.argsort(stamps, kind="stable")
        chosen, place = (order if chosen is None else chosen[order]), place[order]
    pace = np.maximum(1, np.round(np.nan_to_num(own_ms) / interval_ms)).astype(np.int64)
    order_of = {name: position for position, name in enumerate(present)}
    named = [tuple(key[order_of[name]] if name in order_of else None for name in keys) for key in uniques]
    text = None if cluster is None or cluster != cluster else str(cluster)
    return Grid(named, np.minimum(times, end), interval_ms / 1000, text, rows, chosen, place, pace)


def _repeats(place: IntArray, size: int) -> bool:
    taken = np.zeros(size, dtype=bool)
    taken[place] = True
    return bool(np.count_nonzero(taken) < len(place))


def _targets(columns: Sequence[pd.Series]) -> tuple[IntArray, list[Key]]:
    code: IntArray = np.zeros(len(columns[0]), dtype=np.int64)
    levels: list[list[Any]] = []
    for column in columns:
        part, unique = pd.factorize(column, use_na_sentinel=False)
        code = code * len(unique) + part
        levels.append([_plain(value) for value in list(unique)])
    distinct, inverse = _numbered(code, math.prod(len(level) for level in levels))
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
    return place[inverse], [keys[i] for i in order]


def _numbered(code: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """Return the distinct numbers below `size`, ascending, and which of them each is."""
    if size > 16 * len(code) + 1_000_000:
        distinct, inverse = np.unique(code, return_inverse=True)
        return distinct, inverse.reshape(-1)
    taken = np.zeros(size, dtype=bool)
    taken[code] = True
    return np.flatnonzero(taken), (np.cumsum(taken) - 1)[code]


def _plain(value: Any) -> Any:
    if value is None or value != value:
        return None
    if isinstance(value, (float, np.floating)):
        return int(value) if float(value).is_integer() else float(value)
    return value


def _intervals_ms(stamps: FloatArray, codes: IntArray, targets: int) -> FloatArray:
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


def carried(values_TD: FloatArray, most_cells: int | IntArray) -> FloatArray:
    """Return values with unknown cells filled by the last known one, at most so many cells later (per target).

    Where all are known these are the values themselves.
    """
    unknown = ~np.isfinite(values_TD)
    if not unknown.any():
        return values_TD
    most_D = np.broadcast_to(most_cells, values_TD.shape[1:])
    if most_D.max() <= FEW_CELLS:
        return _carried_few(values_TD, unknown, most_D)
    result = values_TD.copy()
    # Targets without a gap need nothing.
    some = np.flatnonzero(unknown.any(axis=0))
    index = np.arange(len(values_TD))[:, None]
    last = np.maximum.accumulate(np.where(unknown[:, some], -1, index), axis=0)
    filled = np.take_along_axis(values_TD[:, some], np.maximum(last, 0), axis=0)
    result[:, some] = np.where((last >= 0) & (index - last <= most_D[some]), filled, np.nan)
    return result


def _carried_few(values_TD: FloatArray, unknown: BoolArray, most_D: IntArray) -> FloatArray:
    """Look back from each gap, cell by cell."""
    result = np.where(unknown, np.nan, values_TD)
    time, target = np.nonzero(unknown)
    for back in range(1, int(most_D.max()) + 1):
        left = (time >= back) & (most_D[target] >= back)
        time, target = time[left], target[left]
        before = values_TD[time - back, target]
        known = np.isfinite(before)
        result[time[known], target[known]] = before[known]
        time, target = time[~known], target[~known]
    return result


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
