"""A simulated cluster as it lives: what its agents would have sent up to a moment, in order of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from flightwatch.core.protocols import Row
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.live_rows import rows_of
from flightwatch.simulator.plan import TimedFault, jobs_of_node
from flightwatch.simulator.scalars import scalar_rows
from flightwatch.simulator.standing import ended_rows, fault_events, standing_rows
from flightwatch.simulator.stretches import stretches
from flightwatch.simulator.telemetry import TelemetrySpec
from flightwatch.simulator.timing import TimingModel
from flightwatch.simulator.words import coded

#: Samples drawn at once, and steps of a job drawn at once: what lies in memory.
STRETCH_SAMPLES, CHUNK_STEPS = 6, 50


class LiveCluster:
    """Draws all rows of a cluster with jobs and faults, moment after moment.

    Parameters
    ----------
    start_ms: begin of the simulation, milliseconds since the epoch; faults count from it.
    step_s: about how long the jobs' steps take. sample_s: interval of telemetry.
    lead_s: so much later do faults begin (a healthy history before them).
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: Sequence[Job],
        faults: Sequence[TimedFault],
        seed: int,
        start_ms: int,
        step_s: float = 5.0,
        sample_s: float = 10.0,
        lead_s: float = 0.0,
    ) -> None:
        self.cluster, self.jobs, self.faults = cluster, tuple(jobs), tuple(faults)
        self.start_ms, self._lead_s, self._step_s = start_ms, lead_s, step_s
        in_steps = [fault.in_steps(step_s, lead_s) for fault in faults]
        spec = TelemetrySpec(interval_s=sample_s, samples=STRETCH_SAMPLES, step_s=step_s)
        self._telemetry = stretches(cluster, jobs, in_steps, seed, start_ms, spec)
        self._frames: dict[str, pd.DataFrame] = {}
        self._drawn_ms = float(start_ms)
        self._stretch_ms = STRETCH_SAMPLES * sample_s * 1000
        self._steps = [_JobSteps(cluster, job, self._felt_by(job), seed + number, start_ms, self._stop_of(job), step_s)
                       for number, job in enumerate(jobs)]  # fmt: skip
        self._events = fault_events(cluster, [(fault, self.begin_ms(fault)) for fault in faults])
        self._done_ms = float(start_ms) - 1
        self._lasting = _device_facts(cluster, jobs)

    def begin_ms(self, fault: TimedFault) -> int:
        """Return when a fault begins, milliseconds since the epoch."""
        return self.start_ms + round((fault.after_s + self._lead_s) * 1000)

    def standing(self) -> list[Row]:
        """Return what holds from the begin on: inventory, placements, runs, configuration."""
        return standing_rows(self.cluster, self.jobs, self.start_ms)

    def ended(self, now_ms: int) -> list[Row]:
        """Return what tells that the jobs have ended."""
        return ended_rows(self.cluster, self.jobs, self.start_ms, now_ms)

    def until(self, now_ms: float) -> list[Row]:
        """Return the rows of the time since the last call, up to `now_ms`; keep the stretches short."""
        rows: list[Row] = []
        for frames in self._sampled(now_ms):
            for table, frame in frames.items():
                if table == "device_samples":
                    frame = self._with_facts(frame)
                rows += rows_of(table, frame)
                if table == "node_samples":
                    rows += _heartbeats(frame)
        for steps in self._steps:
            rows += steps.until(now_ms)
        rows += [row for row in self._events if self._done_ms < float(row.values["ts"]) <= now_ms]  # type: ignore[arg-type]
        self._done_ms = now_ms
        return rows

    def _sampled(self, now_ms: float) -> Iterator[dict[str, pd.DataFrame]]:
        while self._done_ms < now_ms:
            due = {name: _between(frame, self._done_ms, now_ms) for name, frame in self._frames.items()}
            if any(len(frame) for frame in due.values()):
                yield due
            if self._drawn_ms > now_ms:
                return
            self._frames = next(self._telemetry)
            self._drawn_ms += self._stretch_ms

    def _with_facts(self, frame: pd.DataFrame) -> pd.DataFrame:
        device = frame["device"].to_numpy().astype(np.int64)
        place = frame["node"].cat.codes.to_numpy().astype(np.int64) * self.cluster.devices_per_node + device
        return frame.assign(**{name: column.take(place) for name, column in self._lasting.items()})

    def _felt_by(self, job: Job) -> list[TimedFault]:
        return [_later(fault, self._lead_s) for fault in self.faults]

    def _stop_of(self, job: Job) -> float:
        """A synchronous job stands still from the moment on at which one of its nodes is gone."""
        gone = [one for one in self.faults if one.fault.kind == "dead_node"]
        dead = [self.begin_ms(one) for one in gone if jobs_of_node(self.cluster, [job], one.fault.node)]
        return float(min(dead, default=np.inf))


