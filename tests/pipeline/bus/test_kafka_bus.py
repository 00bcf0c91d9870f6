from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from kafka import errors

from flightwatch.core.clock import ManualClock, SystemClock
from flightwatch.core.errors import Backpressure, BadRecord, ConfigError, Refused, TransientError
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.base import Partition
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.kafka import KafkaBus
from flightwatch.pipeline.bus.kafka_options import (
    FileTokenProvider,
    client_options,
    consumer_options,
    explain,
    producer_options,
)
from flightwatch.pipeline.bus.kafka_outbox import KafkaOutbox
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics, topic_plans
from flightwatch.pipeline.codec import decode, encode
from flightwatch.pipeline.sender import Sender
from flightwatch.pipeline.spool import Spool, SpoolSettings
from tests.conftest import Broker
from tests.pipeline.sender_kit import sample


class Sent:
    """What kafka-python's send returns, resolved by the test."""

    def __init__(self) -> None:
        self.good: Callable[[Any], Any] = lambda _: None
        self.bad: Callable[[Any], Any] = lambda _: None

    def add_callback(self, callback: Callable[[Any], Any]) -> None:
        self.good = callback

    def add_errback(self, callback: Callable[[Any], Any]) -> None:
        self.bad = callback


@dataclass
class Metadata:
    topic: str
    partition: int
    offset: int


@dataclass
class ScriptedProducer:
    """A KafkaProducer whose answers a test gives."""

    sent: list[tuple[str, bytes, Sent]] = field(default_factory=list)
    closed: bool = False
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def partitions_for(self, topic: str) -> set[int]:
        return {0}

    def send(self, topic: str, value: bytes, key: bytes, partition: int) -> Sent:
        self.sent.append((topic, value, Sent()))
        self.arrived.release()
        return self.sent[-1][2]

    def close(self, timeout: float) -> None:
        self.closed = True

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.arrived.acquire(timeout=120)


class Factory:
    def __init__(self) -> None:
        self.made: list[ScriptedProducer] = [ScriptedProducer(), ScriptedProducer(), ScriptedProducer()]
        self.count = 0
        self.failures = 0

    def __call__(self, **options: Any) -> ScriptedProducer:
        if self.failures:
            self.failures -= 1
            raise errors.KafkaTimeoutError("no broker")
        self.count += 1
        return self.made[self.count - 1]


def outbox(factory: Factory, budget: int = 1_000_000, **settings: Any) -> KafkaOutbox:
    options = producer_options(["h:1"], BusSettings(**settings))
    return KafkaOutbox(options, SystemClock(), budget, make=factory, seed=1)


def test_an_acknowledgement_resolves_and_frees_the_budget() -> None:
    factory = Factory()
    box = outbox(factory, budget=100)
    future = box.submit("t", "k", bytes(80))
    with pytest.raises(Backpressure):
        box.submit("t", "k", bytes(30))
    factory.made[0].wait()
    factory.made[0].sent[0][2].good(Metadata("t", 0, 7))
    assert future.result(120).offset == 7
    box.submit("t", "k", bytes(30))
    box.close(0)


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownProducerIdError(),
        errors.InvalidProducerEpochError(),
        errors.OutOfOrderSequenceNumberError(),
        errors.ProducerFencedError(),
        errors.KafkaTimeoutError("delivery timeout"),
    ],
)
def test_a_doubtful_producer_is_replaced_and_everything_it_held_fails(error: Exception) -> None:
    factory = Factory()
    box = outbox(factory)
    futures = [box.submit("t", "k", b"%d" % number) for number in range(3)]
    factory.made[0].wait(3)
    factory.made[0].sent[0][2].bad(error)
    for future in futures:
        assert isinstance(future.exception(5), TransientError)
    assert factory.made[0].closed
    # A late answer of the old producer changes nothing.
    factory.made[0].sent[1][2].good(Metadata("t", 0, 1))
    retried = box.submit("t", "k", b"0")
    factory.made[1].wait()
    factory.made[1].sent[0][2].good(Metadata("t", 0, 3))
    assert retried.result(120).offset == 3
    assert factory.count == 2
    box.close(0)


def test_a_message_refused_for_its_size_leaves_the_producer_alone() -> None:
    factory = Factory()
    box = outbox(factory)
    first, second = box.submit("t", "k", b"1"), box.submit("t", "k", b"2")
    factory.made[0].wait(2)
    factory.made[0].sent[0][2].bad(errors.MessageSizeTooLargeError())
    factory.made[0].sent[1][2].good(Metadata("t", 0, 0))
    assert isinstance(first.exception(5), BadRecord)
    assert second.result(120).offset == 0
    assert factory.count == 1
    box.close(0)


