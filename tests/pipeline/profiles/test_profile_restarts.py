"""A profile survives restarts of the bus and of the control server: every chunk arrives, nothing counts twice."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from flightwatch.core.clock import SystemClock
from flightwatch.core.errors import TransientError
from flightwatch.core.protocols import Command
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.blobs import CHUNK_BYTES, BlobSender
from flightwatch.pipeline.bus.base import Ack, Bus
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.codec import encode
from flightwatch.pipeline.commands import CommandReader
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.profiles.records import REQUEST_ENDED, Profiles, Wanted
from flightwatch.pipeline.profiles.server import GROUP
from flightwatch.pipeline.profiles.server_key import server_key
from flightwatch.pipeline.sender import Sender
from flightwatch.pipeline.spool import Spool, SpoolSettings
from tests.conftest import Broker, expel_members

PROCESS = Path(__file__).with_name("profile_process.py")
CHUNKS = 12


class Gate:
    """A bus that takes nothing while it is closed.

    The test's broker loses what it acknowledges while it saves its data on SIGTERM, which Kafka does not: nothing is
    on its way to it in that moment.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.closed = False
        self.last: Future[Ack] | None = None

    def publish(self, topic: str, key: str, value: bytes) -> Future[Ack]:
        if self.closed:
            raise TransientError("the broker is away")
        self.last = self._bus.publish(topic, key, value)
        return self.last


class Node:
    """The sending side of an agent: sender with its spool, commands, two ranks that recorded."""

    def __init__(self, url: str, folder: Path) -> None:
        self.bus = open_bus(url, BusSettings())
        for topic in Topic:
            self.bus.create_topic(topic.value, 1, 3_600_000, None)
        clock = SystemClock()
        spool = Spool(folder / "spool", SpoolSettings(blob_bytes_per_second=6_000_000, stall_seconds=3.0))
        self.gate = Gate(self.bus)
        self.sender = Sender(cast(Bus, self.gate), spool, encode, "node-a", "test", clock)
        self.blobs = BlobSender(self.sender, encode)
        self.sender.start()
        key = server_key(folder).public_key
        self._reader = CommandReader(self.bus, "node-a", [key], clock, str(folder / "seen"))
        self.commands: list[Command] = []
        self._numbers = iter(range(1000))
        seeded = random.Random(7)
        self.traces = {rank: seeded.randbytes(CHUNK_BYTES * CHUNKS + rank) for rank in (0, 1)}

    def poll(self) -> list[Command]:
        self.commands += self._reader.poll()
        return self.commands

    def tell(self, kind: str, body: dict[str, Any]) -> None:
        self.blobs.put(f"{kind}-{next(self._numbers)}", kind, io.BytesIO(json.dumps(body).encode()), {})

    def send_traces(self, request: str) -> None:
        for rank, trace in self.traces.items():
            told = {"request": request, "rank": rank, "reason": ""}
            self.tell("profile_progress", told | {"state": "armed"})
            attributes = {"request": request, "rank": str(rank), "job": "llama"}
            self.blobs.put(f"{request}-rank{rank}-0", "profile_trace", io.BytesIO(trace), attributes)
            self.tell("profile_progress", told | {"state": "done", "first_step": 400})

    def close(self) -> None:
        self.sender.stop(1.0)
        self.bus.close()


