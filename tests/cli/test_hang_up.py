"""`flightwatch hang --live` against `flightwatch up` and real jobs on this machine, and evidence that comes unasked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_up import Instance, flightwatch, start
from tests.collectors.profiler.conftest import short_folder, torch_python
from tests.conftest import free_port

__all__ = ["short_folder", "torch_python"]
pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "collectors" / "profiler" / "steps_job.py"


@contextmanager
def job(python: str, instance: Instance, name: str, log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run three ranks with the probe until the block ends."""
    launcher = [python, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", str(free_port())]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "FLIGHTWATCH_JOB": name, "FLIGHTWATCH_SOCKET": str(instance.folder / "probe.sock"),
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    with log.open("wb") as output:
        running = subprocess.Popen(
            [*launcher, str(JOB), "300", "--attach", *words], env=environment, stdout=output, stderr=output
        )  # fmt: skip
        try:
            yield running
        finally:
            # The launcher starts each rank in a session of its own, and a stopped one dies only by this.
            for pid in ranks(instance):
                os.kill(pid, signal.SIGKILL)
            running.terminate()
            running.wait(300)


def ranks(instance: Instance) -> dict[int, str]:
    """Return the pids of ranks that run, and which rank each is."""
    pids = [int(pid) for pid in re.findall(r"worker-(\d+)\.sock", " ".join(os.listdir(instance.folder)))]
    return {pid: rank for pid in pids if (rank := _rank(pid)) is not None}


def until_says(log: Path, word: str) -> None:
    for _ in range(3000):
        if word in log.read_text():
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text()[-2000:])


def live(instance: Instance, name: str) -> dict[str, Any]:
    done = flightwatch("hang", "--live", "--job", name, "--data-dir", str(instance.folder), timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_rank_that_holds_the_gil_and_one_that_is_stopped_are_named(
    torch_python: str, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIGHTWATCH_PROFILER_ABSTRACT", "false")
    instance = start(short_folder / "d")
    try:
        # Named: the agent also sees the jobs of others on this machine.
        absent = flightwatch("hang", "--live", "--job", "absent", "--data-dir", str(instance.folder))
        assert (absent.returncode, "no agent sees job absent" in absent.stderr) == (1, True)
        log = short_folder / "job.log"
        with job(torch_python, instance, "held", log, "--hang", "1", "--gil"):
            until_says(log, "hangs")
            # Nobody asks: the agent sees that steps stopped, and says so.
            first = "SELECT uniqExact(rank) = 3 FROM flightwatch.dumps WHERE job = 'held' AND capture_id LIKE 'h%.2'"
            assert instance.wait_for(first), log.read_text()[-2000:]
            answer = live(instance, "held")
            assert (answer["verdict"], answer["root_ranks"], answer["waiting"]) == ("missing_rank", [1], [0, 2])
            assert answer["op"] == "all_reduce"
            assert "gil_held_here (" in answer["stack"]
            raised = "class = 'missing_rank' AND severity = 'P1' AND rank = 1 AND node = 'test-node'"
            assert instance.wait_for(f"SELECT countIf({raised}) > 0 FROM flightwatch.findings WHERE kind = 'hang'")
        with job(torch_python, instance, "stopped", log):
            until_says(log, "stepping")
            os.kill(next(pid for pid, rank in ranks(instance).items() if rank == "2"), signal.SIGSTOP)
            answer = live(instance, "stopped")
            assert (answer["verdict"], answer["root_ranks"], answer["waiting"]) == ("missing_rank", [2], [0, 1])
            assert answer["no_log"] == [2]
    finally:
        assert instance.stop() == 0


def _rank(pid: int) -> str | None:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    return next((part[5:].decode() for part in content.split(b"\0") if part.startswith(b"RANK=")), None)
