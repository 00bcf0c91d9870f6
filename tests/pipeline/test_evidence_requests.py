"""Evidence by signed command: from the control server over the bus to what an agent would do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.core import ed25519
from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.local import LocalBus
from flightwatch.pipeline.commands import CommandReader
from flightwatch.pipeline.evidence_requests import EvidenceRequester

KEY = ed25519.signing_key(bytes(range(32)))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(tmp_path: Path, clock: ManualClock) -> Iterator[LocalBus]:
    made = LocalBus(tmp_path / "bus", clock=clock)
    made.create_topic(Topic.COMMANDS.value, 4, 3_600_000, None)
    yield made
    made.close()


def reader(bus: LocalBus, clock: ManualClock, folder: Path, node: str) -> CommandReader:
    return CommandReader(bus, node, [KEY.public_key], clock, str(folder / f"{node}.json"))


def ask(bus: LocalBus, clock: ManualClock, **changed: object) -> list[str]:
    wanted: dict[str, object] = {
        "job": "llama", "run": "0", "ranks_by_node": {"n1": [9, 8], "n2": [0]}, "since_ms": 1000, "until_ms": 61_000,
        "actor": "detector:slow",
    }  # fmt: skip
    return EvidenceRequester(bus, KEY.sign, clock).request(**(wanted | changed))  # type: ignore[arg-type]


def test_each_node_gets_its_ranks(bus: LocalBus, clock: ManualClock, tmp_path: Path) -> None:
    ids = ask(bus, clock, what=("ring", "hang"))
    commands = [reader(bus, clock, tmp_path, node).poll() for node in ("n1", "n2")]
    assert [command.id for polled in commands for command in polled] == ids
    first = commands[0][0]
    assert (first.type, first.job, first.actor) == ("collect_evidence", "llama", "detector:slow")
    assert first.arguments == {
        "request": ids[0], "what": "ring,hang", "run": "0", "ranks": [8, 9], "since_ms": 1000, "until_ms": 61_000
    }  # fmt: skip


def test_asking_twice_is_done_once(bus: LocalBus, clock: ManualClock, tmp_path: Path) -> None:
    source = reader(bus, clock, tmp_path, "n1")
    assert ask(bus, clock) == ask(bus, clock)
    assert len(source.poll()) == 1
    clock.advance(3)
    ask(bus, clock, until_ms=62_000)
    assert len(source.poll()) == 1


def test_many_ranks_go_in_several_commands(bus: LocalBus, clock: ManualClock, tmp_path: Path) -> None:
    ids = ask(bus, clock, ranks_by_node={"n1": range(100), "n2": []})
    ranks = [command.arguments["ranks"] for command in reader(bus, clock, tmp_path, "n1").poll()]
    assert len(ids) == 2
    assert ranks == [list(range(64)), list(range(64, 100))]


@pytest.mark.parametrize(
    "changed", [{"what": ("memory",)}, {"what": ()}, {"since_ms": -1}, {"ranks_by_node": {"n": [-1]}}]
)
def test_what_no_agent_would_do_is_not_sent(changed: dict[str, object], bus: LocalBus, clock: ManualClock) -> None:
    with pytest.raises(BadRecord):
        ask(bus, clock, **changed)
