"""Reading Kafka without a group: replay, ends, offsets by time, and an agent's own commands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from flightwatch.core.clock import Clock
from flightwatch.core.errors import TransientError
from flightwatch.pipeline.bus.base import Message, Partition, key_text
from flightwatch.pipeline.bus.kafka_options import explain

T = TypeVar("T")
_READ_SECONDS = 10.0


def message_of(record: Any) -> Message:
    """Return a record of kafka-python as a message."""
    partition = Partition(record.topic, record.partition)
    return Message(partition, record.offset, key_text(record.key), record.value or b"", record.timestamp)


class KafkaReader:
    """One consumer without a group behind a lock, made when first needed. Thread-safe.

    Every method raises TransientError while the broker is away.
    """

    def __init__(self, options: Mapping[str, Any], clock: Clock) -> None:
        self._options = dict(options)
        self._clock = clock
        self._lock = threading.RLock()
        self._consumer: Any = None
        self._following: tuple[Partition, int] | None = None

    def _call(self, doing: str, action: Callable[[Any], T]) -> T:
        with self._lock:
            try:
                if self._consumer is None:
                    self._consumer = KafkaConsumer(**self._options)
                return action(self._consumer)
            except KafkaError as error:
                self._discard()
                raise explain(error, doing) from error

    def _discard(self) -> None:
        consumer, self._consumer, self._following = self._consumer, None, None
        if consumer is not None:
            try:
                consumer.close(timeout_ms=500)
            except KafkaError:
                return

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions, 0 when the topic does not exist."""
        return self._call(f"looking up {topic}", lambda consumer: len(consumer.partitions_for_topic(topic) or ()))

    def begin_offset(self, partition: Partition) -> int:
        """Return the oldest offset still kept."""
        key = TopicPartition(partition.topic, partition.number)
        return self._call("reading offsets", lambda consumer: int(consumer.beginning_offsets([key])[key]))

    def end_offset(self, partition: Partition) -> int:
        """Return the offset after the newest message."""
        key = TopicPartition(partition.topic, partition.number)
        return self._call("reading offsets", lambda consumer: int(consumer.end_offsets([key])[key]))

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int:
        """Return the first offset stored at or after a time; the end offset when there is none."""
        key = TopicPartition(partition.topic, partition.number)
        found = self._call("reading offsets", lambda consumer: consumer.offsets_for_times({key: timestamp_ms})[key])
        return int(found.offset) if found is not None else self.end_offset(partition)

    def cluster_id(self) -> str:
        """Return the id of the cluster, "" on brokers that have none."""
        return self._call("reading metadata", lambda consumer: _cluster_id(consumer))

    def read(self, partition: Partition, offset: int, max_bytes: int) -> Sequence[Message]:
        """Return messages from `offset` on, at least one when there is one."""
        # An agent asks for commands every 2 s and mostly there are none: one question is enough then.
        end = self.end_offset(partition)
        start = offset if offset >= end else max(offset, self.begin_offset(partition))
        if start >= end:
            return []
        return self._call(
            f"reading {partition.topic}", lambda consumer: self._read(consumer, partition, start, max_bytes)
        )

    def _read(self, consumer: Any, partition: Partition, offset: int, max_bytes: int) -> list[Message]:
        key = TopicPartition(partition.topic, partition.number)
        if consumer.assignment() != {key}:
            consumer.assign([key])
        if self._following != (partition, offset):
            # Reading on from the last place keeps what the consumer has fetched already.
            consumer.seek(key, offset)
        messages: list[Message] = []
        size = 0
        deadline = self._clock.monotonic_s() + _READ_SECONDS
        while size < max_bytes:
            records = consumer.poll(timeout_ms=0 if messages else 200, max_records=_records(messages, max_bytes - size))
            taken = [message_of(record) for record in records.get(key, ())]
            messages += taken
            size += sum(len(message.value) for message in taken)
            if not taken and (messages or self._clock.monotonic_s() >= deadline):
                break
        if not messages:
            raise TransientError(f"Kafka returned nothing of {partition.topic} at {offset} for {_READ_SECONDS:.0f} s")
        self._following = (partition, messages[-1].offset + 1)
        return messages

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._discard()


def _records(messages: Sequence[Message], room_bytes: int) -> int:
    """Return how many records fill the room, judged by those before; few at first."""
    if not messages:
        return 4
    average = sum(len(message.value) for message in messages) / len(messages)
    return int(max(1, min(500, room_bytes / max(1.0, average))))


def _cluster_id(consumer: Any) -> str:
    # kafka-python offers the id of the metadata it holds only on its client object.
    return str(getattr(getattr(consumer, "_cluster", None), "cluster_id", None) or "")
