"""Every way that is known to break exactly-once delivery, on a real bus and a real engine, in one process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord, TransientError
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.bus.base import Bus, Partition
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.ingest.ranges import Intent
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.ingest.settings import GROUP, IngestSettings
from flightwatch.pipeline.store.client import Store
from tests.pipeline.ingest.ingest_stage import (
    DEAD,
    EVENTS,
    SAMPLES,
    SETTINGS,
    Agent,
    Inline,
    consumer,
    drain,
    expected,
    ingest_all,
    now_ms,
    setup_topics,
    stored,
)

DAY_MS = 86_400_000


class Flaky:
    """A store whose inserts can be made to fail before or after they happened."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.inserted: list[tuple[str, str, int]] = []
        self.before: Callable[[str, pa.Table], None] = lambda table, block: None
        self.after: Callable[[str, pa.Table], None] = lambda table, block: None

    def rows(self, *arguments: Any) -> list[dict[str, Any]]:
        return self._store.rows(*arguments)

    def insert_block(self, table: str, block: pa.Table, token: str) -> None:
        self.before(table, block)
        self._store.insert_block(table, block, token)
        self.inserted.append((table, token, block.num_rows))
        self.after(table, block)


class Times:
    """Raises an error the first `count` times it is called for one table."""

    def __init__(self, count: int, error: Exception, table: str = "device_samples") -> None:
        self.count, self.error, self.table = count, error, table

    def __call__(self, table: str, block: pa.Table) -> None:
        if table == self.table and self.count > 0:
            self.count -= 1
            raise self.error


def rollup_rows(store: Store) -> int:
    return int(store.rows(f"SELECT sum(n) AS n FROM {DATABASE}.device_1m")[0]["n"])


def over(bus: Bus, store: Any, settings: IngestSettings = SETTINGS, **options: Any) -> Ingest:
    return Ingest(bus, store, settings, cluster="c1", node="ingest-node", **options)


def test_rows_arrive_once_with_their_source_and_in_the_rollup(bus: Bus, store: Store, ingest: Ingest) -> None:
    agents = [Agent(bus, f"n{n}") for n in range(5)]
    for number in range(10):
        for agent in agents:
            agent.send(agent.samples(number))
    ingest_all(ingest, bus)
    assert stored(store) == expected(*agents)
    assert rollup_rows(store) == 100
    places = store.rows(f"SELECT DISTINCT src_partition, src_offset FROM {DATABASE}.device_samples")
    assert len(places) == 50
    assert ingest.metrics.snapshot().rows == {"device_samples": 100}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_unknown_outcome_is_repeated_with_the_identical_block(bus: Bus, store: Store, moment: str) -> None:
    flaky = Flaky(store)
    agent = Agent(bus)
    for number in range(6):
        agent.send(agent.samples(number))
    setattr(flaky, moment, Times(3, TransientError("timeout: nobody knows")))
    ingest_all(over(bus, flaky), bus)
    tries = [entry for entry in flaky.inserted if entry[0] == "device_samples"]
    assert len(set(tries)) == 1, "never bisected, never another token"
    assert stored(store) == expected(agent)
    assert rollup_rows(store) == 12


def test_a_process_that_dies_after_the_insert_leaves_an_intent_that_the_next_one_repeats(
    bus: Bus, store: Store
) -> None:
    agent = Agent(bus)
    for number in range(6):
        agent.send(agent.samples(number))
    flaky = Flaky(store)
    flaky.after = Times(10**9, TransientError("the process is gone"))
    dying = consumer(over(bus, flaky))
    for _ in range(30):
        dying.turn(0.01)
    assert len(stored(store)) == 12
    # More arrives before the next process starts: the repeated range must not grow.
    agent.send(agent.samples(7))
    dying._subscription.close()
    second = Flaky(store)
    ingest_all(over(bus, second), bus)
    assert stored(store) == expected(agent)
    assert rollup_rows(store) == 14
    assert second.inserted[0] == flaky.inserted[0]


