"""Two real ranks, one of them asleep before a collective."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from flightwatch.collectors.hang.evidence import HangCollector
from flightwatch.collectors.hang_inspection import HangInspection
from flightwatch.core.clock import SystemClock
from flightwatch.detectors.hang import judge
from tests.collectors.hang.test_hang_evidence import Rows
from tests.collectors.profiler.conftest import short_folder, torch_python
from tests.conftest import free_port

__all__ = ["short_folder", "torch_python"]
pytestmark = pytest.mark.torch
JOB = Path(__file__).parents[1] / "profiler" / "steps_job.py"


def test_the_rank_that_sleeps_is_named_with_its_line(torch_python: str, short_folder: Path) -> None:
    command = [torch_python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    job = subprocess.Popen(
        [*command, str(JOB), "100", "--worker", str(short_folder), "--hang", "1"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "FLIGHTWATCH_JOB": "hung"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    sink = Rows()
    hang = HangCollector((str(short_folder),), str(short_folder / "state"), sink, SystemClock(), 0)
    assert job.stdout is not None
    with job:
        try:
            while "hangs" not in (line := job.stdout.readline()):
                assert line, "the job ended"
            waiting: list[object] = []
            # The other rank reaches the collective a moment later.
            for attempt in range(50):
                sink.rows.clear()
                found = hang.capture(f"c{attempt}", "hung")
                waiting = [row for row in sink.rows if row.table == "collectives" and row.values["retired"] is False]
                if waiting:
                    break
        finally:
            job.terminate()
            job.communicate(timeout=300)
    assert {one.rank for one in found} == {0, 1}
    assert {row.values["status"] for row in sink.rows if row.table == "dumps"} == {"ok"}
    inspection = HangInspection()
    inspection.collect([str(short_folder / "state" / "evidence" / f"c{attempt}")])
    verdict = judge(inspection.evidence)
    assert (verdict.verdict, verdict.root_ranks, verdict.waiting) == ("missing_rank", [1], [0])
    assert "stuck_here (steps_job.py:" in verdict.sentence