def test_messages_wait_for_a_broker_that_comes_back() -> None:
    factory = Factory()
    factory.failures = 3
    box = outbox(factory)
    future = box.submit("t", "k", b"1")
    factory.made[0].wait()
    factory.made[0].sent[0][2].good(Metadata("t", 0, 0))
    assert future.result(120).offset == 0
    box.close(0)


def test_a_message_no_broker_takes_fails_after_the_delivery_timeout() -> None:
    factory = Factory()
    factory.failures = 10**6
    clock = ManualClock()
    options = producer_options(["h:1"], BusSettings(kafka_delivery_timeout_ms=120_000))
    box = KafkaOutbox(options, clock, 1000, make=factory, seed=1)
    future = box.submit("t", "k", b"1")
    clock.advance(121)
    assert isinstance(future.exception(10), TransientError)
    box.close(0)


def test_a_producer_that_never_answers_is_replaced() -> None:
    factory = Factory()
    clock = ManualClock()
    box = KafkaOutbox(producer_options(["h:1"], BusSettings()), clock, 1000, make=factory, seed=1)
    future = box.submit("t", "k", b"1")
    factory.made[0].wait()
    clock.advance(151)
    assert isinstance(future.exception(10), TransientError)
    assert factory.made[0].closed
    box.close(0)


def test_closing_fails_what_was_not_answered() -> None:
    factory = Factory()
    box = outbox(factory)
    future = box.submit("t", "k", b"1")
    factory.made[0].wait()
    box.close(0.05)
    assert isinstance(future.exception(5), TransientError)
    with pytest.raises(TransientError, match="closed"):
        box.submit("t", "k", b"2")


def test_the_settings_that_prevent_silent_loss() -> None:
    settings = BusSettings()
    consumer, producer = consumer_options(["h:1"], settings), producer_options(["h:1"], settings)
    assert consumer["auto_offset_reset"] == "none"
    assert consumer["enable_auto_commit"] is False
    assert consumer["isolation_level"] == "read_committed"
    assert (producer["acks"], producer["enable_idempotence"]) == ("all", True)
    assert not consumer["allow_auto_create_topics"]
    assert not producer["allow_auto_create_topics"]
    assert producer["max_request_size"] > settings.max_message_bytes