def test_a_range_whose_window_rolled_over_goes_by_presence(bus: Bus, store: Store) -> None:
    """Half of the range is in the store, the window has forgotten it, and the intent is old."""
    agents = [Agent(bus, "n1"), Agent(bus, "n2")]
    for number in range(4):
        for agent in agents:
            agent.send(agent.samples(number))
    flaky = Flaky(store)
    flaky.after = Times(10**9, TransientError("gone"))
    first = consumer(over(bus, flaky))
    for _ in range(30):
        first.turn(0.01)
    landed = len(stored(store))
    assert landed > 0
    store.command(f"ALTER TABLE {DATABASE}.device_samples DELETE WHERE device = 1 AND temp_c = 2",
                  settings={"mutations_sync": 2})  # fmt: skip
    first._subscription.close()
    clock = ManualClock(now_ms() + 4 * DAY_MS)
    forget_tokens(store)
    try:
        ingest_all(over(bus, store, clock=clock), bus)
        # Rows of a message are stored together or not at all, so the deleted rows stay deleted: presence is
        # counted per message and day. What must not happen is a second copy.
        got = stored(store)
        assert len(got) == len({tuple(row.values()) for row in got})
        assert len(got) >= landed - 2
        missing = [row for row in expected(*agents) if row not in got]
        assert all(row["device"] == 1 and row["temp_c"] == 2.0 for row in missing)
    finally:
        remember_tokens(store)


def forget_tokens(store: Store) -> None:
    store.command(f"ALTER TABLE {DATABASE}.device_samples MODIFY SETTING non_replicated_deduplication_window = 0")


def remember_tokens(store: Store) -> None:
    store.command(f"ALTER TABLE {DATABASE}.device_samples MODIFY SETTING non_replicated_deduplication_window = 10000")


def test_a_rewound_group_stores_only_what_is_absent(bus: Bus, store: Store, ingest: Ingest) -> None:
    agents = [Agent(bus, f"n{n}") for n in range(3)]
    for number in range(5):
        for agent in agents:
            agent.send(agent.samples(number))
    ingest_all(ingest, bus)
    lost = store.rows(f"SELECT src_partition, max(src_offset) AS o FROM {DATABASE}.device_samples GROUP BY 1")
    for row in lost:
        store.command(
            f"ALTER TABLE {DATABASE}.device_samples DELETE WHERE src_partition = {row['src_partition']}"
            f" AND src_offset = {row['o']}",
            settings={"mutations_sync": 2},
        )
    assert len(stored(store)) < 30
    subscription = bus.subscribe([SAMPLES], GROUP)
    subscription.poll(1, 0.1)
    for partition in subscription.assignment():
        subscription.commit(partition, 0, "")
    subscription.close()
    ingest_all(over(bus, store), bus)
    assert stored(store) == expected(*agents)


def test_a_recreated_bus_with_the_same_offsets_loses_nothing(tmp_path: Path, store: Store) -> None:
    folder = tmp_path / "bus"
    sent = []
    for round_number in range(2):
        bus = open_bus(f"sqlite://{folder}", BusSettings())
        setup_topics(bus)
        agent = Agent(bus, spool_id=f"s{round_number}")
        for number in range(4):
            agent.send(agent.samples(100 * round_number + number))
        ingest_all(over(bus, store), bus)
        bus.close()
        shutil.rmtree(folder)
        sent.append(agent)
    assert stored(store) == expected(*sent)


def test_a_batch_that_the_broker_holds_twice_is_stored_once(bus: Bus, store: Store, ingest: Ingest) -> None:
    """An acknowledgement is lost and the producer rebuilt, or the agent dies between ack and trim."""
    agent = Agent(bus)
    first = [agent.send(agent.samples(number)) for number in range(4)]
    for message in first[2:]:
        agent.publish(message)
    agent.send(agent.samples(4))
    ingest_all(ingest, bus)
    assert stored(store) == expected(agent)
    assert ingest.metrics.snapshot().duplicates == 2
    # Another process, later: what it must know comes from the store.
    agent.publish(first[3])
    again = over(bus, store)
    ingest_all(again, bus)
    assert again.metrics.snapshot().duplicates == 1
    assert stored(store) == expected(agent)
    assert store.rows(f"SELECT count() AS n FROM {DATABASE}.data_gaps")[0]["n"] == 0


def test_a_jump_is_a_counted_gap_and_an_event_once(bus: Bus, store: Store, ingest: Ingest) -> None:
    agent = Agent(bus)
    agent.send(agent.samples(1))
    for _ in range(3):
        agent.batch(agent.samples(2))
    agent.send(agent.samples(3))
    ingest_all(ingest, bus)
    ingest_all(over(bus, store), bus)
    gaps = store.rows(f"SELECT node, lane, first_seq, last_seq, batches FROM {DATABASE}.data_gaps")
    assert gaps == [{"node": "n1", "lane": "samples", "first_seq": 2, "last_seq": 4, "batches": 3}]
    events = store.rows(f"SELECT node, code, attrs FROM {DATABASE}.events")
    assert [(e["node"], e["code"], e["attrs"]["batches"]) for e in events] == [("n1", "data_gap", "3")]
    assert ingest.metrics.snapshot().gaps == 3


