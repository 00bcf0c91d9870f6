from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.ed25519 import signing_key
from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import Command
from flightwatch.pipeline.bus.base import Bus, Message, Partition
from flightwatch.pipeline.commands import LOOK_BACK_MS, CommandReader, open_command, seal_command

CONTROL = signing_key(b"c" * 32)
STRANGER = signing_key(b"x" * 32)
NOW_MS = 1_800_000_000_000
COMMAND = Command("c-1", "profile_start", "node-1", "job", "alice", NOW_MS, NOW_MS + 60_000, {"steps": 3})


class ListBus:
    """The one partition of commands, in memory."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.asked_since_ms: int | None = None

    def add(self, key: str, value: bytes) -> None:
        self.messages.append(Message(Partition("flightwatch.commands", 0), len(self.messages), key, value, NOW_MS))

    def partition_for(self, topic: str, key: str) -> Partition:
        return Partition(topic, 0)

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int:
        self.asked_since_ms = timestamp_ms
        return 0

    def read(self, partition: Partition, offset: int, max_bytes: int) -> Sequence[Message]:
        return self.messages[offset:]


def _reader(bus: ListBus, folder: Path, keys: Sequence[bytes] = (CONTROL.public_key,)) -> CommandReader:
    return CommandReader(cast(Bus, bus), "node-1", keys, ManualClock(NOW_MS), str(folder / "seen"))


def test_a_command_comes_once_even_over_a_restart(tmp_path: Path) -> None:
    bus = ListBus()
    bus.add("node-1", seal_command(COMMAND, CONTROL.sign))
    bus.add("node-1", seal_command(COMMAND, CONTROL.sign))
    reader = _reader(bus, tmp_path)
    assert list(reader.poll()) == [COMMAND]
    assert bus.asked_since_ms == NOW_MS - LOOK_BACK_MS
    assert list(reader.poll()) == []
    assert list(_reader(bus, tmp_path).poll()) == []
    (tmp_path / "seen").write_text("not json")
    assert len(_reader(bus, tmp_path).poll()) == 1


@pytest.mark.parametrize(
    ("command", "now_ms"),
    [(replace(COMMAND, node="node-2"), NOW_MS), (COMMAND, NOW_MS + 60_001)],
    ids=["another node", "expired"],
)
def test_what_is_not_for_now_and_here_is_passed_over(command: Command, now_ms: int) -> None:
    assert open_command(seal_command(command, CONTROL.sign), [CONTROL.public_key], "node-1", now_ms) is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (seal_command(COMMAND, STRANGER.sign), "no known key"),
        (seal_command(COMMAND, CONTROL.sign).replace(b'"steps":3', b'"steps":4'), "no known key"),
        (b"{}\nzz", "not hexadecimal"),
        (b"no newline", "not a command"),
        (b"", "not a command"),
        (b"[]\n" + CONTROL.sign(b"[]").hex().encode(), "lacks a field"),
        (b"{\n" + CONTROL.sign(b"{").hex().encode(), "not JSON"),
        (seal_command(replace(COMMAND, issued_at_ms=NOW_MS + 400_000, expires_at_ms=NOW_MS + 500_000), CONTROL.sign),
         "in the future"),
        (seal_command(replace(COMMAND, expires_at_ms=NOW_MS + 3_600_001), CONTROL.sign), "longer than an hour"),
        (seal_command(replace(COMMAND, id=cast(Any, 5)), CONTROL.sign), "another type"),
        (seal_command(replace(COMMAND, actor="a" * 70_000), CONTROL.sign), "not a command"),
    ],
)  # fmt: skip
def test_what_is_not_trusted_is_refused(message: bytes, reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        open_command(message, [STRANGER.public_key[::-1], CONTROL.public_key], "node-1", NOW_MS)


def test_a_refused_command_does_not_stop_the_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus = ListBus()
    bus.add("node-1", seal_command(COMMAND, STRANGER.sign))
    bus.add("node-9", b"whatever")
    bus.add("node-1", seal_command(COMMAND, CONTROL.sign))
    assert [command.id for command in _reader(bus, tmp_path).poll()] == ["c-1"]
    assert "offset 0 is refused: no known key" in caplog.text


def test_without_a_key_nothing_is_read(tmp_path: Path) -> None:
    bus = ListBus()
    bus.add("node-1", seal_command(COMMAND, CONTROL.sign))
    assert list(_reader(bus, tmp_path, keys=()).poll()) == []
    assert bus.asked_since_ms is None