def test_security_settings_reach_the_client(tmp_path: Path) -> None:
    scram = BusSettings(
        kafka_security_protocol="SASL_SSL", kafka_sasl_mechanism="SCRAM-SHA-512", kafka_username="u",
        kafka_password="p", kafka_ssl_cafile="/ca.pem",
    )  # fmt: skip
    options = client_options(["h:1"], scram)
    assert options["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (options["sasl_plain_username"], options["sasl_plain_password"]) == ("u", "p")
    assert options["ssl_cafile"] == "/ca.pem"
    assert options["ssl_check_hostname"] is True
    (tmp_path / "token").write_text("abc\n")
    oauth = BusSettings(
        kafka_security_protocol="SASL_SSL", kafka_sasl_mechanism="OAUTHBEARER",
        kafka_oauth_token_file=str(tmp_path / "token"),
    )  # fmt: skip
    provider = cast(FileTokenProvider, client_options(["h:1"], oauth)["sasl_oauth_token_provider"])
    assert provider.token() == "abc"
    (tmp_path / "token").write_text("renewed")
    assert provider.token() == "renewed"
    tls = BusSettings(kafka_security_protocol="SSL", kafka_ssl_certfile="/c", kafka_ssl_keyfile="/k")
    assert client_options(["h:1"], tls)["ssl_keyfile"] == "/k"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"kafka_security_protocol": "TLS"}, "kafka_security_protocol"),
        ({"kafka_security_protocol": "SASL_SSL"}, "kafka_sasl_mechanism"),
        ({"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "PLAIN"}, "kafka_username"),
        ({"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "OAUTHBEARER"}, "kafka_oauth_token_file"),
    ],
)
def test_security_settings_that_do_not_fit_are_named(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        KafkaBus(["h:1"], BusSettings(**settings))


def test_errors_say_what_to_do() -> None:
    assert isinstance(explain(errors.TopicAuthorizationFailedError(), "x"), Refused)
    assert isinstance(explain(errors.NodeNotReadyError(), "x"), TransientError)
    assert isinstance(explain(errors.RecordListTooLargeError(), "x"), BadRecord)
    assert isinstance(explain(errors.KafkaConfigurationError("x"), "x"), ConfigError)


def test_no_broker_is_a_transient_error_in_one_sentence() -> None:
    bus = KafkaBus(["127.0.0.1:1"], BusSettings(kafka_delivery_timeout_ms=2_000))
    with pytest.raises(TransientError, match="reading offsets"):
        bus.end_offset(Partition("t", 0))
    bus.close()


@pytest.mark.kafka
def test_topics_are_set_up_once(kafka_broker: str) -> None:
    bus = open_bus(f"kafka://{kafka_broker}", BusSettings())
    assert {outcome.plan.name for outcome in setup_topics(bus, BusSettings())} == {topic.value for topic in Topic}
    again = setup_topics(bus, BusSettings(rows_partitions=6))
    assert not any(outcome.created for outcome in again)
    assert {outcome.partitions for outcome in again if ".rows." in outcome.plan.name} == {4}
    plans = {plan.name: plan for plan in topic_plans(BusSettings())}
    assert plans[Topic.COMMANDS.value].retention_ms == 3_600_000
    bus.close()


@pytest.mark.kafka
def test_a_sender_outlives_broker_outages_without_loss_or_disorder(own_broker: Broker, tmp_path: Path) -> None:
    settings = BusSettings(kafka_delivery_timeout_ms=2_000)
    bus = open_bus(f"kafka://{own_broker.address}", settings)
    setup_topics(bus, settings)
    spool = Spool(tmp_path / "s", SpoolSettings(batch_seconds=0.05, spill_seconds=0.3))
    sender = Sender(bus, spool, encode, "node", "c", seed=1)
    sender.start()
    number = 0

    def emit(seconds: float) -> None:
        nonlocal number
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            sender.emit([sample(number)])
            number += 1
            time.sleep(0.01)

    emit(0.7)
    own_broker.stop()
    emit(2.5)
    own_broker.start()
    emit(0.5)
    until_sent(sender)
    sender.stop(10)
    bus.close()
    bus = open_bus(f"kafka://{own_broker.address}", settings)
    kept: dict[tuple[str, str], int] = {}
    seen: list[int] = []
    for partition in bus.partitions(Topic.SAMPLES.value):
        offset = 0
        while messages := bus.read(partition, offset, 10**6):
            offset = messages[-1].offset + 1
            for message in messages:
                decoded = decode(message.value)
                header = decoded.header
                lane = (header.spool_id, header.lane)
                # As ingest does: what is not above the lane's last number was stored before.
                if header.seq <= kept.get(lane, 0):
                    continue
                assert header.seq == kept.get(lane, 0) + 1
                kept[lane] = header.seq
                rows = [row for row in decoded.rows if row.table == "node_samples"]
                seen += [int(cast(float, row.values["ts"])) for row in rows]
    assert seen == list(range(number))
    bus.close()


def until_sent(sender: Sender) -> None:
    deadline = time.monotonic() + 300
    while sender.state().oldest_waiting_ms is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.kafka
def test_acknowledged_messages_survive_the_kill_of_a_real_broker(real_kafka: str) -> None:
    command = os.environ.get("FLIGHTWATCH_TEST_KAFKA_KILL", "")
    if not command:
        pytest.skip("FLIGHTWATCH_TEST_KAFKA_KILL (a command that kills and restarts the broker) is not set")
    bus = open_bus(f"kafka://{real_kafka}", BusSettings())
    topic = f"test-kill-{uuid.uuid4().hex[:10]}"
    bus.create_topic(topic, 1, 3_600_000, None)
    acknowledged: list[int] = []
    killing: subprocess.Popen[bytes] | None = None
    for number in range(2_000):
        if number == 500:
            killing = subprocess.Popen(shlex.split(command))
        while True:
            try:
                bus.publish(topic, "k", b"%d" % number).result(150)
                break
            except TransientError:
                continue
        acknowledged.append(number)
    assert killing is not None
    assert killing.wait(300) == 0
    partition = bus.partitions(topic)[0]
    stored: list[int] = []
    offset = bus.begin_offset(partition)
    while messages := bus.read(partition, offset, 10**6):
        stored += [int(message.value) for message in messages]
        offset = messages[-1].offset + 1
    assert sorted(set(stored)) == acknowledged
    bus.close()
