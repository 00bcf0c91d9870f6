"""A run against the best earlier run of its job."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState
from flightwatch.detectors.expectation import Expectation, read_expectation
from flightwatch.detectors.job_regression import JobRegressionDetector
from tests.contracts.detector_stage import slower_rerun


def test_a_slower_run_is_told_with_the_run_it_is_compared_with() -> None:
    frames = slower_rerun(1.15)
    (found,) = JobRegressionDetector().score(frames)
    assert (found.kind, found.scope, found.run) == (FindingKind.JOB_REGRESSION, FindingScope.JOB, "again")
    assert found.evidence["slowdown"] == pytest.approx(0.15, abs=0.02)
    assert found.evidence["best_run"] == str(frames["rank_steps"]["run"].iloc[0])
    assert (found.blames_hardware, found.node, found.rank) == (False, None, None)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.03])
def test_equal_faster_and_hardly_slower_runs_are_no_regression(factor: float) -> None:
    assert JobRegressionDetector().score(slower_rerun(factor)) == []


def test_more_tokens_per_step_are_no_regression() -> None:
    rows = slower_rerun(1.15)["rank_steps"]
    (found,) = JobRegressionDetector().score({"rank_steps": rows.assign(tokens=4096.0)})
    assert found.evidence["measure"] == "step_us_per_token"
    grown = rows.assign(tokens=np.where(rows["run"] == "again", 1.15 * 4096, 4096.0))
    assert JobRegressionDetector().score({"rank_steps": grown}) == []


def test_another_number_of_ranks_is_another_configuration() -> None:
    frames = slower_rerun(1.4)
    rows = frames["rank_steps"]
    assert JobRegressionDetector().score({"rank_steps": rows[(rows["run"] != "again") | (rows["rank"] < 16)]}) == []


def test_one_run_alone_and_runs_of_other_jobs_are_compared_with_nothing() -> None:
    rows = slower_rerun(1.4)["rank_steps"]
    assert JobRegressionDetector().score({"rank_steps": rows[rows["run"] == "again"]}) == []
    renamed = rows.assign(job=np.where(rows["run"] == "again", "another", "one"))
    assert JobRegressionDetector().score({"rank_steps": renamed}) == []


def test_the_best_earlier_run_counts_not_the_last() -> None:
    frames = slower_rerun(1.15)
    rows = frames["rank_steps"]
    third = rows[rows["run"] == "again"].assign(run="third", ts=lambda one: one["ts"] + 3_600_000.0)
    found = JobRegressionDetector().score({"rank_steps": pd.concat([rows, third], ignore_index=True)})
    assert [(one.run, one.evidence["best_run"]) for one in found] == [
        ("again", str(rows["run"].iloc[0])),
        ("third", str(rows["run"].iloc[0])),
    ]


def test_a_run_that_recovers_clears() -> None:
    frames = slower_rerun(1.3)
    rows = frames["rank_steps"]
    late = (rows["run"] == "again") & (rows["step"] >= 40)
    rows.loc[late, "step_us"] /= 1.3
    found = JobRegressionDetector().score(frames)
    assert [one.state for one in found] == [FindingState.RAISED, FindingState.CLEARED]
    assert len({one.id for one in found}) == 1


def expectation(tmp_path: Path, **entry: object) -> tuple[Expectation, ...]:
    path = tmp_path / "expected.json"
    path.write_text(json.dumps(entry))
    return read_expectation(path)


def first_run() -> pd.DataFrame:
    rows = slower_rerun(1.0)["rank_steps"]
    return rows[rows["run"] != "again"]


def test_a_first_run_is_compared_with_what_a_file_expects(tmp_path: Path) -> None:
    rows = first_run()
    step_ms = float(rows["step_us"].median()) / 1000
    for told in ({"step_ms": step_ms / 1.3}, {"duration_time_per_iter": f"{step_ms / 1300:.6f} s", "mfu": 0.4}):
        (found,) = JobRegressionDetector(expectations=expectation(tmp_path, **told)).score({"rank_steps": rows})
        assert found.evidence["slowdown"] == pytest.approx(0.3, abs=0.03)
        assert found.evidence["expected"] is True
        assert "than expected" in found.summary
    near = expectation(tmp_path, step_ms=step_ms / 1.05)
    assert JobRegressionDetector(expectations=near).score({"rank_steps": rows}) == []
    other = expectation(tmp_path, job="another-*", step_ms=1.0)
    assert JobRegressionDetector(expectations=other).score({"rank_steps": rows}) == []


def test_tokens_and_utilisation_are_compared_where_tokens_are_known(tmp_path: Path) -> None:
    rows = first_run().assign(tokens=4096.0)
    ranks = int(rows["rank"].nunique())
    rate = 4096.0 * ranks / (float(rows["step_us"].median()) / 1e6)
    told = {"mfu": 0.5, "flops_per_token": 1e9, "peak_tflops": 1.25 * rate * 1e9 / ranks / 0.5 / 1e12}
    (found,) = JobRegressionDetector(expectations=expectation(tmp_path, **told)).score({"rank_steps": rows})
    assert found.evidence["mfu"] == pytest.approx(0.4, abs=0.01)
    assert found.evidence["expected_mfu"] == 0.5
    assert found.evidence["tokens_per_second"] == pytest.approx(rate, rel=0.03)
    per_device = expectation(tmp_path, throughput_per_accelerator=rate / ranks)
    assert JobRegressionDetector(expectations=per_device).score({"rank_steps": rows}) == []


@pytest.mark.parametrize(
    "text",
    ["", "[", "[1]", "{}", '{"mfu": 0.4}', '{"step_ms": "soon"}', '{"step_ms": -1}', '{"step_ms": 5, "ranks": "x"}'],
)
def test_a_file_that_says_nothing_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "expected.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="expectation"):
        read_expectation(path)
