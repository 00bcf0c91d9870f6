from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.hang import stacks
from flightwatch.collectors.hang.evidence import HangCollector, RankEvidence
from flightwatch.collectors.hang.progress import Progress, ProgressSink
from flightwatch.collectors.hang.reduced import rows_of
from flightwatch.collectors.hang.worker_server import worker_sockets
from flightwatch.collectors.profiler.processes import Process
from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord, NoData
from flightwatch.core.protocols import Command, Row

PY_SPY = b"""Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 9 (idle): "worker"
    run (threading.py:982)
Thread 7 (idle): "MainThread"
    wait (threading.py:320)
    get (queue.py:171)
    main (train.py:12)
"""
FAULTHANDLER = b"""Current thread 0x00007f00000000aa (most recent call first):
  <no Python frame>

Thread 0x00007f00000000bb (most recent call first):
  File "/t/dist.py", line 10 in all_reduce
  File "/t/train.py", line 42 in main
"""


class Rows:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def emit(self, rows: Iterable[Row]) -> None:
        self.rows.extend(rows)

    def flush(self, timeout_seconds: float) -> bool:
        return True


def rank(number: int, job: str = "llama") -> Process:
    return Process(os.getpid(), 1, os.geteuid(), job, "0", number, True, None)


def collector(tmp_path: Path, sink: Rows, processes: Iterable[Process], spy: bytes | None = PY_SPY) -> HangCollector:
    def run(words: Sequence[str], timeout_seconds: float) -> bytes:
        assert "--locals" not in words
        if spy is None:
            raise NoData("py-spy is not installed")
        return spy

    folders = (str(tmp_path), str(tmp_path / "none"))
    return HangCollector(
        folders, str(tmp_path / "state"), sink, ManualClock(), 10, run, lambda: processes, again_seconds=0.0
    )


def test_a_rank_without_worker_server_still_gives_its_stack(tmp_path: Path) -> None:
    sink = Rows()
    found = collector(tmp_path, sink, [rank(3), rank(4, "other")]).capture("c/1", "llama")
    assert [one.rank for one in found] == [3]
    tables = {row.table: row.values for row in sink.rows}
    assert (tables["dumps"]["status"], tables["dumps"]["rank"]) == ("missing", 3)
    event = tables["events"]
    assert event["message"] == "stack: wait (threading.py:320) < get (queue.py:171) < main (train.py:12)"
    attrs: Any = event["attrs"]
    assert attrs["waits_for"] == "input"
    assert "worker server is not open" in attrs["no_dump"]
    kept = tmp_path / "state" / "evidence" / "c_1" / "stack_rank_3.txt"
    assert kept.read_text().startswith("Process ")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_without_py_spy_and_worker_server_nothing_is_made_up(tmp_path: Path) -> None:
    sink = Rows()
    collector(tmp_path, sink, [rank(0)], spy=None).capture("c1", "llama")
    assert [row.values.get("message") for row in sink.rows if row.table == "events"] == ["stack: unknown"]


def test_old_captures_give_way(tmp_path: Path) -> None:
    hang = collector(tmp_path, Rows(), [rank(0)])
    for number in range(25):
        hang.capture(f"c{number}", "llama")
    assert len(list((tmp_path / "state" / "evidence").iterdir())) == 20


def test_torchs_own_dump_reads_like_py_spy() -> None:
    found = stacks.by_torch(FAULTHANDLER)
    assert found.main is not None
    assert found.message == "all_reduce (/t/dist.py:10) < main (/t/train.py:42)"
    assert found.main.waits_for == "collective"
    assert stacks.by_torch(b"").message == ""


def test_sockets_that_are_no_ranks_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "worker-1.sock").write_text("")
    (tmp_path / "worker-2.sock").symlink_to("/dev/null")
    (tmp_path / "worker-x.sock").write_text("")
    assert list(worker_sockets((str(tmp_path), str(tmp_path / "none")))) == []


def test_a_socket_that_a_process_left_behind_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "worker-3.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        bound.bind(str(left))
    assert list(worker_sockets((str(tmp_path),))) == []
    assert not left.exists()


def test_a_command_collects_and_a_malformed_one_is_refused(tmp_path: Path) -> None:
    sink = Rows()
    hang = collector(tmp_path, sink, [rank(0), rank(1)])
    hang.collect_evidence(Command("c", "collect_evidence", "n", "llama", "me", 0, 1, {"request": "r1", "ranks": [1]}))
    for thread in threading.enumerate():
        if thread.name == "hang-evidence":
            thread.join(300)
    dumps = [row.values for row in sink.rows if row.table == "dumps"]
    # Two captures: what waits in both is what hangs.
    assert [(one["capture_id"], one["rank"]) for one in dumps] == [("r1", 1), ("r1.2", 1)]
    with pytest.raises(BadRecord, match="names no request"):
        hang.collect_evidence(Command("c", "collect_evidence", "n", "llama", "me", 0, 1, {}))


