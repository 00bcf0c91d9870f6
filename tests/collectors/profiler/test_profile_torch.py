"""libkineto itself, in real torch processes."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.profiler.service import Profiler
from flightwatch.core.clock import SystemClock
from flightwatch.core.protocols import Command
from tests.collectors.profiler.test_trace_files import Lane, Rows
from tests.conftest import free_port

pytestmark = pytest.mark.torch
JOB = Path(__file__).with_name("steps_job.py")


def start_job(python: str, ranks: int, *words: str, **environment: str) -> subprocess.Popen[str]:
    launcher = [
        python,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(ranks),
        "--master-port",
        str(free_port()),
    ]
    return subprocess.Popen(
        [*launcher, str(JOB), *words],
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "FLIGHTWATCH_JOB": "test-job", "KINETO_USE_DAEMON": "1"}
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(true: Callable[[], Any], tries: int = 600) -> None:
    """Look every 0.1 s; bounded by tries."""
    for _ in range(tries):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("it never came true")


class Stage:
    def __init__(self, folder: Path) -> None:
        self.lane, self.rows = Lane(), Rows()
        self.socket_dir = str(folder / "s")
        self.profiler = Profiler(
            self.socket_dir, str(folder / "state"), self.lane, self.rows, SystemClock(), abstract=False
        )
        self.profiler.start()

    def ask(self, steps: int = 3, **arguments: Any) -> None:
        given: dict[str, Any] = {
            "request": "p1",
            "ranks": [0, 1],
            "steps": steps,
            "wait_steps": 200,
            "max_seconds": 90,
        } | arguments
        self.profiler.profile_start(Command("c1", "profile_start", "n", "test-job", "test", 0, 1, given))

    def news(self) -> list[dict[str, Any]]:
        return [json.loads(content) for _, kind, content, _ in list(self.lane.blobs) if kind == "profile_progress"]

    def ended(self) -> list[dict[str, Any]]:
        return [one for one in self.news() if one["state"] in ("done", "failed")]

    def asking(self) -> set[int | None]:
        return {process.rank for process, answered in self.profiler.broker.roster() if answered}


def test_the_same_steps_of_both_ranks_arrive(torch_python: str, short_folder: Path) -> None:
    stage = Stage(short_folder)
    with start_job(torch_python, 2, "40", KINETO_IPC_SOCKET_DIR=stage.socket_dir) as job:
        try:
            until(lambda: stage.asking() == {0, 1})
            assert job.stdout is not None
            while "stepping" not in job.stdout.readline():
                pass
            # Far enough ahead that both ranks have their configuration by then.
            stage.ask(start_step=400)
            until(lambda: len(stage.ended()) == 2)
            assert [(one["state"], one["reason"], one["steps"]) for one in stage.ended()] == [("done", "", 3)] * 2
            assert job.poll() is None
        finally:
            job.terminate()
            job.communicate(timeout=300)
            stage.profiler.stop()
    traces = {
        blob[3]["rank"]: gzip.decompress(blob[2]).decode() for blob in stage.lane.blobs if blob[1] == "profile_trace"
    }
    steps = {rank: sorted({int(one) for one in re.findall(r"train step (\d+)", text)}) for rank, text in traces.items()}
    assert len(steps["0"]) == 3
    assert steps["0"] == steps["1"]
    assert {row.values["rank"] for row in stage.rows.rows if row.table == "profile_ops"} == {0, 1}


def test_a_folder_that_differs_never_ends_a_job(torch_python: str, short_folder: Path) -> None:
    stage = Stage(short_folder)
    (short_folder / "link").symlink_to(stage.socket_dir)
    given = (f"{stage.socket_dir}/", str(short_folder / "link"), os.path.relpath(stage.socket_dir))
    stage.ask(ranks=[0])
    jobs = [start_job(torch_python, 1, "7", KINETO_IPC_SOCKET_DIR=folder) for folder in given]
    try:
        outputs = [job.communicate(timeout=300)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
        stage.profiler.stop()
    for job, output in zip(jobs, outputs, strict=True):
        assert job.returncode == 0, output
        assert "rank 0 made" in output
    assert not any(blob[1] == "profile_trace" for blob in stage.lane.blobs)
    rosters = [json.loads(blob[2])["ranks"] for blob in stage.lane.blobs if blob[1] == "profile_roster"]
    assert any("differs from the agent's" in one["problem"] for ranks in rosters for one in ranks)


def test_an_agent_that_ends_in_the_middle_and_comes_back_goes_on_and_hurts_no_job(
    torch_python: str, short_folder: Path
) -> None:
    stage = Stage(short_folder)
    with start_job(torch_python, 2, "70", KINETO_IPC_SOCKET_DIR=stage.socket_dir) as job:
        try:
            until(lambda: stage.asking() == {0, 1})
            stage.ask()
            until(lambda: any(one["state"] == "armed" for one in stage.news()))
            stage.profiler.stop()
            again = Stage(short_folder)
            until(lambda: len(again.ended()) == 2)
            assert {(one["request"], one["state"]) for one in again.ended()} == {("p1", "done")}
            again.profiler.stop()
            assert job.poll() is None
        finally:
            job.terminate()
            job.communicate(timeout=300)


def test_a_job_that_records_by_itself_goes_first_and_the_reason_is_said(torch_python: str, short_folder: Path) -> None:
    stage = Stage(short_folder)
    with start_job(torch_python, 1, "60", "--profiler", KINETO_IPC_SOCKET_DIR=stage.socket_dir) as job:
        try:
            until(lambda: stage.asking() == {0})
            stage.ask(ranks=[0], wait_steps=10, max_seconds=15)
            until(lambda: len(stage.ended()) == 1)
            (ended,) = stage.ended()
            assert ended["state"] == "failed"
            assert "a profiler of the job's own is active" in ended["reason"]
            assert job.poll() is None
        finally:
            job.terminate()
            job.communicate(timeout=300)
            stage.profiler.stop()
