"""What is known of the cluster around an incident: domains, jobs, how they get on, whether Flightwatch sees."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.logs import Occasionally
from flightwatch.detectors.joint import DOMAINS, Places
from flightwatch.incidents.severity import JobState
from flightwatch.pipeline.store import incident_reads
from flightwatch.pipeline.store.client import Store

log = logging.getLogger(__name__)

REFRESH_SECONDS = 15.0
#: How long a measured slowdown is used before it is measured again, and how many are measured in one refresh.
_FRESH_SECONDS = 30.0
_MOST_MEASURED = 20
#: A slowdown below this is noise of the step time.
_LEAST_SLOWDOWN = 0.005


@dataclass(frozen=True)
class ClusterView:
    """One picture of the cluster.

    Attributes
    ----------
    node_job: node to the job that uses it. devices: node to its number of accelerators.
    """

    places: Places = field(default_factory=lambda: Places({}, {}))
    jobs: Mapping[str, JobState] = field(default_factory=dict)
    node_job: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)


class Context:
    """Keeps the picture fresh in a thread of its own, so that a slow store never delays a message.

    Parameters
    ----------
    lag: seconds by which storing is behind; raises TransientError when the bus does not say.
    """

    def __init__(self, store: Store | None, clock: Clock, lag: Callable[[], float] | None = None) -> None:
        self._store, self._clock, self._lag = store, clock, lag
        self.view = ClusterView()
        self._lock = threading.Lock()
        self._wanted: dict[tuple[str, int], float] = {}
        self._measured: dict[tuple[str, int], tuple[float, float | None]] = {}
        self._seen_s: float | None = None
        self._behind: float | None = None
        self._trouble = Occasionally(60.0)

    def run(self, stop: threading.Event) -> None:
        """Refresh until told to stop."""
        while not stop.is_set():
            self.refresh()
            stop.wait(REFRESH_SECONDS)

    def refresh(self) -> None:
        """Read everything once; what cannot be read stays as it was."""
        self._refresh_lag()
        if self._store is None:
            return
        try:
            self.view = self._read(self._store)
            self._measure(self._store)
        except FlightwatchError as error:
            if self._trouble.due():
                log.warning("The picture of the cluster stays as it was: %s", error)

    def behind_seconds(self) -> float | None:
        """Return by how much storing is behind; while the bus does not answer, since how long; None before any try."""
        if self._seen_s is None or self._behind is None:
            return self._behind
        return self._behind + max(0.0, self._clock.monotonic_s() - self._seen_s - 2 * REFRESH_SECONDS)

    def slowdown(self, job: str, onset_ms: int) -> float | None:
        """Return 1 - step time before a time / step time now; None until it was measured, or where it cannot be."""
        key = (job, onset_ms)
        with self._lock:
            self._wanted[key] = self._clock.monotonic_s()
            return self._measured.get(key, (0.0, None))[1]

    def _refresh_lag(self) -> None:
        if self._lag is None:
            return
        try:
            self._behind = self._lag()
            self._seen_s = self._clock.monotonic_s()
        except FlightwatchError as error:
            if self._seen_s is None:
                self._behind, self._seen_s = 0.0, self._clock.monotonic_s()
            if self._trouble.due():
                log.warning("How far storing is behind is unknown: %s", error)

    def _read(self, store: Store) -> ClusterView:
        nodes = incident_reads.domains(store)
        named = {kind: {row["node"]: row[kind] for row in nodes if row[kind]} for kind in DOMAINS}
        placed = incident_reads.jobs(store)
        steps = {row["job"]: row for row in incident_reads.progress(store)}
        owners = {row["job"]: row["tenant"] for row in incident_reads.tenants(store)}
        jobs: dict[str, JobState] = {}
        node_job: dict[str, str] = {}
        # The job whose newest sign of life is newest has the node.
        for row in sorted(placed, key=lambda one: steps.get(one["job"], {}).get("newest_step_at", one["placed_at"])):
            step = steps.get(row["job"], {})
            jobs[row["job"]] = JobState(
                row["job"], row["ranks"], owners.get(row["job"]), row["run"], step.get("newest_step_at"),
                step.get("step_us"),
            )  # fmt: skip
            node_job |= dict.fromkeys(row["nodes"], row["job"])
        job_nodes: dict[str, set[str]] = {}
        for node, job in node_job.items():
            job_nodes.setdefault(job, set()).add(node)
        return ClusterView(
            Places(named, job_nodes), jobs, node_job, {row["node"]: row["devices"] for row in nodes if row["devices"]}
        )

    def _measure(self, store: Store) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._wanted = {key: at for key, at in self._wanted.items() if now_s - at < 4 * REFRESH_SECONDS}
            self._measured = {key: one for key, one in self._measured.items() if key in self._wanted}
            due = [key for key in self._wanted if now_s - self._measured.get(key, (-1e9, None))[0] >= _FRESH_SECONDS]
        for job, onset_ms in sorted(due, key=lambda key: self._measured.get(key, (-1e9, None))[0])[:_MOST_MEASURED]:
            before, late = incident_reads.step_times(store, job, onset_ms, self._clock.now_ms())
            share = None if not before or not late else 1 - before / late
            with self._lock:
                value = None if share is None else share if share > _LEAST_SLOWDOWN else 0.0
                self._measured[job, onset_ms] = (now_s, value)
