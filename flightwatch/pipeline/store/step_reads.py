"""Reads of ranks over steps: which steps a stretch of time holds, and one channel of all ranks on some of them.

`rank_steps` is ordered by job, run, step and rank, so a few hundred chosen steps of 10,000 ranks are found through the
index; a stretch of time is not, so it is turned into steps first (a handful of probes of one granule each).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.columns import wholes

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
#: Begins of steps that are remembered of one attempt.
MOST_SEEN = 256


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


def chosen_steps(
    store: Store,
    job: str,
    attempt: Attempt,
    start_ms: int,
    end_ms: int,
    most: int,
    seen: MutableMapping[int, int] | None = None,
) -> list[int]:
    """Return at most about `most` steps of an attempt, evenly spread over a stretch of time.

    Parameters
    ----------
    seen: when steps of this attempt began, as found before; what is found now is added. It saves probes.
    """
    known = {} if seen is None else seen
    search = _Search(store, {"cluster": attempt.cluster, "job": job, "run": attempt.run}, attempt, known)
    low = search.step_at(start_ms)
    high = attempt.newest_step if end_ms >= attempt.newest_ms else search.step_at(end_ms)
    if low is None or high is None or high < low:
        return []
    stride = max(1, -(-(high - low + 1) // most))
    # Always the same steps of a stride, so that a refresh adds columns and does not change those that are there.
    first = -(-low // stride) * stride
    return list(range(first if first <= high else low, high + 1, stride))


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for the step of a moment, by interpolation between steps whose begin is known."""

    store: Store
    which: Mapping[str, Any]
    attempt: Attempt
    seen: MutableMapping[int, int]

    def step_at(self, at_ms: int) -> int | None:
        """Return the first step that began at `at_ms` or later; None when there is none."""
        if at_ms > self.attempt.newest_ms:
            return None
        known = list(self.seen.items())
        earlier = [(step, ts) for step, ts in known if ts < at_ms]
        first = max(earlier) if earlier else self._probe(0)
        if first is None:
            return None
        low, low_ms = first
        if low_ms >= at_ms:
            return low
        later = [(step, ts) for step, ts in known if ts >= at_ms and step > low]
        high, high_ms = min([*later, (self.attempt.newest_step, self.attempt.newest_ms)])
        for step, ts_ms in ((low, low_ms), (high, high_ms)):
            if abs(ts_ms - at_ms) < NEAR_MS:
                return step
        return self._between(at_ms, (low, low_ms), (high, high_ms))

    def _between(self, at_ms: int, before: tuple[int, int], after: tuple[int, int]) -> int:
        (low, low_ms), (high, high_ms) = before, after
        for turn in range(_PROBES):
            if high - low <= 1 or high_ms <= low_ms:
                break
            # Steps take about equally long: a straight line finds the place soon; halving now and then bounds it.
            share = (at_ms - low_ms) / (high_ms - low_ms) if turn % 3 != 2 else 0.5
            guess = min(high - 1, max(low + 1, low + int((high - low) * share)))
            found = self._probe(guess)
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

    def _probe(self, step: int) -> tuple[int, int] | None:
        found = _probe(self.store, self.which, step)
        if found is not None:
            if len(self.seen) >= MOST_SEEN:
                self.seen.clear()
            self.seen[found[0]] = found[1]
        return found


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
    return matrices(store, job, attempt, steps, (channel,), ranks)[0]


def matrices(
    store: Store,
    job: str,
    attempt: Attempt,
    steps: Sequence[int],
    channels: Sequence[str],
    ranks: Sequence[int] | None = None,
) -> list[StepMatrix]:
    """Return several channels of a job's ranks on given steps, read at once; `ranks`: only these."""
    unknown = [name for name in channels if name not in CHANNELS]
    if unknown:
        raise KeyError(unknown[0])
    some = " AND rank IN {ranks:Array(UInt32)}" if ranks is not None else ""
    picks = ", ".join(f"ifNull({name}, nan) AS value_{index}" for index, name in enumerate(channels))
    table = store.arrow(
        f"""
        SELECT toUInt32(step) AS step, rank, {picks}, toUnixTimestamp64Milli(ts) AS at
        FROM flightwatch.rank_steps
        WHERE cluster = {{cluster:String}} AND {_WHICH} AND step IN {{steps:Array(UInt64)}}{some}
        """,
        {"cluster": attempt.cluster, "job": job, "run": attempt.run, "steps": list(steps), "ranks": list(ranks or ())},
    )
    step, rank = table["step"].to_numpy().astype(np.int64), table["rank"].to_numpy().astype(np.int64)
    found_steps, column = _numbered(step)
    found_ranks, row = _numbered(rank)
    shape, flat = (len(found_ranks), len(found_steps)), row * len(found_steps) + column
    # Filling a matrix and taking its least values is five times as fast as np.minimum.at.
    begun = np.full(shape, np.iinfo(np.int64).max, dtype=np.int64)
    begun.ravel()[flat] = table["at"].to_numpy()
    starts = begun.min(axis=0) if len(found_ranks) else np.zeros(0, dtype=np.int64)
    found = []
    for index in range(len(channels)):
        values = np.full(shape, np.nan, dtype=np.float32)
        values.ravel()[flat] = table[f"value_{index}"].to_numpy()
        found.append(StepMatrix(found_steps, starts, found_ranks, values))
    return found


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
        if not len(self.ranks):
            return np.full(len(ranks), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.ranks, ranks), len(self.ranks) - 1)
        stage = self.axes["pp"][at] * 1000 + self.axes["ep"][at]
        return np.where(self.ranks[at] == ranks, stage, -1)


AXES = ("tp", "cp", "pp", "dp", "ep")


def roles(store: Store, job: str, attempt: Attempt) -> Roles:
    """Return the placement of every rank of an attempt; ranks without one are told by where they stepped last."""
    which = {"cluster": attempt.cluster, "job": job, "run": attempt.run}
    axes = ", ".join(f"ifNull({axis}, -1) AS {axis}" for axis in AXES)
    table = store.arrow(
        f"""
        SELECT rank, node, device, {axes} FROM flightwatch.placements
        WHERE cluster = {{cluster:String}} AND {_WHICH} ORDER BY rank, ts DESC, src_offset DESC LIMIT 1 BY rank
        """,
        which,
    )
    if not table.num_rows:
        table = store.arrow(
            f"""
            SELECT rank, argMax(node, version) AS node, argMax(tuple(device), version).1 AS device,
                {", ".join(f"-1 AS {axis}" for axis in AXES)}
            FROM flightwatch.rank_latest WHERE cluster = {{cluster:String}} AND {_WHICH} GROUP BY rank ORDER BY rank
            """,
            which,
        )
    return Roles(
        wholes(table, "rank"),
        table["node"].to_pylist(),
        table["device"].to_pylist(),
        {axis: wholes(table, axis) for axis in AXES},
    )