class Stage:
    """Control database, a node, and a control server in a process that is started again whenever it died."""

    def __init__(self, url: str, folder: Path, orders: list[list[str]]) -> None:
        self._url, self.folder, self._orders = url, folder, orders
        self.control = open_control(f"sqlite://{folder}/control.db", ControlSettings())
        self.profiles = Profiles(self.control)
        self.node = Node(url, folder)
        self.deaths = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        orders = self._orders.pop(0) if self._orders else []
        command = [sys.executable, str(PROCESS), self._url, str(self.folder), *orders]
        with (self.folder / "server.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": os.getcwd()})

    def until(self, true: Callable[[], Any], tries: int = 1200) -> None:
        """Look every 0.05 s; whenever the server has died, start the next one."""
        for _ in range(tries):
            if true():
                return
            code = self.process.poll()
            if code is not None:
                assert code == -9, (self.folder / "server.log").read_text()
                self.deaths += 1
                if self._url.startswith("kafka://"):
                    expel_members(self._url.removeprefix("kafka://"), GROUP)
                self.process = self._start()
            time.sleep(0.05)
        raise AssertionError(
            f"it never came true; {self.profiles.newest()}\n{(self.folder / 'server.log').read_text()}"
        )

    def record(self) -> str:
        """Ask for a profile of both ranks and let the node send it; returns while the traces are on their way."""
        ranks = [{"job": "llama", "run": "0", "rank": rank, "pid": 1, "problem": ""} for rank in (0, 1)]
        self.node.tell("profile_roster", {"ranks": ranks, "yielded": False})
        self.until(lambda: len(self.profiles.targets("llama", 0)) == 2)
        name = self.profiles.create(Wanted("llama", "", [0, 1], 5, {}, 10**9, 120, "ann", ""))
        self.until(self.node.poll)
        self.node.send_traces(name)
        return name

    def chunks_here(self) -> int:
        return len(list((self.folder / "profiles").glob(".parts/*/???????")))

    def check(self, name: str) -> None:
        """Wait for the end; the traces are what was sent, and each thing is there once."""
        self.until(lambda: self.profiles.get(name)["state"] in REQUEST_ENDED)
        found = self.profiles.get(name)
        assert [(row["state"], row["reason"], row["first_step"]) for row in found["ranks"]] == [("done", "", 400)] * 2
        for row in found["ranks"]:
            trace = self.node.traces[row["rank"]]
            assert hashlib.sha256(Path(row["artifact"]).read_bytes()).hexdigest() == hashlib.sha256(trace).hexdigest()
            assert (row["sha256"], row["bytes"]) == (hashlib.sha256(trace).hexdigest(), len(trace))
        self.until(lambda: not self.profiles.unpublished())
        # The store takes a token once; what an ended request has is in the version that ended it.
        lines = [json.loads(line) for line in (self.folder / "projections.jsonl").read_text().splitlines()]
        by_token = {line["token"]: line["rows"] for line in lines}
        assert all(line["rows"] == by_token[line["token"]] for line in lines)
        rows = [row for rows in by_token.values() for row in rows if row["state"] == "done"]
        assert sorted(row["rank"] for row in rows if row["rank"] is not None) == [0, 1]
        self.node.poll()
        assert [command.type for command in self.node.commands] == ["profile_start"]
        assert sorted(path.name for path in (self.folder / "profiles").glob("*/*")) == [
            "rank0.json.gz",
            "rank1.json.gz",
        ]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.node.close()
        self.control.close()


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(url: str, *orders: list[str]) -> Stage:
        made.append(Stage(url, tmp_path, list(orders)))
        return made[0]

    yield make
    for one in made:
        one.close()


def test_a_control_server_killed_anywhere_loses_and_doubles_nothing(
    staged: Callable[..., Stage], tmp_path: Path
) -> None:
    first, last = ["insert.after:1"], ["insert.before:1"]
    orders = (first, ["take.after:3"], ["whole:1"], ["whole:1"], last)
    stage = staged(f"sqlite://{tmp_path}/bus", *orders)
    stage.check(stage.record())
    assert stage.deaths == len(orders)


@pytest.mark.kafka
def test_a_broker_that_restarts_in_the_middle_loses_and_doubles_nothing(
    staged: Callable[..., Stage], own_broker: Broker
) -> None:
    stage = staged(f"kafka://{own_broker.address}", ["take.after:20"])
    name = stage.record()
    stage.until(lambda: stage.chunks_here() >= CHUNKS // 2)
    stage.node.gate.closed = True
    assert stage.node.gate.last is not None
    stage.node.gate.last.result(30)
    own_broker.stop()
    stage.node.gate.closed = False
    stage.until(lambda: stage.node.gate.last is not None and not stage.node.gate.last.done())
    own_broker.start()
    stage.check(name)
    assert stage.deaths == 1