def step(job: str = "llama", us: float = 1e6) -> Row:
    return Row("rank_steps", {"job": job, "run": "0", "rank": 0, "step_us": us})


def phase(name: str, ended: int | None = None) -> Row:
    return Row("runs", {"job": "llama", "run": "0", "phase": name, "ended_at": ended})


def test_a_standstill_is_told_once_and_again_after_new_steps() -> None:
    clock = ManualClock()
    progress = Progress(clock, 10.0)
    sink = ProgressSink(Rows(), progress)
    for _ in range(3):
        sink.emit([step(), Row("node_samples", {})])
        clock.advance(1)
    assert progress.standing() == []
    clock.advance(10)
    assert progress.standing() == [("llama", "0")]
    assert progress.standing() == []
    sink.emit([step()])
    clock.advance(11)
    assert progress.standing() == [("llama", "0")]


def test_slow_steps_and_quiet_phases_are_no_standstill() -> None:
    clock = ManualClock()
    progress = Progress(clock, 10.0)
    for _ in range(2):
        progress.see(step(us=30e6))
    clock.advance(100)
    assert progress.standing() == []
    progress.see(phase("checkpoint"))
    clock.advance(1000)
    assert progress.standing() == []
    clock.advance(1000)
    assert progress.standing() == [("llama", "0")], "a checkpoint has a limit of its own"
    assert progress.stands(("llama", "0"))
    progress.see(phase("train"))
    clock.advance(200)
    assert progress.standing() == [("llama", "0")]


def test_a_job_that_never_stepped_is_not_watched() -> None:
    clock = ManualClock()
    progress = Progress(clock, 10.0)
    progress.see(step())
    clock.advance(1000)
    assert progress.standing() == []


def test_a_job_that_ended_is_no_standstill_until_it_makes_new_steps() -> None:
    clock = ManualClock()
    progress = Progress(clock, 10.0)

    def steps(ts_ms: int) -> None:
        for number in range(3):
            progress.see(Row("rank_steps", step().values | {"ts": ts_ms, "rank": number}))

    steps(1000)
    progress.see(phase("train", ended=2000))
    # The last steps of the other ranks and an early phase come in after the end.
    steps(1500)
    progress.see(phase("restore", ended=900))
    clock.advance(1000)
    assert progress.standing() == []
    steps(3000)
    clock.advance(11)
    assert progress.standing() == [("llama", "0")]


def test_a_rendezvous_that_never_ends_is_a_standstill_before_the_first_step() -> None:
    clock = ManualClock()
    progress = Progress(clock, 10.0)
    progress.see(phase("rendezvous"))
    clock.advance(600)
    assert progress.standing() == []
    clock.advance(600)
    assert progress.standing() == [("llama", "0")]
    progress.see(step())
    assert not progress.stands(("llama", "0"))


def test_what_the_store_gets_of_a_dump(tmp_path: Path) -> None:
    entries = [
        {"process_group": ("0", "default_pg"), "pg_id": 0, "collective_seq_id": seq, "profiling_name": "nccl:sum",
         "state": "completed" if seq < 3 else "scheduled", "retired": seq < 3, "input_sizes": [[4, 8]],
         "input_dtypes": ["Float"], "time_created_ns": seq * 10**9}
        for seq in range(1, 100)
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": [0, 1]}}
    dump = json.dumps({"version": "2.10", "pg_config": config, "entries": entries}).encode()
    evidence = RankEvidence(rank(0), 0, dump, None)
    rows = [row.values for row in rows_of(evidence, "c1", 5, "/f") if row.table == "collectives"]
    assert len(rows) == 1 + 64 + 1
    done, oldest, ahead = rows[0], rows[1], rows[-1]
    assert (done["seq"], done["retired"]) == (2, True)
    assert (oldest["seq"], oldest["op"], oldest["bytes"], oldest["record_id"]) == (3, "sum", 128, 0)
    assert (ahead["seq"], ahead["op"]) == (99, "unknown"), "how far the rank called ahead is not cut off"


def test_the_end_of_another_phase_is_not_the_end_of_the_job() -> None:
    clock = ManualClock()
    progress = Progress(clock, 10.0)
    for _ in range(2):
        progress.see(step())
    progress.see(phase("evaluate", ended=2000))
    clock.advance(11)
    assert progress.standing() == [("llama", "0")]
