"""Reads of ranks over steps: which steps a stretch of time holds, and one channel of all ranks on some of them.

`rank_steps` is ordered by job, run, step and rank, so a few hundred chosen steps of 10,000 ranks are found through the
index; a stretch of time is not, so it is turned into steps first (a handful of probes of one granule each).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flightwatch.pipeline.store.client import Store

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
#: Columns of `rank_steps` that pages may ask for, and their unit.
CHANNELS: Mapping[str, str] = {
    "compute_us": "µs", "step_us": "µs", "wait_us": "µs", "comm_us": "µs", "transfer_us": "µs", "data_us": "µs",
    "forward_us": "µs", "backward_us": "µs", "optimizer_us": "µs", "launch_gap_us": "µs", "checkpoint_us": "µs",
}  # fmt: skip
_WHICH = "job = {job:String} AND run = {run:String}"
_PROBES = 24
#: A step that began this close to a wanted moment is the one.
NEAR_MS = 2000


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job: its cluster, run, ranks that ever stepped in it, newest step and when that was."""

    cluster: str
    run: str
    ranks: int
    newest_step: int
    newest_ms: int
    age_seconds: float


def attempts(store: Store, job: str) -> list[Attempt]:
    """Return the attempts of a job that have steps, the newest first."""
    rows = store.rows(
        """
        SELECT cluster, run, uniqExact(rank) AS ranks, max(step) AS newest_step, max(ts) AS newest,
            dateDiff('millisecond', max(ts), now64(3)) / 1000 AS age
        FROM flightwatch.rank_latest WHERE job = {job:String} GROUP BY cluster, run ORDER BY newest DESC LIMIT 50
        """,
        {"job": job},
    )
    return [Attempt(r["cluster"], r["run"], r["ranks"], r["newest_step"], r["newest"], r["age"]) for r in rows]


