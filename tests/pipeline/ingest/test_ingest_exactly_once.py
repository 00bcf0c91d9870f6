"""Every way that is known to break exactly-once delivery, on a real bus and a real engine, in one process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import TransientError
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.bus.base import Bus, Partition
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.ingest.ranges import Intent
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.ingest.settings import GROUP
from flightwatch.pipeline.store.client import Store
from tests.pipeline.ingest.ingest_stage import (
    SAMPLES,
    Agent,
    Flaky,
    Later,
    Times,
    consumer,
    drain,
    expected,
    ingest_all,
    now_ms,
    over,
    rollup_rows,
    setup_topics,
    stored,
)

DAY_MS = 86_400_000


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


def test_intents_read_back_and_strangers_are_ignored() -> None:
    intent = Intent(7, 1_000)
    assert Intent.from_metadata(intent.to_metadata()) == intent
    for text in ("", "hello", "[]", '{"end": "x"}', "null"):
        assert Intent.from_metadata(text) is None
