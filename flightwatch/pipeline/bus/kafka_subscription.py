"""One member of a consumer group on Kafka."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition, errors

from flightwatch.core.clock import Clock
from flightwatch.core.errors import StaleGeneration, TransientError
from flightwatch.pipeline.bus.base import Committed, Jump, Message, Partition
from flightwatch.pipeline.bus.kafka_options import explain
from flightwatch.pipeline.bus.kafka_reader import message_of

logger = logging.getLogger(__name__)

_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 0.01, 0.05
_STALL_CHECK_S = 15.0
_JOIN_PATIENCE_MS = 100
#: kafka-python's name of the state of a member that takes part in a generation.
_STABLE = "<stable>"
_LONGEST_METADATA = 4_000
_NOT_OURS = (
    errors.CommitFailedError,
    errors.IllegalGenerationError,
    errors.UnknownMemberIdError,
    errors.RebalanceInProgressError,
    errors.FencedInstanceIdError,
)


class _Assignments(ConsumerRebalanceListener):  # type: ignore[misc]
    """Takes the client's callbacks, which come on its IO thread and may not block, for the polling thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: list[tuple[str, frozenset[Any]]] = []
        self.revoked: set[Partition] = set()

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        """Remember that partitions are gone; commits of them are refused from this moment on."""
        with self._lock:
            self._changes.append(("revoked", frozenset(revoked)))
            self.revoked |= {Partition(key.topic, key.partition) for key in revoked}

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        """Remember that partitions are gone."""
        self.on_partitions_revoked(lost)

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """Remember new partitions."""
        with self._lock:
            self._changes.append(("assigned", frozenset(assigned)))

    def take(self) -> list[tuple[str, frozenset[Any]]]:
        """Return the changes since the last call, oldest first."""
        with self._lock:
            changes, self._changes = self._changes, []
            self.revoked.clear()
            return changes


