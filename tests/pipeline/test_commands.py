from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightwatch.core import ed25519
from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord, TransientError
from flightwatch.core.protocols import Command
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.local import LocalBus
from flightwatch.pipeline.commands import (
    MAX_LIFETIME_MS,
    MAX_MESSAGE_BYTES,
    CommandReader,
    CommandType,
    command_of,
    publish,
    seal,
    unseal,
)

KEY = ed25519.signing_key(bytes(range(32)))
STRANGER = ed25519.signing_key(bytes(32))
NODE = "gpu-7; reboot"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(tmp_path: Path, clock: ManualClock) -> Iterator[LocalBus]:
    made = LocalBus(tmp_path / "bus", clock=clock)
    made.create_topic(Topic.COMMANDS.value, 4, 3_600_000, None)
    yield made
    made.close()


def profile(clock: ManualClock, name: str = "c1", node: str = NODE, **arguments: object) -> Command:
    wanted = {"request": "r1", "ranks": [3, 7], "steps": 5, "stacks": True} | arguments
    return command_of(name, CommandType.PROFILE_START, node, "ann", clock.now_ms(), wanted, "job1")  # type: ignore[arg-type]


def reader(bus: LocalBus, clock: ManualClock, tmp_path: Path, node: str = NODE) -> CommandReader:
    return CommandReader(bus, node, [STRANGER.public_key, KEY.public_key], clock, str(tmp_path / "seen.json"))


def test_a_command_arrives_once_and_whole(bus: LocalBus, clock: ManualClock, tmp_path: Path) -> None:
    command = profile(clock)
    publish(bus, command, KEY.sign).result(120)
    source = reader(bus, clock, tmp_path)
    assert list(source.poll()) == [command]
    clock.advance(3)
    assert list(source.poll()) == []
    assert source.refused == 0


def test_the_bus_is_asked_at_most_every_two_seconds(bus: LocalBus, clock: ManualClock, tmp_path: Path) -> None:
    source = reader(bus, clock, tmp_path)
    assert list(source.poll()) == []
    publish(bus, profile(clock), KEY.sign).result(120)
    assert list(source.poll()) == []
    clock.advance(2.1)
    assert len(source.poll()) == 1


def test_a_restarted_agent_reads_back_and_does_nothing_twice(bus: LocalBus, clock: ManualClock, tmp_path: Path) -> None:
    publish(bus, profile(clock, "done"), KEY.sign).result(120)
    assert [command.id for command in reader(bus, clock, tmp_path).poll()] == ["done"]
    clock.advance(60)
    publish(bus, profile(clock, "missed"), KEY.sign).result(120)
    clock.advance(60)
    assert [command.id for command in reader(bus, clock, tmp_path).poll()] == ["missed"]


def test_a_replayed_message_is_done_once(bus: LocalBus, clock: ManualClock, tmp_path: Path) -> None:
    for _ in range(3):
        publish(bus, profile(clock), KEY.sign).result(120)
    assert len(reader(bus, clock, tmp_path).poll()) == 1


def test_refused_are_strangers_other_nodes_the_expired_and_the_future(
    bus: LocalBus, clock: ManualClock, tmp_path: Path
) -> None:
    old = profile(clock, "old")
    clock.advance(1)
    other = seal(profile(clock, "other", node="another"), KEY.sign)
    early = replace(profile(clock, "early"), issued_at_ms=clock.now_ms() + 120_000)
    early = replace(early, expires_at_ms=early.issued_at_ms + 1_000)
    short = replace(old, expires_at_ms=old.issued_at_ms + 500)
    topic = Topic.COMMANDS.value
    for message in (
        seal(profile(clock, "forged"), STRANGER.sign),
        other,
        seal(early, KEY.sign),
        seal(short, KEY.sign),
        b"FC\x02" + bytes(100),
        b"",
        seal(profile(clock), KEY.sign)[:-1],
    ):
        bus.publish(topic, NODE, message).result(120)
    source = CommandReader(bus, NODE, [KEY.public_key], clock, str(tmp_path / "seen"))
    assert list(source.poll()) == []
    assert source.refused == 7


def test_commands_of_other_nodes_in_the_same_partition_are_passed_over(
    bus: LocalBus, clock: ManualClock, tmp_path: Path
) -> None:
    for number in range(40):
        publish(bus, profile(clock, f"c{number}", node=f"node{number}"), KEY.sign).result(120)
    source = reader(bus, clock, tmp_path, "node5")
    assert [command.id for command in source.poll()] == ["c5"]
    assert source.refused == 0


