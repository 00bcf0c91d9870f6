"""One member of a consumer group on the local log."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence

from flightwatch.core.clock import Clock
from flightwatch.core.errors import StaleGeneration
from flightwatch.pipeline.bus.base import Committed, Jump, Message, Partition
from flightwatch.pipeline.bus.groups import GroupTable
from flightwatch.pipeline.bus.segments import DAMAGE_JUMP, SegmentedLog
from flightwatch.pipeline.bus.settings import BusSettings

logger = logging.getLogger(__name__)

#: Time between two looks at the files (a few `stat` calls) while nothing arrives.
_LOOK_SECONDS = 0.02
#: A change that a `stat` cannot show (two commits within one tick of the file clock) is found after this.
_FULL_LOOK_SECONDS = 0.1
_LONGEST_METADATA = 4_000


class LocalSubscription:
    """See `base.Subscription`. Not thread-safe.

    Parameters
    ----------
    groups: a connection of its own.
    open_log: opens the log of a topic; the subscription closes it.
    """

    def __init__(
        self,
        groups: GroupTable,
        open_log: Callable[[str], SegmentedLog],
        topics: Sequence[str],
        group: str,
        clock: Clock,
        settings: BusSettings,
    ) -> None:
        self._groups = groups
        self._group = group
        self._topics = tuple(topics)
        self._clock = clock
        self._beat_seconds = settings.session_timeout_seconds / 4
        self._logs: dict[str, SegmentedLog] = {topic: open_log(topic) for topic in topics}
        self._signatures: dict[str, object] = {}
        self._behind: set[str] = set(topics)
        self._next_full_look_s = 0.0
        self._held: dict[Partition, int] = {}
        self._positions: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._revoked: Callable[[Sequence[Partition]], None] = lambda _: None
        self._jumped: Callable[[Jump], None] = lambda _: None
        self._turn = 0
        self._join()

    def _join(self) -> None:
        self._member = secrets.token_hex(8)
        self._groups.join(self._group, self._member, self._topics)
        self._next_beat_s = self._clock.monotonic_s() + self._beat_seconds
        self._must_look = True

    def poll(self, max_bytes: int, timeout_seconds: float) -> Sequence[Message]:
        """Return the next messages, waiting up to `timeout_seconds` for one."""
        deadline = self._clock.monotonic_s() + timeout_seconds
        while True:
            self._keep_membership()
            messages = self._collect(max_bytes)
            left = deadline - self._clock.monotonic_s()
            if messages or left <= 0:
                return messages
            self._clock.sleep_s(min(_LOOK_SECONDS, left))

    def _keep_membership(self) -> None:
        now = self._clock.monotonic_s()
        if now >= self._next_beat_s:
            self._groups.beat(self._group, self._member)
            self._next_beat_s = now + self._beat_seconds
            self._look_at_group()
        elif self._groups.changed() or self._must_look:
            self._look_at_group()

    def _look_at_group(self) -> None:
        holding = self._groups.holding(self._group, self._member)
        if holding.expelled:
            self._give_up(list(self._held), "expelled after too long a pause")
            self._join()
            return
        self._must_look = False
        lost = [partition for partition, generation in self._held.items() if holding.held.get(partition) != generation]
        if lost:
            self._give_up(lost, "taken away")
        if holding.unwanted:
            leaving = [partition for partition in holding.unwanted if partition in self._held]
            self._give_up(leaving, "rebalanced")
            self._groups.release(self._group, self._member, holding.unwanted)
        for partition in holding.held:
            if partition not in self._held and partition not in holding.unwanted:
                self._held[partition] = holding.held[partition]
                self._positions[partition] = self._starting_point(partition)
                self._behind.add(partition.topic)

    def _give_up(self, partitions: Sequence[Partition], reason: str) -> None:
        if not partitions:
            return
        logger.info("group %s: %d partitions %s", self._group, len(partitions), reason)
        try:
            self._revoked(partitions)
        finally:
            for partition in partitions:
                self._held.pop(partition, None)
                self._positions.pop(partition, None)
                self._paused.discard(partition)

    def _starting_point(self, partition: Partition) -> int:
        log = self._logs[partition.topic]
        begin = log.begin_offset(partition.number)
        stored = self._groups.positions(self._group).get(partition)
        if stored is None:
            return begin
        position, incarnation = stored
        end = log.ends()[partition.number]
        if incarnation != log.incarnation or position.offset > end:
            self._jump(Jump(partition, position.offset, begin, "recreated"))
            return begin
        if position.offset < begin:
            # Retention deletes messages that existed; damage leaves a gap far wider than any log is long.
            reason = "damaged" if begin - position.offset >= DAMAGE_JUMP else "retention"
            self._jump(Jump(partition, position.offset, begin, reason))
            return begin
        return position.offset

    def _jump(self, jump: Jump) -> None:
        logger.error(
            "group %s: %s/%d cannot continue at %d, continues at %d (%s)",
            self._group, jump.partition.topic, jump.partition.number, jump.wanted, jump.resumed, jump.reason,
        )  # fmt: skip
        self._jumped(jump)

    def _collect(self, max_bytes: int) -> list[Message]:
        self._notice_new_messages()
        messages: list[Message] = []
        left = max_bytes
        ready = sorted(set(self._held) - self._paused)
        self._turn += 1
        ends = {topic: self._logs[topic].ends() for topic in self._behind}
        for index in range(len(ready)):
            partition = ready[(index + self._turn) % len(ready)]
            known_ends = ends.get(partition.topic)
            if known_ends is None or self._positions[partition] >= known_ends[partition.number]:
                continue
            taken = self._read(partition, left)
            messages += taken
            left -= sum(len(message.value) for message in taken)
            if left <= 0:
                return messages
        if not messages:
            self._behind.clear()
        return messages

    def _notice_new_messages(self) -> None:
        full = self._clock.monotonic_s() >= self._next_full_look_s
        if full:
            self._next_full_look_s = self._clock.monotonic_s() + _FULL_LOOK_SECONDS
        for topic, log in self._logs.items():
            signature = log.signature()
            if signature != self._signatures.get(topic) or full:
                self._signatures[topic] = signature
                self._behind.add(topic)

    def _read(self, partition: Partition, max_bytes: int) -> list[Message]:
        wanted = self._positions[partition]
        result = self._logs[partition.topic].read(partition.number, wanted, max_bytes)
        if result.next == wanted:
            return []
        first = result.records[0].offset if result.records else result.next
        if first > wanted:
            self._jump(Jump(partition, wanted, first, "damaged" if result.damaged else "retention"))
        self._positions[partition] = result.next
        return [
            Message(partition, record.offset, record.key, record.value, record.stored_ms) for record in result.records
        ]

    def assignment(self) -> Mapping[Partition, int]:
        """Return the partitions held and their generations."""
        return dict(self._held)

    def on_revoke(self, callback: Callable[[Sequence[Partition]], None]) -> None:
        """Call `callback` inside `poll` before partitions are given up."""
        self._revoked = callback

    def on_jump(self, callback: Callable[[Jump], None]) -> None:
        """Call `callback` when a position is not in the log any more."""
        self._jumped = callback

    def commit(self, partition: Partition, offset: int, metadata: str = "") -> None:
        """Store the group's position, fenced by owner and generation."""
        if len(metadata) > _LONGEST_METADATA:
            raise ValueError(f"metadata has {len(metadata)} characters, at most {_LONGEST_METADATA} are stored")
        generation = self._held.get(partition)
        if generation is None:
            raise StaleGeneration(f"{partition.topic}/{partition.number} is not assigned to this member")
        incarnation = self._logs[partition.topic].incarnation
        self._groups.commit(self._group, self._member, partition, generation, Committed(offset, metadata), incarnation)

    def committed(self, partition: Partition) -> Committed | None:
        """Return the stored position, None when there is none for this log."""
        stored = self._groups.positions(self._group).get(partition)
        if stored is None or stored[1] != self._logs[partition.topic].incarnation:
            return None
        return stored[0]

    def seek(self, partition: Partition, offset: int) -> None:
        """Read from `offset` on."""
        if partition not in self._held:
            raise StaleGeneration(f"{partition.topic}/{partition.number} is not assigned to this member")
        self._positions[partition] = offset
        self._behind.add(partition.topic)

    def position(self, partition: Partition) -> int:
        """Return the offset of the next message."""
        if partition not in self._positions:
            raise StaleGeneration(f"{partition.topic}/{partition.number} is not assigned to this member")
        return self._positions[partition]

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Stop returning messages of these partitions."""
        self._paused.update(partition for partition in partitions if partition in self._held)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Undo `pause`."""
        for partition in partitions:
            self._paused.discard(partition)
            self._behind.add(partition.topic)

    def close(self) -> None:
        """Leave the group."""
        try:
            self._groups.leave(self._group, self._member)
        finally:
            self._groups.close()
            for log in self._logs.values():
                log.close()
