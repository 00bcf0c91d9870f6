"""What the agent's profiler does around the broker: counters, identity of traces, an agent that was killed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.profiler.counter_pause import CounterPause
from flightwatch.collectors.profiler.requests import Progress, RankState
from flightwatch.collectors.profiler.service import Profiler
from flightwatch.collectors.profiler.unfinished import Unfinished
from flightwatch.collectors.profiler.uploads import Uploads, with_identity
from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import Command
from tests.collectors.profiler.conftest import short_folder
from tests.collectors.profiler.test_broker import request
from tests.collectors.profiler.test_trace_files import EVENTS, Lane, Rows, job_in

__all__ = ["short_folder"]


class Dcgm:
    def __init__(self, error: Exception | None = None) -> None:
        self.words: list[str] = []
        self.error = error

    def __call__(self, words: Sequence[str], timeout_seconds: float) -> bytes:
        assert list(words[:2]) == ["dcgmi", "profile"]
        self.words.append(words[2])
        if self.error is not None:
            raise self.error
        return b""


def test_counters_pause_while_a_rank_records_and_resume_afterwards(tmp_path: Path) -> None:
    dcgm, marker = Dcgm(), tmp_path / "paused"
    pause = CounterPause(str(marker), dcgm)
    pause.start()
    for wanted in (False, True, True, False):
        pause.want(wanted)
    pause.stop()
    assert dcgm.words == ["--pause", "--resume"]
    assert not marker.exists()


def test_counters_that_a_killed_agent_left_paused_are_resumed(tmp_path: Path) -> None:
    marker = tmp_path / "paused"
    marker.touch()
    failing = CounterPause(str(marker), Dcgm(TransientError("no host engine")))
    failing.start()
    failing.stop()
    assert marker.exists(), "the next agent tries again"
    dcgm = Dcgm()
    pause = CounterPause(str(marker), dcgm)
    pause.start()
    pause.stop()
    assert (dcgm.words, marker.exists()) == (["--resume"], False)


def test_a_node_without_dcgmi_has_nothing_to_pause(tmp_path: Path) -> None:
    pause = CounterPause(str(tmp_path / "paused"), Dcgm(NoData("dcgmi is not installed")))
    pause.start()
    pause.want(True)
    pause.stop()
    assert not (tmp_path / "paused").exists()


def test_a_trace_says_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "rank0-1_7.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}))
    lane = Lane()

    def sums(path: str, rank: int) -> dict[str, Any]:
        return {"steps": 3, "ops": []}

    uploads = Uploads(str(tmp_path / "out"), lane, Rows(), ManualClock(), lambda *_: None, sums, "n7")
    done = uploads.take(job_in(tmp_path, steps=3, start_step=100), "rank0-1_7.json")
    assert done.state is RankState.DONE
    trace = json.loads(gzip.decompress(lane.blobs[0][2]))
    assert trace["flightwatch"] == {
        "profile": "p1", "job": "llama", "run": "0", "rank": 0, "node": "n7", "first_step": 101, "last_step": 103,
    }  # fmt: skip
    assert trace["distributedInfo"] == {"rank": 0}
    assert (trace["schemaVersion"], trace["traceEvents"]) == (1, EVENTS)


@pytest.mark.parametrize("head", [b"", b"[", b"{}", b"{ ", b"\x00\x01", b'[{"ph": "X"}]'])
def test_what_is_no_trace_is_left_as_it_is(head: bytes) -> None:
    assert with_identity(head, {"rank": 3}) == head


def test_the_traces_own_rank_counts() -> None:
    head = with_identity(b'{"distributedInfo": {"rank": 5, "world_size": 8}, "traceEvents": []}', {"rank": 3})
    assert json.loads(head)["distributedInfo"] == {"rank": 5, "world_size": 8}


def test_requests_are_on_disk_until_their_last_rank_ended(tmp_path: Path) -> None:
    kept = Unfinished(str(tmp_path / "r"))
    kept.add(request(ranks=(0, 1)), 5000)
    kept.take(Progress("p1", 0, RankState.DONE))
    kept.take(Progress("p1", 1, RankState.ARMED))
    (left,) = Unfinished(str(tmp_path / "r")).left_behind()
    assert left == (request(ranks=(1,)), 5000)
    kept.take(Progress("p1", 1, RankState.FAILED))
    (tmp_path / "r" / "x.json").write_text("{")
    assert list(Unfinished(str(tmp_path / "r")).left_behind()) == []
    assert list((tmp_path / "r").iterdir()) == []


@pytest.mark.parametrize("late", [False, True])
def test_an_agent_that_was_killed_goes_on_or_says_that_it_is_too_late(short_folder: Path, late: bool) -> None:
    clock, lane = ManualClock(), Lane()

    def agent() -> Profiler:
        return Profiler(str(short_folder / "s"), str(short_folder), lane, Rows(), clock, abstract=False, processes=list)

    given: dict[str, Any] = {"request": "p1", "ranks": [0], "steps": 3, "max_seconds": 60}
    agent().profile_start(Command("c1", "profile_start", "n", "llama", "me", 0, 1, given))
    clock.advance(100 if late else 1)
    second = agent()
    second.start()
    second.stop()
    news = [json.loads(content) for _, kind, content, _ in lane.blobs if kind == "profile_progress"]
    assert [one["state"] for one in news] == ["waiting", "failed" if late else "waiting"]
    assert ("restarted" in news[-1]["reason"]) is late