def test_a_spool_that_starts_late_shows_what_is_missing_before(bus: Bus, store: Store, ingest: Ingest) -> None:
    agent = Agent(bus)
    agent.seq["samples"] = 9
    agent.send(agent.samples(1))
    other = Agent(bus, spool_id="s2")
    other.send(other.samples(2))
    ingest_all(ingest, bus)
    gaps = store.rows(f"SELECT first_seq, last_seq FROM {DATABASE}.data_gaps")
    assert gaps == [{"first_seq": 1, "last_seq": 9}]


def test_messages_deleted_before_they_were_read_are_a_gap(tmp_path: Path, store: Store) -> None:
    bus = open_bus(f"sqlite://{tmp_path}/bus", BusSettings(segment_bytes=1_000_000))
    setup_topics(bus, 1)
    agent = Agent(bus)
    agent.send(agent.samples(0))
    ingest_all(over(bus, store), bus)
    position = bus.group_positions(GROUP)[Partition(SAMPLES, 0)]
    subscription = bus.subscribe([SAMPLES], GROUP)
    subscription.poll(1, 0.1)
    # The group stands 3 messages before the oldest kept one.
    subscription.commit(Partition(SAMPLES, 0), position.offset)
    subscription.close()
    fake = Beheaded(bus, 3)
    for number in range(1, 6):
        agent.send(agent.samples(number))
    ingest_all(over(fake, store), bus)  # type: ignore[arg-type]
    gaps = store.rows(f"SELECT reason, batches, src_offset FROM {DATABASE}.data_gaps ORDER BY batches")
    assert [(gap["batches"], gap["src_offset"]) for gap in gaps] == [(3, 4), (3, 4)]
    assert any("retention" in gap["reason"] for gap in gaps)
    bus.close()


class Beheaded:
    """A bus whose first unread messages are gone, as after a retention overrun."""

    def __init__(self, bus: Bus, lost: int) -> None:
        self._bus, self._lost = bus, lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def subscribe(self, topics: list[str], group: str) -> Any:
        from flightwatch.pipeline.bus.base import Jump

        subscription: Any = self._bus.subscribe(topics, group)
        jumped: list[Callable[[Jump], None]] = []
        poll, lost = subscription.poll, self._lost
        told: set[int] = set()

        def poll_without(max_bytes: int, timeout: float) -> list[Any]:
            kept = []
            for message in poll(max_bytes, timeout):
                if message.partition.topic == SAMPLES and 1 <= message.offset < 1 + lost:
                    if not told:
                        told.add(1)
                        jumped[0](Jump(message.partition, 1, 1 + lost, "retention"))
                    continue
                kept.append(message)
            return kept

        subscription.poll = poll_without
        subscription.on_jump = jumped.append
        return subscription


def test_an_insert_over_two_days_that_reached_one_day_is_completed(bus: Bus, store: Store) -> None:
    midnight = now_ms() // DAY_MS * DAY_MS
    agent = Agent(bus)
    agent.send(agent.samples(1, at_ms=midnight - 1000) + agent.samples(2, at_ms=midnight + 1000))
    flaky = Flaky(store)

    def only_first_day(table: str, block: pa.Table) -> None:
        if table == "device_samples" and not flaky.inserted:
            ts = block.column("ts").cast(pa.int64()).to_numpy()
            half = block.filter(pa.array(ts < midnight))
            flaky.inserted.append(("half", "", half.num_rows))
            store.insert_block(table, half, token_of(bus, flaky))
            raise TransientError("killed between two parts")

    flaky.before = only_first_day
    ingest_all(over(bus, flaky), bus)
    assert stored(store) == expected(agent)
    assert rollup_rows(store) == 4


def token_of(bus: Bus, flaky: Flaky) -> str:
    partition = next(p for p in bus.partitions(SAMPLES) if bus.end_offset(p))
    span = now_ms() // (8 * DAY_MS)
    return f"{bus.incarnation(partition)}:{SAMPLES}:{partition.number}:0:1:device_samples:{span}:0:v1"


