"""From collected rows to acknowledged batches on the bus: the sending side of an agent.

Rows are gathered by lane, numbered and encoded, kept in memory until acknowledged, moved to the disk
spool when the bus does not answer, and evicted (counted and reported) when the spool is full too.
Standard library only; the encoder and the bus are given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from flightwatch import __version__
from flightwatch.core.catalogue import TABLES
from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.errors import Backpressure, BadRecord, FlightwatchError, TransientError
from flightwatch.core.logs import Occasionally
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import DRAIN_ORDER, EVICTION_ORDER, TOPIC_OF_LANE, EventSeverity, Lane
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.lane_queue import Backoff, LaneQueue, OnItsWay, TokenBucket
from flightwatch.pipeline.sender_rows import SenderState, gap_event, metric_rows, single
from flightwatch.pipeline.spool import Evicted, Sealed, Spool

logger = logging.getLogger(__name__)

_URGENT = frozenset((EventSeverity.WARNING.value, EventSeverity.ERROR.value, EventSeverity.CRITICAL.value))
_METRICS_SECONDS = 30.0
_SAVE_SECONDS = 2.0
#: Rows that close a batch whatever their size, and rows beyond which a lane whose batches are not closed drops.
_BATCH_ROWS = 10_000
_MOST_GATHERED_ROWS = 50_000


class Encode(Protocol):
    """Turns a batch into one message; `codec.encode` with its signature bound."""

    def __call__(self, batch: Batch) -> bytes:
        """Return the message. Raises BadRecord when the batch is too large for one."""


class Sender:
    """Sink of an agent. Thread-safe; `start` runs it on a thread, tests call `step` instead.

    Parameters
    ----------
    encode: batch to message, signing included.
    seed: of the jitter that keeps a fleet from reconnecting in step; None: random.
    """

    def __init__(
        self,
        bus: Bus,
        spool: Spool,
        encode: Encode,
        node: str,
        cluster: str,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self._bus = bus
        self._spool = spool
        self._settings = spool.settings
        self._encode = encode
        self._node = node
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._wake = threading.Condition()
        self._step_lock = threading.RLock()
        self._queues = {lane: LaneQueue(lane) for lane in Lane}
        self._lane_of = {name: table.lane for name, table in TABLES.items() if table.lane is not None}
        self._backoff = Backoff(seed)
        now = self._clock.monotonic_s()
        self._backlog_rate = TokenBucket(self._settings.drain_bytes_per_second, now)
        self._blob_rate = TokenBucket(self._settings.blob_bytes_per_second, now)
        self._next_metrics_s = self._next_save_s = now
        self._last_sent_ms: int | None = None
        self._unsaved = False
        self._stopping = False
        self._answered = False
        self._thread: threading.Thread | None = None
        self._unknown_tables = Occasionally(60.0)
        self._trouble = Occasionally(60.0)

    def emit(self, rows: Iterable[Row]) -> None:
        """Queue rows; returns at once. Rows that do not fit are counted in `dropped_rows_total` of their lane."""
        now = self._clock.monotonic_s()
        with self._wake:
            notify = False
            for row in rows:
                lane = self._lane_of.get(row.table)
                if lane is None:
                    self._refuse_table(row.table)
                    continue
                queue = self._queues[lane]
                if len(queue.rows) >= _MOST_GATHERED_ROWS:
                    queue.counts.dropped_rows += 1
                    continue
                urgent = row.table == "events" and row.values.get("severity") in _URGENT
                due = now + (self._settings.urgent_seconds if urgent else self._settings.batch_seconds)
                notify = notify or due < queue.due_s
                queue.gather(row, due)
                if self._is_full(queue):
                    queue.due_s, notify = now, True
            if notify:
                self._wake.notify()

    def _is_full(self, queue: LaneQueue) -> bool:
        large = queue.cells * queue.bytes_per_cell >= self._settings.batch_bytes
        return large or len(queue.rows) >= _BATCH_ROWS

    def _refuse_table(self, table: str) -> None:
        self._queues[Lane.SAMPLES].counts.dropped_rows += 1
        if self._unknown_tables.due():
            logger.error("rows of table %s are dropped: no lane of the bus carries them", table)

    def start(self) -> None:
        """Send on a thread of its own until `stop`."""
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            try:
                wait_s = self.step()
            except Exception:  # The agent keeps collecting whatever happens here; the next step tries again.
                logger.exception("sending failed")
                wait_s = 1.0
            with self._wake:
                due_s = min(queue.due_s for queue in self._queues.values())
                wait_s = min(wait_s, due_s - self._clock.monotonic_s())
                if not self._stopping and not self._answered and wait_s > 0:
                    self._wake.wait(wait_s)
                self._answered = False

    def step(self) -> float:
        """Do what is due now; return after how many seconds to call again at the latest."""
        with self._step_lock:
            now = self._clock.monotonic_s()
            self._report_metrics(now)
            self._close_batches(now)
            for queue in self._queues.values():
                self._settle(queue, now)
            wait_s = self._send(now)
            self._spill(now)
            self._save(now)
            return min(wait_s, self._settings.batch_seconds)

    def _close_batches(self, now: float) -> None:
        for queue in self._queues.values():
            with self._wake:
                if not queue.rows or queue.due_s > now:
                    continue
                rows = queue.take_rows()
            self._seal(queue, rows)

    def _seal(self, queue: LaneQueue, rows: Sequence[Row]) -> None:
        lane = queue.lane
        header = self._header(lane, {})
        try:
            value = self._encode(Batch(header, rows))
        except BadRecord as error:
            self._seal_halves(queue, rows, error)
            return
        self._spool.use_seq(lane)
        queue.learn(sum(len(row.values) for row in rows), len(value))
        made_at_s = self._clock.monotonic_s()
        queue.keep(
            Sealed(lane, header.spool_id, header.seq, len(rows), header.created_at_ms, value, made_at_s=made_at_s)
        )

    def _seal_halves(self, queue: LaneQueue, rows: Sequence[Row], error: BadRecord) -> None:
        if len(rows) == 1:
            queue.counts.dropped_rows += 1
            logger.error("a row of %s is dropped: %s", rows[0].table, error)
            return
        middle = len(rows) // 2
        self._seal(queue, rows[:middle])
        self._seal(queue, rows[middle:])

    def _settle(self, queue: LaneQueue, now: float) -> None:
        sent = queue.on_its_way
        if sent is None:
            return
        if not sent.future.done():
            if now - sent.since_s > self._settings.stall_seconds:
                queue.on_its_way = None
                self._failed(queue, TransientError("no answer from the bus"), now)
            return
        queue.on_its_way = None
        error = sent.future.exception()
        if error is None:
            queue.pop(self._spool, sent.batch)
            queue.counts.sent_batches += 1
            queue.counts.sent_rows += sent.batch.rows
            queue.counts.sent_bytes += len(sent.batch.value)
            self._backoff.succeeded()
            self._last_sent_ms = self._clock.now_ms()
            self._unsaved = True
        elif isinstance(error, BadRecord):
            queue.pop(self._spool, sent.batch)
            self._report_lost([single(sent.batch, f"refused by the bus: {error.reason}")])
        else:
            self._failed(queue, error, now)

    def _failed(self, queue: LaneQueue, error: BaseException, now: float) -> None:
        queue.counts.failures += 1
        self._backoff.failed(now)
        if self._trouble.due():
            logger.warning("the bus does not take batches (%s); they wait in memory, then in the spool", error)

    def _send(self, now: float) -> float:
        """Offer the oldest batch of each idle lane, events first; return when to come back."""
        if now < self._backoff.retry_at_s:
            return self._backoff.retry_at_s - now
        wait_s = float("inf")
        for lane in DRAIN_ORDER:
            queue = self._queues[lane]
            if queue.on_its_way is not None:
                continue
            batch = queue.first(self._spool)
            if batch is None:
                continue
            rate = self._rate_of(batch)
            if rate is not None and not rate.has_any(now):
                wait_s = min(wait_s, 0.1)
                continue
            if not self._offer(queue, batch, now):
                return max(0.0, self._backoff.retry_at_s - now)
            if rate is not None:
                rate.take(len(batch.value))
        return wait_s

    def _rate_of(self, batch: Sealed) -> TokenBucket | None:
        if batch.lane is Lane.BLOBS:
            return self._blob_rate
        return self._backlog_rate if batch.position is not None and batch.lane is not Lane.EVENTS else None

    def _offer(self, queue: LaneQueue, batch: Sealed, now: float) -> bool:
        try:
            future = self._bus.publish(TOPIC_OF_LANE[queue.lane].value, self._node, batch.value)
        except Backpressure:
            self._backoff.retry_at_s = now + 0.2
            return False
        except FlightwatchError as error:
            self._failed(queue, error, now)
            return False
        queue.on_its_way = OnItsWay(batch, future, now)
        future.add_done_callback(lambda _: self._notify())
        return True

    def _notify(self) -> None:
        with self._wake:
            self._answered = True
            self._wake.notify()

    def _spill(self, now: float) -> None:
        """Move to disk what the bus did not take in time or memory cannot hold."""
        crowded = sum(queue.memory_bytes for queue in self._queues.values()) > self._settings.memory_bytes
        for queue in self._queues.values():
            if queue.memory and (crowded or now - queue.memory[0].made_at_s > self._settings.spill_seconds):
                self._spill_lane(queue)
        self._report_lost(self._spool.enforce_quotas())
        while sum(queue.memory_bytes for queue in self._queues.values()) > self._settings.memory_bytes:
            self._drop_from_memory()

    def _spill_lane(self, queue: LaneQueue) -> None:
        while True:
            try:
                queue.spill(self._spool, self._clock.now_ms())
                self._unsaved = True
                return
            except TransientError as error:
                if self._trouble.due():
                    logger.error("the spool takes no batches: %s", error)
                evicted = self._spool.make_room(queue.lane)
                self._report_lost(evicted)
                if not evicted:
                    return

    def _drop_from_memory(self) -> None:
        queue = next(self._queues[lane] for lane in EVICTION_ORDER if self._queues[lane].memory)
        batch = queue.memory.popleft()
        queue.memory_bytes -= len(batch.value)
        self._report_lost([single(batch, "memory and spool are full")])

    def _report_lost(self, lost: Sequence[Evicted]) -> None:
        for gap in lost:
            counts = self._queues[gap.lane].counts
            counts.dropped_batches += gap.last_seq - gap.first_seq + 1
            counts.dropped_rows += gap.rows
            logger.error(
                "lane %s: batches %d to %d are lost: %s", gap.lane.value, gap.first_seq, gap.last_seq, gap.reason
            )
            self.emit([gap_event(gap, self._clock.now_ms())])

    def _report_metrics(self, now: float) -> None:
        if now >= self._next_metrics_s:
            self._next_metrics_s = now + _METRICS_SECONDS
            self.emit(metric_rows(self._queues.values(), self._spool, self._clock.now_ms()))

    def _save(self, now: float) -> None:
        if not self._unsaved or now < self._next_save_s or not self._spool.used:
            return
        self._next_save_s, self._unsaved = now + _SAVE_SECONDS, False
        try:
            self._spool.save(clean=False)
        except TransientError as error:
            if self._trouble.due():
                logger.error("the state of the spool cannot be saved: %s", error)

    def append_encoded(self, lane: Lane, encode: Encode, attributes: Mapping[str, str]) -> None:
        """Number a batch without rows (a chunk of a blob) and put it on disk at once.

        Parameters
        ----------
        encode: gets an empty batch with the header and its attributes.

        Raises
        ------
        Backpressure: the lane has no room on disk.
        """
        with self._step_lock:
            header = self._header(lane, attributes)
            value = encode(Batch(header, ()))
            if len(value) > self._spool.blob_room_bytes():
                raise Backpressure(f"lane {lane.value} has no room: spool.blobs_bytes = {self._settings.blobs_bytes}")
            batch = Sealed(lane, header.spool_id, header.seq, 0, header.created_at_ms, value)
            try:
                self._spool.append([batch], self._clock.now_ms())
            except TransientError as error:
                raise Backpressure(f"lane {lane.value} cannot be written: {error}") from error
            self._spool.use_seq(lane)
        self._notify()

    def _header(self, lane: Lane, attributes: Mapping[str, str]) -> BatchHeader:
        return BatchHeader(
            agent_id=self._spool.agent_id,
            spool_id=self._spool.spool_id,
            lane=lane.value,
            seq=self._spool.following_seq(lane),
            node=self._node,
            cluster=self._cluster,
            created_at_ms=self._clock.now_ms(),
            program_version=__version__,
            attributes=attributes,
        )

    def state(self) -> SenderState:
        """Return what the heartbeat tells."""
        with self._step_lock:
            first = [queue.first(self._spool) for queue in self._queues.values()]
            waiting = [batch.created_at_ms for batch in first if batch is not None]
            dropped = sum(queue.counts.dropped_rows for queue in self._queues.values())
        return SenderState(self._last_sent_ms, min(waiting, default=None), dropped)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything emitted so far is on the bus or in the disk spool; False on timeout.

        The bus gets half of the time, then the disk takes what is left.
        """
        started = self._clock.monotonic_s()
        self._close_now()
        while True:
            self.step()
            elapsed = self._clock.monotonic_s() - started
            if elapsed >= timeout_seconds / 2:
                with self._step_lock:
                    for queue in self._queues.values():
                        self._spill_lane(queue)
            if not any(queue.memory for queue in self._queues.values()):
                return True
            if elapsed >= timeout_seconds:
                return False
            self._clock.sleep_s(0.005)

    def _close_now(self) -> None:
        with self._wake:
            for queue in self._queues.values():
                queue.due_s = 0.0 if queue.rows else queue.due_s

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Flush, stop the thread and close the spool; numbers continue at the next start when all was kept."""
        self.flush(timeout_seconds)
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        with self._step_lock:
            # Rows that came during the flush go to disk; a batch on its way is sent again and recognised.
            self._close_now()
            self._close_batches(self._clock.monotonic_s())
            for queue in self._queues.values():
                self._spill_lane(queue)
            self._spool.close(clean=not any(queue.memory for queue in self._queues.values()))
