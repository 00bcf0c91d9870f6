from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition, errors

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import Refused, StaleGeneration, TransientError
from flightwatch.pipeline.bus.base import Jump, Partition
from flightwatch.pipeline.bus.kafka_subscription import KafkaSubscription

KEY = TopicPartition("t", 0)
ONE = Partition("t", 0)


@dataclass
class Record:
    offset: int
    topic: str = "t"
    partition: int = 0
    key: bytes = b"k"
    value: bytes = b"v"
    timestamp: int = 1


@dataclass
class Group:
    generation_id: int = 1
    state: str = "<stable>"


@dataclass
class ScriptedConsumer:
    """A KafkaConsumer whose log, group and errors a test sets."""

    begin: int = 0
    end: int = 0
    stored: OffsetAndMetadata | None = None
    records: list[Record] = field(default_factory=list)
    raises: list[Exception] = field(default_factory=list)
    commit_error: Exception | None = None
    group: Group = field(default_factory=Group)
    seeks: list[int] = field(default_factory=list)
    commits: list[Any] = field(default_factory=list)
    closed: bool = False
    listener: Any = None

    def subscribe(self, topics: list[str], listener: ConsumerRebalanceListener) -> None:
        self.listener = listener
        listener.on_partitions_assigned({KEY})

    def group_metadata(self) -> Group:
        return self.group

    def beginning_offsets(self, keys: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(keys, self.begin)

    def end_offsets(self, keys: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(keys, self.end)

    def committed(self, key: TopicPartition, metadata: bool, timeout_ms: int) -> OffsetAndMetadata | None:
        return self.stored

    def seek(self, key: TopicPartition, offset: int) -> None:
        self.seeks.append(offset)

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Record]]:
        if self.raises:
            raise self.raises.pop(0)
        taken, self.records = self.records[:max_records], self.records[max_records:]
        return {KEY: taken} if taken else {}

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], timeout_ms: int) -> None:
        if self.commit_error is not None:
            raise self.commit_error
        self.commits.append(offsets[KEY])

    def close(self, autocommit: bool, timeout_ms: int) -> None:
        self.closed = True


class Stage:
    def __init__(self, *consumers: ScriptedConsumer) -> None:
        self.clock = ManualClock()
        self.consumers = consumers
        supply: Iterator[ScriptedConsumer] = iter(consumers)
        self.subscription = KafkaSubscription({"group_id": "g"}, ["t"], self.clock, make=lambda **_: next(supply))
        self.jumps: list[Jump] = []
        self.revoked: list[Partition] = []
        self.subscription.on_jump(self.jumps.append)
        self.subscription.on_revoke(self.revoked.extend)


def test_a_group_without_position_starts_at_the_oldest_message() -> None:
    stage = Stage(ScriptedConsumer(begin=5, end=9, raises=[errors.NoOffsetForPartitionError({KEY})]))
    stage.subscription.poll(100, 0)
    assert stage.subscription.position(ONE) == 5
    assert stage.jumps == []


@pytest.mark.parametrize(("stored", "reason"), [(3, "retention"), (50, "recreated")])
def test_a_position_that_is_gone_is_a_reported_jump(stored: int, reason: str) -> None:
    stage = Stage(ScriptedConsumer(begin=5, end=9, stored=OffsetAndMetadata(stored, "", -1)))
    stage.subscription.poll(100, 0)
    assert stage.jumps == [Jump(ONE, stored, 5, reason)]
    assert stage.consumers[0].seeks == [5]


def test_out_of_range_while_reading_places_the_partition_anew() -> None:
    consumer = ScriptedConsumer(end=9, stored=OffsetAndMetadata(2, "", -1), records=[Record(2)])
    stage = Stage(consumer)
    assert [message.offset for message in stage.subscription.poll(1, 0)] == [2]
    consumer.begin, consumer.raises = 7, [errors.OffsetOutOfRangeError()]
    stage.subscription.poll(100, 0)
    assert stage.jumps == [Jump(ONE, 3, 7, "retention")]
    assert stage.subscription.position(ONE) == 7


def test_messages_that_exist_and_do_not_arrive_make_the_member_join_again() -> None:
    stuck, fresh = ScriptedConsumer(end=10), ScriptedConsumer(end=10, records=[Record(0)])
    stage = Stage(stuck, fresh)
    for _ in range(200):
        stage.subscription.poll(100, 0)
        stage.clock.advance(0.1)
    assert stuck.closed
    assert stage.revoked == [ONE]
    assert not fresh.closed
    assert stage.subscription.position(ONE) == 1


def test_a_paused_or_idle_member_is_not_stalled() -> None:
    consumer = ScriptedConsumer(end=0)
    stage = Stage(consumer)
    for _ in range(400):
        stage.subscription.poll(100, 0)
        stage.clock.advance(0.1)
    assert not consumer.closed


def test_commits_of_an_old_generation_are_refused_before_and_by_the_broker() -> None:
    consumer = ScriptedConsumer(end=3)
    stage = Stage(consumer)
    stage.subscription.poll(1, 0)
    stage.subscription.commit(ONE, 1, "m")
    assert consumer.commits == [OffsetAndMetadata(1, "m", -1)]
    consumer.commit_error = errors.CommitFailedError()
    with pytest.raises(StaleGeneration):
        stage.subscription.commit(ONE, 2)
    consumer.commit_error = None
    consumer.group.generation_id = 2
    with pytest.raises(StaleGeneration, match="rebalanced"):
        stage.subscription.commit(ONE, 2)
    consumer.group.generation_id = 1
    consumer.listener.on_partitions_revoked({KEY})
    with pytest.raises(StaleGeneration, match="not assigned"):
        stage.subscription.commit(ONE, 2)
    assert stage.revoked == []
    stage.subscription.poll(1, 0)
    assert stage.revoked == [ONE]
    assert consumer.commits == [OffsetAndMetadata(1, "m", -1)]


def test_a_commit_without_answer_may_be_repeated() -> None:
    consumer = ScriptedConsumer(end=3, commit_error=errors.KafkaTimeoutError("x"))
    stage = Stage(consumer)
    stage.subscription.poll(1, 0)
    with pytest.raises(TransientError):
        stage.subscription.commit(ONE, 1)
    with pytest.raises(ValueError, match="4000"):
        stage.subscription.commit(ONE, 1, "x" * 4001)


def test_errors_of_poll_say_what_to_do() -> None:
    consumer = ScriptedConsumer(raises=[errors.NodeNotReadyError(), errors.GroupAuthorizationFailedError()])
    stage = Stage(consumer)
    with pytest.raises(TransientError):
        stage.subscription.poll(1, 0)
    with pytest.raises(Refused):
        stage.subscription.poll(1, 0)


def test_records_of_a_partition_that_was_taken_meanwhile_are_dropped() -> None:
    consumer = ScriptedConsumer(end=3, records=[Record(0), Record(1)])
    stage = Stage(consumer)
    original = consumer.poll

    def poll(timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Record]]:
        consumer.listener.on_partitions_revoked({KEY})
        return original(timeout_ms, max_records)

    consumer.poll = poll  # type: ignore[method-assign]
    assert list(stage.subscription.poll(100, 0)) == []
    assert stage.subscription.assignment() == {}