def chosen_steps(store: Store, job: str, attempt: Attempt, start_ms: int, end_ms: int, most: int) -> list[int]:
    """Return at most about `most` steps of an attempt, evenly spread over a stretch of time."""
    which = {"cluster": attempt.cluster, "job": job, "run": attempt.run}
    low = _step_at(store, which, start_ms, attempt)
    high = attempt.newest_step if end_ms >= attempt.newest_ms else _step_at(store, which, end_ms, attempt)
    if low is None or high is None or high < low:
        return []
    stride = max(1, -(-(high - low + 1) // most))
    # Always the same steps of a stride, so that a refresh adds columns and does not change those that are there.
    first = -(-low // stride) * stride
    return list(range(first if first <= high else low, high + 1, stride))


def _step_at(store: Store, which: Mapping[str, Any], at_ms: int, attempt: Attempt) -> int | None:
    """Return the first step that began at `at_ms` or later; None when there is none."""
    if at_ms > attempt.newest_ms:
        return None
    first = _probe(store, which, 0)
    if first is None:
        return None
    (low, low_ms), (high, high_ms) = first, (attempt.newest_step, attempt.newest_ms)
    if low_ms >= at_ms:
        return low
    for turn in range(_PROBES):
        if high - low <= 1 or high_ms <= low_ms:
            break
        # Steps take about equally long: a straight line finds the place soon; halving now and then bounds the search.
        share = (at_ms - low_ms) / (high_ms - low_ms) if turn % 3 != 2 else 0.5
        guess = min(high - 1, max(low + 1, low + int((high - low) * share)))
        found = _probe(store, which, guess)
        if found is None or found[0] >= high:
            high = guess
            continue
        step, ts_ms = found
        if abs(ts_ms - at_ms) < NEAR_MS:
            return step
        if ts_ms >= at_ms:
            high, high_ms = step, ts_ms
        else:
            low, low_ms = step, ts_ms
    return high


def _probe(store: Store, which: Mapping[str, Any], step: int) -> tuple[int, int] | None:
    rows = store.rows(
        f"""
        SELECT step, ts FROM flightwatch.rank_steps
        WHERE cluster = {{cluster:String}} AND {_WHICH} AND step >= {{step:UInt64}}
        ORDER BY cluster, job, run, step LIMIT 1
        """,
        {**which, "step": step},
        {"max_threads": 1, "max_block_size": 1024},
    )
    return (int(rows[0]["step"]), int(rows[0]["ts"])) if rows else None


@dataclass(frozen=True)
class StepMatrix:
    """One channel of all ranks on some steps.

    Attributes
    ----------
    steps: [S]. starts_ms: [S], when each step began (the earliest rank). ranks: [R], sorted.
    values_RS: [R, S]; NaN where a rank told nothing.
    """

    steps: IntArray
    starts_ms: IntArray
    ranks: IntArray
    values_RS: FloatArray


def matrix(
    store: Store, job: str, attempt: Attempt, steps: Sequence[int], channel: str, ranks: Sequence[int] | None = None
) -> StepMatrix:
    """Return one channel of a job's ranks on given steps; `ranks`: only these."""
    if channel not in CHANNELS:
        raise KeyError(channel)
    some = " AND rank IN {ranks:Array(UInt32)}" if ranks is not None else ""
    table = store.arrow(
        f"""
        SELECT toUInt32(step) AS step, rank, ifNull({channel}, nan) AS value, toUnixTimestamp64Milli(ts) AS at
        FROM flightwatch.rank_steps
        WHERE cluster = {{cluster:String}} AND {_WHICH} AND step IN {{steps:Array(UInt64)}}{some}
        """,
        {"cluster": attempt.cluster, "job": job, "run": attempt.run, "steps": list(steps), "ranks": list(ranks or ())},
    )
    step, rank = table["step"].to_numpy().astype(np.int64), table["rank"].to_numpy().astype(np.int64)
    found_steps, column = _numbered(step)
    found_ranks, row = _numbered(rank)
    values = np.full((len(found_ranks), len(found_steps)), np.nan, dtype=np.float32)
    values[row, column] = table["value"].to_numpy()
    starts = np.full(len(found_steps), np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(starts, column, table["at"].to_numpy().astype(np.int64))
    return StepMatrix(found_steps, starts, found_ranks, values)


def _numbered(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values sorted, and the place of each value among them; fast for small whole numbers."""
    if not len(values):
        return values, values
    low, high = int(values.min()), int(values.max())
    if high - low > 50_000_000:
        found, place = np.unique(values, return_inverse=True)
        return found, place
    there = np.zeros(high - low + 1, dtype=bool)
    there[values - low] = True
    places = np.cumsum(there) - 1
    return np.flatnonzero(there) + low, places[values - low]


@dataclass(frozen=True)
class Roles:
    """Where each rank runs and which part it plays: arrays in the order of `ranks`; -1 for an absent axis."""

    ranks: IntArray
    nodes: list[str]
    devices: list[int | None]
    axes: Mapping[str, IntArray]

    def cohort(self, ranks: IntArray) -> IntArray:
        """Return the stage of each of `ranks` (its place on pp, and ep where there is one); -1 unknown."""
        order = {int(rank): index for index, rank in enumerate(self.ranks)}
        at = np.array([order.get(int(rank), -1) for rank in ranks], dtype=np.int64)
        stage = self.axes["pp"][at] * 1000 + self.axes["ep"][at] if len(self.ranks) else at
        return np.where(at >= 0, stage, -1)


AXES = ("tp", "cp", "pp", "dp", "ep")


def roles(store: Store, job: str, attempt: Attempt) -> Roles:
    """Return the placement of every rank of an attempt; ranks without one are told by where they stepped last."""
    picks = ", ".join(f"argMax(ifNull({axis}, -1), (ts, src_offset)) AS {axis}" for axis in AXES)
    rows = store.rows(
        f"""
        SELECT rank, argMax(node, (ts, src_offset)) AS node, argMax(tuple(device), (ts,
            src_offset)).1 AS device, {picks}
        FROM flightwatch.placements WHERE cluster = {{cluster:String}} AND {_WHICH} GROUP BY rank ORDER BY rank
        """,
        {"cluster": attempt.cluster, "job": job, "run": attempt.run},
    )
    if not rows:
        rows = store.rows(
            f"""
            SELECT rank, argMax(node, version) AS node, argMax(tuple(device), version).1 AS device,
                {", ".join(f"-1 AS {axis}" for axis in AXES)}
            FROM flightwatch.rank_latest WHERE cluster = {{cluster:String}} AND {_WHICH} GROUP BY rank ORDER BY rank
            """,
            {"cluster": attempt.cluster, "job": job, "run": attempt.run},
        )
    return Roles(
        np.array([row["rank"] for row in rows], dtype=np.int64),
        [row["node"] for row in rows],
        [row["device"] for row in rows],
        {axis: np.array([row[axis] for row in rows], dtype=np.int64) for axis in AXES},
    )
