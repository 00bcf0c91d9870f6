"""The bus of a single machine: SQLite files in one folder, shared by its processes.

Layout: `bus.db` (topics, groups, positions) and one folder of segment files a topic. Acknowledged
means: in a committed transaction with `synchronous=FULL`. Import stays light: standard library only.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.errors import BadRecord, ConfigError, TransientError
from flightwatch.pipeline.bus.base import Ack, Committed, Message, Partition, Subscription, partition_number
from flightwatch.pipeline.bus.folder import MOUNTS, prepare
from flightwatch.pipeline.bus.group_commit import GroupCommit
from flightwatch.pipeline.bus.groups import GroupTable, Topic
from flightwatch.pipeline.bus.local_subscription import LocalSubscription
from flightwatch.pipeline.bus.segment import Entry
from flightwatch.pipeline.bus.segments import SegmentedLog
from flightwatch.pipeline.bus.settings import BusSettings

_TOPIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class LocalBus:
    """A connection to the local log. Thread-safe.

    Parameters
    ----------
    folder: created (0700) when absent.
    mounts: mount table, to refuse network file systems.

    Raises
    ------
    ConfigError: the folder cannot be used (see `folder.prepare`).
    """

    def __init__(
        self, folder: Path, settings: BusSettings | None = None, clock: Clock | None = None, mounts: Path = MOUNTS
    ) -> None:
        prepare(folder, mounts)
        self._folder = folder
        self._settings = settings or BusSettings()
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._groups = self._open_groups()
        self._topics: dict[str, Topic] = {}
        self._logs: dict[str, SegmentedLog] = {}
        self._write_logs: dict[str, SegmentedLog] = {}
        self._commit = GroupCommit(self._write_log, self._retain, self._clock, self._settings.max_unacknowledged_bytes)

    def _open_groups(self) -> GroupTable:
        return GroupTable(self._folder, self._clock, self._settings.session_timeout_seconds)

    def _topic(self, name: str) -> Topic:
        with self._lock:
            if name not in self._topics:
                self._topics = {topic.name: topic for topic in self._groups.topics()}
            if name not in self._topics:
                raise ConfigError(f"there is no topic {name} in {self._folder}: run `flightwatch bus setup`")
            return self._topics[name]

    def _open_log(self, name: str) -> SegmentedLog:
        topic = self._topic(name)
        return SegmentedLog(self._folder / name, topic.partitions, self._settings.segment_bytes)

    def _log(self, name: str) -> SegmentedLog:
        if name not in self._logs:
            self._logs[name] = self._open_log(name)
        return self._logs[name]

    def _write_log(self, name: str) -> SegmentedLog:
        # Of the commit thread alone: it waits for the disk, readers do not wait for it.
        if name not in self._write_logs:
            self._write_logs[name] = self._open_log(name)
        return self._write_logs[name]

    def create_topic(self, topic: str, partitions: int, retention_ms: int | None, retention_bytes: int | None) -> None:
        """Create a topic or update its retention; the number of partitions of an existing one stays."""
        if not _TOPIC.fullmatch(topic):
            raise ConfigError(f"{topic!r} cannot be a topic name: letters, digits, '.', '_' and '-' only")
        if partitions < 1:
            raise ConfigError(f"topic {topic} needs at least one partition")
        with self._lock:
            self._topics[topic] = self._groups.put_topic(Topic(topic, partitions, retention_ms, retention_bytes))
            self._log(topic)

    def partitions(self, topic: str) -> Sequence[Partition]:
        """Return the partitions of a topic; empty when it does not exist."""
        try:
            return [Partition(topic, number) for number in range(self._topic(topic).partitions)]
        except ConfigError:
            return []

    def partition_for(self, topic: str, key: str) -> Partition:
        """Return the partition that holds a key."""
        return Partition(topic, partition_number(key, self._topic(topic).partitions))

    def publish(self, topic: str, key: str, value: bytes) -> Future[Ack]:
        """Queue a message; the future resolves when it is on disk."""
        number = self.partition_for(topic, key).number
        if len(value) > self._settings.max_message_bytes:
            refused: Future[Ack] = Future()
            limit = self._settings.max_message_bytes
            refused.set_exception(
                BadRecord(f"a message of {len(value)} bytes is above bus.max_message_bytes = {limit}")
            )
            return refused
        return self._commit.submit(topic, Entry(number, key, bytes(value)))

    def subscribe(self, topics: Sequence[str], group: str) -> Subscription:
        """Join a consumer group."""
        for topic in topics:
            self._topic(topic)
        return LocalSubscription(self._open_groups(), self._open_log, topics, group, self._clock, self._settings)

    def read(self, partition: Partition, offset: int, max_bytes: int) -> Sequence[Message]:
        """Read without a group."""
        with self._lock:
            records = self._log(partition.topic).read(partition.number, offset, max_bytes).records
        return [Message(partition, record.offset, record.key, record.value, record.stored_ms) for record in records]

    def begin_offset(self, partition: Partition) -> int:
        """Return the oldest offset still kept."""
        with self._lock:
            return self._log(partition.topic).begin_offset(partition.number)

    def end_offset(self, partition: Partition) -> int:
        """Return the offset after the newest message."""
        with self._lock:
            return self._log(partition.topic).ends()[partition.number]

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int:
        """Return the first offset stored at or after a time; the end offset when there is none."""
        with self._lock:
            return self._log(partition.topic).offset_at(partition.number, timestamp_ms)

    def group_positions(self, group: str) -> Mapping[Partition, Committed]:
        """Return the stored positions of a group."""
        with self._lock:
            return {partition: position for partition, (position, _) in self._groups.positions(group).items()}

    def incarnation(self, partition: Partition) -> str:
        """Return the random id of the topic's log."""
        with self._lock:
            return self._log(partition.topic).incarnation

    def apply_retention(self) -> int:
        """Delete files beyond the retention of their topics; return how many. Runs by itself once a minute
        in processes that publish."""
        with self._lock:
            topics = self._groups.topics()
            return sum(
                self._log(topic.name).apply_retention(self._clock.now_ms(), topic.retention_ms, topic.retention_bytes)
                for topic in topics
            )

    def _retain(self) -> None:
        try:
            self.apply_retention()
        except TransientError:
            # The next minute tries again; meanwhile nothing is lost.
            return

    def close(self) -> None:
        """Append what is queued (up to 5 s) and close."""
        self._commit.close(5.0)
        with self._lock:
            for log in (*self._logs.values(), *self._write_logs.values()):
                log.close()
            self._groups.close()
