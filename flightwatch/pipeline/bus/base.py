"""The bus contract: an ordered, replayable log of byte batches, on SQLite or on Kafka.

"Acknowledged" means that `Publication.result()` returned: the batch is on stable storage of the
bus (SQLite `synchronous=FULL`, Kafka `acks=all`). Both backends pass `tests/contracts/test_bus.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One ordered log: a topic and a partition number."""

    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class Message:
    """One message as read back.

    Attributes
    ----------
    offset: position in its partition; grows by at least 1 from message to message.
    timestamp_ms: time at which the bus stored it (broker time), milliseconds since the epoch.
    """

    partition: Partition
    offset: int
    key: str
    value: bytes
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Where an acknowledged message is."""

    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's position in one partition: next offset to read, and the text stored with it."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class Jump:
    """The group could not go on where it had stopped: messages are gone, or the log is another one.

    Attributes
    ----------
    wanted: the offset at which the group should have continued.
    resumed: the offset at which it continues instead.
    reason: "retention" (deleted before they were read), "recreated" (the log is younger than the
        position) or "damaged" (a part of the log cannot be read).
    """

    partition: Partition
    wanted: int
    resumed: int
    reason: str


def partition_number(key: str, count: int) -> int:
    """Return the partition of a key among `count`: the same on every backend, program and version."""
    return zlib.crc32(key_bytes(key)) % count


def key_bytes(key: str) -> bytes:
    """Return a key as stored. A name that is not valid UTF-8 (Python holds it with surrogates) keeps its bytes."""
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return key.encode("utf-8", "backslashreplace")


def key_text(stored: bytes | None) -> str:
    """Undo `key_bytes`."""
    return (stored or b"").decode("utf-8", "surrogateescape")


class Subscription(Protocol):
    """One member of a consumer group. Used by one thread; call `poll` at least every few seconds,
    paused or not, or the group takes the partitions away.

    Partitions are assigned under a generation. Every `commit` is refused with StaleGeneration when
    the member no longer owns the partition under its current generation (rebalance, pause longer
    than the session, another member fencing it).
    """

    def poll(self, max_bytes: int, timeout_seconds: float) -> Sequence[Message]:
        """Return messages of assigned, unpaused partitions in offset order per partition; empty on timeout.

        Raises
        ------
        TransientError: the broker is away; keep calling.
        """

    def assignment(self) -> Mapping[Partition, int]:
        """Return assigned partitions and the generation under which each is held."""

    def on_revoke(self, callback: Callable[[Sequence[Partition]], None]) -> None:
        """Call `callback` inside `poll` before partitions are given up (or after they were lost)."""

    def on_jump(self, callback: Callable[[Jump], None]) -> None:
        """Call `callback` inside `poll` when a position is not in the log any more. Without one the
        jump is only logged. A group without a stored position starts at the oldest offset: no jump."""

    def commit(self, partition: Partition, offset: int, metadata: str = "") -> None:
        """Store the group's position and metadata (<= 4,000 characters) durably.

        Raises
        ------
        StaleGeneration: the partition is no longer ours.
        TransientError: outcome unknown; the same commit may be repeated.
        """

    def committed(self, partition: Partition) -> Committed | None:
        """Return the group's stored position, None when there is none."""

    def seek(self, partition: Partition, offset: int) -> None:
        """Read an assigned partition from `offset` on."""

    def position(self, partition: Partition) -> int:
        """Return the offset of the next message `poll` would return."""

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Stop returning messages of these partitions; they stay assigned."""

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Undo `pause`."""

    def close(self) -> None:
        """Leave the group."""


class Bus(Protocol):
    """A connection to the bus. Thread-safe."""

    def create_topic(self, topic: str, partitions: int, retention_ms: int | None, retention_bytes: int | None) -> None:
        """Create a topic, or check and update the retention of an existing one; idempotent."""

    def partitions(self, topic: str) -> Sequence[Partition]:
        """Return the partitions of a topic; empty when it does not exist."""

    def partition_for(self, topic: str, key: str) -> Partition:
        """Return the partition that holds a key. Raises ConfigError when the topic does not exist."""

    def publish(self, topic: str, key: str, value: bytes) -> Future[Ack]:
        """Append a message to the partition chosen by `key`, without blocking on the broker.

        The future fails with TransientError (send the same message again) or BadRecord (too large).
        Messages of one publisher and partition are stored in the order of the calls as long as none
        fails; who needs the order across a failure waits for one acknowledgement before the next message.

        Raises
        ------
        Backpressure: the byte budget of unacknowledged messages is used up.
        ConfigError: the topic does not exist.
        """

    def subscribe(self, topics: Sequence[str], group: str) -> Subscription:
        """Join a consumer group."""

    def read(self, partition: Partition, offset: int, max_bytes: int) -> Sequence[Message]:
        """Read without a group, for replay: messages from `offset` on, at least one when there is one."""

    def begin_offset(self, partition: Partition) -> int:
        """Return the oldest offset still kept."""

    def end_offset(self, partition: Partition) -> int:
        """Return the offset after the newest message."""

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int:
        """Return the first offset stored at or after a time; the end offset when there is none."""

    def group_positions(self, group: str) -> Mapping[Partition, Committed]:
        """Return the stored positions of a group, for lag and status."""

    def incarnation(self, partition: Partition) -> str:
        """Return an id that changes when the log is recreated (SQLite file id; Kafka cluster id and topic id)."""

    def close(self) -> None:
        """Flush what is unacknowledged for up to 5 s and close."""
