"""Who still makes steps: watches rows on their way to the sink, and says when a job stands still."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flightwatch.core.clock import Clock
from flightwatch.core.hang_evidence import QUIET_PHASE_SECONDS
from flightwatch.core.protocols import Row, Sink
from flightwatch.core.vocabulary import RunPhase

#: A job stands still after so many of its longest recent steps.
STEPS = 5.0
_MOST_JOBS = 64
_FORGET_SECONDS = 7200.0


@dataclass(slots=True)
class _Job:
    last_s: float
    longest_step_s: float = 0.0
    steps: int = 0
    phase: str = ""
    told: bool = False


class Progress:
    """Times of the last steps by (job, run). Thread-safe.

    Parameters
    ----------
    least_seconds: shortest standstill that is told.
    """

    def __init__(self, clock: Clock, least_seconds: float) -> None:
        self._clock = clock
        self._least_s = least_seconds
        self._jobs: dict[tuple[str, str], _Job] = {}
        # When jobs ended (ms since the epoch), the newest last.
        self._ended: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def see(self, row: Row) -> None:
        """Take a row of `rank_steps` or `runs`; others are passed over.

        A job whose training ended is forgotten until it makes steps later than that end.
        """
        if row.table not in ("rank_steps", "runs"):
            return
        key = (str(row.values.get("job")), str(row.values.get("run")))
        with self._lock:
            if self._over(key, row):
                return
            job = self._jobs.get(key)
            if job is None:
                if len(self._jobs) >= _MOST_JOBS:
                    return
                job = self._jobs[key] = _Job(self._clock.monotonic_s())
            if row.table == "runs":
                job.phase = str(row.values.get("phase")) if row.values.get("ended_at") is None else ""
                job.last_s, job.told = self._clock.monotonic_s(), False
                return
            job.last_s, job.told = self._clock.monotonic_s(), False
            job.phase = ""
            job.steps += 1
            step_us = row.values.get("step_us")
            if isinstance(step_us, (int, float)):
                # Decays, so that one long step at the start does not blind the watch for ever.
                job.longest_step_s = max(step_us / 1e6, job.longest_step_s * 0.99)

    def _over(self, key: tuple[str, str], row: Row) -> bool:
        """Say whether a row ends its job, or is older than the job's end."""
        if row.table == "runs":
            ended_ms = row.values.get("ended_at")
            if row.values.get("phase") == RunPhase.TRAIN and isinstance(ended_ms, int):
                self._jobs.pop(key, None)
                self._ended.pop(key, None)
                self._ended[key] = ended_ms
                if len(self._ended) > _MOST_JOBS:
                    del self._ended[next(iter(self._ended))]
                return True
            # Phases alone start no watch again: they can arrive after the end they precede.
            return key in self._ended
        ended_at_ms, ts = self._ended.get(key), row.values.get("ts")
        # The last steps of other ranks arrive after the end that rank 0 tells.
        if ended_at_ms is not None and isinstance(ts, int) and ts <= ended_at_ms:
            return True
        self._ended.pop(key, None)
        return False

    def standing(self) -> list[tuple[str, str]]:
        """Return jobs that made steps and have stood still for too long; each standstill is told once."""
        now_s = self._clock.monotonic_s()
        found = []
        with self._lock:
            for key in [key for key, job in self._jobs.items() if now_s - job.last_s > _FORGET_SECONDS]:
                del self._jobs[key]
            for key, job in self._jobs.items():
                quiet_s = QUIET_PHASE_SECONDS.get(job.phase)
                limit_s = max(self._least_s, STEPS * job.longest_step_s, quiet_s or 0.0)
                watched = job.steps > 1 or quiet_s is not None
                if watched and not job.told and now_s - job.last_s > limit_s:
                    job.told = True
                    found.append(key)
        return found

    def stands(self, key: tuple[str, str]) -> bool:
        """Say whether a job that was told has made no step since."""
        with self._lock:
            job = self._jobs.get(key)
            return job is not None and job.told


class ProgressSink:
    """A sink in front of another that shows rows to a `Progress`."""

    def __init__(self, sink: Sink, progress: Progress) -> None:
        self._sink = sink
        self._progress = progress

    def emit(self, rows: Iterable[Row]) -> None:
        """Show and pass on."""
        self._sink.emit(self._shown(rows))

    def _shown(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._progress.see(row)
            yield row

    def flush(self, timeout_seconds: float) -> bool:
        """Flush the sink behind."""
        return self._sink.flush(timeout_seconds)
