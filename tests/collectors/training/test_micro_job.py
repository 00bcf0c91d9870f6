"""Micro-traces of a real job: the same two steps on both ranks, by libkineto, as compute times per op."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.profiler.service import Profiler
from flightwatch.collectors.training_micro import MicroTraces
from flightwatch.collectors.training_micro_settings import MicroTraceSettings
from flightwatch.core.clock import SystemClock
from flightwatch.core.protocols import Row

pytestmark = pytest.mark.torch


class Taken:
    """Stands for the sink and the blobs lane."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.blobs: list[str] = []

    def emit(self, rows: Iterable[Row]) -> None:
        self.rows.extend(rows)

    def flush(self, timeout_seconds: float) -> bool:
        return True

    def put(self, blob_id: str, kind: str, data: Any, attributes: Any) -> None:
        self.blobs.append(kind)


def test_ops_of_the_same_steps_of_both_ranks(jobs: Any) -> None:
    folder = str(Path(jobs.socket).parent / "k")
    taken, clock = Taken(), SystemClock()
    profiler = Profiler(folder, folder + "-state", taken, taken, clock, abstract=False)
    settings = MicroTraceSettings(enabled=True, minutes=0.15, most_cost_pct=100.0)
    micro = MicroTraces(settings, profiler.broker, folder + "-micro", taken, clock)
    profiler.micro = micro
    profiler.start()
    micro.start()
    jobs.gather()
    environment = {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": folder, "KINETO_LOG_LEVEL": "5"}
    process = jobs.start("ddp.py", "--steps", "700", "--slow-rank", "1", "--sleep-ms", "45", ranks=2, **environment)

    def ops() -> list[dict[str, Any]]:
        return [dict(row.values) for row in taken.rows if row.table == "op_timings"]

    try:
        seen = 0
        for _ in range(1200):
            jobs.gather()
            for row in jobs.rows[seen:]:
                micro.see(row)
            seen = len(jobs.rows)
            if {row["rank"] for row in ops()} == {0, 1} or process.poll() is not None:
                break
            time.sleep(0.1)
    finally:
        micro.stop()
        profiler.stop()
        process.terminate()
        jobs.output, _ = process.communicate(timeout=300)
    assert {row["rank"] for row in ops()} == {0, 1}, jobs.output[-2000:]
    first = min(row["step"] for row in ops())
    mine = [row for row in ops() if row["step"] == first]
    assert {(row["rank"], row["steps"], row["level"], row["job"]) for row in mine} == {
        (0, 2, "op", "test-job"), (1, 2, "op", "test-job")
    }  # fmt: skip
    times = {row["op"]: row for row in mine if row["rank"] == 0}
    # Four blocks and a head forward, in two steps and what libkineto records around them.
    assert times["aten::addmm"]["count"] in range(10, 21)
    assert times["aten::addmm"]["kind"] == "compute"
    assert times["aten::addmm"]["dur_us"] > 0
    # The traces stay on the node, and nobody is told of profiles that nobody asked for.
    assert "profile_trace" not in taken.blobs
    assert "profile_progress" not in taken.blobs
