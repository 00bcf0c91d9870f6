"""One thread of ingest: polls its topics, moves its partitions on, keeps its place in the group."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from flightwatch.core.errors import FlightwatchError, StaleGeneration
from flightwatch.core.logs import Occasionally
from flightwatch.pipeline.bus.base import Jump, Partition, Subscription
from flightwatch.pipeline.ingest.partition_work import PartitionWork, Tools
from flightwatch.pipeline.ingest.ranges import Hole

logger = logging.getLogger(__name__)

POLL_BYTES = 16_000_000
#: Longest wait for a range under way when a partition is taken away; the others wait meanwhile.
_LEAVE_SECONDS = 5.0
_STOP_SECONDS = 10.0


class Consumer:
    """Ingest of some topics. `turn` is one round; `run` repeats it until told to stop."""

    def __init__(self, topics: Sequence[str], subscription: Subscription, tools: Tools) -> None:
        self.topics = topics
        self._subscription = subscription
        self._tools = tools
        self._works: dict[Partition, PartitionWork] = {}
        self._early_holes: dict[Partition, list[Hole]] = {}
        self._paused: set[Partition] = set()
        self._poll_bytes = min(POLL_BYTES, tools.settings.buffer_bytes)
        self._trouble = Occasionally(30.0)
        subscription.on_revoke(self._revoked)
        subscription.on_jump(self._jumped)

    @property
    def busy(self) -> bool:
        """Whether something was read and is not stored yet."""
        return any(work.busy for work in self._works.values())

    def run(self, stop: threading.Event) -> None:
        """Ingest until `stop` is set; then store what was read, for up to 10 s, and leave the group."""
        try:
            while not stop.is_set():
                self._guarded_turn(flush=False)
            deadline_s = self._tools.clock.monotonic_s() + _STOP_SECONDS
            self._subscription.pause(list(self._works))
            while self.busy and self._tools.clock.monotonic_s() < deadline_s:
                self._guarded_turn(flush=True)
        finally:
            for work in self._works.values():
                work.abandon()
            self._subscription.close()

    def _guarded_turn(self, *, flush: bool) -> None:
        try:
            self.turn(0.02 if self.busy or flush else 0.25, flush=flush)
        except FlightwatchError as error:
            self._tools.metrics.failed(str(error))
            if self._trouble.due():
                logger.warning("%s: the bus does not answer: %s", ", ".join(self.topics), error)
            self._tools.clock.sleep_s(0.2)

    def turn(self, timeout_seconds: float, *, flush: bool = False) -> None:
        """Read once and let every partition do what it can.

        Raises
        ------
        TransientError: the broker is away; nothing is lost, call again.
        """
        for message in self._subscription.poll(self._poll_bytes, timeout_seconds):
            self._work_of(message.partition).offer(message)
        for partition in self._subscription.assignment():
            self._work_of(partition)
        for partition, work in list(self._works.items()):
            try:
                work.step(flush=flush)
            except StaleGeneration:
                logger.info("%s/%d belongs to another member now", partition.topic, partition.number)
                self._drop(partition)
        self._pause_full()
        self._report_lag()

    def _work_of(self, partition: Partition) -> PartitionWork:
        work = self._works.get(partition)
        if work is None:
            work = self._works[partition] = PartitionWork(partition, self._subscription, self._tools)
            for hole in self._early_holes.pop(partition, ()):
                work.jumped(hole)
        return work

    def _jumped(self, jump: Jump) -> None:
        work = self._works.get(jump.partition)
        if work is not None:
            work.jumped(Hole.of(jump))
        else:
            self._early_holes.setdefault(jump.partition, []).append(Hole.of(jump))

    def _revoked(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            work = self._works.get(partition)
            if work is not None:
                work.leave(_LEAVE_SECONDS)
            self._drop(partition)

    def _drop(self, partition: Partition) -> None:
        work = self._works.pop(partition, None)
        if work is not None:
            work.abandon()
        self._paused.discard(partition)
        self._early_holes.pop(partition, None)

    def _pause_full(self) -> None:
        full = {partition for partition, work in self._works.items() if work.full}
        if full - self._paused:
            self._subscription.pause(full - self._paused)
        if self._paused - full:
            self._subscription.resume(self._paused - full)
        self._paused = full

    def _report_lag(self) -> None:
        now_ms = self._tools.clock.now_ms()
        for topic in self.topics:
            oldest = [
                work.oldest_ms
                for partition, work in self._works.items()
                if partition.topic == topic and work.oldest_ms is not None
            ]
            self._tools.metrics.lag(topic, max(0.0, (now_ms - min(oldest)) / 1000) if oldest else 0.0)
