"""Parallel ways of training in real processes: who computes and who waits, roles, groups, checkpoints."""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

NAMES = ("tensor_parallel", "fsdp1", "pipeline", "functional", "checkpoints", "released")


@pytest.fixture(scope="module")
def done(torch_python: str, jobs_class: Any) -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix="fw-") as folder:
        jobs = jobs_class(torch_python, Path(folder))
        jobs.run("parallel.py", *NAMES, FLIGHTWATCH="0", TMPDIR=folder)
        yield jobs
        jobs.receiver.close()


def _lines(jobs: Any, watched: int) -> set[str]:
    return set(re.findall(rf"(\w+\|){watched}(\|\d\|[0-9a-f]{{64}})", jobs.output))


def steps(jobs: Any, job: str, rank: int) -> list[dict[str, Any]]:
    return sorted(jobs.of("rank_steps", job=job, rank=rank), key=lambda row: int(row["step"]))


def typical(rows: list[dict[str, Any]], column: str) -> float:
    """Median over steps in which all is known: the model is found at the first backward.

    Not their sum: one step in which the machine ran something else would outweigh the others.
    """
    return float(statistics.median(row[column] for row in rows[2:-1]))


def test_results_are_bitwise_the_same_and_no_hook_failed(done: Any) -> None:
    assert len(_lines(done, 1)) == 2 * len(NAMES)
    assert _lines(done, 1) == _lines(done, 0)
    assert set(re.findall(r"\|1\|\d\|[0-9a-f]{64}\|(\d+) ", done.output)) == {"0"}
    assert re.findall(r"exit\|\w+\|\d\|\[0, 0\]", done.output).__len__() == 2 * len(NAMES), done.output


@pytest.mark.parametrize("job", ["tensor_parallel", "fsdp1", "functional"])
def test_the_slow_rank_computes_long_and_waits_short(job: str, done: Any) -> None:
    fast, slow = steps(done, job, 0), steps(done, job, 1)
    assert len(fast) == len(slow) == 8
    assert typical(slow, "compute_us") > 1.5 * typical(fast, "compute_us")
    assert typical(slow, "wait_us") < typical(fast, "wait_us")
    for row in fast[2:-1] + slow[2:-1]:
        parts = ("compute_us", "comm_us", "unattributed_us", "checkpoint_us")
        assert sum(row[part] for part in parts) == pytest.approx(row["step_us"], rel=0.02, abs=200)


def test_tensor_parallel_time_is_of_the_tp_axis_and_rank(done: Any) -> None:
    assert {(row["rank"], row["tp"]) for row in done.of("placements", job="tensor_parallel")} == {(0, 0), (1, 1)}
    row = steps(done, "tensor_parallel", 0)[4]
    assert row["comm_by_axis_us"]["tp"] > 0
    ops = {row["op"] for row in done.of("op_timings", job="tensor_parallel", axis="tp", level="phase")}
    assert "all_reduce" in ops or "reduce_scatter_tensor" in ops


def test_a_pipeline_waits_for_the_stage_that_is_slow(done: Any) -> None:
    first, slow = steps(done, "pipeline", 0), steps(done, "pipeline", 1)
    assert len(first) == len(slow) == 8
    assert typical(slow, "compute_us") > 1.5 * typical(first, "compute_us")
    assert typical(slow, "comm_us") < typical(first, "comm_us")
    # Four micro-batches are one step, and its loss is known where it is computed.
    assert all(row["loss"] > 0 for row in slow)


def test_a_group_of_the_jobs_own_is_named_with_its_axis(done: Any) -> None:
    groups = {row["desc"]: row for row in done.of("process_groups", job="functional")}
    assert groups["data_parallel_group"]["members"] == [0, 1]
    ops = done.of("op_timings", job="functional", op="all_reduce", level="phase")
    assert {(row["process_group"], row["axis"]) for row in ops} == {
        (groups["data_parallel_group"]["process_group"], "dp")
    }
    # Eight gradients in each of eight steps, with their bytes, on both ranks.
    assert {(row["count"], row["rank"]) for row in ops} == {(64, 0), (64, 1)}
    assert all(row["bytes"] == 8 * 2 * (16 * 32 * 2 + 32 + 16) * 4 for row in ops)


def test_restore_save_and_what_is_written_in_the_background(done: Any) -> None:
    rows = [row for row in done.of("op_timings", job="checkpoints", kind="checkpoint") if row["level"] == "op"]
    size = 2 * (16 * 32 * 2 + 32 + 16) * 4
    assert {(row["op"], row["rank"], row["bytes"]) for row in rows} == {
        (op, rank, size) for op in ("checkpoint_save", "checkpoint_persist", "checkpoint_restore") for rank in (0, 1)
    }
    blocked = [row["step"] for row in steps(done, "checkpoints", 0) if row["checkpoint_us"] > 0]
    # The one before the first step is not part of any; the one in the middle is of the step that follows.
    assert blocked == [8]
    persisted = next(row for row in rows if row["op"] == "checkpoint_persist" and row["rank"] == 0)
    assert persisted["dur_us"] > 0
    assert persisted["step"] >= 8


def test_one_rank_that_ends_leaves_its_place_and_the_run_ends_once(done: Any) -> None:
    left = [row for row in done.of("placements", job="functional") if row.get("valid_until") is not None]
    assert {row["rank"] for row in left} == {0, 1}
    ends = [row for row in done.of("runs", job="functional", phase="train") if row.get("ended_at")]
    assert len(ends) == 1


def test_every_call_of_a_sampled_step_is_stored(done: Any) -> None:
    calls = done.of("op_timings", job="functional", level="op", kind="comm", step=0, rank=0)
    assert [row["seq"] for row in calls] == list(range(1, 9))
    assert all(row["dur_us"] >= 0 and row["count"] == 1 for row in calls)
    blocks = {row["op"] for row in done.of("op_timings", job="tensor_parallel", level="block")}
    assert blocks == set()  # Step 0 runs before the model is known, and step 16 is beyond this job.
