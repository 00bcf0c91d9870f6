"""One assigned partition: what is buffered, which range is under way, and what comes next.

open -> announce (intent committed) -> work (another thread decodes and inserts) -> finish (end committed) -> ...

Every (re)start of work is preceded by a commit of the intent, which fails when the partition is no longer
ours; work stops by itself when that proof is older than `ownership_seconds`. So a process that was paused
and comes back inserts nothing of what another has taken over.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from enum import Enum, auto

from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError, StaleGeneration
from flightwatch.core.logs import Occasionally
from flightwatch.pipeline.bus.base import Bus, Message, Partition, Subscription
from flightwatch.pipeline.codec.read import LaneKey, rows_of
from flightwatch.pipeline.codec.wire import DECODER_VERSION
from flightwatch.pipeline.ingest import lanes
from flightwatch.pipeline.ingest.metrics import IngestMetrics
from flightwatch.pipeline.ingest.plan import Plan, Planner
from flightwatch.pipeline.ingest.ranges import Hole, Intent, Range
from flightwatch.pipeline.ingest.settings import IngestSettings
from flightwatch.pipeline.ingest.writer import Backoff, Mode, Writer
from flightwatch.pipeline.store import positions
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.render import DEDUPLICATION_WINDOW

logger = logging.getLogger(__name__)

#: Tokens are trusted while at most this many blocks followed, and for this long (clusters also forget by time).
TRUSTED_BLOCKS = DEDUPLICATION_WINDOW // 2
TRUSTED_SECONDS = 3.5 * 86_400
_TROUBLE = Occasionally(30.0)


class State(Enum):
    """What a partition is waiting for."""

    CLOSED = auto()
    OPENING = auto()
    BUFFERING = auto()
    ANNOUNCING = auto()
    WORKING = auto()
    FINISHING = auto()


@dataclass(frozen=True, slots=True)
class Tools:
    """What all partitions of one consumer share."""

    bus: Bus
    store: Store
    clock: Clock
    settings: IngestSettings
    linger_seconds: float
    planner: Planner
    writer: Writer
    metrics: IngestMetrics
    executor: Executor
    on_stored: Callable[[Plan], None]


@dataclass(frozen=True, slots=True)
class _Opened:
    known: dict[LaneKey, int]
    high: int
    trusted: bool


class PartitionWork:
    """The state machine of one partition. Used by the consumer's thread alone."""

    def __init__(self, partition: Partition, subscription: Subscription, tools: Tools) -> None:
        self.partition = partition
        self.state = State.CLOSED
        self._subscription = subscription
        self._tools = tools
        self._buffer: deque[Message] = deque()
        self._bytes = 0
        self._rows = 0
        self._oldest_s = 0.0
        self._holes: dict[int, Hole] = {}
        self._start: int | None = None
        self._intent: Intent | None = None
        self._incarnation = ""
        self._known: dict[LaneKey, int] = {}
        self._high = -1
        self._trusted = True
        self._range: Range | None = None
        self._mode = Mode()
        self._messages: list[Message] = []
        self._plan: Plan | None = None
        self._job: Future[object] | None = None
        self._valid_until_s = 0.0
        self._retry_at_s = 0.0
        self._backoff = Backoff(tools.settings.retry_seconds)
        self._abandoned = False

    @property
    def full(self) -> bool:
        """Whether no more messages should be read for now. Never while an announced range is incomplete."""
        awaits_announced = self._intent is not None and self._range is None
        return not awaits_announced and self._bytes >= self._tools.settings.buffer_bytes

    @property
    def busy(self) -> bool:
        """Whether a range is under way or something is buffered."""
        return bool(self._buffer) or self.state not in (State.CLOSED, State.OPENING, State.BUFFERING)

    @property
    def oldest_ms(self) -> int | None:
        """Broker time of the oldest message not yet stored."""
        if self._messages:
            return self._messages[0].timestamp_ms
        return self._buffer[0].timestamp_ms if self._buffer else None

    def offer(self, message: Message) -> None:
        """Buffer one message."""
        if not self._buffer:
            self._oldest_s = self._tools.clock.monotonic_s()
        self._buffer.append(message)
        self._bytes += len(message.value)
        self._rows += rows_of(message.value)

    def jumped(self, hole: Hole) -> None:
        """Note that messages before `hole.resumed` are gone."""
        self._holes[hole.resumed] = hole

    def step(self, *, flush: bool = False) -> None:
        """Do what can be done now without waiting.

        Parameters
        ----------
        flush: do not wait for more messages to share an insert.

        Raises
        ------
        StaleGeneration: the partition is no longer ours; drop this object.
        """
        if self._tools.clock.monotonic_s() < self._retry_at_s:
            return
        try:
            if self.state is State.CLOSED:
                self._open()
            if self.state is State.OPENING:
                self._opened()
            if self.state is State.BUFFERING:
                self._take_range(flush)
            if self.state is State.ANNOUNCING:
                self._announce()
            if self.state is State.WORKING:
                self._worked()
            if self.state is State.FINISHING:
                self._finish()
        except StaleGeneration:
            raise
        except FlightwatchError as error:
            self._failed(error)

    def abandon(self) -> None:
        """Stop inserting; what is announced stays announced, for the next owner."""
        self._abandoned = True

    def leave(self, timeout_seconds: float) -> None:
        """Give the partition up: finish the range under way if that is quick, else abandon it."""
        if self._job is not None and self.state is State.WORKING:
            try:
                self._job.result(timeout_seconds)
                self._finish()
                return
            except Exception as error:  # Whatever happened to the job: the next owner repeats it.
                logger.info("%s: range left to the next owner (%s)", self.partition, error)
        self.abandon()

    def _failed(self, error: Exception) -> None:
        self._tools.metrics.failed(str(error))
        self._retry_at_s = self._tools.clock.monotonic_s() + self._backoff.failed()
        if _TROUBLE.due():
            logger.warning(
                "%s/%d waits and tries the same again: %s", self.partition.topic, self.partition.number, error
            )

    def _open(self) -> None:
        self._incarnation = self._tools.bus.incarnation(self.partition)
        committed = self._subscription.committed(self.partition)
        self._intent = Intent.from_metadata(committed.metadata) if committed else None
        self._start = committed.offset if committed else None
        hole = min(self._holes.values(), key=lambda hole: hole.resumed, default=None)
        if self._start is not None and hole is not None and hole.wanted <= self._start:
            # The announced range can no longer be rebuilt as it was: what is left of it goes by presence.
            self._high = max(self._high, self._intent.end - 1 if self._intent else -1)
            self._intent, self._start = None, hole.resumed
        self._job = self._tools.executor.submit(self._load)
        self.state = State.OPENING

    def _load(self) -> _Opened:
        start = self._start if self._start is not None else 0
        known, high = lanes.load(self._tools.store, self.partition, self._incarnation, start)
        return _Opened(known, high, self._intent is None or self._is_trusted(self._intent))

    def _is_trusted(self, intent: Intent) -> bool:
        age_s = (self._tools.clock.now_ms() - intent.at_ms) / 1000
        if intent.decoder != DECODER_VERSION or not -300 <= age_s <= TRUSTED_SECONDS:
            return False
        return positions.blocks_since(self._tools.store, intent.at_ms) <= TRUSTED_BLOCKS

    def _opened(self) -> None:
        if self._job is None or not self._job.done():
            return
        job, self._job = self._job, None
        error = job.exception()
        if error is not None:
            self.state = State.CLOSED
            raise error
        opened = job.result()
        assert isinstance(opened, _Opened)
        self._known, self._trusted = opened.known, opened.trusted
        self._high = max(self._high, opened.high)
        self._backoff.succeeded()
        self.state = State.BUFFERING

    def _take_range(self, flush: bool) -> None:
        end = self._announced_end() if self._intent is not None else self._ripe_end(flush)
        if end is None:
            return
        start = self._start if self._start is not None else self._buffer[0].offset
        hole = self._intent.hole if self._intent else self._hole_at(start)
        if hole is not None:
            start = hole.resumed
        self._messages = []
        while self._buffer and self._buffer[0].offset < end:
            message = self._buffer.popleft()
            self._bytes -= len(message.value)
            self._rows -= rows_of(message.value)
            self._messages.append(message)
        self._range = Range(self.partition, self._incarnation, start, end, hole)
        self.state = State.ANNOUNCING

    def _announced_end(self) -> int | None:
        assert self._intent is not None
        read_up_to = self._subscription.position(self.partition)
        return self._intent.end if read_up_to >= self._intent.end else None

    def _ripe_end(self, flush: bool) -> int | None:
        """Return the end of a range that should not wait any longer, None when it should."""
        if not self._buffer:
            return None
        settings = self._tools.settings
        waited_s = self._tools.clock.monotonic_s() - self._oldest_s
        if not (
            flush
            or waited_s >= self._tools.linger_seconds
            or self._rows >= settings.insert_rows
            or self._bytes >= settings.insert_bytes
        ):
            return None
        rows = size = 0
        end = self._buffer[0].offset + 1
        for message in self._buffer:
            rows += rows_of(message.value)
            size += len(message.value)
            after_hole = any(end <= resumed <= message.offset for resumed in self._holes)
            if message.offset >= end and (rows > settings.insert_rows or size > settings.insert_bytes or after_hole):
                break
            end = message.offset + 1
        return end

    def _hole_at(self, start: int) -> Hole | None:
        """Return the hole that the next range has to report: one that ends at or before its first message."""
        first = self._buffer[0].offset
        for resumed in sorted(self._holes):
            if start <= resumed <= first or self._start is None:
                return self._holes[resumed]
        return None

    def _announce(self) -> None:
        rng = self._range
        assert rng is not None
        if self._intent is None:
            self._intent = Intent(rng.end, self._tools.clock.now_ms(), hole=rng.hole)
            self._trusted = True
            mode = Mode(tokens=rng.start > self._high, presence=rng.start <= self._high)
        elif self._plan is None:
            # Announced by an earlier owner, or by this process before it opened the partition again.
            mode = Mode(tokens=self._trusted, presence=True)
        else:
            mode = self._mode
        now_s = self._tools.clock.monotonic_s()
        self._subscription.commit(self.partition, rng.start, self._intent.to_metadata())
        self._valid_until_s = now_s + self._tools.settings.ownership_seconds
        self._mode = mode
        self._job = self._tools.executor.submit(self._work, rng)
        self.state = State.WORKING

    def _work(self, rng: Range) -> None:
        if self._plan is None:
            self._plan = self._tools.planner.build(rng, self._messages, self._known)
        self._tools.writer.write(self._plan, self._mode, self._is_owned)

    def _is_owned(self) -> bool:
        return not self._abandoned and self._tools.clock.monotonic_s() < self._valid_until_s

    def _worked(self) -> None:
        if self._job is None or not self._job.done():
            return
        job, self._job = self._job, None
        error = job.exception()
        if error is None:
            self.state = State.FINISHING
            return
        # The same plan again, identical blocks under identical tokens, after the intent is committed again.
        self.state = State.ANNOUNCING
        if not isinstance(error, StaleGeneration):
            if not isinstance(error, FlightwatchError):
                logger.error("%s/%d: %r", self.partition.topic, self.partition.number, error, exc_info=error)
            self._failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _finish(self) -> None:
        rng, plan = self._range, self._plan
        assert rng is not None
        assert plan is not None
        self._subscription.commit(self.partition, rng.end, "")
        self._known.update({key: seq for key, (seq, _) in plan.lanes.items()})
        for resumed in [resumed for resumed in self._holes if resumed <= rng.start]:
            del self._holes[resumed]
        self._start = rng.end
        self._intent = self._range = self._plan = None
        self._messages = []
        # What was buffered meanwhile has waited as long as the work took.
        self._backoff.succeeded()
        self.state = State.BUFFERING
        self._tools.on_stored(plan)
