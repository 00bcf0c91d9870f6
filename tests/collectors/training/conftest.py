"""Real training jobs: a Python that has torch, and a receiver that takes what their probes send."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.environment import environment_at
from flightwatch.collectors.receiver import ReceiverCollector
from flightwatch.collectors.receiver_settings import ReceiverSettings
from flightwatch.core.protocols import Row

ROOT = Path(__file__).parents[3]
JOBS = ROOT / "tests" / "training_jobs"


@pytest.fixture(scope="session")
def torch_python() -> str:
    """An interpreter with torch and Flightwatch."""
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    for candidate in (os.environ.get("FLIGHTWATCH_TEST_TORCH_PYTHON", ""), str(ROOT / ".venv-torch/bin/python")):
        if candidate and Path(candidate).exists():
            return candidate
    pytest.skip("no Python with torch: `make test` makes .venv-torch, or set FLIGHTWATCH_TEST_TORCH_PYTHON")


class Jobs:
    """Runs jobs whose probes send to a receiver of the test."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python = python
        self.socket = str(folder / "probe.sock")
        environment = environment_at("/")
        environment.receiver = ReceiverSettings(socket=self.socket)
        self.receiver = ReceiverCollector(environment)
        self.rows: list[Row] = []
        self.output = ""

    def gather(self) -> None:
        self.rows.extend(self.receiver.collect(time.time_ns() // 1_000_000))

    def start(self, *words: str, ranks: int = 0, **environment: str) -> subprocess.Popen[str]:
        """Start a script of tests/training_jobs, under torchrun when ranks are given."""
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks else []
        if ranks:
            launcher += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        defaults = {"FLIGHTWATCH": "1", "FLIGHTWATCH_SOCKET": self.socket, "FLIGHTWATCH_JOB": "test-job"}
        return subprocess.Popen(
            [self.python, *launcher, str(JOBS / words[0]), *words[1:]],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | defaults | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, ranks: int = 0, code: int = 0, **environment: str) -> list[Row]:
        """Run a job to its end and return what its probes sent."""
        self.gather()
        process = self.start(*words, ranks=ranks, **environment)
        self.output, _ = process.communicate(timeout=600)
        assert process.returncode == code, self.output
        for _ in range(40):
            before = len(self.rows)
            self.gather()
            if len(self.rows) == before and not self.receiver._intake._waits._steps:
                break
            time.sleep(0.1)
        return self.rows

    def of(self, table: str, **wanted: Any) -> list[dict[str, Any]]:
        """Return rows of one table with some values."""
        return [
            dict(row.values)
            for row in self.rows
            if row.table == table and all(row.values.get(name) == value for name, value in wanted.items())
        ]

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        return sorted(self.of("rank_steps", rank=rank), key=lambda row: int(row["step"]))


@pytest.fixture
def jobs(torch_python: str) -> Iterator[Jobs]:
    # Not tmp_path: the path of a unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="fw-") as folder:
        made = Jobs(torch_python, Path(folder))
        yield made
        made.receiver.close()


@pytest.fixture(scope="session")
def jobs_class() -> type[Jobs]:
    """`Jobs`, for fixtures that live longer than a test."""
    return Jobs


@pytest.fixture
def digests() -> Callable[[str], list[str]]:
    """Parameter digests that a job's ranks printed (their lines may run into each other)."""
    return lambda output: sorted(re.findall(r"digest \d [0-9a-f]{64}", output))
