"""A sender on a bus whose answers a test decides, with a trivial encoder."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord, FlightwatchError, TransientError
from flightwatch.core.protocols import Row, Value
from flightwatch.pipeline.batch import Batch
from flightwatch.pipeline.bus.base import Ack, Bus, Partition
from flightwatch.pipeline.sender import Sender
from flightwatch.pipeline.spool import Spool, SpoolSettings


@dataclass
class ScriptedBus:
    """Stores what is published; `mode` is "ack" (at once), "hold" (answered by `answer`), "fail" or "raise"."""

    mode: str = "ack"
    error: FlightwatchError = field(default_factory=lambda: TransientError("the broker is away"))
    stored: list[tuple[str, str, bytes]] = field(default_factory=list)
    offered: list[tuple[str, bytes]] = field(default_factory=list)
    held: list[tuple[str, str, bytes, Future[Ack]]] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)

    def publish(self, topic: str, key: str, value: bytes) -> Future[Ack]:
        if self.mode == "raise":
            raise self.error
        self.offered.append((topic, value))
        future: Future[Ack] = Future()
        if self.mode == "hold":
            self.held.append((topic, key, value, future))
        elif self.mode == "fail":
            future.set_exception(self.error)
        else:
            self._store(topic, key, value, future)
        return future

    def _store(self, topic: str, key: str, value: bytes, future: Future[Ack]) -> None:
        self.stored.append((topic, key, value))
        self.arrived.set()
        future.set_result(Ack(Partition(topic, 0), len(self.stored)))

    def answer(self, *, lose_ack: bool = False) -> None:
        """Store what is held and acknowledge it, or store it and fail the future (the ack was lost)."""
        held, self.held = self.held, []
        for topic, key, value, future in held:
            if lose_ack:
                self.stored.append((topic, key, value))
                future.set_exception(TransientError("the connection broke"))
            else:
                self._store(topic, key, value, future)

    def batches(self, lane: str = "samples") -> list[dict[str, Any]]:
        """Return decoded batches of a lane in the order of storing."""
        decoded = [json.loads(value) for topic, _, value in self.stored if topic.endswith(lane)]
        return [batch for batch in decoded if batch["lane"] == lane]

    def rows(self, lane: str = "samples", table: str = "node_samples") -> list[int]:
        """Return the `n` of all stored rows of a table."""
        return [values["extra"]["n"] for batch in self.batches(lane) for name, values in batch["rows"] if name == table]


def encode_json(batch: Batch, most_bytes: int = 10**9) -> bytes:
    header = batch.header
    content = {
        "agent": header.agent_id,
        "spool": header.spool_id,
        "lane": header.lane,
        "seq": header.seq,
        "node": header.node,
        "attributes": dict(header.attributes),
        "rows": [(row.table, row.values) for row in batch.rows],
    }
    message = json.dumps(content).encode()
    if len(message) > most_bytes:
        raise BadRecord("too large")
    return message


def sample(number: int, pad: str = "") -> Row:
    extra: dict[str, Value] = {"n": number}
    return Row("node_samples", {"ts": number, "extra": cast(Value, {**extra, "pad": pad} if pad else extra)})


def event(severity: str, number: int = 0) -> Row:
    values: dict[str, Value] = {
        "ts": number,
        "source": "kernel",
        "code": "xid:79",
        "severity": severity,
        "message": "m",
    }
    return Row("events", {**values, "attrs": {"n": str(number)}})


@dataclass
class Stage:
    folder: Path
    clock: ManualClock
    bus: ScriptedBus
    sender: Sender

    def run(self, seconds: float, step: float = 0.1) -> None:
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.sender.step()

    def again(self, **settings: Any) -> Sender:
        """Start the agent anew on the same spool."""
        self.sender = make_sender(self.folder, self.clock, self.bus, **settings)
        return self.sender


def make_sender(folder: Path, clock: ManualClock, bus: ScriptedBus, most_bytes: int = 10**9, **settings: Any) -> Sender:
    spool = Spool(folder, SpoolSettings(**settings))
    encode = functools.partial(encode_json, most_bytes=most_bytes)
    return Sender(cast(Bus, bus), spool, encode, "n1", "c1", clock, seed=1)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    clock, bus = ManualClock(), ScriptedBus()
    made = Stage(tmp_path / "spool", clock, bus, make_sender(tmp_path / "spool", clock, bus))
    yield made
    made.sender._spool.close(clean=False)
