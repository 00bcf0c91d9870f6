"""The bus of a cluster: Kafka through kafka-python 3. Acknowledged means `acks=all`."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from kafka import KafkaAdminClient, errors

from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.errors import BadRecord, ConfigError, FlightwatchError, TransientError
from flightwatch.pipeline.bus.base import Ack, Committed, Message, Partition, Subscription, partition_number
from flightwatch.pipeline.bus.kafka_options import (
    RECORD_OVERHEAD_BYTES,
    client_options,
    consumer_options,
    explain,
    producer_options,
)
from flightwatch.pipeline.bus.kafka_outbox import KafkaOutbox
from flightwatch.pipeline.bus.kafka_reader import KafkaReader
from flightwatch.pipeline.bus.kafka_subscription import KafkaSubscription
from flightwatch.pipeline.bus.settings import BusSettings

_ADMIN_TRIES = 8


class KafkaBus:
    """A connection to Kafka. Thread-safe; nothing is contacted before it is needed.

    Parameters
    ----------
    servers: HOST:PORT of some brokers.

    Raises
    ------
    ConfigError: the security settings do not fit together.
    """

    def __init__(self, servers: Sequence[str], settings: BusSettings | None = None, clock: Clock | None = None) -> None:
        self._servers = list(servers)
        self._settings = settings or BusSettings()
        self._clock = clock or SystemClock()
        budget = self._settings.max_unacknowledged_bytes
        self._outbox = KafkaOutbox(producer_options(servers, self._settings), self._clock, budget)
        self._reader = KafkaReader(consumer_options(servers, self._settings), self._clock)
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    @contextlib.contextmanager
    def _admin(self, doing: str) -> Iterator[Any]:
        try:
            admin = KafkaAdminClient(**client_options(self._servers, self._settings))
            try:
                yield admin
            finally:
                admin.close()
        except errors.KafkaError as error:
            raise explain(error, doing) from error

    def create_topic(self, topic: str, partitions: int, retention_ms: int | None, retention_bytes: int | None) -> None:
        """Create a topic or update its retention; the number of partitions of an existing one stays.

        `retention_bytes` counts per partition in Kafka, so it is divided among them.
        """
        per_partition = -1 if retention_bytes is None else max(1, retention_bytes // partitions)
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": str(-1 if retention_ms is None else retention_ms),
            "retention.bytes": str(per_partition),
            "max.message.bytes": str(self._settings.max_message_bytes + RECORD_OVERHEAD_BYTES),
            "message.timestamp.type": "LogAppendTime",
        }
        if retention_ms is not None:
            # A segment is deleted as a whole after its last message: the default of 7 days would outlive the limit.
            configs["segment.ms"] = str(max(60_000, retention_ms // 4))
        self._repeat(f"creating {topic}", lambda: self._create_or_update(topic, partitions, configs))

    def _create_or_update(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        from kafka.admin import ConfigResource, ConfigResourceType

        factor = self._settings.kafka_replication_factor
        with self._admin(f"creating {topic}") as admin:
            try:
                wanted = {"num_partitions": partitions, "replication_factor": factor, "configs": dict(configs)}
                admin.create_topics({topic: wanted}, timeout_ms=10_000)
            except errors.TopicAlreadyExistsError:
                admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))])

    def _repeat(self, doing: str, action: Any) -> None:
        """Do it again while the broker is starting or electing: admin calls fail with NodeNotReady then."""
        for attempt in range(_ADMIN_TRIES):
            try:
                action()
                return
            except TransientError:
                if attempt == _ADMIN_TRIES - 1:
                    raise
                self._clock.sleep_s(0.25 * 2 ** min(attempt, 4))

    def partitions(self, topic: str) -> Sequence[Partition]:
        """Return the partitions of a topic; empty when it does not exist. Raises TransientError without a broker."""
        return [Partition(topic, number) for number in range(self._count(topic))]

    def _count(self, topic: str) -> int:
        with self._lock:
            known = self._counts.get(topic, 0)
        if not known:
            known = self._reader.partition_count(topic)
            with self._lock:
                self._counts[topic] = known
        return known

    def partition_for(self, topic: str, key: str) -> Partition:
        """Return the partition that holds a key."""
        count = self._count(topic)
        if not count:
            raise ConfigError(f"Kafka has no topic {topic}: run `flightwatch bus setup`")
        return Partition(topic, partition_number(key, count))

    def publish(self, topic: str, key: str, value: bytes) -> Future[Ack]:
        """Queue a message. A topic that does not exist shows as TransientError on the future: this never asks
        the broker."""
        if len(value) > self._settings.max_message_bytes:
            refused: Future[Ack] = Future()
            limit = self._settings.max_message_bytes
            refused.set_exception(
                BadRecord(f"a message of {len(value)} bytes is above bus.max_message_bytes = {limit}")
            )
            return refused
        return self._outbox.submit(topic, key, bytes(value))

    def subscribe(self, topics: Sequence[str], group: str) -> Subscription:
        """Join a consumer group."""
        session_ms = int(self._settings.session_timeout_seconds * 1000)
        options = consumer_options(self._servers, self._settings) | {
            "group_id": group,
            "session_timeout_ms": session_ms,
            "heartbeat_interval_ms": max(100, min(3_000, session_ms // 4)),
            # A member that is alive but stuck holds up a rebalance for no longer than this.
            "max_poll_interval_ms": 3 * session_ms,
        }
        return KafkaSubscription(options, topics, self._clock)

    def read(self, partition: Partition, offset: int, max_bytes: int) -> Sequence[Message]:
        """Read without a group."""
        return self._reader.read(partition, offset, max_bytes)

    def begin_offset(self, partition: Partition) -> int:
        """Return the oldest offset still kept."""
        return self._reader.begin_offset(partition)

    def end_offset(self, partition: Partition) -> int:
        """Return the offset after the newest message."""
        return self._reader.end_offset(partition)

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int:
        """Return the first offset stored at or after a time; the end offset when there is none."""
        return self._reader.offset_at(partition, timestamp_ms)

    def group_positions(self, group: str) -> Mapping[Partition, Committed]:
        """Return the stored positions of a group."""
        with self._admin(f"reading the positions of {group}") as admin:
            stored = admin.list_group_offsets([group])[group]
        return {
            Partition(key.topic, key.partition): Committed(value.offset, value.metadata or "")
            for key, value in stored.items()
            if value.offset >= 0
        }

    def incarnation(self, partition: Partition) -> str:
        """Return a short hash of cluster id and topic id (brokers before 2.8 have no topic ids: cluster id alone)."""
        with self._admin(f"reading metadata of {partition.topic}") as admin:
            described = admin.describe_topics([partition.topic])
        topic_id = described[0].get("topic_id") if described else None
        identity = f"{self._reader.cluster_id()}/{topic_id or partition.topic}"
        return hashlib.sha256(identity.encode()).hexdigest()[:16]

    def close(self) -> None:
        """Wait for acknowledgements up to 5 s and close."""
        self._outbox.close(5.0)
        with contextlib.suppress(FlightwatchError):
            self._reader.close()
