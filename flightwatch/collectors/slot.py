"""One collector's place in the schedule, and what its calls came to."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.protocols import Collector


@dataclass(slots=True)
class CallCounts:
    """Totals of one collector's calls since the start of the agent; the times are of the last call and the longest."""

    success: int = 0
    failure: int = 0
    no_data: int = 0
    stuck: int = 0
    skipped: int = 0
    last_seconds: float = 0.0
    longest_seconds: float = 0.0
    busy_seconds: float = 0.0


class Slot:
    """One collector: when it is due, whether it runs, how it went.

    Attributes
    ----------
    next_s: monotonic time of the next call.
    running_since: monotonic start of the call in progress, None when there is none.
    failures: failed calls in a row.
    error: text of the last failure or of the last NoData, "" after a success.
    """

    def __init__(self, collector: Collector, start_s: float) -> None:
        self.collector = collector
        self.name = collector.name
        self.interval_s = collector.interval_seconds
        self.next_s = start_s
        self.running_since: float | None = None
        self.own_thread = bool(getattr(collector, "own_thread", False))
        self.stuck = False
        self.failures = 0
        self.error = ""
        self.counts = CallCounts()
        self._start_s = start_s
        self._pause_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Say whether it is time for a call and none is in progress."""
        return self.running_since is None and self.next_s <= now_s

    def succeeded(self) -> None:
        """Count a call that returned."""
        self.counts.success += 1
        self.failures, self.error, self._pause_s = 0, "", 0.0

    def no_data(self, why: str, pause_s: float) -> None:
        """Count a call that found no hardware; the next one comes after at least `pause_s`."""
        self.counts.no_data += 1
        self.failures, self.error, self._pause_s = 0, why, pause_s

    def failed(self, why: str) -> None:
        """Count a call that failed."""
        self.counts.failure += 1
        self.failures += 1
        self.error = why

    def finished(self, started_s: float, ended_s: float, longest_pause_s: float) -> None:
        """End a call and set the next due time: the next multiple of the interval that is not in the past.

        After a failure the pause doubles with every further one, up to `longest_pause_s`.
        """
        self.running_since, self.stuck = None, False
        taken_s = ended_s - started_s
        counts = self.counts
        counts.last_seconds = taken_s
        counts.busy_seconds += taken_s
        counts.longest_seconds = max(counts.longest_seconds, taken_s)
        pause_s = self._pause_s
        if self.failures:
            pause_s = min(longest_pause_s, self.interval_s * 2.0 ** min(self.failures, 20))
        planned_s = self.next_s + max(self.interval_s, pause_s)
        if planned_s <= ended_s:
            missed = int((ended_s - self._start_s) / self.interval_s) + 1
            aligned_s = self._start_s + missed * self.interval_s
            counts.skipped += max(0, round((aligned_s - planned_s) / self.interval_s))
            planned_s = aligned_s
        self.next_s = planned_s