def test_a_command_that_cannot_be_remembered_is_not_done(bus: LocalBus, clock: ManualClock, tmp_path: Path) -> None:
    publish(bus, profile(clock), KEY.sign).result(120)
    source = CommandReader(bus, NODE, [KEY.public_key], clock, str(tmp_path / "absent" / "seen"))
    with pytest.raises(TransientError, match="seen"):
        source.poll()
    (tmp_path / "absent").mkdir()
    clock.advance(3)
    assert len(source.poll()) == 1
    assert os.stat(tmp_path / "absent" / "seen").st_mode & 0o777 == 0o600


def test_damaged_memory_of_ids_is_replaced(bus: LocalBus, clock: ManualClock, tmp_path: Path) -> None:
    (tmp_path / "seen.json").write_text("[1, 2")
    publish(bus, profile(clock), KEY.sign).result(120)
    assert len(reader(bus, clock, tmp_path).poll()) == 1
    assert list(json.loads((tmp_path / "seen.json").read_text())) == ["c1"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"command": "rm -rf /"}, "unknown"),
        ({"steps": 101}, "limits"),
        ({"steps": True}, "limits"),
        ({"steps": -1}, "limits"),
        ({"ranks": list(range(65))}, "limits"),
        ({"ranks": ["3"]}, "limits"),
        ({"request": "a\nPROFILE_LOG=/etc/passwd"}, "limits"),
        ({"request": "x" * 65}, "limits"),
        ({"stacks": 1}, "limits"),
    ],
)
def test_arguments_beyond_the_limits_are_refused_at_both_ends(
    clock: ManualClock, arguments: dict[str, Any], complaint: str
) -> None:
    command = profile(clock, **arguments)
    with pytest.raises(BadRecord, match=complaint):
        seal(command, KEY.sign)
    body = json.dumps({**_fields(profile(clock)), "arguments": dict(command.arguments)}).encode()
    message = b"FC\x01" + KEY.sign(b"flightwatch command 1\0" + body) + body
    with pytest.raises(BadRecord, match=complaint):
        unseal(message, [KEY.public_key])


def _fields(command: Command) -> dict[str, object]:
    return {
        "id": command.id,
        "type": command.type,
        "node": command.node,
        "job": command.job,
        "actor": command.actor,
        "issued_at_ms": command.issued_at_ms,
        "expires_at_ms": command.expires_at_ms,
    }


def test_types_lifetimes_and_missing_arguments(clock: ManualClock) -> None:
    with pytest.raises(BadRecord, match="run_program"):
        seal(replace(profile(clock), type="run_program"), KEY.sign)
    with pytest.raises(BadRecord, match="expire"):
        seal(replace(profile(clock), expires_at_ms=clock.now_ms() + MAX_LIFETIME_MS + 1), KEY.sign)
    with pytest.raises(BadRecord, match="steps"):
        seal(replace(profile(clock), arguments={"request": "r", "ranks": [1]}), KEY.sign)
    with pytest.raises(BadRecord, match="id"):
        seal(replace(profile(clock), id=""), KEY.sign)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_not_believed(noise: bytes) -> None:
    for message in (noise, b"FC\x01" + noise):
        with pytest.raises(BadRecord):
            unseal(message, [KEY.public_key])


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_signed_json_is_a_bad_record_or_a_command(content: object) -> None:
    body = json.dumps(content).encode()[: MAX_MESSAGE_BYTES - 100]
    with pytest.raises(BadRecord):
        unseal(b"FC\x01" + KEY.sign(b"flightwatch command 1\0" + body) + body, [KEY.public_key])


def test_reading_goes_on_after_the_topic_was_made_anew(clock: ManualClock, tmp_path: Path) -> None:
    first = LocalBus(tmp_path / "one", clock=clock)
    first.create_topic(Topic.COMMANDS.value, 1, None, None)
    for number in range(3):
        publish(first, profile(clock, f"a{number}"), KEY.sign).result(120)
    source = reader(first, clock, tmp_path)
    assert len(source.poll()) == 3
    first.close()
    second = LocalBus(tmp_path / "two", clock=clock)
    second.create_topic(Topic.COMMANDS.value, 1, None, None)
    source._bus = second
    publish(second, profile(clock, "new"), KEY.sign).result(120)
    clock.advance(31)
    assert [command.id for command in source.poll()] == ["new"]
    second.close()
