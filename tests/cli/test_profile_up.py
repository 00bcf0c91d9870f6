"""`flightwatch profile` against `flightwatch up` and a real job on this machine, from request to rows."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.test_up import flightwatch, start
from tests.collectors.profiler.conftest import short_folder, torch_python
from tests.conftest import free_port

__all__ = ["short_folder", "torch_python"]
pytestmark = pytest.mark.torch
JOB = Path(__file__).parents[1] / "collectors" / "profiler" / "steps_job.py"
DDP = Path(__file__).parents[1] / "training_jobs" / "ddp.py"


def test_a_profile_of_a_running_job_ends_in_traces_and_rows(
    torch_python: str, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIGHTWATCH_PROFILER_ABSTRACT", "false")
    instance = start(short_folder / "d")
    try:
        folder = instance.folder / "profiler"
        for _ in range(3000):
            if (folder / "dynolog").exists():
                break
            time.sleep(0.1)
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
        wanted = {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(folder), "FLIGHTWATCH_JOB": "profiled"}
        with (short_folder / "job.log").open("w") as log:
            job = subprocess.Popen(
                [torch_python, *words, str(JOB), "150"],
                env=os.environ | {"OMP_NUM_THREADS": "1"} | wanted,
                stdout=log,
                stderr=log,
            )
        try:
            for _ in range(3000):
                if "stepping" in (short_folder / "job.log").read_text():
                    break
                time.sleep(0.1)
            here = ("--data-dir", str(instance.folder), "--format", "json")
            done = flightwatch("profile", "start", "--job", "profiled", "--ranks", "0-1", "--wait", *here, timeout=400)
            assert done.returncode == 0, done.stderr + done.stdout
            assert job.poll() is None
        finally:
            job.terminate()
            job.wait(300)
        found = json.loads(done.stdout)
        assert found["state"] == "done"
        for row in found["ranks"]:
            assert Path(row["artifact"]).stat().st_size == row["bytes"]
        query = f"SELECT uniqExact(rank) = 2 FROM flightwatch.profile_ops WHERE id = '{found['id']}' AND calls > 0"
        assert instance.wait_for(query)
        last = f"SELECT countIf(state = 'done' AND rank >= 0) = 2 FROM flightwatch.profiles WHERE id = '{found['id']}'"
        assert instance.wait_for(last)
    finally:
        assert instance.stop() == 0


def test_times_of_blocks_come_for_the_steps_asked_for_and_stop(
    torch_python: str, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIGHTWATCH_PROFILER_ABSTRACT", "false")
    instance = start(short_folder / "d")
    try:
        for _ in range(3000):
            if (instance.folder / "probe.sock").exists():
                break
            time.sleep(0.1)
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
        wanted = {"FLIGHTWATCH": "1", "FLIGHTWATCH_SOCKET": str(instance.folder / "probe.sock"),
                  "FLIGHTWATCH_JOB": "blocky", "FLIGHTWATCH_BLOCK_EVERY": "0", "OMP_NUM_THREADS": "1"}  # fmt: skip
        with (short_folder / "job.log").open("w") as log:
            job = subprocess.Popen(
                [torch_python, *words, str(DDP), "--steps", "100000", "--slow-rank", "1", "--sleep-ms", "30"],
                env=os.environ | wanted, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            assert instance.wait_for("SELECT max(step) > 5 FROM flightwatch.rank_steps WHERE job = 'blocky'"), (
                short_folder / "job.log"
            ).read_text()
            here = ("--data-dir", str(instance.folder), "--format", "json")
            words = ["profile", "blocks", "--job", "blocky", "--ranks", "1,5", "--steps", "20", "--wait"]
            done = flightwatch(*words, *here, timeout=300)
            assert done.returncode == 1, done.stderr + done.stdout
            assert job.poll() is None
        finally:
            job.terminate()
            job.wait(300)
        found = json.loads(done.stdout)
        assert (found["state"], found["kind"]) == ("done", "blocks")
        rank, absent = found["ranks"]
        assert (absent["state"], absent["reason"]) == ("failed", "no agent sees rank 5 of job blocky")
        assert rank["reason"].endswith("rows of 20 steps")
        rows = "FROM flightwatch.op_timings WHERE job = 'blocky' AND level = 'block'"
        first = rank["first_step"]
        assert instance.wait_for(
            f"SELECT min(step) = {first} AND max(step) = {first + 19} AND count() = {rank['reason'].split()[0]}"
            f" AND uniqExact(step) = 20 AND uniqExact(rank) = 1 {rows}"
        )
        assert instance.wait_for(f"SELECT argMax(op, dur_us) = '1 forward' {rows} AND rank = 1")
    finally:
        assert instance.stop() == 0
