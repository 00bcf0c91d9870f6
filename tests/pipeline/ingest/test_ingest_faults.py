"""Bad input and a bad store: who pays, and that nobody else does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from flightwatch.core.errors import BadRecord, TransientError
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.ingest.settings import IngestSettings
from flightwatch.pipeline.store.client import Store
from tests.pipeline.ingest.ingest_stage import (
    DEAD,
    EVENTS,
    SAMPLES,
    Agent,
    Flaky,
    Times,
    consumer,
    drain,
    expected,
    ingest_all,
    now_ms,
    over,
    stored,
)

DAY_MS = 86_400_000


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
