"""`rank_steps` of one run as dense arrays, steps x ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd

from flightwatch.detectors.contract import Frames
from flightwatch.detectors.grouped import FloatArray, sorted_median
from flightwatch.detectors.layout import Layout, build_layout
from flightwatch.detectors.waits import SPLIT, filled


class StepSource(Protocol):
    """Where a run's values come from."""

    def names(self) -> Iterable[str]:
        """Return the columns there are; maps are flattened."""

    def dense(self, name: str) -> FloatArray | None:
        """Return a column as float32 [S, R], NaN where unknown; None when nothing is known."""

    def says_async(self) -> bool:
        """Say whether any row's mode is async."""


@dataclass
class RunSteps:
    """One run's steps.

    Attributes
    ----------
    steps_S: step numbers, ascending. layout: its ranks, in column order of every array.
    end_ms_S: when each step was over (median over ranks, so that one wrong clock changes nothing), NaN unknown.
    """

    job: str | None
    run: str | None
    cluster: str | None
    steps_S: np.ndarray[Any, np.dtype[np.int64]]
    layout: Layout
    end_ms_S: FloatArray
    _source: StepSource
    _cache: dict[str, FloatArray | None] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Steps and ranks."""
        return len(self.steps_S), len(self.layout.ranks_R)

    def channel(self, name: str) -> FloatArray | None:
        """Return column `name` as float32 [S, R], NaN where unknown; None when nothing is known.

        Waiting and transfer are filled in where groups span nodes (see `waits`).
        """
        if name not in self._cache:
            self._cache[name] = filled(self, name, self._source.dense) if name in SPLIT else self._source.dense(name)
        return self._cache[name]

    def is_measured(self, name: str) -> bool:
        """Say whether a column was reported, not worked out from others."""
        return self._source.dense(name) is not None

    def columns(self, prefix: str) -> list[str]:
        """Return the names of flattened map columns `prefix.*`."""
        return [str(name) for name in self._source.names() if str(name).startswith(prefix + ".")]

    def is_async(self) -> bool:
        """Say whether ranks step on their own: the mode says so, or step times differ between ranks."""
        if self._source.says_async():
            return True
        step = self.channel("step_us")
        if step is None or step.shape[1] < 2:
            return False
        spread = sorted_median(np.abs(step / sorted_median(step)[:, None] - 1))
        return bool(np.nanmedian(spread) > 0.03) if np.isfinite(spread).any() else False


def runs_of(frames: Frames, minimum_steps: int = 1) -> Iterator[RunSteps]:
    """Yield every run in `rank_steps`, ordered by job and run, with at least `minimum_steps` steps.

    Repeated (rank, step) rows keep the last one in the frame. Rows without step or rank are left out.
    """
    told = set()
    for dense in getattr(frames, "dense_runs", ()):
        told.add((dense.job, dense.run))
        if len(dense.steps_S) >= minimum_steps:
            yield dense.run_steps(frames)
    table = frames.get("rank_steps")
    if table is None or table.empty or not {"step", "rank"} <= set(table.columns):
        return
    keys = [name for name in ("job", "run") if name in table and table[name].notna().any()]
    if not keys:
        parts: list[tuple[tuple[Any, ...], pd.DataFrame]] = [((), table)]
    elif all(_is_constant(table[name]) for name in keys):
        parts = [(tuple(table[name].iloc[0] for name in keys), table)]
    else:
        grouped = table.groupby(keys, sort=True, dropna=False, observed=True)
        parts = [((key if isinstance(key, tuple) else (key,)), rows) for key, rows in grouped]
    for key, rows in parts:
        names = dict(zip(keys, key, strict=True))
        if (_word(names.get("job")), _word(names.get("run"))) in told:
            continue
        one = _one_run(frames, _word(names.get("job")), _word(names.get("run")), rows)
        if one is not None and one.shape[0] >= minimum_steps:
            yield one


def _is_constant(column: pd.Series[Any]) -> bool:
    """Say whether all rows hold one word; by codes where the column has them."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        return bool(codes[0] >= 0 and (codes == codes[0]).all())
    return bool((column == column.iloc[0]).all())


