"""Per-op detail: from a probe's message to the node's ring, and from there to the store on command."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.command_handlers import command_handlers
from flightwatch.collectors.environment import environment_at
from flightwatch.collectors.op_ring import SEGMENTS, OpRing
from flightwatch.collectors.op_ring_upload import MOST_WINDOW_MS, RingUpload, request_of
from flightwatch.collectors.receiver import Intake
from flightwatch.collectors.receiver_detail import Detail, Names, rows_of
from flightwatch.collectors.receiver_rows import Message
from flightwatch.collectors.receiver_settings import ReceiverSettings
from flightwatch.collectors.receiver_socket import Datagram
from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import Command, Row

NOW_MS = 1_700_000_000_000
KEYS = [["block", "compute", "blocks.0 forward", "", ""], ["op", "comm", "allreduce", "dp:1", "dp"]]
OPS = [[0, 100.0, 50.0, 0, -1, 60.0], [1, 2500.5, 400.0, 4096, 17, -1]]


def detail(step: int, ts: int = NOW_MS, rank: int = 0, uid: int = 1000, job: str = "j") -> Detail:
    return Detail(uid, job, "0", rank, ts, step, KEYS, OPS)


class Sink:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def emit(self, rows: Iterable[Row]) -> None:
        self.rows.extend(rows)

    def flush(self, timeout_seconds: float) -> bool:
        return True

    def ops(self) -> list[dict[str, Any]]:
        return [dict(row.values) for row in self.rows if row.table == "op_timings"]


@pytest.fixture
def ring(tmp_path: Path) -> OpRing:
    return OpRing(str(tmp_path / "ring"), 1_000_000, 1800.0)


def ask(**arguments: Any) -> Command:
    given: dict[str, Any] = {
        "request": "e1",
        "what": "ring",
        "since_ms": NOW_MS,
        "until_ms": NOW_MS + 60_000,
    } | arguments
    return Command("c1", "collect_evidence", "n", "j", "detector:slow", 0, 1, given)


def test_ops_become_rows_of_the_catalogue() -> None:
    block, collective = (row.values for row in rows_of(detail(5), lambda name: True))
    assert (block["level"], block["op"], block["dur_us"], block["span_us"]) == ("block", "blocks.0 forward", 50.0, 60.0)
    assert "process_group" not in block
    assert (collective["ts"], collective["seq"], collective["bytes"]) == (NOW_MS + 2, 17, 4096)
    assert (collective["process_group"], collective["axis"], collective["steps"]) == ("dp:1", "dp", 1)
    assert {(one["job"], one["rank"], one["step"]) for one in (block, collective)} == {("j", 0, 5)}


@pytest.mark.parametrize(
    "op",
    [None, [], [0] * 5, [9, 0.0, 1.0, 0, -1, -1], [-1, 0.0, 1.0, 0, -1, -1], [0, -5.0, 1.0, 0, -1, -1],
     [0, 0.0, float("nan"), 0, -1, -1], ["0", 0.0, 1.0, 0, -1, -1], [True, 0.0, 1.0, 0, -1, -1]],
)  # fmt: skip
def test_an_op_that_is_none_is_left_out(op: Any) -> None:
    given = Detail(1, "j", "0", 0, NOW_MS, 1, KEYS, [op, OPS[0]])
    assert [row.values["op"] for row in rows_of(given, lambda name: True)] == ["blocks.0 forward"]


def test_phases_cannot_come_as_single_ops() -> None:
    given = Detail(1, "j", "0", 0, NOW_MS, 1, [["phase", "compute", "forward", "", ""]], [OPS[0]])
    assert rows_of(given, lambda name: True) == []


def test_a_message_fills_the_ring_and_one_step_in_a_hundred_is_stored(ring: OpRing, tmp_path: Path) -> None:
    environment = environment_at(str(tmp_path))
    environment.receiver, environment.op_ring = ReceiverSettings(), ring
    intake = Intake(environment, lambda: 100.0)
    names: list[Any] = [["names", {"ts": NOW_MS, "table": 5, "first": 0, "keys": KEYS[:1]}]]
    names += [["names", {"ts": NOW_MS, "table": 5, "first": 1, "keys": KEYS[1:]}]]
    rows = [["detail", {"ts": NOW_MS, "step": step, "table": 5, "ops": OPS}] for step in (199, 200, 201)]
    values: list[Any] = [None, {}, {"ts": 5, "step": 1, "table": 5, "ops": []}, {"ts": NOW_MS, "step": 1, "table": 6}]
    broken = [["detail", value] for value in values]
    message = {"v": 1, "job": "j", "run": "0", "rank": 2, "pid": 1, "rows": names + rows + broken}
    intake.accept(Datagram(json.dumps(message).encode(), None, 1000, False), NOW_MS)
    stored = [row.values for row in intake.take(NOW_MS) if row.table == "op_timings"]
    assert [(row["step"], row["rank"], row["op"]) for row in stored] == [
        (200, 2, "blocks.0 forward"), (200, 2, "allreduce")
    ]  # fmt: skip
    assert [one.step for one in ring.read(NOW_MS, NOW_MS)] == [199, 200, 201]
    assert intake._counts["refused_values"] == 4


@pytest.mark.parametrize(
    "part",
    [None, [], {"table": 5, "first": 9, "keys": []}, {"table": 5, "first": -1, "keys": []}, {"table": "5", "first": 0},
     {"table": 5, "first": 0, "keys": [None] * 2000}],
)  # fmt: skip
def test_a_part_of_a_table_that_is_none_is_refused(part: Any) -> None:
    assert not Names().learn(part, Message("j", "0", 0, 1, []), "j")


def test_names_of_an_earlier_process_are_not_used_for_a_later_one() -> None:
    names, message = Names(), Message("j", "0", 0, 1, [])
    one = {"ts": NOW_MS, "step": 1, "table": 8, "ops": OPS}
    assert names.learn({"table": 7, "first": 0, "keys": KEYS}, message, "j")
    assert names.detail(one, message, "j", 1, NOW_MS) is None
    assert names.learn({"table": 8, "first": 0, "keys": KEYS[1:]}, message, "j")
    found = names.detail(one, message, "j", 1, NOW_MS)
    assert found is not None
    assert found.keys == KEYS[1:]
    # A repeated beginning takes nothing away; another job's table is another's.
    assert names.learn({"table": 8, "first": 0, "keys": []}, message, "j")
    assert names.detail(one, message, "j", 1, NOW_MS) == found
    assert names.detail(one, message, "other", 1, NOW_MS) is None


def test_the_ring_gives_back_what_began_in_a_window(ring: OpRing) -> None:
    for step in range(10):
        ring.put(detail(step, NOW_MS + step * 1000))
    assert [one.step for one in ring.read(NOW_MS + 3000, NOW_MS + 5000)] == [3, 4, 5]
    assert next(iter(ring.read(NOW_MS, NOW_MS + 9000))) == detail(0)


def test_a_user_who_sends_much_pushes_out_his_own_past_alone(ring: OpRing) -> None:
    ring.put(detail(1, uid=7))
    ring.flush()
    line = len(detail(1).line())
    for step in range(3_000_000 // line):
        ring.put(detail(step, uid=8))
        if step % (500_000 // SEGMENTS // line) == 0:
            ring.flush()
    ring.flush()
    found = list(ring.read(NOW_MS, NOW_MS))
    assert ring.bytes <= 1_000_000
    assert [one.step for one in found if one.uid == 7] == [1]
    # The newest is there, the oldest is not.
    steps = [one.step for one in found if one.uid == 8]
    assert steps[-1] == 3_000_000 // line - 1
    assert steps[0] > 0


def test_what_is_too_old_is_removed_and_the_folder_holds_nothing_else(ring: OpRing, tmp_path: Path) -> None:
    ring.put(detail(1))
    ring.flush()
    (segment,) = (tmp_path / "ring").iterdir()
    assert segment.stat().st_mode & 0o777 == 0o600
    (tmp_path / "ring" / "notes.txt").write_text("mine")
    old = segment.stat().st_mtime - 1801
    os.utime(segment, (old, old))
    ring.flush()
    assert [path.name for path in (tmp_path / "ring").iterdir()] == ["notes.txt"]


def test_a_damaged_end_and_a_new_agent_cost_nothing_else(ring: OpRing, tmp_path: Path) -> None:
    ring.put(detail(1))
    ring.flush()
    (segment,) = (tmp_path / "ring").iterdir()
    with segment.open("ab") as file:
        file.write(b'[1000,"j","0",0,17')
    again = OpRing(str(tmp_path / "ring"), 1_000_000, 1800.0)
    again.put(detail(2))
    assert [one.step for one in again.read(NOW_MS, NOW_MS)] == [1, 2]


def test_a_full_disk_costs_the_newest_detail_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = OpRing(str(tmp_path / "ring"), 1_000_000, 1800.0)
    ring.put(detail(1))
    ring.flush()
    written = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: written(handle, content[: len(content) // 2]))
    ring.put(detail(2))
    ring.put(detail(3))
    ring.flush()
    monkeypatch.undo()
    assert ring.dropped == 2
    ring.put(detail(4))
    # Half a line is never left behind; the oldest gave its space to what comes.
    assert [one.step for one in ring.read(NOW_MS, NOW_MS)] == [4]


def _mounted(folder: Path) -> bool:
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_a_disk_that_is_really_full_keeps_the_newest_whole_lines(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    if not _mounted(folder):
        pytest.skip("no file system can be mounted here")
    try:
        ring = OpRing(str(folder / "ring"), 1_000_000, 1800.0)
        line = len(detail(1).line())
        for step in range(600_000 // line):
            ring.put(detail(step))
            if step % 50 == 0:
                ring.flush()
        ring.flush()
        found = [one.step for one in ring.read(NOW_MS, NOW_MS)]
        assert ring.dropped > 0
        assert found == sorted(found)
        assert found
        written = sum(path.stat().st_size for path in (folder / "ring").iterdir())
        assert written == sum(len(detail(step).line()) for step in found)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_an_agent_sends_the_asked_ranks_and_window_once(ring: OpRing) -> None:
    for step in range(98, 103):
        for rank in (0, 1, 2):
            ring.put(detail(step, NOW_MS + (step - 98) * 1000, rank))
            ring.put(detail(step, NOW_MS + (step - 98) * 1000, rank, job="other"))
    sink = Sink()
    upload = RingUpload(ring, sink, ManualClock(NOW_MS))
    request = request_of(ask(ranks=[0, 2], until_ms=NOW_MS + 3000))
    assert upload.upload(request) == 3 * 2 * 2
    # Step 100 is one of those that are stored anyway.
    assert {(row["job"], row["rank"], row["step"]) for row in sink.ops()} == {
        ("j", rank, step) for rank in (0, 2) for step in (98, 99, 101)
    }
    (event,) = [row.values for row in sink.rows if row.table == "events"]
    assert (event["code"], event["attrs"]) == ("evidence:ring", {"request": "e1", "rows": "12", "ranks": "2"})
    assert upload.upload(request) == 0
    assert upload.upload(request_of(ask(ranks=[0], from_step=102, to_step=102))) == 2


@pytest.mark.parametrize(
    "arguments",
    [{"since_ms": None}, {"until_ms": None}, {"until_ms": NOW_MS - 1}, {"until_ms": NOW_MS + MOST_WINDOW_MS + 1}],
)
def test_a_command_without_a_sensible_window_is_refused(arguments: dict[str, Any], ring: OpRing) -> None:
    command = ask(**arguments)
    with pytest.raises(BadRecord):
        RingUpload(ring, Sink(), ManualClock(NOW_MS)).collect_evidence(command)


def test_each_kind_of_evidence_goes_to_its_provider() -> None:
    asked: list[str] = []

    def refuse(command: Command) -> None:
        raise BadRecord("no window")

    kinds = {"hang": lambda command: asked.append("hang"), "ring": lambda command: asked.append("ring")}
    collect = command_handlers(None, kinds)["collect_evidence"]
    collect(ask(what="ring,hang"))
    collect(Command("c", "collect_evidence", "n", "j", "me", 0, 1, {"request": "r"}))
    assert asked == ["ring", "hang", "hang"]
    with pytest.raises(BadRecord, match="'memory' is not collected here"):
        collect(ask(what="memory,hang"))
    with pytest.raises(BadRecord, match="no window"):
        command_handlers(None, kinds | {"ring": refuse})["collect_evidence"](ask(what="ring,hang"))
    assert asked[3:] == ["hang", "hang"]
