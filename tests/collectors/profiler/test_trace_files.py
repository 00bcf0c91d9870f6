from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from flightwatch.collectors.profiler.processes import Process
from flightwatch.collectors.profiler.requests import RankJob, RankState
from flightwatch.collectors.profiler.summarise import summarise
from flightwatch.collectors.profiler.trace_files import acting_as, find_trace, make_folder, open_trace_file
from flightwatch.collectors.profiler.uploads import Uploads
from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import Backpressure, BadRecord, Refused
from flightwatch.core.protocols import Row
from tests.collectors.profiler.test_broker import request

ME = os.geteuid()
NOBODY = 65534
as_root = pytest.mark.skipif(ME != 0, reason="needs root to act as another user")
EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10 * i, "dur": 4} for i in range(5)
] + [
    {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD", "pid": 1, "tid": 1, "ts": 100 * i, "dur": 1}
    for i in range(1, 4)
]


def job_in(folder: Path, **changes: Any) -> RankJob:
    job = RankJob(request(**changes), 0, 0.0)
    job.process = Process(1, 1, ME, "llama", "0", 0, True, None)
    job.folder, job.attempts = str(folder), 1
    return job


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "folder"])
def test_what_is_not_a_plain_file_is_not_read(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}")
    trap = tmp_path / "rank0-1_7.json"
    if kind == "symlink":
        trap.symlink_to(secret)
    elif kind == "hard link":
        trap.hardlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(trap)
    else:
        trap.mkdir()
    with pytest.raises(BadRecord), open_trace_file(str(tmp_path), trap.name, ME, 100):
        pass


def test_a_trace_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b"x" * 101)
    with pytest.raises(BadRecord, match="larger than the 100"), open_trace_file(str(tmp_path), "t.json", ME, 100):
        pass


@as_root
def test_a_file_of_root_is_not_readable_for_a_jobs_user(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == ME and not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)
    private = tmp_path / "private.json"
    private.write_text("{}")
    private.chmod(0o600)
    with pytest.raises(BadRecord), open_trace_file(str(tmp_path), private.name, NOBODY, 100):
        pass
    with acting_as(NOBODY), pytest.raises(PermissionError):
        private.read_text()
    assert private.read_text() == "{}"
    public = tmp_path / "public.json"
    public.write_text("{}")
    public.chmod(0o644)
    not_his = pytest.raises(BadRecord, match="not a plain file of the job's user")
    with not_his, open_trace_file(str(tmp_path), public.name, NOBODY, 100):
        pass


@as_root
def test_the_folder_of_a_request_belongs_to_the_jobs_user(tmp_path: Path) -> None:
    made = Path(make_folder(str(tmp_path), "p1", NOBODY))
    assert (made.stat().st_uid, made.stat().st_mode & 0o777) == (NOBODY, 0o700)
    (made / "rank0-1_7.json").write_text("{}")
    assert find_trace(str(made), "rank0-1", NOBODY) is None or ME == 0


def test_an_agent_without_rights_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Refused, match="cannot read traces of user 0"):
        make_folder(str(tmp_path), "p1", 0)


class Lane:
    """A blobs lane that is full for the first calls."""

    def __init__(self, full: int = 0) -> None:
        self.full = full
        self.blobs: list[tuple[str, str, bytes, dict[str, str]]] = []

    def put(self, blob_id: str, kind: str, data: BinaryIO, attributes: Mapping[str, str]) -> None:
        if self.full:
            self.full -= 1
            raise Backpressure("full")
        self.blobs.append((blob_id, kind, data.read(), dict(attributes)))


class Rows:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def emit(self, rows: Any) -> None:
        self.rows.extend(rows)

    def flush(self, timeout_seconds: float) -> bool:
        return True


def uploads(tmp_path: Path, lane: Lane, rows: Rows, sums: Any = summarise) -> Uploads:
    return Uploads(str(tmp_path / "own"), lane, rows, ManualClock(), lambda *_: None, sums)


def test_a_trace_is_sent_with_its_sums(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": EVENTS}))
    lane, rows = Lane(full=3), Rows()
    outcome = uploads(tmp_path, lane, rows).take(job_in(tmp_path), "t.json")
    (name, kind, content, attributes), *others = lane.blobs
    assert not others
    assert kind == "profile_trace"
    assert attributes == {"request": "p1", "rank": "0", "job": "llama"}
    assert name.startswith("p1-rank0-")
    assert json.loads(gzip.decompress(content))["traceEvents"] == EVENTS
    assert (outcome.state, outcome.reason, outcome.steps, outcome.first_step) == (RankState.DONE, "", 3, 501)
    mm = next(row.values for row in rows.rows if row.values["op"] == "aten::mm")
    assert (mm["calls"], mm["self_us"], mm["kind"], mm["rank"], mm["id"]) == (5, 20.0, "compute", 0, "p1")
    assert list((tmp_path / "own").iterdir()) == []


def test_a_trace_of_other_steps_is_asked_for_again_once(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    for steps, words in ((0, "no optimizer steps"), (7, "7 optimizer steps instead of 3")):
        sums = {"steps": steps, "ops": []}
        lane = Lane()
        taker = uploads(tmp_path, lane, Rows(), lambda *_, sums=sums: sums)
        job = job_in(tmp_path)
        assert taker.take(job, "t.json").state is RankState.WAITING
        assert lane.blobs == []
        job.attempts = 2
        outcome = taker.take(job, "t.json")
        assert outcome.state is RankState.DONE
        assert words in outcome.reason
        assert outcome.first_step is None


def test_steps_of_a_second_trace_may_be_other_ones(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    job = job_in(tmp_path)
    job.attempts = 2
    outcome = uploads(tmp_path, Lane(), Rows(), lambda *_: {"steps": 3, "ops": []}).take(job, "t.json")
    assert "other ones" in outcome.reason
    assert outcome.first_step is None


def test_a_damaged_trace_is_sent_and_named(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"traceEvents": [{"ph": "X", "na')
    lane = Lane()
    outcome = uploads(tmp_path, lane, Rows()).take(job_in(tmp_path), "t.json")
    assert len(lane.blobs) == 1
    assert "truncated" in outcome.reason


def test_a_lane_without_room_gives_up_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(Backpressure):
        uploads(tmp_path, Lane(full=10**6), Rows(), lambda *_: {"steps": 3, "ops": []}).take(job_in(tmp_path), "t.json")
