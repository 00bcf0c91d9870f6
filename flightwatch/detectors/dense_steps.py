"""`rank_steps` that are already dense: windows kept between cycles, handed to detectors without rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from flightwatch.detectors.contract import Frames
from flightwatch.detectors.grouped import FloatArray
from flightwatch.detectors.layout import Layout, build_layout
from flightwatch.detectors.rank_matrix import RunSteps, end_times


@dataclass
class DenseRun:
    """One run's window as arrays.

    Attributes
    ----------
    steps_S, ranks_R: ascending. channels: column to float32 [S, R], NaN where unknown; maps are flattened.
    start_ms_SF: start of each step on a few ranks, milliseconds. places: one row per rank, columns rank, node, device.
    asynchronous: some row's mode is async.
    """

    job: str | None
    run: str | None
    cluster: str | None
    steps_S: np.ndarray[Any, np.dtype[np.int64]]
    ranks_R: np.ndarray[Any, np.dtype[np.int64]]
    channels: dict[str, FloatArray]
    start_ms_SF: FloatArray
    places: pd.DataFrame
    asynchronous: bool = False
    _layout: tuple[object, Layout] | None = field(default=None, repr=False)

    def names(self) -> Iterable[str]:
        """See `rank_matrix.StepSource`."""
        return self.channels

    def dense(self, name: str) -> FloatArray | None:
        """See `rank_matrix.StepSource`."""
        values = self.channels.get(name)
        return None if values is None or np.isnan(values).all() else values

    def says_async(self) -> bool:
        """See `rank_matrix.StepSource`."""
        return self.asynchronous

    def take_layout_of(self, before: DenseRun) -> None:
        """Keep the layout of the window before this one; it holds while ranks and standing tables stay."""
        self._layout = before._layout

    def run_steps(self, frames: Frames) -> RunSteps:
        """Return the run as detectors read it; its layout is built again only when placements or inventory changed."""
        key = (*(_mark(frames.get(name)) for name in ("placements", "inventory")), len(self.ranks_R))
        if self._layout is None or self._layout[0] != key:
            self._layout = key, build_layout(frames, self.job, self.run, self.ranks_R, self.places)
        built = RunSteps(
            self.job, self.run, self.cluster, self.steps_S, self._layout[1], np.full(len(self.steps_S), np.nan), self
        )
        length = self.channels.get("step_us")
        built.end_ms_S = end_times(self.start_ms_SF, length)
        return built


class DenseFrames(dict[str, pd.DataFrame]):
    """Frames whose `rank_steps` come as dense runs; `rank_steps` among the tables holds other runs or nothing.

    Parameters
    ----------
    tables: all other tables. dense_runs: the windows.
    """

    def __init__(self, tables: Frames, dense_runs: Sequence[DenseRun]) -> None:
        super().__init__(tables)
        self.dense_runs = tuple(dense_runs)


def ranks_seen(frames: Frames, job: str | None, run: str | None) -> pd.DataFrame:
    """Return one row per rank of a run with the columns rank and, where known, node and device; empty when unseen."""
    for dense in getattr(frames, "dense_runs", ()):
        if dense.job == job and (run is None or dense.run == run):
            return pd.DataFrame(dense.places)
    rows = frames.get("rank_steps")
    if rows is None or rows.empty or not {"rank", "job"} <= set(rows.columns):
        return pd.DataFrame({"rank": []})
    mine = rows[rows["job"] == job]
    if run is not None and "run" in mine:
        mine = mine[mine["run"] == run]
    kept = [name for name in ("rank", "node", "device") if name in mine]
    return mine[kept].dropna(subset=["rank"]).drop_duplicates("rank", keep="last")


def has_values(frames: Frames, columns: Iterable[str]) -> bool:
    """Say whether any row of `rank_steps` has a value in one of the columns."""
    names = list(columns)
    if any(dense.dense(name) is not None for dense in getattr(frames, "dense_runs", ()) for name in names):
        return True
    rows = frames.get("rank_steps")
    return rows is not None and any(name in rows and bool(rows[name].notna().any()) for name in names)


def has_positive(frames: Frames, column: str) -> bool:
    """Say whether any row of `rank_steps` is above zero in a column."""
    for dense in getattr(frames, "dense_runs", ()):
        values = dense.dense(column)
        if values is not None and bool((values > 0).any()):
            return True
    rows = frames.get("rank_steps")
    return rows is not None and column in rows and bool((rows[column] > 0).any())


def _mark(rows: pd.DataFrame | None) -> object:
    """Return what changes when a standing table does: its length and newest time."""
    if rows is None or rows.empty:
        return None
    return len(rows), float(rows["ts"].max()) if "ts" in rows else None
