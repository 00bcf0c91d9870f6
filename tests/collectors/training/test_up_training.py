"""A training job beside `flightwatch up`, as a user runs both: from torchrun to SQL."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.core.clock import SystemClock
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.evidence_requests import EvidenceRequester
from flightwatch.pipeline.profiles.server_key import server_key

pytestmark = pytest.mark.torch


def _sql(folder: str, query: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "flightwatch.cli", "sql", "--data-dir", folder, "--format", "json", query],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _demo_job_shows_its_slow_rank(folder: str) -> None:
    query = (
        "SELECT rank, median(compute_us) AS compute, median(wait_us) AS wait, count(wait_us) AS steps"
        " FROM flightwatch.rank_steps WHERE job = 'demo' GROUP BY rank ORDER BY compute DESC"
    )
    rows: list[dict[str, Any]] = []
    for _ in range(1200):
        rows = _sql(folder, query)
        if len(rows) == 4 and all(row["steps"] >= 5 for row in rows):
            break
        time.sleep(0.25)
    assert rows[0]["rank"] == 2
    assert min(rows, key=lambda row: row["wait"])["rank"] == 2


def _demo_job_can_be_profiled(folder: str) -> None:
    """Messages of the demo say how: that command works. Each start is an attempt of its own."""
    (run,) = _sql(folder, "SELECT DISTINCT run FROM flightwatch.rank_steps WHERE job = 'demo'")
    assert run["run"].startswith("r1")
    done = subprocess.run(
        [sys.executable, "-m", "flightwatch.cli", "profile", "start", "--data-dir", folder, "--job", "demo",
         "--ranks", "2,0", "--steps", "3", "--wait"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(Path(folder, "profiles").glob("*/rank*.json.gz"))) == 2


def _op_detail_comes_on_command(folder: str) -> None:
    """Ask as detection does, over the bus with the server's key; single calls of every step are then in SQL."""
    (row,) = _sql(folder, "SELECT any(node) AS node, any(run) AS run, toUnixTimestamp64Milli(min(ts)) AS since_ms"
                  " FROM flightwatch.rank_steps WHERE job = 'sql-job'")  # fmt: skip
    bus = open_bus(CommonSettings(data_dir=folder).bus_url, BusSettings(), SystemClock())
    try:
        ids = EvidenceRequester(bus, server_key(Path(folder)).sign, SystemClock()).request(
            job="sql-job", run=row["run"], ranks_by_node={row["node"]: [1]}, since_ms=row["since_ms"],
            until_ms=row["since_ms"] + 600_000, actor="test",
        )  # fmt: skip
    finally:
        bus.close()
    query = ("SELECT rank, uniqExact(step) AS steps FROM flightwatch.op_timings WHERE job = 'sql-job' AND level = 'op'"
             " AND step % 100 != 0 GROUP BY rank")  # fmt: skip
    rows: list[dict[str, Any]] = []
    for _ in range(1200):
        rows = _sql(folder, query)
        if rows:
            break
        time.sleep(0.25)
    assert [(one["rank"], one["steps"] >= 8) for one in rows] == [(1, True)]
    told = _sql(folder, "SELECT attrs['request'] AS request FROM flightwatch.events WHERE code = 'evidence:ring'")
    assert [one["request"] for one in told] == ids


@contextlib.contextmanager
def _up(*words: str) -> Iterator[tuple[str, list[str]]]:
    """Run `flightwatch up`; yield its data folder and what it printed until it was ready."""
    with tempfile.TemporaryDirectory(prefix="fw-up-") as parent:
        folder = f"{parent}/data"
        environment = _environment() | {"FLIGHTWATCH_CONSOLE_PORT": "24500", "DEMO_EQUAL_STEPS": "0"}
        with open(f"{parent}/up.log", "w") as log:
            up = subprocess.Popen(
                [sys.executable, "-m", "flightwatch.cli", "up", "--data-dir", folder, *words],
                stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
            )  # fmt: skip
        assert up.stdout is not None
        try:
            told = [up.stdout.readline()]
            while told[-1] and not told[-1].startswith("READY "):
                told.append(up.stdout.readline())
            assert told[-1], Path(f"{parent}/up.log").read_text()
            yield folder, told
        finally:
            up.send_signal(signal.SIGTERM)
            code = up.wait(300)
            up.stdout.close()
        assert code == 0


def _environment() -> dict[str, str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop("FLIGHTWATCH_SOCKET", None)
    return environment


def test_the_demo_job_shows_its_slow_rank(torch_python: str) -> None:
    with _up("--demo") as (folder, told):
        assert any(line.startswith("training job 'demo': 4 ranks") for line in told)
        _demo_job_shows_its_slow_rank(folder)
        _demo_job_can_be_profiled(folder)


def test_a_job_started_by_flightwatch_run_is_in_sql(torch_python: str) -> None:
    jobs = Path(__file__).parents[2] / "training_jobs"
    with _up() as (folder, _):
        for _ in range(3000):
            if Path(f"{folder}/probe.sock").exists():
                break
            time.sleep(0.1)
        done = subprocess.run(
            [sys.executable, "-m", "flightwatch.cli", "run", "--data-dir", folder, "--job", "sql-job", "--",
             torch_python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
             "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
             str(jobs / "ddp.py"), "--steps", "10", "--slow-rank", "1"],
            capture_output=True, text=True, env=_environment(), check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        query = (
            "SELECT rank, count() AS steps, median(compute_us) AS compute, median(wait_us) AS wait"
            " FROM flightwatch.rank_steps WHERE job = 'sql-job' GROUP BY rank ORDER BY rank"
        )
        rows: list[dict[str, Any]] = []
        for _ in range(1200):
            rows = _sql(folder, query)
            if [row["steps"] for row in rows] == [10, 10]:
                break
            time.sleep(0.25)
        assert [row["steps"] for row in rows] == [10, 10]
        assert rows[1]["compute"] > 2 * rows[0]["compute"]
        assert rows[1]["wait"] < rows[0]["wait"]
        _op_detail_comes_on_command(folder)