def test_rows_weeks_apart_go_into_inserts_of_at_most_eight_days(bus: Bus, store: Store) -> None:
    flaky = Flaky(store)
    seen: list[int] = []
    flaky.before = lambda table, block: seen.append(
        len(set((block.column("ts").cast(pa.int64()).to_numpy() // DAY_MS).tolist()))
    )
    agent = Agent(bus)
    for days in range(13):
        agent.send(agent.samples(days, at_ms=now_ms() - days * DAY_MS))
    ingest_all(over(bus, flaky), bus)
    assert stored(store) == expected(agent)
    assert max(seen) <= 8


def test_a_node_with_a_broken_clock_loses_only_its_own_rows(bus: Bus, store: Store, ingest: Ingest) -> None:
    good, wild = Agent(bus, "good"), Agent(bus, "wild")
    good.send(good.samples(1))
    for days in (300, -400, 0.01):
        wild.publish(wild.batch(wild.samples(2, devices=1, at_ms=round(now_ms() + days * DAY_MS))))
    wild.send(wild.samples(3))
    ingest_all(ingest, bus)
    assert stored(store) == expected(good, wild)
    letters = store.rows(f"SELECT node, index, reason FROM {DATABASE}.dead_letters ORDER BY offset")
    assert [(letter["node"], letter["index"]) for letter in letters] == [("wild", 0)] * 3
    assert ["before" in letter["reason"] for letter in letters] == [False, True, False]
    latest = store.rows(f"SELECT max(ts) AS newest FROM {DATABASE}.device_latest")
    assert latest[0]["newest"] <= now_ms()


def test_a_row_the_store_rejects_costs_only_its_message(bus: Bus, store: Store) -> None:
    flaky = Flaky(store)
    agents = [Agent(bus, "n1"), Agent(bus, "n2")]
    agents[0].send(agents[0].samples(1))
    agents[1].publish(agents[1].batch(agents[1].samples(66)))
    agents[0].send(agents[0].samples(2))

    def reject(table: str, block: pa.Table) -> None:
        if table == "device_samples" and 66.0 in block.column("temp_c").to_pylist():
            raise BadRecord("the store rejected the rows: Code 117")

    flaky.before = reject
    ingest_all(over(bus, flaky), bus)
    assert stored(store) == expected(agents[0])
    letters = store.rows(f"SELECT node, index, reason, payload FROM {DATABASE}.dead_letters")
    assert [(letter["node"], letter["index"]) for letter in letters] == [("n2", 0)]
    assert '"temp_c": 66.0' in letters[0]["payload"] or '"temp_c":66.0' in letters[0]["payload"]


def test_while_the_store_is_away_membership_is_kept_and_nothing_is_lost(bus: Bus, store: Store) -> None:
    flaky = Flaky(store)
    outage = Times(10**9, TransientError("read-only"))
    flaky.before = outage
    agent = Agent(bus)
    reading = consumer(over(bus, flaky))
    for number in range(20):
        agent.send(agent.samples(number))
        reading.turn(0.01)
    held = reading._subscription.assignment()
    assert held
    assert len(stored(store)) == 0
    outage.count = 0
    drain(reading, bus=bus)
    assert reading._subscription.assignment() == held, "never lost its partitions"
    reading._subscription.close()
    assert stored(store) == expected(agent)


def test_memory_is_bounded_while_the_store_is_away(bus: Bus, store: Store) -> None:
    flaky = Flaky(store)
    outage = Times(10**9, TransientError("away"))
    flaky.before = outage
    agent = Agent(bus)
    size = sum(len(agent.send(agent.samples(number, devices=20))) for number in range(60))
    small = IngestSettings(0.0, 0.0, insert_bytes=2_000, buffer_bytes=4_000, retry_seconds=0.1)
    reading = consumer(over(bus, flaky, small))
    for _ in range(60):
        reading.turn(0.01)
    held = sum(work._bytes for work in reading._works.values())
    assert size > 12_000 > 3 * held / 2
    assert reading._paused
    outage.count = 0
    drain(reading, bus=bus)
    reading._subscription.close()
    assert stored(store) == expected(agent)


def test_a_stale_owner_inserts_nothing(bus: Bus, store: Store) -> None:
    """Paused after its intent, overtaken by another member, then back."""
    agent = Agent(bus)
    agent.send(agent.samples(1))
    clock = ManualClock(now_ms())
    flaky = Flaky(store)
    zombie = consumer(over(bus, flaky, clock=clock), executor=Later())
    for _ in range(5):
        zombie.turn(0.01)
    later = zombie._tools.executor
    assert isinstance(later, Later)
    later.run_all()
    for _ in range(5):
        zombie.turn(0.01)
    assert later.waiting, "the range is announced and its insert has not begun"
    clock.advance(60)
    zombie_subscription = zombie._subscription
    zombie_subscription.close()
    ingest_all(over(bus, store), bus)
    later.run_all()
    assert flaky.inserted == []
    assert stored(store) == expected(agent)


class Later(Inline):
    """Keeps jobs until told to run them: a thread that the machine does not let run."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        from concurrent.futures import Future

        future: Future[Any] = Future()

        def job() -> None:
            done = super(Later, self).submit(fn, *args, **kwargs)
            if done.exception() is not None:
                future.set_exception(done.exception())
            else:
                future.set_result(done.result())

        self.waiting.append(job)
        return future

    def run_all(self) -> None:
        jobs, self.waiting = self.waiting, []
        for job in jobs:
            job()


def test_two_members_share_partitions_and_hand_them_over(bus: Bus, store: Store) -> None:
    agents = [Agent(bus, f"n{n}") for n in range(8)]
    one = consumer(over(bus, store))
    members = [one]
    for number in range(30):
        for agent in agents:
            agent.send(agent.samples(number, devices=1))
        if number == 8:
            members.append(consumer(over(bus, store)))
        if number == 20:
            members.pop(0)._subscription.close()
        for member in members:
            member.turn(0.005)
    drain(*members, bus=bus)
    members[0]._subscription.close()
    assert stored(store) == expected(*agents)
    assert rollup_rows(store) == 240


def test_one_insert_makes_one_part_per_day(bus: Bus, store: Store) -> None:
    agent = Agent(bus)
    for _ in range(6):
        agent.send([row for number in range(250) for row in agent.samples(number, devices=80)])
    flaky = Flaky(store)
    store.command(f"SYSTEM STOP MERGES {DATABASE}.device_samples")
    try:
        ingest_all(over(bus, flaky, IngestSettings(0.3, 0.3)), bus)
        parts = store.rows(
            "SELECT count() AS n, sum(rows) AS rows FROM system.parts WHERE active AND table = 'device_samples'"
        )
        inserts = [entry for entry in flaky.inserted if entry[0] == "device_samples"]
        assert parts[0]["rows"] == 120_000
        assert parts[0]["n"] == len(inserts)
    finally:
        store.command(f"SYSTEM START MERGES {DATABASE}.device_samples")


def test_intents_read_back_and_strangers_are_ignored() -> None:
    intent = Intent(7, 1_000)
    assert Intent.from_metadata(intent.to_metadata()) == intent
    for text in ("", "hello", "[]", '{"end": "x"}', "null"):
        assert Intent.from_metadata(text) is None


def test_events_do_not_wait_for_samples(bus: Bus, store: Store, ingest: Ingest) -> None:
    agent = Agent(bus)
    agent.send([Row("events", {"ts": now_ms(), "source": "kernel", "code": "xid:79", "severity": "error"})], EVENTS)
    from flightwatch.pipeline.ingest.runner import FAST_TOPICS

    fast = consumer(ingest, FAST_TOPICS)
    drain(fast, bus=bus)
    fast._subscription.close()
    assert [row["code"] for row in store.rows(f"SELECT code FROM {DATABASE}.events")] == ["xid:79"]


def test_a_finding_reaches_its_table_on_the_same_path(bus: Bus, store: Store, ingest: Ingest) -> None:
    from flightwatch.core.vocabulary import Topic

    values: dict[str, Any] = {
        "ts": now_ms(), "node": "n7", "id": "f1", "detector": "slow_node", "detector_version": "1", "kind": "slow",
        "scope": "node", "targets": ["n7"], "detected_at": now_ms(), "score": 9.5, "severity": "P2",
        "blames_hardware": True, "summary": "n7 is slow", "state": "raised", "evidence": "{}",
    }  # fmt: skip
    agent = Agent(bus, "")
    agent.publish(agent.batch([Row("findings", values)], "findings"), Topic.FINDINGS.value)
    ingest_all(ingest, bus)
    assert store.rows(f"SELECT node, kind, score, blames_hardware, targets FROM {DATABASE}.findings") == [
        {"node": "n7", "kind": "slow", "score": 9.5, "blames_hardware": True, "targets": ["n7"]}
    ]


def test_the_dead_letter_topic_has_letters_of_everything_unreadable(bus: Bus, store: Store, ingest: Ingest) -> None:
    agent = Agent(bus, "n;rm -rf /")
    agent.publish(b"not ours at all, but somebody sent it")
    agent.send(agent.samples(1))
    ingest_all(ingest, bus)
    letters = store.rows(f"SELECT id, index, reason, node FROM {DATABASE}.dead_letters")
    partition = bus.partition_for(SAMPLES, "n;rm -rf /").number
    assert letters == [
        {"id": f"{SAMPLES}/{partition}/0/-1", "index": -1, "reason": "not a Flightwatch batch", "node": None}
    ]
    assert stored(store) == expected(agent)
    assert sum(bus.end_offset(p) for p in bus.partitions(DEAD)) == 1
