"""A training job beside `flightwatch up`, as a user runs both: from torchrun to SQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


def _sql(folder: str, query: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "flightwatch.cli", "sql", "--data-dir", folder, "--format", "json", query],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _demo_job_shows_its_slow_rank(folder: str) -> None:
    query = (
        "SELECT rank, median(compute_us) AS compute, median(wait_us) AS wait, count(wait_us) AS steps"
        " FROM flightwatch.rank_steps WHERE job = 'demo' GROUP BY rank ORDER BY compute DESC"
    )
    rows: list[dict[str, Any]] = []
    for _ in range(240):
        rows = _sql(folder, query)
        if len(rows) == 4 and all(row["steps"] >= 5 for row in rows):
            break
        time.sleep(0.25)
    assert rows[0]["rank"] == 2
    assert min(rows, key=lambda row: row["wait"])["rank"] == 2


def test_a_job_started_by_flightwatch_run_is_in_sql(torch_python: str) -> None:
    jobs = Path(__file__).parents[2] / "training_jobs"
    with tempfile.TemporaryDirectory(prefix="fw-up-") as parent:
        folder = f"{parent}/data"
        environment = os.environ | {"FLIGHTWATCH_CONSOLE_PORT": "24500", "OMP_NUM_THREADS": "1"}
        environment["DEMO_EQUAL_STEPS"] = "0"
        environment.pop("FLIGHTWATCH_SOCKET", None)
        with open(f"{parent}/up.log", "w") as log:
            up = subprocess.Popen(
                [sys.executable, "-m", "flightwatch.cli", "up", "--data-dir", folder, "--demo"],
                stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
            )  # fmt: skip
        assert up.stdout is not None
        try:
            told = [up.stdout.readline()]
            while told[-1] and not told[-1].startswith("READY "):
                told.append(up.stdout.readline())
            assert told[-1], Path(f"{parent}/up.log").read_text()
            assert any(line.startswith("training job 'demo': 4 ranks") for line in told)
            for _ in range(200):
                if Path(f"{folder}/probe.sock").exists():
                    break
                time.sleep(0.1)
            done = subprocess.run(
                [sys.executable, "-m", "flightwatch.cli", "run", "--data-dir", folder, "--job", "sql-job", "--",
                 torch_python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
                 str(jobs / "ddp.py"), "--steps", "10", "--slow-rank", "1"],
                capture_output=True, text=True, env=environment, check=False, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            query = (
                "SELECT rank, count() AS steps, median(compute_us) AS compute, median(wait_us) AS wait"
                " FROM flightwatch.rank_steps WHERE job = 'sql-job' GROUP BY rank ORDER BY rank"
            )
            rows: list[dict[str, Any]] = []
            for _ in range(60):
                rows = _sql(folder, query)
                if [row["steps"] for row in rows] == [10, 10]:
                    break
                time.sleep(0.25)
            assert [row["steps"] for row in rows] == [10, 10]
            assert rows[1]["compute"] > 2 * rows[0]["compute"]
            assert rows[1]["wait"] < rows[0]["wait"]
            _demo_job_shows_its_slow_rank(folder)
        finally:
            up.send_signal(signal.SIGTERM)
            code = up.wait(60)
            up.stdout.close()
        assert code == 0
