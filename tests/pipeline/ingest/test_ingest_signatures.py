"""Which batches are believed."""

from __future__ import annotations

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.ed25519 import signing_key
from flightwatch.core.errors import BadRecord, TransientError
from flightwatch.core.protocols import Row, Value
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.codec.read import open_message, signature_of
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.ingest.signatures import SignatureCheck
from flightwatch.pipeline.store.client import Store
from tests.pipeline.ingest.ingest_stage import SETTINGS, Agent, expected, ingest_all, now_ms, stored

GOOD, OTHER = signing_key(b"1" * 32), signing_key(b"2" * 32)


class Keys:
    def __init__(self, **keys: bytes) -> None:
        self.keys = {node: frozenset([key.hex()]) for node, key in keys.items()}
        self.calls = 0
        self.away = False

    def __call__(self) -> dict[str, frozenset[str]]:
        self.calls += 1
        if self.away:
            raise TransientError("the control database is away")
        return self.keys


def ask(check: SignatureCheck, message: bytes) -> None:
    check(open_message(message).header, *signature_of(message))


def test_only_keys_of_the_node_are_believed(bus: Bus) -> None:
    check = SignatureCheck(Keys(n1=GOOD.public_key, n2=OTHER.public_key), required=False)
    agent = Agent(bus)
    ask(check, agent.batch(agent.samples(1), sign=GOOD.sign))
    with pytest.raises(BadRecord, match="not by a key of node 'n1'"):
        ask(check, agent.batch(agent.samples(1), sign=OTHER.sign))
    with pytest.raises(BadRecord, match="is not signed"):
        ask(check, agent.batch(agent.samples(1)))
    forged = bytearray(agent.batch(agent.samples(1), sign=GOOD.sign))
    forged[-70] ^= 1
    with pytest.raises(BadRecord):
        check(open_message(agent.batch([])).header, *signature_of(bytes(forged)))


def test_a_node_without_a_key_is_believed_only_while_signatures_are_not_required(bus: Bus) -> None:
    agent = Agent(bus, "laptop")
    ask(SignatureCheck(Keys(), required=False), agent.batch(agent.samples(1)))
    with pytest.raises(BadRecord):
        ask(SignatureCheck(Keys(), required=True), agent.batch(agent.samples(1)))
    with pytest.raises(BadRecord):
        ask(SignatureCheck(Keys(), required=False), agent.batch(agent.samples(1), sign=GOOD.sign))


def test_a_key_enrolled_a_moment_ago_is_found_and_an_outage_does_not_stop_known_keys(bus: Bus) -> None:
    keys, clock = Keys(), ManualClock()
    check = SignatureCheck(keys, required=True, clock=clock)
    agent = Agent(bus)
    message = agent.batch(agent.samples(1), sign=GOOD.sign)
    with pytest.raises(BadRecord):
        ask(check, message)
    keys.keys = {"n1": frozenset([GOOD.public_key.hex()])}
    clock.advance(3)
    ask(check, message)
    keys.away = True
    clock.advance(60)
    ask(check, message)
    with pytest.raises(TransientError):
        ask(SignatureCheck(keys, required=True), message)


def test_a_revoked_key_stops_counting_within_half_a_minute(bus: Bus) -> None:
    keys, clock = Keys(n1=GOOD.public_key), ManualClock()
    check = SignatureCheck(keys, required=False, clock=clock)
    agent = Agent(bus)
    message = agent.batch(agent.samples(1), sign=GOOD.sign)
    ask(check, message)
    keys.keys = {"n1": frozenset()}
    ask(check, message)
    clock.advance(31)
    with pytest.raises(BadRecord):
        ask(check, message)
    with pytest.raises(BadRecord, match="is not signed"):
        ask(check, agent.batch(agent.samples(1)))


def test_a_stranger_cannot_make_the_real_agents_batches_look_old(bus: Bus, store: Store) -> None:
    check = SignatureCheck(Keys(n1=GOOD.public_key), required=True)
    stranger, agent = Agent(bus), Agent(bus)
    stranger.seq["samples"] = 1_000
    stranger.publish(stranger.batch(stranger.samples(9), sign=OTHER.sign))
    rows = agent.samples(1)
    agent.publish(agent.batch(rows, sign=GOOD.sign))
    agent.sent += [{"node": "n1", **row.values} for row in rows]
    ingest_all(Ingest(bus, store, SETTINGS, cluster="c1", node="x", verify=check), bus)
    assert stored(store) == expected(agent)
    letters = store.rows(f"SELECT node, index, reason FROM {DATABASE}.dead_letters")
    assert letters == [{"node": "n1", "index": -1, "reason": "the signature is not by a key of node 'n1'"}]


def test_two_agents_with_one_name_are_both_stored_and_said_once(bus: Bus, store: Store, ingest: Ingest) -> None:
    twins = [Agent(bus, agent_id="a1"), Agent(bus, agent_id="a2")]
    for number in range(3):
        for twin in twins:
            twin.send(twin.samples(number))
            ingest_all(ingest, bus)
    ingest_all(ingest, bus)
    assert stored(store) == expected(*twins)
    events = store.rows(f"SELECT node, message FROM {DATABASE}.events WHERE code = 'ingest:duplicate_node'")
    assert events == [
        {"node": "n1", "message": "two agents report as node 'n1': give each machine its own flightwatch.node"}
    ]


def test_parts_of_the_server_are_no_second_agent_of_their_node(bus: Bus, store: Store, ingest: Ingest) -> None:
    voices = [Agent(bus, agent_id="a1"), Agent(bus, agent_id="detect:77")]
    for number in range(3):
        for voice in voices:
            voice.send(voice.samples(number))
            ingest_all(ingest, bus)
    ingest_all(ingest, bus)
    assert store.rows(f"SELECT count() AS n FROM {DATABASE}.events WHERE code = 'ingest:duplicate_node'") == [{"n": 0}]


def test_an_agent_that_was_reinstalled_is_no_twin(bus: Bus, store: Store, ingest: Ingest) -> None:
    for agent in (Agent(bus, agent_id="old"), Agent(bus, agent_id="new")):
        agent.send(agent.samples(1))
        ingest_all(ingest, bus)
    ingest_all(ingest, bus)
    assert store.rows(f"SELECT count() AS n FROM {DATABASE}.events")[0]["n"] == 0


def test_an_unknown_column_is_one_event(bus: Bus, store: Store, ingest: Ingest) -> None:
    agent = Agent(bus)
    for _ in range(4):
        values: dict[str, Value] = {"ts": now_ms(), "device": 0, "vendor": "nvidia", "colour": "red"}
        agent.publish(agent.batch([Row("device_samples", values)]))
        ingest_all(ingest, bus)
    ingest_all(ingest, bus)
    events = store.rows(f"SELECT attrs FROM {DATABASE}.events WHERE code = 'ingest:unknown_column'")
    assert [event["attrs"]["column"] for event in events] == ["colour"]