def _word(value: Any) -> str | None:
    return None if value is None or value != value else str(value)


def _one_run(frames: Frames, job: str | None, run: str | None, rows: pd.DataFrame) -> RunSteps | None:
    step = pd.to_numeric(rows["step"], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    rank = pd.to_numeric(rows["rank"], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    good = np.isfinite(step) & np.isfinite(rank) & (rank >= 0)
    if not good.any():
        return None
    if not good.all():
        rows, step, rank = rows[good], step[good], rank[good]
    steps_S, row_of = _codes(step.astype(np.int64))
    ranks_R, column_of = _codes(rank.astype(np.int64))
    last_row = np.zeros(len(ranks_R), dtype=np.int64)
    last_row[column_of] = np.arange(len(rows))
    where = pd.DataFrame({"rank": ranks_R})
    for column in ("node", "device"):
        if column in rows:
            where[column] = rows[column].iloc[last_row].astype(object).to_numpy()
    layout = build_layout(frames, job, run, ranks_R, where)
    cluster = _word(rows["cluster"].iloc[0]) if "cluster" in rows else None
    source = _Rows(rows, row_of, column_of, (len(steps_S), len(ranks_R)))
    built = RunSteps(job, run, cluster, steps_S, layout, np.full(len(steps_S), np.nan), source)
    starts = source.start_ms()
    if starts is not None:
        built.end_ms_S = end_times(starts, built.channel("step_us"))
    return built


@dataclass
class _Rows:
    """Rows of one run; a column is laid out when it is asked for."""

    rows: pd.DataFrame
    row_of: np.ndarray[Any, np.dtype[np.int64]]
    column_of: np.ndarray[Any, np.dtype[np.int64]]
    shape: tuple[int, int]

    def names(self) -> Iterable[str]:
        return [str(name) for name in self.rows.columns]

    def dense(self, name: str) -> FloatArray | None:
        if name not in self.rows:
            return None
        values = pd.to_numeric(self.rows[name], errors="coerce").to_numpy(dtype=np.float32, na_value=np.nan)
        if np.isnan(values).all():
            return None
        dense = np.full(self.shape, np.nan, dtype=np.float32)
        dense[self.row_of, self.column_of] = values
        return dense

    def says_async(self) -> bool:
        return "mode" in self.rows and bool((self.rows["mode"] == "async").any())

    def start_ms(self) -> FloatArray | None:
        if "ts" not in self.rows:
            return None
        ts = pd.to_numeric(self.rows["ts"], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        dense = np.full(self.shape, np.nan)
        dense[self.row_of, self.column_of] = ts
        return dense


def _codes(
    values: np.ndarray[Any, np.dtype[np.int64]],
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    """Return sorted unique values and the position of each; a table lookup where the range is small."""
    low, high = int(values.min()), int(values.max())
    if high - low < 4 * len(values) + 1000:
        present = np.zeros(high - low + 1, dtype=bool)
        present[values - low] = True
        position = np.cumsum(present) - 1
        return np.nonzero(present)[0] + low, position[values - low]
    unique, inverse = np.unique(values, return_inverse=True)
    return unique, inverse.reshape(-1)


def end_times(start_SR: FloatArray, step_us_SR: FloatArray | None) -> FloatArray:
    """Return when each step was over: the median start of a few ranks, which one wrong clock cannot move, plus the
    step's length; NaN where unknown."""
    start = sorted_median(_few(start_SR))
    if step_us_SR is None:
        return start
    length = sorted_median(_few(step_us_SR)).astype(float) / 1000
    return np.asarray(start + np.nan_to_num(length))


def _few(values_SR: FloatArray) -> FloatArray:
    return values_SR[:, :: max(1, values_SR.shape[1] // 33)]
