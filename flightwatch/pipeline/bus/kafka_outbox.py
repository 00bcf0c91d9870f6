"""The publishing half of the Kafka bus: a byte budget in front of kafka-python's unbounded producer.

One thread owns the producer. It may block on metadata and bootstrap; `submit` never does. A failed
message is reported on its future and never sent again from here: the publisher knows the order it
needs. After an error that leaves the idempotent producer in doubt (unknown producer id, epoch fenced),
or when nothing is acknowledged for too long, the producer is replaced and everything it held fails.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from kafka import KafkaProducer, errors

from flightwatch.core.clock import Clock
from flightwatch.core.errors import Backpressure, FlightwatchError, TransientError
from flightwatch.core.logs import Occasionally
from flightwatch.pipeline.bus.base import Ack, Partition, key_bytes, partition_number
from flightwatch.pipeline.bus.kafka_options import explain

logger = logging.getLogger(__name__)

_LONGEST_BACKOFF_S = 2.0
_STALL_MARGIN_S = 30.0


@dataclass(eq=False, slots=True)
class _Item:
    topic: str
    key: str
    value: bytes
    future: Future[Ack]
    since_s: float
    finished: bool = False


class KafkaOutbox:
    """Messages on their way to the broker. Thread-safe.

    Parameters
    ----------
    options: for KafkaProducer; `make` is replaced in tests.
    budget_bytes: largest sum of unacknowledged values.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        clock: Clock,
        budget_bytes: int,
        make: Callable[..., Any] = KafkaProducer,
        seed: int | None = None,
    ) -> None:
        self._options = dict(options)
        self._clock = clock
        self._budget_bytes = budget_bytes
        self._make = make
        self._random = random.Random(seed)
        self._give_up_s = self._options["delivery_timeout_ms"] / 1000
        self._unreachable = Occasionally(60.0)
        self._condition = threading.Condition()
        self._queue: deque[_Item] = deque()
        self._in_flight: dict[_Item, None] = {}
        self._held_bytes = 0
        self._producer: Any = None
        self._doubtful = False
        self._closing = False
        self._thread: threading.Thread | None = None
        #: Producers made so far, for tests and `self_metrics`.
        self.producers = 0

    def submit(self, topic: str, key: str, value: bytes) -> Future[Ack]:
        """Queue one message. Raises Backpressure when the budget is used up."""
        item = _Item(topic, key, value, Future(), self._clock.monotonic_s())
        with self._condition:
            if self._closing:
                raise TransientError("the bus is closed")
            if self._held_bytes and self._held_bytes + len(value) > self._budget_bytes:
                raise Backpressure(f"{self._held_bytes} bytes wait for Kafka, the budget is {self._budget_bytes}")
            self._held_bytes += len(value)
            self._queue.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafka-outbox", daemon=True)
                self._thread.start()
            self._condition.notify()
        return item.future

    def close(self, timeout_seconds: float) -> None:
        """Wait for acknowledgements up to `timeout_seconds`, then fail what is left."""
        deadline = self._clock.monotonic_s() + timeout_seconds
        with self._condition:
            while (self._queue or self._in_flight) and self._clock.monotonic_s() < deadline:
                self._condition.wait(0.05)
            self._closing = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_seconds + 5)

    def _run(self) -> None:
        backoff_s = 0.1
        while not self._closing:
            self._expire()
            if self._doubtful or self._stalled():
                self._discard_producer()
            with self._condition:
                if not self._queue and not self._closing and not self._doubtful:
                    # Woken by submit and by failures; with messages in flight, now and then for the watchdog.
                    self._condition.wait(1.0 if self._in_flight else None)
                    continue
            try:
                self._pump()
                backoff_s = 0.1
            except Exception as error:  # The thread must outlive every state of the broker.
                if self._unreachable.due():
                    logger.warning("Kafka cannot be reached, messages wait: %s", error)
                with self._condition:
                    self._condition.wait(backoff_s * self._random.uniform(0.5, 1.5))
                backoff_s = min(_LONGEST_BACKOFF_S, backoff_s * 2)
        self._discard_producer()
        with self._condition:
            left = list(self._queue)
            self._queue.clear()
        for item in left:
            self._finish(item, TransientError("the bus was closed before the broker answered"))

    def _pump(self) -> None:
        if self._producer is None and self._queue:
            self._producer = self._make(**self._options)
            self.producers += 1
        while self._queue and not self._doubtful and not self._closing:
            item = self._queue[0]
            numbers = self._producer.partitions_for(item.topic)
            if not numbers:
                raise TransientError(f"Kafka has no topic {item.topic}")
            with self._condition:
                self._queue.popleft()
                self._in_flight[item] = None
            self._hand_over(item, partition_number(item.key, len(numbers)))

    def _hand_over(self, item: _Item, number: int) -> None:
        try:
            sent = self._producer.send(item.topic, value=item.value, key=key_bytes(item.key), partition=number)
        except errors.KafkaError as error:
            self._failed(item, error)
            return
        sent.add_callback(
            lambda metadata: self._finish(item, Ack(Partition(metadata.topic, metadata.partition), metadata.offset))
        )
        sent.add_errback(lambda error: self._failed(item, error))

    def _failed(self, item: _Item, error: Exception) -> None:
        result = explain(error, f"publishing to {item.topic}")
        # Whatever failed and was not refused for itself leaves sequence numbers in doubt.
        if isinstance(result, TransientError):
            self._doubtful = True
        self._finish(item, result)

    def _finish(self, item: _Item, result: Ack | FlightwatchError) -> None:
        with self._condition:
            self._in_flight.pop(item, None)
            if item.finished:
                return
            item.finished = True
            self._held_bytes -= len(item.value)
            self._condition.notify_all()
        # Outside the lock: callbacks of the publisher run here.
        if isinstance(result, Ack):
            item.future.set_result(result)
        else:
            item.future.set_exception(result)

    def _expire(self) -> None:
        limit = self._clock.monotonic_s() - self._give_up_s
        with self._condition:
            late = [item for item in self._queue if item.since_s < limit]
            self._queue = deque(item for item in self._queue if item.since_s >= limit)
        for item in late:
            self._finish(item, TransientError(f"Kafka did not take the message within {self._give_up_s:.0f} s"))

    def _stalled(self) -> bool:
        with self._condition:
            oldest = next(iter(self._in_flight), None)
        limit = self._clock.monotonic_s() - self._give_up_s - _STALL_MARGIN_S
        return oldest is not None and oldest.since_s < limit

    def _discard_producer(self) -> None:
        producer, self._producer, self._doubtful = self._producer, None, False
        if producer is None:
            return
        with self._condition:
            abandoned = list(self._in_flight)
        try:
            producer.close(timeout=0 if abandoned else 1)
        except Exception as error:  # It is being thrown away.
            logger.debug("closing the Kafka producer: %s", error)
        for item in abandoned:
            self._finish(item, TransientError("the Kafka producer was replaced; the outcome is unknown"))
