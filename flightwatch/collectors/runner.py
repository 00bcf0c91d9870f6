"""Calls collectors on time, each isolated from the others.

One worker thread calls everything that is quick. A collector that runs a command, or that once took
longer than SLOW_CALL_SECONDS, gets a thread of its own. A call that does not come back is reported
after a while and left alone with its thread while a new worker takes over the others: no source can
stop the agent, and no source is ever called twice at once.

The schedule is monotonic: due times are multiples of the interval since the start, so that they
neither drift nor care when the wall clock jumps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from flightwatch.collectors.slot import Slot
from flightwatch.core.clock import Clock
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Collector, Row, Sink, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource

logger = logging.getLogger(__name__)

#: A call longer than this moves its collector to a thread of its own.
SLOW_CALL_SECONDS = 0.5
#: Absent hardware is looked for again this often.
NO_DATA_SECONDS = 60.0
#: Longest pause between calls of a failing collector.
LONGEST_BACKOFF_SECONDS = 300.0
#: A change of wall clock against monotonic clock that is reported.
CLOCK_STEP_MS = 500


class Runner:
    """Runs a set of collectors into a sink.

    Parameters
    ----------
    stuck_after_seconds: a call that takes longer is reported as stuck.
    start_thread: starts a thread that calls a function; injected in tests.
    """

    def __init__(
        self,
        collectors: Sequence[Collector],
        sink: Sink,
        clock: Clock,
        stuck_after_seconds: float,
        start_thread: Callable[[Callable[[], None], str], None] | None = None,
    ) -> None:
        now_s = clock.monotonic_s()
        self.slots = [Slot(collector, now_s) for collector in collectors]
        self.last_collected_ms: int | None = None
        self._sink = sink
        self._clock = clock
        self._stuck_after_s = stuck_after_seconds
        self._start_thread = start_thread or _start_daemon
        self._wake = threading.Condition()
        self._worker = 0
        self._stopping = False
        self._wall_minus_monotonic_ms = clock.now_ms() - now_s * 1000

    def start(self) -> None:
        """Start the worker thread."""
        self._start_worker()

    def stop(self, timeout_seconds: float) -> None:
        """Start no new call, wait for running ones, and let every idle collector close what it holds.

        A call that is still running after `timeout_seconds` is abandoned.
        """
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
            deadline_s = self._clock.monotonic_s() + timeout_seconds
            while any(slot.running_since is not None for slot in self.slots):
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    break
                self._wake.wait(min(left_s, 0.1))
        for slot in self.slots:
            close = getattr(slot.collector, "close", None)
            if close is not None and slot.running_since is None:
                try:
                    close()
                except Exception:  # One collector that cannot close must not keep the others from it.
                    logger.exception("collector %s did not close", slot.name)

    def run_due(self) -> float:
        """Call every collector that is due, in their order; return the seconds until the next one is.

        Collectors with a thread of their own are handed to it and not waited for.
        """
        self._check_clock()
        worker = self._worker
        for slot in self.slots:
            if self._stopping or worker != self._worker:
                return 0.0
            if slot.is_due(self._clock.monotonic_s()):
                if slot.own_thread:
                    slot.running_since = self._clock.monotonic_s()
                    self._start_thread(lambda slot=slot: self._call(slot), f"collect-{slot.name}")  # type: ignore[misc]
                else:
                    self._call(slot)
        due_s = min((slot.next_s for slot in self.slots if slot.running_since is None), default=float("inf"))
        return max(0.0, due_s - self._clock.monotonic_s())

    def watch(self) -> None:
        """Report calls that do not come back, and replace the worker when it is the one that waits."""
        now_s = self._clock.monotonic_s()
        for slot in self.slots:
            since_s = slot.running_since
            if since_s is None or slot.stuck or now_s - since_s < self._stuck_after_s:
                continue
            slot.stuck = True
            slot.counts.stuck += 1
            self._event(
                slot,
                "stuck",
                EventSeverity.ERROR,
                f"collector {slot.name} has not come back for {now_s - since_s:.0f} s; the others go on without it",
            )
            if not slot.own_thread:
                slot.own_thread = True
                self._start_worker()

    def collect_once(self) -> Iterable[Row]:
        """Call every collector once, now, on this thread, and yield what it returns; failures become events."""
        for slot in self.slots:
            rows: list[Row] = []
            self._call(slot, rows.extend)
            yield from rows

    def _start_worker(self) -> None:
        self._worker += 1
        number = self._worker
        self._start_thread(lambda: self._work(number), "collect")

    def _work(self, number: int) -> None:
        while not self._stopping and number == self._worker:
            wait_s = self.run_due()
            with self._wake:
                if wait_s > 0 and not self._stopping and number == self._worker:
                    self._wake.wait(min(wait_s, 60.0))

    def _call(self, slot: Slot, emit: Callable[[list[Row]], None] | None = None) -> None:
        emit = emit or self._sink.emit
        started_s = slot.running_since = self._clock.monotonic_s()
        try:
            rows = list(slot.collector.collect(self._clock.now_ms()))
        except NoData as error:
            slot.no_data(str(error), NO_DATA_SECONDS)
        except Exception as error:  # The runner is where one source's failure ends.
            self._failed(slot, error, emit)
        else:
            if slot.failures:
                self._event(slot, "recovered", EventSeverity.INFO, f"collector {slot.name} works again", emit)
            slot.succeeded()
            if rows:
                self.last_collected_ms = self._clock.now_ms()
                emit(rows)
        finally:
            ended_s = self._clock.monotonic_s()
            slot.finished(started_s, ended_s, LONGEST_BACKOFF_SECONDS)
            if slot.counts.last_seconds > SLOW_CALL_SECONDS:
                slot.own_thread = True
            if slot.own_thread:
                with self._wake:
                    self._wake.notify_all()

    def _failed(self, slot: Slot, error: Exception, emit: Callable[[list[Row]], None]) -> None:
        slot.failed(str(error) or type(error).__name__)
        if slot.failures == 1:
            logger.warning("collector %s failed: %s", slot.name, error, exc_info=error)
            self._event(
                slot,
                "failed",
                EventSeverity.WARNING,
                f"collector {slot.name} failed: {slot.error}; it is tried again at growing intervals",
                emit,
            )

    def _check_clock(self) -> None:
        offset_ms = self._clock.now_ms() - self._clock.monotonic_s() * 1000
        step_ms = offset_ms - self._wall_minus_monotonic_ms
        self._wall_minus_monotonic_ms = offset_ms
        if abs(step_ms) >= CLOCK_STEP_MS:
            direction = "forward" if step_ms > 0 else "back"
            message = f"the wall clock was set {direction} by {abs(step_ms) / 1000:.1f} s"
            self._sink.emit([self._row("clock_step", EventSeverity.WARNING, message, {"step_ms": f"{step_ms:.0f}"})])

    def _event(
        self,
        slot: Slot,
        what: str,
        severity: EventSeverity,
        message: str,
        emit: Callable[[list[Row]], None] | None = None,
    ) -> None:
        (emit or self._sink.emit)([self._row(f"collector_{what}", severity, message, {"collector": slot.name})])

    def _row(self, what: str, severity: EventSeverity, message: str, attrs: dict[str, str]) -> Row:
        values: dict[str, Value] = {
            "ts": self._clock.now_ms(),
            "source": EventSource.AGENT.value,
            "code": f"agent:{what}",
            "severity": severity.value,
            "message": message[:2000],
            "attrs": attrs,
        }
        return Row("events", values)


def _start_daemon(work: Callable[[], None], name: str) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()
