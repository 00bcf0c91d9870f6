"""Group commit: one thread turns many published messages into few durable transactions."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from flightwatch.core.clock import Clock
from flightwatch.core.errors import Backpressure, FlightwatchError, TransientError
from flightwatch.pipeline.bus.base import Ack, Partition
from flightwatch.pipeline.bus.segment import Entry
from flightwatch.pipeline.bus.segments import SegmentedLog

logger = logging.getLogger(__name__)

_TRANSACTION_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class _Waiting:
    topic: str
    entry: Entry
    future: Future[Ack]


class GroupCommit:
    """Appends in the order of `submit`; every future is resolved after its transaction was durable.

    Parameters
    ----------
    log_of: returns the log of a topic; used by the thread of this object only.
    tick: called by the thread about every `tick_seconds`, for retention.
    budget_bytes: largest sum of unacknowledged values; beyond it `submit` raises Backpressure.
    """

    def __init__(
        self,
        log_of: Callable[[str], SegmentedLog],
        tick: Callable[[], None],
        clock: Clock,
        budget_bytes: int,
        tick_seconds: float = 60.0,
    ) -> None:
        self._log_of = log_of
        self._tick = tick
        self._clock = clock
        self._budget_bytes = budget_bytes
        self._tick_seconds = tick_seconds
        self._condition = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._held_bytes = 0
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(self, topic: str, entry: Entry) -> Future[Ack]:
        """Queue one message."""
        future: Future[Ack] = Future()
        with self._condition:
            if self._closing:
                raise TransientError("the bus is closed")
            if self._held_bytes and self._held_bytes + len(entry.value) > self._budget_bytes:
                raise Backpressure(f"{self._held_bytes} bytes wait for the bus, the budget is {self._budget_bytes}")
            self._held_bytes += len(entry.value)
            self._waiting.append(_Waiting(topic, entry, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="bus-commit", daemon=True)
                self._thread.start()
            self._condition.notify()
        return future

    def close(self, timeout_seconds: float) -> None:
        """Append what is queued, then stop."""
        with self._condition:
            self._closing = True
            self._condition.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)

    def _run(self) -> None:
        next_tick = self._clock.monotonic_s() + self._tick_seconds
        while True:
            with self._condition:
                if not self._waiting and not self._closing:
                    self._condition.wait(self._tick_seconds)
                taken = self._take()
                closing = self._closing and not self._waiting and not taken
            if taken:
                self._append(taken)
            if closing:
                return
            if self._clock.monotonic_s() >= next_tick:
                next_tick = self._clock.monotonic_s() + self._tick_seconds
                self._guarded_tick()

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        total = 0
        while self._waiting and total < _TRANSACTION_BYTES:
            taken.append(self._waiting.popleft())
            total += len(taken[-1].entry.value)
        return taken

    def _append(self, taken: Sequence[_Waiting]) -> None:
        by_topic: dict[str, list[_Waiting]] = defaultdict(list)
        for waiting in taken:
            by_topic[waiting.topic].append(waiting)
        for topic, group in by_topic.items():
            outcome = self._append_topic(topic, [waiting.entry for waiting in group])
            with self._condition:
                self._held_bytes -= sum(len(waiting.entry.value) for waiting in group)
            for index, waiting in enumerate(group):
                if isinstance(outcome, Exception):
                    waiting.future.set_exception(outcome)
                else:
                    waiting.future.set_result(Ack(Partition(topic, waiting.entry.partition), outcome[index]))

    def _append_topic(self, topic: str, entries: Sequence[Entry]) -> list[int] | Exception:
        try:
            return self._log_of(topic).append(entries, self._clock.now_ms())
        except FlightwatchError as error:
            return error
        except Exception as error:  # The thread serves all publishers and must outlive one bad message.
            logger.exception("appending to %s failed", topic)
            return TransientError(f"appending to {topic} failed: {error}")

    def _guarded_tick(self) -> None:
        try:
            self._tick()
        except Exception:  # Retention must not end the thread that acknowledges messages.
            logger.exception("retention of the local bus failed")
