"""Detectors of the whole job's timing: fail-slow, imbalance, coverage."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.coverage import CoverageDetector
from flightwatch.detectors.fail_slow import FailSlowDetector
from flightwatch.detectors.imbalance import ImbalanceDetector
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.scenarios import build, confounder_scenario

CLUSTER = Cluster(nodes=4)
JOB = Job(tp=4, pp=2, dp=4, step_ms=1500)


def frames_of(*faults: Fault, job: Job = JOB, steps: int = 200) -> dict[str, pd.DataFrame]:
    return build("test", CLUSTER, job, list(faults), 3, steps).frames


def test_a_step_time_that_jumps_names_the_node_that_carries_it() -> None:
    (found,) = FailSlowDetector().score(frames_of(Fault("slow_gpu", 2, 1, start_step=100, severity=0.2)))
    assert (found.kind, found.scope, found.node, found.rank) == (FindingKind.FAIL_SLOW, FindingScope.JOB, "n0002", 17)
    assert found.blames_hardware
    assert found.detected_step is not None
    assert 100 <= found.detected_step <= 120


def test_a_slow_network_changes_the_step_and_names_nobody() -> None:
    (found,) = FailSlowDetector().score(frames_of(Fault("slow_nic", 2, start_step=100, severity=0.2)))
    assert (found.kind, found.node, found.blames_hardware) == (FindingKind.FAIL_SLOW, None, False)
    assert found.evidence["carried_by"] == "transfers"


def test_storage_that_is_slow_for_all_is_told_and_blames_nobody() -> None:
    frames = frames_of()
    rows = frames["rank_steps"]
    late = rows["step"] >= 100
    for column in ("data_us", "step_us"):
        rows.loc[late, column] += 150_000
    (found,) = FailSlowDetector().score(frames)
    assert (found.kind, found.evidence["carried_by"], found.blames_hardware) == (FindingKind.FAIL_SLOW, "data", False)


def test_more_work_for_all_is_not_hardware() -> None:
    found = FailSlowDetector().score(confounder_scenario("accumulation_change", 1).frames)
    assert [(one.kind, one.severity, one.blames_hardware) for one in found] == [
        (FindingKind.JOB_SLOW, Severity.INFO, False)
    ]


def test_little_compute_that_grows_is_not_what_makes_long_steps_longer() -> None:
    frames = frames_of()
    rows = frames["rank_steps"]
    rows["step_us"] += 30e6
    late = rows["step"] >= 100
    rows.loc[late, "compute_us"] *= 1.1
    rows.loc[late, "step_us"] *= 1.1
    (found,) = FailSlowDetector().score(frames)
    assert (found.kind, found.node) == (FindingKind.FAIL_SLOW, None)


def test_recovery_clears() -> None:
    found = FailSlowDetector().score(frames_of(Fault("slow_gpu", 2, 1, start_step=80, end_step=140, severity=0.2)))
    assert [one.state for one in found] == [FindingState.RAISED, FindingState.CLEARED]


def test_clean_jobs_and_checkpoints_do_not_jump() -> None:
    for seed in range(6):
        job = Job(tp=4, pp=2, dp=4, checkpoint_every=40, noise=0.02)
        assert FailSlowDetector().score(build("clean", CLUSTER, job, [], seed, 300).frames) == []


def classes(found: list[Finding]) -> list[tuple[str | None, bool]]:
    return [(one.class_, one.blames_hardware) for one in found]


def test_a_longer_last_stage_is_said_once_as_no_hardware() -> None:
    job = Job(tp=2, pp=4, dp=4, stage_imbalance=0.4)
    found = ImbalanceDetector().score(frames_of(job=job))
    assert classes(found) == [("stage", False)]
    assert found[0].targets == ("stage 3",)


def test_unequal_data_is_told_by_the_slowest_rank_moving() -> None:
    assert classes(ImbalanceDetector().score(frames_of(job=Job(dp=32, sequence_imbalance=0.15)))) == [("data", False)]
    assert ImbalanceDetector().score(frames_of(job=Job(dp=32))) == []


def noisy(forward: float, backward: float, together: float, **work: float) -> dict[str, pd.DataFrame]:
    """Four ranks whose forward and backward scatter apart and together by so much."""
    rng = np.random.default_rng(5)
    shape = (100, 4)
    both = rng.normal(0, together, shape)
    ahead, back = (20_000 * np.exp(both + rng.normal(0, size, shape)) for size in (forward, backward))
    rows = pd.DataFrame(
        {"ts": np.repeat(np.arange(100) * 100.0, 4), "job": "j", "run": "r", "step": np.repeat(np.arange(100.0), 4),
         "rank": np.tile(np.arange(4.0), 100), "forward_us": ahead.ravel(), "backward_us": back.ravel()}
    )  # fmt: skip
    rows["compute_us"] = rows["forward_us"] + rows["backward_us"]
    placements = pd.DataFrame({"job": "j", "run": "r", "rank": np.arange(4.0), "dp": np.arange(4.0)})
    return {"rank_steps": rows.assign(**work), "placements": placements}


def test_a_noisy_machine_is_no_unequal_data() -> None:
    assert ImbalanceDetector().score(noisy(0.2, 0.2, 0.0)) == []
    assert ImbalanceDetector().score(noisy(0.2, 0.2, 0.0, tokens=128.0)) == []
    assert ImbalanceDetector().score(noisy(0.1, 0.1, 0.15, tokens=128.0)) == []
    assert classes(ImbalanceDetector().score(noisy(0.02, 0.02, 0.2))) == [("data", False)]
    # Equal counters and noise that nothing explains: said to be equal, believed.
    silent = noisy(0.2, 0.2, 0.0, tokens=128.0)
    silent["rank_steps"] = silent["rank_steps"].drop(columns=["forward_us", "backward_us"])
    assert ImbalanceDetector().score(silent) == []


def test_unequal_data_is_said_after_two_windows_and_not_before() -> None:
    frames = frames_of(job=Job(dp=32, sequence_imbalance=0.15, report_work=True))
    assert classes(ImbalanceDetector().score(frames)) == [("data", False)]
    rows = frames["rank_steps"]
    assert ImbalanceDetector().score({**frames, "rank_steps": rows[rows["step"] < 40]}) == []


def test_a_stage_half_of_which_is_one_slow_host_is_no_stage_imbalance() -> None:
    assert ImbalanceDetector().score(frames_of(Fault("slow_host", 1, start_step=0, severity=0.3))) == []


def test_coverage_is_silent_when_everything_is_known() -> None:
    assert CoverageDetector().score(frames_of()) == []


def test_coverage_says_what_is_missing() -> None:
    frames = frames_of()
    rows = frames["rank_steps"]
    (found,) = CoverageDetector().score({**frames, "rank_steps": rows[rows["rank"] < 20]})
    assert found.evidence["reasons"] == ["ranks"]
    (found,) = CoverageDetector().score({"rank_steps": rows})
    assert "roles" in found.evidence["reasons"]
    blind = rows.drop(columns=["compute_us", "comm_us"])
    (found,) = CoverageDetector().score({**frames, "rank_steps": blind})
    assert found.evidence["reasons"] == ["compute"]
    (found,) = CoverageDetector().score(frames_of(job=Job(pp=2, dp=3)))
    assert found.evidence["reasons"] == ["peers"]
    vague = rows.assign(unattributed_us=rows["step_us"] * 0.4)
    (found,) = CoverageDetector().score({**frames, "rank_steps": vague})
    assert found.evidence["reasons"] == ["unattributed"]
