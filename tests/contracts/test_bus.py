"""The contract of `pipeline.bus.base`, over every backend."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from flightwatch.core.errors import Backpressure, BadRecord, FlightwatchError, StaleGeneration
from flightwatch.pipeline.bus.base import Ack, Bus, Jump, Message, Partition, Subscription
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.local import LocalBus
from flightwatch.pipeline.bus.settings import BusSettings

MEMBER = Path(__file__).with_name("bus_member.py")


@dataclass
class Backend:
    """How a test opens the bus, with what it must close."""

    url: str
    session_seconds: float
    #: Ends the sessions of a group's members at once where the broker would not do it by itself.
    end_sessions: Callable[[str], None] = lambda group: None
    #: noida-db creates a topic on the first message, whatever the client asks for.
    creates_topics: bool = False
    opened: list[Bus] = field(default_factory=list)
    joined: list[Subscription] = field(default_factory=list)
    number: Iterator[int] = field(default_factory=itertools.count)

    def open(self, **settings: object) -> Bus:
        chosen = BusSettings(session_timeout_seconds=self.session_seconds, **settings)  # type: ignore[arg-type]
        self.opened.append(open_bus(self.url, chosen))
        return self.opened[-1]

    def join(self, bus: Bus, topic: str, group: str) -> Subscription:
        self.joined.append(bus.subscribe([topic], group))
        return self.joined[-1]

    def name(self) -> str:
        return f"test-{uuid.uuid4().hex[:10]}-{next(self.number)}"

    def topic(self, bus: Bus, partitions: int = 1) -> str:
        name = self.name()
        bus.create_topic(name, partitions, 3_600_000, 500_000_000)
        return name

    def member(self, topic: str, group: str, result: Path, kill_at: str, count: int = 0) -> subprocess.Popen[str]:
        arguments = [sys.executable, str(MEMBER), self.url, topic, group, str(result), kill_at, str(count)]
        environment = dict(os.environ, TEST_SESSION_SECONDS=str(self.session_seconds))
        return subprocess.Popen(
            arguments, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def close(self) -> None:
        for subscription in self.joined:
            with contextlib.suppress(Exception):  # Some tests close a member themselves.
                subscription.close()
        for bus in self.opened:
            bus.close()


BACKENDS = [
    "local",
    pytest.param("noida", marks=pytest.mark.kafka),
    pytest.param("real", marks=pytest.mark.kafka),
]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    if request.param == "local":
        made = Backend(f"sqlite://{tmp_path}/bus", 1.0)
    elif request.param == "noida":
        address = request.getfixturevalue("kafka_broker")
        expel = partial(request.getfixturevalue("expel"), address)
        made = Backend(f"kafka://{address}", 6.0, end_sessions=expel, creates_topics=True)
    else:
        made = Backend(f"kafka://{request.getfixturevalue('real_kafka')}", 6.0)
    yield made
    made.close()


def put(bus: Bus, topic: str, items: list[tuple[str, bytes]]) -> None:
    for future in [bus.publish(topic, key, value) for key, value in items]:
        future.result(120)


def take(subscription: Subscription, count: int, max_bytes: int = 1_000_000, seconds: float = 300.0) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + seconds
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages arrived in time"
        messages += subscription.poll(max_bytes, 0.2)
    return messages


def until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"


def hold_all(subscription: Subscription, topic: str, partitions: int) -> None:
    def complete() -> bool:
        subscription.poll(1, 0.05)
        return {partition.number for partition in subscription.assignment()} == set(range(partitions))

    until(complete)
    assert {partition.topic for partition in subscription.assignment()} == {topic}


def together(members: list[Subscription], condition: Callable[[], bool]) -> None:
    """Poll each member on a thread of its own, as members do, until the condition holds."""
    done = threading.Event()

    def polling(member: Subscription) -> None:
        while not done.is_set():
            member.poll(1, 0.05)

    threads = [threading.Thread(target=polling, args=(member,)) for member in members]
    for thread in threads:
        thread.start()
    try:
        until(condition)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_order_is_kept_per_key_and_lane(backend: Backend) -> None:
    bus = backend.open()
    lanes = [backend.topic(bus, partitions=3), backend.topic(bus, partitions=2)]
    keys = ["node-a", "node b; rm -rf /", "$(reboot)", "nœud-\udcff", "节点"]
    futures = [bus.publish(lane, key, f"{number}".encode()) for number in range(100) for key in keys for lane in lanes]
    for future in futures:
        future.result(120)
    backend.joined.append(bus.subscribe(lanes, backend.name()))
    arrived: dict[tuple[str, str], list[int]] = defaultdict(list)
    for message in take(backend.joined[-1], 1000):
        assert message.partition == bus.partition_for(message.partition.topic, message.key)
        arrived[message.partition.topic, message.key].append(int(message.value))
    assert arrived == {(lane, key): list(range(100)) for lane in lanes for key in keys}


def test_acknowledgements_name_partition_and_offset(backend: Backend) -> None:
    bus = backend.open()
    topic = backend.topic(bus, partitions=2)
    acks = [bus.publish(topic, "n", b"%d" % number).result(120) for number in range(5)]
    assert [ack.offset for ack in acks] == [0, 1, 2, 3, 4]
    assert {ack.partition for ack in acks} == {bus.partition_for(topic, "n")}


def test_offsets_and_positions_of_an_empty_topic(backend: Backend) -> None:
    bus = backend.open()
    topic = backend.topic(bus, partitions=2)
    assert list(bus.partitions(topic)) == [Partition(topic, 0), Partition(topic, 1)]
    assert list(bus.partitions(backend.name())) == []
    for partition in bus.partitions(topic):
        assert (bus.begin_offset(partition), bus.end_offset(partition)) == (0, 0)
        assert list(bus.read(partition, 0, 1000)) == []
        assert bus.offset_at(partition, 0) == 0


def test_creating_a_topic_twice_changes_nothing(backend: Backend) -> None:
    bus = backend.open()
    topic = backend.topic(bus, partitions=2)
    put(bus, topic, [("k", b"v")])
    before = bus.incarnation(Partition(topic, 0))
    bus.create_topic(topic, 2, 7_200_000, 100_000_000)
    assert len(bus.partitions(topic)) == 2
    assert bus.incarnation(Partition(topic, 0)) == before
    assert sum(bus.end_offset(partition) for partition in bus.partitions(topic)) == 1


def test_a_group_resumes_where_it_committed(backend: Backend) -> None:
    bus = backend.open()
    topic, group = backend.topic(bus), backend.name()
    partition = Partition(topic, 0)
    put(bus, topic, [("k", b"%d" % number) for number in range(10)])
    first = backend.join(bus, topic, group)
    assert [message.offset for message in take(first, 10)] == list(range(10))
    assert first.committed(partition) is None
    first.commit(partition, 4, '{"end": 9}')
    first.close()
    second = backend.join(bus, topic, group)
    assert [int(message.value) for message in take(second, 6)] == [4, 5, 6, 7, 8, 9]
    stored = second.committed(partition)
    assert stored is not None
    assert (stored.offset, stored.metadata) == (4, '{"end": 9}')
    assert bus.group_positions(group) == {partition: stored}
    assert second.position(partition) == 10


def test_groups_do_not_disturb_each_other(backend: Backend) -> None:
    bus = backend.open()
    topic = backend.topic(bus)
    put(bus, topic, [("k", b"1"), ("k", b"2")])
    one, two = backend.name(), backend.name()
    first = backend.join(bus, topic, one)
    take(first, 2)
    first.commit(Partition(topic, 0), 2)
    assert len(take(backend.join(bus, topic, two), 2)) == 2
    assert bus.group_positions(two) == {}


def test_seek_pause_and_resume(backend: Backend) -> None:
    bus = backend.open()
    topic = backend.topic(bus)
    partition = Partition(topic, 0)
    put(bus, topic, [("k", b"%d" % number) for number in range(4)])
    subscription = backend.join(bus, topic, backend.name())
    take(subscription, 4)
    subscription.seek(partition, 1)
    assert subscription.position(partition) == 1
    assert [message.offset for message in take(subscription, 3)] == [1, 2, 3]
    subscription.pause([partition])
    put(bus, topic, [("k", b"4")])
    assert list(subscription.poll(1000, 0.5)) == []
    assert set(subscription.assignment()) == {partition}
    subscription.resume([partition])
    assert [message.offset for message in take(subscription, 1)] == [4]


def test_replay_from_an_offset_and_from_a_time(backend: Backend) -> None:
    bus = backend.open()
    topic = backend.topic(bus)
    partition = Partition(topic, 0)
    put(bus, topic, [("k", b"%d" % number) for number in range(5)])
    newest = bus.read(partition, 4, 100)[0].timestamp_ms
    until(lambda: time.time() * 1000 > newest + 5)
    between = int(time.time() * 1000)
    put(bus, topic, [("k", b"%d" % number) for number in range(5, 8)])
    assert [int(message.value) for message in bus.read(partition, 3, 10_000)] == [3, 4, 5, 6, 7]
    assert len(bus.read(partition, 0, 1)) >= 1
    assert bus.offset_at(partition, between) == 5
    assert bus.offset_at(partition, 0) == 0
    assert bus.offset_at(partition, between + 3_600_000) == bus.end_offset(partition) == 8


def test_lag_in_time_is_the_age_of_the_next_message(backend: Backend) -> None:
    bus = backend.open()
    topic, group = backend.topic(bus), backend.name()
    partition = Partition(topic, 0)
    before = int(time.time() * 1000)
    put(bus, topic, [("k", b"1"), ("k", b"2")])
    subscription = backend.join(bus, topic, group)
    take(subscription, 2)
    subscription.commit(partition, 1)
    waiting = bus.read(partition, bus.group_positions(group)[partition].offset, 1)[0]
    assert waiting.value == b"2"
    assert before - 2_000 <= waiting.timestamp_ms <= time.time() * 1000 + 2_000


def test_large_messages(backend: Backend) -> None:
    bus = backend.open()
    topic = backend.topic(bus)
    values = [os.urandom(4_000_000) for _ in range(3)]
    put(bus, topic, [("k", value) for value in values])
    assert [message.value for message in take(backend.join(bus, topic, backend.name()), 3, 4_000_000)] == values
    assert bus.read(Partition(topic, 0), 1, 1)[0].value == values[1]


def test_a_message_beyond_the_limit_is_refused_and_the_next_one_goes(backend: Backend) -> None:
    bus = backend.open(max_message_bytes=100_000)
    topic = backend.topic(bus)
    with pytest.raises(BadRecord, match="max_message_bytes"):
        bus.publish(topic, "k", bytes(100_001)).result(120)
    assert bus.publish(topic, "k", bytes(100_000)).result(120).offset == 0


def test_publishers_are_held_back_at_the_byte_budget(backend: Backend) -> None:
    bus = backend.open(max_unacknowledged_bytes=300_000)
    topic = backend.topic(bus)
    futures: list[Future[Ack]] = []

    def flood() -> None:
        for _ in range(5_000):
            futures.append(bus.publish(topic, "k", bytes(100_000)))

    with pytest.raises(Backpressure):
        flood()
    accepted = len([future.result(120) for future in futures])
    assert bus.end_offset(Partition(topic, 0)) == accepted
    assert bus.publish(topic, "k", b"after").result(120).offset == accepted


def test_a_missing_topic_is_an_error_and_creates_nothing(backend: Backend) -> None:
    bus = backend.open(kafka_delivery_timeout_ms=2_000)
    missing = backend.name()
    with pytest.raises(FlightwatchError, match=missing):
        bus.partition_for(missing, "k")
    if backend.creates_topics:
        return
    with pytest.raises(FlightwatchError):
        bus.publish(missing, "k", b"v").result(120)
    assert list(bus.partitions(missing)) == []


def test_two_members_share_the_partitions(backend: Backend) -> None:
    bus = backend.open()
    topic, group = backend.topic(bus, partitions=4), backend.name()
    first = backend.join(bus, topic, group)
    hold_all(first, topic, 4)
    generations = dict(first.assignment())
    revoked: list[Partition] = []
    first.on_revoke(revoked.extend)
    second = backend.join(bus, topic, group)

    def shared() -> bool:
        return len(first.assignment()) == len(second.assignment()) == 2

    together([first, second], shared)
    assert not set(first.assignment()) & set(second.assignment())
    assert set(second.assignment()) <= set(revoked)
    assert all(second.assignment()[partition] > generations[partition] for partition in second.assignment())
    moved = next(iter(second.assignment()))
    with pytest.raises(StaleGeneration):
        first.commit(moved, 1, "too late")
    second.commit(moved, 0, "in time")
    stored = second.committed(moved)
    assert stored is not None
    assert stored.metadata == "in time"
    second.close()
    hold_all(first, topic, 4)


def test_a_paused_zombie_commits_nothing(backend: Backend, tmp_path: Path) -> None:
    bus = backend.open()
    topic, group = backend.topic(bus), backend.name()
    partition = Partition(topic, 0)
    put(bus, topic, [("k", b"%d" % number) for number in range(9)])
    zombie = backend.member(topic, group, tmp_path / "unused", "hold")
    assert zombie.stdin is not None
    assert zombie.stdout is not None
    try:
        assert zombie.stdout.readline() == "HELD\n"
        zombie.send_signal(signal.SIGSTOP)
        backend.end_sessions(group)
        heir = backend.join(bus, topic, group)
        hold_all(heir, topic, 1)
        heir.commit(partition, 3, "heir")
        zombie.send_signal(signal.SIGCONT)
        print("commit", file=zombie.stdin, flush=True)
        assert zombie.stdout.readline() == "STALE\n"
        stored = heir.committed(partition)
        assert stored is not None
        assert (stored.offset, stored.metadata) == (3, "heir")
    finally:
        zombie.kill()
        zombie.communicate()


def test_a_reader_killed_at_any_step_loses_nothing(backend: Backend, tmp_path: Path) -> None:
    bus = backend.open()
    topic, group = backend.topic(bus, partitions=2), backend.name()
    total = 60
    put(bus, topic, [(f"node{number % 7}", b"%d" % number) for number in range(total)])
    result = tmp_path / "result"
    for kill_at in ("poll", "intent", "work", "commit"):
        process = backend.member(topic, group, result, kill_at, total)
        process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL, f"the reader was not killed at {kill_at}"
        backend.end_sessions(group)
    done = sum(position.offset for position in bus.group_positions(group).values())
    last = backend.member(topic, group, result, "never", total - done)
    last.communicate(timeout=300)
    assert last.returncode == 0
    lines = [line.split() for line in result.read_text().splitlines()]
    assert {int(value) for *_, value in lines} == set(range(total))
    for number in ("0", "1"):
        offsets = [int(line[1]) for line in lines if line[0] == number]
        # Work done twice is what ingest recognises by the stored intent; nothing may be skipped.
        assert sorted(set(offsets)) == list(range(bus.end_offset(Partition(topic, int(number)))))
    assert {p.number: c.offset for p, c in bus.group_positions(group).items()} == {
        partition.number: bus.end_offset(partition) for partition in bus.partitions(topic)
    }


def test_a_group_whose_log_is_younger_than_its_position_starts_over_and_says_so(backend: Backend) -> None:
    bus = backend.open()
    topic, group = backend.topic(bus), backend.name()
    partition = Partition(topic, 0)
    put(bus, topic, [("k", b"0")])
    first = backend.join(bus, topic, group)
    take(first, 1)
    first.commit(partition, 1_000)
    first.close()
    jumps: list[Jump] = []
    second = bus.subscribe([topic], group)
    backend.joined.append(second)
    second.on_jump(jumps.append)
    assert [message.value for message in take(second, 1)] == [b"0"]
    assert jumps == [Jump(partition, 1_000, 0, "recreated")]


def forget(bus: Bus, partition: Partition, backend: Backend) -> None:
    """Make the bus delete its oldest messages, as retention does."""
    if isinstance(bus, LocalBus):
        bus.create_topic(partition.topic, 1, None, 1_000_000)
        bus.apply_retention()
        return
    from kafka import KafkaAdminClient, TopicPartition

    admin = KafkaAdminClient(bootstrap_servers=backend.url.removeprefix("kafka://"))
    admin.delete_records({TopicPartition(partition.topic, partition.number): 20})
    admin.close()


def test_a_group_overtaken_by_retention_continues_at_the_oldest_message_and_says_so(backend: Backend) -> None:
    bus = backend.open(segment_bytes=1_000_000)
    topic, group = backend.topic(bus), backend.name()
    partition = Partition(topic, 0)
    for first in range(0, 30, 10):
        put(bus, topic, [("k", bytes([number]) * 100_000) for number in range(first, first + 10)])
    reader = backend.join(bus, topic, group)
    take(reader, 30, 4_000_000)
    reader.commit(partition, 5)
    reader.close()
    forget(bus, partition, backend)
    begin = bus.begin_offset(partition)
    assert 5 < begin < 30
    assert [message.offset for message in bus.read(partition, 0, 10**8)][:1] == [begin]
    jumps: list[Jump] = []
    again = backend.join(bus, topic, group)
    again.on_jump(jumps.append)
    assert [message.offset for message in take(again, 30 - begin, 10**7)] == list(range(begin, 30))
    assert jumps == [Jump(partition, 5, begin, "retention")]
