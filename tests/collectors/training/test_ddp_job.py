"""Real data-parallel jobs of two ranks under torchrun, with no line of Flightwatch in their code."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch


def _median(rows: list[dict[str, Any]], column: str) -> float:
    return statistics.median(float(row[column]) for row in rows if row.get(column) is not None)


def test_the_slow_rank_computes_long_and_waits_short(jobs: Any) -> None:
    jobs.run("ddp.py", "--slow-rank", "1", "--steps", "14", ranks=2)
    victim, slow = jobs.steps(0), jobs.steps(1)
    assert [row["step"] for row in victim] == [row["step"] for row in slow] == list(range(14))
    assert _median(slow, "compute_us") > 2 * _median(victim, "compute_us")
    assert _median(slow, "wait_us") < _median(victim, "wait_us") / 2
    # Times of one step add up: nothing is counted twice and nothing unexplained is called compute.
    for row in victim + slow:
        if row.get("compute_us") is not None:
            parts = ("compute_us", "comm_us", "unattributed_us", "checkpoint_us")
            assert sum(row[part] for part in parts) == pytest.approx(row["step_us"], rel=0.02, abs=200)
            assert row["wait_us"] + row["transfer_us"] == pytest.approx(row["comm_us"], abs=0.2)
    # Unknown stays unknown: no loader was used, and the first step's forward ran before the model was known.
    assert all("data_us" not in row for row in victim)
    assert "compute_us" not in victim[0]


def test_identity_place_group_phases_and_summaries(jobs: Any) -> None:
    jobs.run("ddp.py", "--steps", "6", ranks=2)
    assert {row["job"] for row in jobs.of("rank_steps")} == {"test-job"}
    assert {(row["rank"], row["dp"]) for row in jobs.of("placements")} == {(0, 0), (1, 1)}
    (group,) = jobs.of("process_groups")
    assert (group["members"], group["backend"], group["desc"]) == ([0, 1], "gloo", "default_pg")
    phases = [row["phase"] for row in jobs.of("runs")]
    assert phases[:3] == ["rendezvous", "init", "train"]
    assert jobs.of("runs", phase="train")[-1]["ended_at"] is not None
    assert jobs.of("runs")[0]["attrs"]["world_size"] == "2"
    ops = {(row["op"], row["kind"]): row for row in jobs.of("op_timings", rank=0)}
    assert ops["step", "step"]["count"] == 6
    assert ops["reducer_all_reduce", "comm"]["process_group"] == group["process_group"]
    assert {row["name"] for row in jobs.of("self_metrics", component="probe")} >= {"errors_total", "dropped_rows_total"}
    assert all(row["value"] == 0 for row in jobs.of("self_metrics", component="probe", name="errors_total"))


def test_accumulation_is_one_step_and_the_norm_is_the_jobs(jobs: Any) -> None:
    jobs.run("ddp.py", "--steps", "5", "--accumulate", "3", ranks=2)
    first, second = jobs.steps(0), jobs.steps(1)
    assert [row["step"] for row in first] == [0, 1, 2, 3, 4]
    assert [row["grad_norm"] for row in first] == [row["grad_norm"] for row in second]
    assert all(row["loss"] > 0 for row in first)


def test_results_and_exit_code_are_the_same_with_and_without(jobs: Any, digests: Callable[[str], list[str]]) -> None:
    jobs.run("ddp.py", "--steps", "6", ranks=2)
    watched = digests(jobs.output)
    rows = len(jobs.rows)
    jobs.run("ddp.py", "--steps", "6", ranks=2, FLIGHTWATCH="0")
    assert len(watched) == 2
    assert digests(jobs.output) == watched
    assert [row for row in jobs.rows[rows:] if row.table == "rank_steps"] == []