class _JobSteps:
    """The steps of one job, in order of their ends."""

    def __init__(
        self, cluster: Cluster, job: Job, faults: Sequence[TimedFault], seed: int, start_ms: int, stop_ms: float,
        step_s: float,
    ) -> None:  # fmt: skip
        self._cluster, self._job, self._seed, self._stop_ms = cluster, job, seed, stop_ms
        self._step_s = step_s
        in_steps = [fault.in_steps(step_s) for fault in faults]
        self._model = TimingModel(cluster, job, in_steps, seed, start_ms)
        self._frame = pd.DataFrame()
        self._ends_S = np.empty(0)
        self._next, self._first = 0, 0
        self._node = cluster.node_name(int(job.place(cluster)[0][0]))

    def until(self, now_ms: float) -> Iterator[Row]:
        """Yield rows of the steps that ended since the last call."""
        limit = min(now_ms, self._stop_ms)
        while True:
            if self._next == len(self._ends_S):
                if len(self._ends_S) and self._ends_S[-1] > limit:
                    return
                self._draw()
            ready = int(np.searchsorted(self._ends_S, limit, side="right"))
            if ready > self._next:
                ranks = self._job.ranks
                yield from rows_of("rank_steps", self._frame.iloc[self._next * ranks : ready * ranks])
                for at in range(self._next, ready):
                    yield from self._scalars(at)
                self._next = ready
            if ready < len(self._ends_S):
                return

    def _draw(self) -> None:
        self._first += len(self._ends_S)
        self._frame = self._model.frame(CHUNK_STEPS, first_step=self._first)
        first_of_step = self._frame.iloc[:: self._job.ranks]
        longest_us = self._frame["step_us"].to_numpy().reshape(CHUNK_STEPS, self._job.ranks).max(axis=1)
        self._ends_S = first_of_step["ts"].to_numpy() + longest_us / 1000
        self._next = 0

    def _scalars(self, at: int) -> list[Row]:
        return scalar_rows(
            self._job, self._node, self._cluster.name, self._seed, self._first + at, int(self._ends_S[at]), self._step_s
        )


def _later(fault: TimedFault, seconds: float) -> TimedFault:
    return TimedFault(fault.fault, fault.after_s + seconds, fault.for_s)


def _between(frame: pd.DataFrame, after_ms: float, until_ms: float) -> pd.DataFrame:
    ts = frame["ts"].to_numpy()
    begin, end = np.searchsorted(ts, [after_ms, until_ms], side="right")
    return frame.iloc[int(begin) : int(end)]


def _device_facts(cluster: Cluster, jobs: Sequence[Job]) -> dict[str, pd.Categorical[Any] | np.ndarray]:
    """Return what lasts of each device, by place (node x devices per node + device): serial, job, run, rank."""
    places = cluster.nodes * cluster.devices_per_node
    job_P, rank_P = np.full(places, -1), np.full(places, np.nan)
    for number, job in enumerate(jobs):
        node_R, device_R = job.place(cluster)
        place_R = node_R * cluster.devices_per_node + device_R
        job_P[place_R], rank_P[place_R] = number, np.arange(job.ranks)
    serials = cluster.inventory(0)["serial"].tolist()
    return {
        "serial": coded(np.arange(places), serials),
        "job": coded(job_P, [job.name for job in jobs]),
        "run": pd.Categorical([jobs[number].run if number >= 0 else None for number in job_P.tolist()]),
        "rank": rank_P,
    }


def _heartbeats(nodes: pd.DataFrame) -> Iterator[Row]:
    """Yield the heartbeat of each node's agent at each sample."""
    columns = (nodes["ts"].tolist(), nodes["cluster"].tolist(), nodes["node"].tolist())
    for ts, cluster, node in zip(*columns, strict=True):
        for name in ("last_collected_at_ms", "last_sent_at_ms"):
            values = {"ts": int(ts), "cluster": cluster, "node": node, "component": "agent", "instance": ""}
            yield Row("self_metrics", {**values, "name": name, "value": float(ts)})