class KafkaSubscription:
    """See `base.Subscription`. Not thread-safe.

    `on_revoke` is called after Kafka took the partitions: a commit of them is refused already.

    Parameters
    ----------
    options: for KafkaConsumer, group id and session included.
    make: makes the consumer; replaced in tests.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        topics: Sequence[str],
        clock: Clock,
        make: Callable[..., Any] = KafkaConsumer,
    ) -> None:
        self._options = dict(options)
        self._make = make
        self._topics = list(topics)
        self._clock = clock
        self._revoke: Callable[[Sequence[Partition]], None] = lambda _: None
        self._jumped: Callable[[Jump], None] = lambda _: None
        self._held: dict[Partition, int] = {}
        self._positions: dict[Partition, int] = {}
        self._unplaced: set[Partition] = set()
        self._paused: set[Partition] = set()
        self._average_bytes = 50_000.0
        self._moved_at_s = self._checked_at_s = clock.monotonic_s()
        self._consumer: Any = None
        self._open()

    def _open(self) -> None:
        self._assignments = _Assignments()
        try:
            self._consumer = self._make(**self._options)
            self._consumer.subscribe(self._topics, listener=self._assignments)
        except errors.KafkaError as error:
            raise explain(error, f"joining group {self._options['group_id']}") from error

    def poll(self, max_bytes: int, timeout_seconds: float) -> Sequence[Message]:
        """Return the next messages, waiting up to `timeout_seconds` for one."""
        deadline = self._clock.monotonic_s() + timeout_seconds
        sleep_s = _SHORTEST_SLEEP_S
        while True:
            try:
                messages = self._poll_once(max_bytes)
                self._watch_stall()
            except errors.KafkaError as error:
                raise explain(error, f"polling group {self._options['group_id']}") from error
            left = deadline - self._clock.monotonic_s()
            if messages or left <= 0:
                return messages
            # Some brokers answer an empty fetch at once: without a sleep an idle reader burns a core.
            self._clock.sleep_s(min(sleep_s, left))
            sleep_s = min(_LONGEST_SLEEP_S, sleep_s * 1.5)

    def _poll_once(self, max_bytes: int) -> list[Message]:
        messages: list[Message] = []
        size = 0
        while size < max_bytes:
            self._settle_assignment()
            room = int(max(1, min(500, (max_bytes - size) / self._average_bytes)))
            try:
                fetched = self._consumer.poll(timeout_ms=self._patience_ms(), max_records=room)
            except errors.NoOffsetForPartitionError:
                self._settle_assignment()
                return messages
            except errors.OffsetOutOfRangeError:
                self._unplaced |= set(self._held)
                self._settle_assignment()
                return messages
            self._settle_assignment()
            taken = [message for records in fetched.values() for message in map(message_of, records)]
            kept = [message for message in taken if self._accept(message)]
            messages += kept
            size += sum(len(message.value) for message in kept)
            if not taken:
                break
        if messages:
            self._average_bytes += 0.3 * (size / len(messages) - self._average_bytes)
            self._moved_at_s = self._clock.monotonic_s()
        return messages

    def _patience_ms(self) -> int:
        """Return how long the client may block: joining a group makes no progress in calls that do not wait."""
        joined = self._held and self._consumer.group_metadata().state == _STABLE
        return 0 if joined else _JOIN_PATIENCE_MS

    def _accept(self, message: Message) -> bool:
        """Take a message of a partition that is still ours and at its place."""
        position = self._positions.get(message.partition)
        if position is None or message.offset < position:
            return False
        self._positions[message.partition] = message.offset + 1
        return True

    def _settle_assignment(self) -> None:
        for change, keys in self._assignments.take():
            partitions = [Partition(key.topic, key.partition) for key in keys]
            if change == "revoked":
                self._give_up([partition for partition in partitions if partition in self._held])
            else:
                generation = self._consumer.group_metadata().generation_id
                self._held.update(dict.fromkeys(partitions, generation))
                self._unplaced.update(partitions)
        for partition in sorted(self._unplaced):
            self._place(partition)
            self._unplaced.discard(partition)

    def _give_up(self, partitions: Sequence[Partition]) -> None:
        if not partitions:
            return
        for partition in partitions:
            self._held.pop(partition, None)
            self._unplaced.discard(partition)
            self._paused.discard(partition)
        try:
            self._revoke(partitions)
        finally:
            for partition in partitions:
                self._positions.pop(partition, None)

    def _place(self, partition: Partition) -> None:
        """Go on where this member or else the group was, or at the oldest message when that is gone; say so."""
        key = TopicPartition(partition.topic, partition.number)
        begin = int(self._consumer.beginning_offsets([key])[key])
        end = int(self._consumer.end_offsets([key])[key])
        start = self._positions.get(partition)
        if start is None:
            stored = self.committed(partition)
            start = begin if stored is None else stored.offset
        if not begin <= start <= end:
            reason = "retention" if start < begin else "recreated"
            logger.error("%s/%d cannot continue at %d, continues at %d (%s)", *key, start, begin, reason)
            self._jumped(Jump(partition, start, begin, reason))
            start = begin
        self._consumer.seek(key, start)
        self._positions[partition] = start
        self._moved_at_s = self._clock.monotonic_s()

    def _watch_stall(self) -> None:
        """Replace the consumer when messages exist and none arrives: its poll says nothing when it is stuck."""
        now = self._clock.monotonic_s()
        if now - max(self._moved_at_s, self._checked_at_s) < _STALL_CHECK_S:
            return
        self._checked_at_s = now
        waiting = [partition for partition in self._held if partition not in self._paused]
        keys = [TopicPartition(partition.topic, partition.number) for partition in waiting]
        ends = self._consumer.end_offsets(keys) if keys else {}
        if any(end > self._positions.get(Partition(key.topic, key.partition), end) for key, end in ends.items()):
            logger.error("group %s: messages exist but none arrives: joining again", self._options["group_id"])
            self._give_up(list(self._held))
            self._consumer.close(autocommit=False, timeout_ms=2_000)
            self._open()

    def assignment(self) -> Mapping[Partition, int]:
        """Return the partitions held and the generation of the group."""
        return dict(self._held)

    def on_revoke(self, callback: Callable[[Sequence[Partition]], None]) -> None:
        """Call `callback` inside `poll` after partitions were taken."""
        self._revoke = callback

    def on_jump(self, callback: Callable[[Jump], None]) -> None:
        """Call `callback` when a position is not in the log any more."""
        self._jumped = callback

    def commit(self, partition: Partition, offset: int, metadata: str = "") -> None:
        """Store the group's position; Kafka refuses an old generation, and so do we before asking."""
        if len(metadata) > _LONGEST_METADATA:
            raise ValueError(f"metadata has {len(metadata)} characters, at most {_LONGEST_METADATA} are stored")
        where = f"{partition.topic}/{partition.number}"
        held = self._held.get(partition)
        if held is None or partition in self._assignments.revoked:
            raise StaleGeneration(f"{where} is not assigned to this member")
        if self._consumer.group_metadata().generation_id != held:
            raise StaleGeneration(f"{where}: the group was rebalanced")
        key = TopicPartition(partition.topic, partition.number)
        try:
            self._consumer.commit({key: OffsetAndMetadata(offset, metadata, -1)}, timeout_ms=10_000)
        except _NOT_OURS as error:
            raise StaleGeneration(f"{where}: {type(error).__name__}") from error
        except errors.KafkaError as error:
            raise explain(error, f"committing {where}") from error

    def committed(self, partition: Partition) -> Committed | None:
        """Return the stored position, None when there is none."""
        key = TopicPartition(partition.topic, partition.number)
        try:
            stored = self._consumer.committed(key, metadata=True, timeout_ms=10_000)
        except errors.KafkaError as error:
            raise explain(error, f"reading the position of {partition.topic}") from error
        return None if stored is None or stored.offset < 0 else Committed(stored.offset, stored.metadata or "")

    def seek(self, partition: Partition, offset: int) -> None:
        """Read from `offset` on."""
        if partition not in self._held:
            raise StaleGeneration(f"{partition.topic}/{partition.number} is not assigned to this member")
        self._consumer.seek(TopicPartition(partition.topic, partition.number), offset)
        self._positions[partition] = offset

    def position(self, partition: Partition) -> int:
        """Return the offset of the next message."""
        if partition not in self._positions:
            raise StaleGeneration(f"{partition.topic}/{partition.number} is not assigned to this member")
        return self._positions[partition]

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Stop returning messages of these partitions."""
        ours = [partition for partition in partitions if partition in self._held]
        self._paused.update(ours)
        self._consumer.pause(*[TopicPartition(partition.topic, partition.number) for partition in ours])

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Undo `pause`."""
        ours = [partition for partition in partitions if partition in self._paused]
        self._paused.difference_update(ours)
        self._consumer.resume(*[TopicPartition(partition.topic, partition.number) for partition in ours])
        self._moved_at_s = self._clock.monotonic_s()

    def close(self) -> None:
        """Leave the group."""
        try:
            self._consumer.close(autocommit=False, timeout_ms=3_000)
        except errors.KafkaError as error:
            raise TransientError(f"leaving group {self._options['group_id']}: {error}") from error
