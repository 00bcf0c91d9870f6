"""From a request in the control database to a trace in a folder, over a real bus, with a node made of this test."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord, ConfigError, FlightwatchError, Refused, TransientError
from flightwatch.core.protocols import Command
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.blobs import CHUNK_BYTES, BlobSender, Chunk
from flightwatch.pipeline.bus.base import Message
from flightwatch.pipeline.bus.local import LocalBus
from flightwatch.pipeline.codec import encode
from flightwatch.pipeline.commands import CommandReader
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.profiles.assembly import TraceFolder
from flightwatch.pipeline.profiles.dispatch import Start, start_of
from flightwatch.pipeline.profiles.records import BLOCKS, Profiles, RankNews, Wanted
from flightwatch.pipeline.profiles.server import ProfileServer
from flightwatch.pipeline.profiles.server_key import server_key
from flightwatch.pipeline.profiles.settings import ProfilesSettings
from flightwatch.pipeline.sender import Sender
from flightwatch.pipeline.spool import Spool, SpoolSettings
from flightwatch.pipeline.store.client import Store

TRACE = bytes(range(256)) * 3000


class FakeStore:
    """Answers the one question, keeps what is projected."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.away = False
        self.rows_of_profiles: list[dict[str, Any]] = []

    def rows(self, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
        return self.steps

    def insert_block(self, table: str, block: pa.Table, token: str) -> None:
        if self.away:
            raise TransientError("the store is away")
        assert table == "profiles"
        self.rows_of_profiles += block.to_pylist()


class Node:
    """A node's side: commands in, blobs out."""

    def __init__(self, name: str, stage: Stage, folder: Path) -> None:
        self.name, self._stage = name, stage
        spool = Spool(folder / f"spool-{name}", SpoolSettings())
        self._sender = Sender(stage.bus, spool, encode, name, "test", stage.clock)
        self.blobs = BlobSender(self._sender, encode)
        keys = [stage.key.public_key]
        self._reader = CommandReader(stage.bus, name, keys, stage.clock, str(folder / f"seen-{name}"))

    def send(self, blob: str, kind: str, body: bytes | dict[str, Any], **attributes: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.blobs.put(blob, kind, io.BytesIO(data), attributes)
        partition = self._stage.bus.partitions(Topic.BLOBS.value)[0]
        self._stage.messages += max(1, -(-len(data) // CHUNK_BYTES))
        for _ in range(5000):
            self._sender.step()
            self._stage.clock.advance(0.02)
            if self._stage.bus.end_offset(partition) >= self._stage.messages:
                break
            time.sleep(0.002)  # the bus writes in a thread of its own, which a loaded machine runs late
        else:
            raise AssertionError("the bus took no batch in 10 s")
        self._stage.step()

    def commands(self) -> list[Command]:
        self._stage.clock.advance(3)
        return list(self._reader.poll())

    def roster(self, *ranks: int, problem: str = "", run: str = "0") -> None:
        entries = [{"job": "llama", "run": run, "rank": rank, "pid": 1, "problem": problem} for rank in ranks]
        self.send(f"r{self._stage.clock.now_ms()}", "profile_roster", {"ranks": entries, "yielded": False})

    def tell(self, request: str, rank: int, state: str, **more: Any) -> None:
        body = {"request": request, "rank": rank, "state": state, "reason": ""} | more
        self.send(f"n{self._stage.clock.now_ms()}", "profile_progress", body)

    def trace(self, request: str, rank: int, data: bytes = TRACE) -> None:
        name = f"{request}-rank{rank}-0"
        self.send(name, "profile_trace", data, request=request, rank=str(rank), job="llama")


class Stage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.bus = LocalBus(folder / "bus", clock=self.clock)
        for topic in Topic:
            self.bus.create_topic(topic.value, 1, 3_600_000, None)
        self.control: Control = open_control(f"sqlite://{folder}/control.db", ControlSettings(), self.clock)
        self.profiles = Profiles(self.control)
        self.store = FakeStore()
        self.messages = 0
        self.key = server_key(folder)
        self.server = ProfileServer(
            self.bus, self.control, cast(Store, self.store), self.key.sign, folder / "profiles", ProfilesSettings(),
            self.clock, cluster="test",
        )  # fmt: skip
        self._subscription = self.bus.subscribe([Topic.BLOBS.value], "flightwatch-profiles")

    def step(self) -> None:
        for _ in range(3):
            self.server.step(self._subscription, 0.0)

    def close(self) -> None:
        self._subscription.close()
        self.control.close()
        self.bus.close()

    def create(self, *ranks: int, run: str = "") -> str:
        return self.profiles.create(Wanted("llama", run, ranks, 5, {"stacks": True}, 10**9, 120, "ann", "why"))

    def states(self, name: str) -> dict[int, str]:
        return {row["rank"]: row["state"] for row in self.profiles.get(name)["ranks"]}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def node(stage: Stage, tmp_path: Path) -> Node:
    return Node("node-a", stage, tmp_path)


def test_from_a_request_to_traces(stage: Stage, node: Node, tmp_path: Path) -> None:
    other = Node("node-b", stage, tmp_path)
    node.roster(0, 1)
    other.roster(2, 3)
    stage.store.steps = [{"newest_step": 1000, "at_ms": stage.clock.now_ms(), "median_us": 100_000.0}]
    name = stage.create(1, 2)
    stage.step()
    (first,), (second,) = node.commands(), other.commands()
    assert (first.type, first.job, first.actor, first.node) == ("profile_start", "llama", "ann", "node-a")
    assert first.arguments["ranks"] == [1]
    assert second.arguments["ranks"] == [2]
    assert first.arguments["start_step"] == second.arguments["start_step"] == 1000 + 100 + 2
    assert first.arguments["stacks"] is True
    for rank, one in ((1, node), (2, other)):
        for state in ("waiting", "armed", "reading"):
            one.tell(name, rank, state)
        one.trace(name, rank)
        one.tell(name, rank, "done", first_step=1103)
    found = stage.profiles.get(name)
    assert (found["state"], found["run"]) == ("done", "0")
    for row in found["ranks"]:
        assert Path(row["artifact"]).read_bytes() == TRACE
        assert row["sha256"] == hashlib.sha256(TRACE).hexdigest()
        assert (row["bytes"], row["first_step"]) == (len(TRACE), 1103)
    last = max(row["version"] for row in stage.store.rows_of_profiles)
    rows = [row for row in stage.store.rows_of_profiles if row["version"] == last]
    assert [(row["state"], row["rank"]) for row in rows] == [("done", None), ("done", 1), ("done", 2)]
    assert rows[0]["ranks"] == [1, 2]


def test_a_node_speaks_for_its_own_ranks_only(stage: Stage, node: Node, tmp_path: Path) -> None:
    liar = Node("liar", stage, tmp_path)
    node.roster(0)
    name = stage.create(0)
    stage.step()
    liar.tell(name, 0, "failed", reason="lies")
    liar.trace(name, 0, b"lies")
    liar.tell("unknown", 0, "done")
    liar.tell(name, 99, "done")
    assert stage.states(name) == {0: "requested"}
    assert not (tmp_path / "profiles" / name).exists()


def test_broken_news_is_dropped(stage: Stage, node: Node) -> None:
    node.send("b1", "profile_progress", b"no json")
    node.send("b2", "profile_progress", b"[1]")
    node.send("b3", "profile_roster", {"ranks": [1, {"job": 1}, {"job": "j", "run": "", "problem": "", "rank": -1}]})
    node.send("b4", "profile_roster", {"ranks": "none"})
    node.send("b5", "other_kind", b"x")
    assert stage.profiles.jobs(0) == []


def test_reasons_when_a_rank_cannot_be_profiled(stage: Stage, node: Node) -> None:
    node.roster(0)
    node.roster(0, problem="KINETO_USE_DAEMON is not set")
    name = stage.create(0, 5)
    stage.clock.advance(13)
    stage.step()
    reasons = {row["rank"]: row["reason"] for row in stage.profiles.get(name)["ranks"]}
    assert reasons == {0: "KINETO_USE_DAEMON is not set", 5: "no agent sees rank 5 of job llama"}
    assert stage.profiles.get(name)["state"] == "failed"
    unknown = stage.profiles.create(Wanted("other", "", [0], 5, {}, 1, 120, "ann", ""))
    stage.clock.advance(13)
    stage.step()
    assert "only its launcher" in stage.profiles.get(unknown)["ranks"][0]["reason"]


def test_times_of_blocks_need_no_profiler_and_bring_no_trace(stage: Stage, node: Node) -> None:
    node.roster(0, 1, problem="KINETO_USE_DAEMON is not set")
    name = stage.profiles.create(Wanted("llama", "", [0, 1], 20, {BLOCKS: True}, 10**6, 120, "ann", ""))
    stage.step()
    (command,) = node.commands()
    assert (command.type, command.arguments["blocks"], command.arguments["max_bytes"]) == (
        "profile_start", True, 500_000,
    )  # fmt: skip
    node.tell(name, 0, "armed", first_step=40)
    node.tell(name, 0, "done", reason="160 rows of 20 steps", first_step=40)
    stage.clock.advance(40)
    stage.step()
    done, silent = stage.profiles.get(name)["ranks"]
    assert (done["state"], done["reason"], done["first_step"]) == ("done", "160 rows of 20 steps", 40)
    assert silent["state"] == "failed"
    assert "or it is older than `flightwatch profile blocks`" in silent["reason"]
    assert stage.profiles.get(name)["state"] == "done"


def test_times_of_blocks_that_nobody_ends_are_not_called_a_trace(stage: Stage, node: Node) -> None:
    node.roster(0)
    name = stage.profiles.create(Wanted("llama", "", [0], 20, {BLOCKS: True}, 10**6, 120, "ann", ""))
    stage.step()
    node.tell(name, 0, "armed")
    stage.step()
    stage.clock.advance(500)
    stage.step()
    reason = stage.profiles.get(name)["ranks"][0]["reason"]
    assert "has not said that its times are sent in time (last state: armed)" in reason


def test_a_profile_says_nothing_of_blocks_to_agents_that_do_not_know_them(stage: Stage, node: Node) -> None:
    node.roster(0)
    stage.create(0)
    stage.step()
    assert "blocks" not in node.commands()[0].arguments


def test_a_silent_agent_is_named(stage: Stage, node: Node) -> None:
    node.roster(0, 1)
    name = stage.create(0, 1)
    stage.step()
    node.tell(name, 0, "waiting")
    stage.clock.advance(40)
    stage.step()
    rows = {row["rank"]: row for row in stage.profiles.get(name)["ranks"]}
    # The request is under way once one rank answered; the other agent's silence is told by its rank.
    assert rows[1]["state"] == "failed"
    assert "did not acknowledge" in rows[1]["reason"]
    assert rows[0]["state"] == "waiting"
    stage.clock.advance(500)
    stage.step()
    assert "has not sent the trace in time (last state: waiting)" in stage.profiles.get(name)["ranks"][0]["reason"]


def test_a_stop_reaches_the_node(stage: Stage, node: Node) -> None:
    node.roster(0)
    name = stage.create(0)
    stage.step()
    node.tell(name, 0, "armed")
    stage.profiles.stop(name)
    stage.step()
    assert [command.type for command in node.commands()] == ["profile_start", "profile_stop"]
    assert stage.profiles.get(name)["state"] == "stopped"
    with pytest.raises(Refused, match="ended already"):
        stage.profiles.stop(name)
    with pytest.raises(Refused, match="no profile"):
        stage.profiles.stop("none")


def test_news_that_comes_late_changes_nothing(stage: Stage, node: Node) -> None:
    node.roster(0)
    name = stage.create(0)
    stage.step()
    stage.profiles.tell(name, [RankNews(0, "failed", "gone")])
    version = stage.profiles.get(name)["version"]
    stage.profiles.tell(name, [RankNews(0, "armed"), RankNews(0, "done"), RankNews(0, "nonsense")])
    assert stage.states(name) == {0: "failed"}
    assert stage.profiles.get(name)["version"] == version


def test_done_without_its_trace_is_a_failure(stage: Stage, node: Node) -> None:
    node.roster(0)
    name = stage.create(0)
    stage.step()
    node.tell(name, 0, "done")
    assert stage.profiles.get(name)["ranks"][0]["reason"] == "the trace was lost on its way"


def test_the_projection_waits_for_the_store(stage: Stage, node: Node) -> None:
    stage.store.away = True
    name = stage.create(0)
    with pytest.raises(TransientError):
        stage.step()
    stage.store.away = False
    stage.step()
    assert [row["id"] for row in stage.store.rows_of_profiles] == [name]


def test_when_to_start() -> None:
    assert start_of([], 0) == Start(0, 100)
    assert start_of([{"newest_step": 5, "at_ms": None, "median_us": None}], 0).step == 0
    start = start_of([{"newest_step": 100, "at_ms": 1000, "median_us": 1e6}], 3000)
    assert start == Start(100 + 12 + 2, 20)


def test_the_servers_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    first = server_key(tmp_path)
    path = tmp_path / "control.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert server_key(tmp_path).public_key == first.public_key
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="only its owner"):
        server_key(tmp_path)
    path.chmod(0o600)
    path.write_text("nonsense")
    with pytest.raises(ConfigError, match="not a key"):
        server_key(tmp_path)


def chunks(data: bytes, size: int) -> list[Chunk]:
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    made = [Chunk("p1-rank0-0", "profile_trace", i, False, piece, None, "", {}) for i, piece in enumerate(pieces)]
    made[-1] = replace(made[-1], last=True, total_bytes=len(data), total_sha256=hashlib.sha256(data).hexdigest())
    return made


def test_chunks_are_put_together_whatever_is_repeated(tmp_path: Path) -> None:
    folder = TraceFolder(tmp_path)
    data = TRACE[:5000]
    first, second, *rest = chunks(data, 1000)
    for chunk in (first, second, first, second, *rest[:-1]):
        assert folder.take(chunk, "p1", 0, 10_000) is None
    whole = TraceFolder(tmp_path).take(rest[-1], "p1", 0, 10_000)
    assert whole is not None
    assert whole.path == tmp_path / "p1" / "rank0.json.gz"
    assert whole.path.read_bytes() == data
    assert list((tmp_path / ".parts").iterdir()) == []


def test_lost_damaged_oversized_and_misnamed_traces_are_refused(tmp_path: Path) -> None:
    folder = TraceFolder(tmp_path)
    first, *_, last = chunks(TRACE[:5000], 1000)
    folder.take(first, "p1", 0, 10_000)
    with pytest.raises(BadRecord, match="lost"):
        folder.take(last, "p1", 0, 10_000)
    only = chunks(b"abc", 10)[0]
    with pytest.raises(BadRecord, match="damaged"):
        folder.take(replace(only, total_sha256="0" * 64), "p1", 0, 10_000)
    with pytest.raises(BadRecord, match="larger"):
        folder.take(first, "p1", 0, 999)
    for request, blob in (("../p", "b"), ("p1", "../../b"), ("", "b")):
        with pytest.raises(BadRecord, match="not names"):
            folder.take(replace(only, blob_id=blob), request, 0, 10_000)
    assert not (tmp_path / "p1").exists() or list((tmp_path / "p1").iterdir()) == []


def test_a_message_that_is_no_chunk_is_dropped(stage: Stage) -> None:
    partition = stage.bus.partitions(Topic.BLOBS.value)[0]
    for value in (b"", b"FB", b"FB\xff\xff\xff\xff", b"nonsense" * 10):
        stage.server.take(Message(partition, 0, "n", value, 0))


def test_a_signature_that_does_not_fit_is_refused(stage: Stage, node: Node) -> None:
    def verify(*_: object) -> None:
        raise BadRecord("not signed")

    stage.server._verify = verify
    node.roster(0)
    assert stage.profiles.jobs(0) == []
    assert issubclass(BadRecord, FlightwatchError)
