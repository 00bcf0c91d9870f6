from __future__ import annotations

import pandas as pd
import pytest

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.slow import SlowDetector
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.scenarios import CONFOUNDERS, build, confounder_scenario

CLUSTER = Cluster(nodes=8, nodes_per_rack=4, nodes_per_leaf=2)
JOB = Job(tp=4, pp=4, dp=4, step_ms=1500)


def score(
    *faults: Fault, job: Job = JOB, cluster: Cluster = CLUSTER, steps: int = 250, telemetry: str = "", seed: int = 3
) -> list[Finding]:
    return SlowDetector().score(build("test", cluster, job, list(faults), seed, steps, telemetry=telemetry).frames)


def only(findings: list[Finding]) -> Finding:
    raised = [one for one in findings if one.state == FindingState.RAISED]
    assert len(raised) == 1, [one.summary for one in raised]
    return raised[0]


@pytest.mark.parametrize(("severity", "within"), [(0.05, 40), (0.1, 25), (0.2, 15), (0.5, 15)])
def test_a_slow_gpu_is_named_with_rank_node_and_device(severity: float, within: int) -> None:
    found = only(score(Fault("slow_gpu", 3, 2, start_step=100, severity=severity)))
    assert (found.kind, found.class_, found.scope) == (FindingKind.SLOW, "compute", FindingScope.RANK)
    assert (found.node, found.device, found.rank) == ("n0003", 2, 26)
    assert found.blames_hardware
    assert found.severity == Severity.P3
    assert found.first_step is not None
    assert found.detected_step is not None
    assert abs(found.first_step - 100) <= 10
    assert 100 < found.detected_step <= 100 + within
    assert 0 < (found.expected_gain or 0) <= severity
    assert found.evidence["own_wait_us"] < found.evidence["peers_wait_us"]


def test_two_per_cent_is_found_and_is_no_page() -> None:
    fault = Fault("slow_gpu", 3, 2, start_step=100, severity=0.02)
    found = [score(fault, steps=400, seed=seed) for seed in range(5)]
    assert {(one.rank, one.severity) for each in found for one in each} == {(26, Severity.P4)}
    assert sum(bool(each) for each in found) >= 3


def test_a_slow_host_is_one_finding_about_the_node() -> None:
    found = only(score(Fault("slow_host", 5, start_step=100, severity=0.1)))
    assert (found.class_, found.scope, found.node, found.rank) == ("host", FindingScope.NODE, "n0005", None)


def test_half_of_a_small_job_can_be_the_slow_half() -> None:
    job = Job(dp=16, step_ms=1000)
    found = only(score(Fault("slow_host", 1, start_step=100, severity=0.2), job=job, cluster=Cluster(nodes=2)))
    assert (found.scope, found.node) == (FindingScope.NODE, "n0001")


def test_a_repaired_host_does_not_make_the_other_one_slow() -> None:
    job = Job(dp=16, step_ms=1000)
    fault = Fault("slow_host", 1, start_step=0, end_step=120, severity=0.2)
    assert not [one for one in score(fault, job=job, cluster=Cluster(nodes=2)) if one.node == "n0000"]


def test_a_cpu_bound_host_shows_in_launch_gaps() -> None:
    found = only(score(Fault("cpu_bound_host", 2, start_step=100, severity=0.1)))
    assert (found.class_, found.scope, found.node) == ("host", FindingScope.NODE, "n0002")


def test_slow_storage_shows_where_data_is_loaded() -> None:
    found = only(score(Fault("slow_storage", 1, start_step=100, severity=0.1)))
    assert (found.class_, found.scope, found.node) == ("storage", FindingScope.NODE, "n0001")


def test_an_intermittent_gpu_is_found_by_its_bursts() -> None:
    found = score(Fault("intermittent", 3, 2, start_step=100, severity=0.3), steps=400)
    assert {one.rank for one in found} == {26}
    assert any("recurrence" in one.evidence["test"] for one in found)


def test_a_throttled_rack_is_told_by_its_clocks() -> None:
    job = Job(tp=4, pp=2, dp=8, step_ms=3000)
    fault = Fault("thermal_rack", 0, start_step=100, severity=0.15)
    with_clocks = [one for one in score(fault, job=job, telemetry="all") if one.blames_hardware]
    assert {(one.class_, one.scope, one.targets) for one in with_clocks} == {("rack", FindingScope.RACK, ("r000",))}
    without = score(fault, job=job)
    assert {(one.kind, one.class_) for one in without} == {(FindingKind.IMBALANCE, "stage")}
    assert not any(one.blames_hardware for one in without)


def test_part_of_a_stage_in_one_rack_needs_no_clocks() -> None:
    cluster = Cluster(nodes=8, nodes_per_rack=2)
    job = Job(tp=4, pp=2, dp=8, step_ms=1500)
    found = only(score(Fault("thermal_rack", 2, start_step=100, severity=0.15), cluster=cluster, job=job))
    assert (found.class_, found.scope, found.targets, found.node) == ("rack", FindingScope.RACK, ("r001",), None)


def test_two_faults_are_two_findings() -> None:
    found = score(Fault("slow_gpu", 1, 1, start_step=90), Fault("slow_gpu", 6, 4, start_step=130))
    assert {one.rank for one in found} == {9, 52}


def test_a_fault_that_ends_is_cleared_under_the_same_id() -> None:
    found = score(Fault("slow_gpu", 3, 2, start_step=80, end_step=140, severity=0.2))
    assert [one.state for one in found] == [FindingState.RAISED, FindingState.CLEARED]
    assert found[0].id == found[1].id
    assert found[1].detected_step is not None
    assert found[1].detected_step > 140


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_job_is_silent(seed: int) -> None:
    job = Job(tp=4, pp=4, dp=4, noise=[0.005, 0.015, 0.03, 0.07][seed], checkpoint_every=50)
    assert score(job=job, seed=seed) == []


@pytest.mark.parametrize("kind", CONFOUNDERS)
def test_confounders_never_blame_hardware(kind: str) -> None:
    for seed in range(2):
        found = SlowDetector().score(confounder_scenario(kind, seed, steps=300).frames)
        assert not [one.summary for one in found if one.blames_hardware]


def test_a_hot_expert_is_told_by_its_equal_work() -> None:
    found = SlowDetector().score(confounder_scenario("hot_expert", 1, steps=200).frames)
    assert {(one.kind, one.class_, one.severity) for one in found} == {(FindingKind.IMBALANCE, "expert", Severity.INFO)}


def test_a_broken_device_in_an_expert_job_is_still_blamed() -> None:
    job = Job(tp=4, pp=2, dp=8, ep=4, step_ms=1500)
    found = only(score(Fault("slow_gpu", 3, 2, start_step=100, severity=0.2), job=job))
    assert found.blames_hardware


def test_without_placements_changes_are_still_found_with_less_confidence() -> None:
    frames = build("test", CLUSTER, JOB, [Fault("slow_gpu", 3, 2, start_step=100, severity=0.2)], 3, 250).frames
    with_roles = only(SlowDetector().score(frames))
    del frames["placements"]
    without = only(SlowDetector().score(frames))
    assert (without.rank, without.node) == (26, "n0003")
    assert (without.confidence or 1) < (with_roles.confidence or 0)


def test_a_rank_slow_from_the_first_step_needs_peers() -> None:
    fault = Fault("slow_gpu", 1, 2, start_step=0, severity=0.4)
    found = only(score(fault, steps=60))
    assert (found.rank, found.evidence["test"]) == (10, ["level"])
    assert score(fault, job=Job(pp=4, dp=2), cluster=Cluster(nodes=8, devices_per_node=1), steps=60) == []


def test_tokens_explain_time() -> None:
    job = Job(dp=16, sequence_imbalance=0.0, report_work=True, step_ms=1000)
    frames = build("test", Cluster(nodes=2), job, [], 3, 200).frames
    rows = frames["rank_steps"].copy()
    busy = (rows["rank"] == 5) & (rows["step"] >= 80)
    # Rank 5 gets a third more work; so do others from step to step, which teaches what work costs.
    factor = pd.Series(1.0, index=rows.index).where(~busy, 1.3)
    factor = factor * (1 + 0.05 * ((rows["rank"] * 7 + rows["step"] * 3) % 5 - 2) / 2)
    rows["tokens"] *= factor
    rows["compute_us"] *= factor
    assert SlowDetector().score({**frames, "rank_steps": rows}) == []


def test_one_rank_alone_among_those_with_its_experts_is_hardware_whatever_the_optimizer_says() -> None:
    job = Job(tp=4, pp=2, dp=8, ep=4, step_ms=1500)
    frames = build("test", CLUSTER, job, [], 3, 200).frames
    rows = frames["rank_steps"]
    rows.loc[(rows["rank"] == 13) & (rows["step"] >= 80), "compute_us"] *= 1.2
    found = [one for one in SlowDetector().score(frames) if one.state == FindingState.RAISED]
    assert [(one.rank, one.kind, one.blames_hardware) for one in found] == [(13, FindingKind.SLOW, True)]


@pytest.mark.parametrize("seed", range(4))
def test_bursts_of_five_per_cent_are_found(seed: int) -> None:
    found = only(score(Fault("intermittent", 5, 1, start_step=100, severity=0.05), steps=400, seed=seed))
    assert (found.rank, found.blames_hardware) == (41, True)


@pytest.mark.parametrize("job", [Job(tp=4, pp=2, dp=4), Job(tp=8, dp=2), Job(tp=4, pp=2, dp=4, ep=2)])
def test_a_host_slow_from_the_first_step_that_is_half_of_its_group(job: Job) -> None:
    cluster = Cluster(nodes=job.ranks // 8)
    found = only(score(Fault("slow_host", 1, start_step=0, severity=0.15), job=job, cluster=cluster, steps=100))
    assert (found.class_, found.scope, found.node) == ("host", FindingScope.NODE, "n0001")
    assert found.evidence["effect"] == pytest.approx(0.14, abs=0.02)


def test_hosts_whose_chips_differ_one_by_one_are_healthy() -> None:
    for seed in range(6):
        job = Job(tp=8, dp=2, chip_spread=0.05)
        assert score(job=job, cluster=Cluster(nodes=2), steps=100, seed=seed) == []


@pytest.mark.parametrize("known", ["model", "vendor"])
def test_devices_of_two_makers_in_one_job_are_no_peers(known: str) -> None:
    job, cluster = Job(tp=8, dp=4), Cluster(nodes=4)
    frames = build(
        "mixed", cluster, job, [Fault("slow_host", node, severity=0.4, start_step=0) for node in (2, 3)], 3, 150
    ).frames
    frames["inventory"] = frames["inventory"].drop(columns="model")
    devices = frames["inventory"][["node", "device"]].assign(ts=1.0)
    devices[known] = ["a" if node in ("n0000", "n0001") else "b" for node in devices["node"]]
    assert SlowDetector().score({**frames, "device_samples": devices}) == []


@pytest.mark.parametrize("first_step", [0, 100])
def test_a_replica_with_longer_data_is_no_hardware(first_step: int) -> None:
    job, cluster = Job(tp=4, pp=4, dp=8), Cluster(nodes=16)
    frames = build("long", cluster, job, [], 3, 200).frames
    rows = frames["rank_steps"]
    longer = (rows["rank"] // 4 % 8 == 5) & (rows["step"] >= first_step)
    rows.loc[longer, "compute_us"] *= 1.2
    found = SlowDetector().score(frames)
    assert found
    assert {(one.kind, one.class_, one.blames_hardware) for one in found} == {(FindingKind.IMBALANCE, "data", False)}


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_slow_rank_among_few_noisy_ones_stays_slow(ranks: int) -> None:
    job = Job(dp=ranks, step_ms=10, noise=0.25)
    cluster = Cluster(nodes=1, devices_per_node=ranks)
    said = score(Fault("slow_gpu", 0, 1, start_step=250, severity=2.5), job=job, cluster=cluster, steps=4000)
    assert [(one.rank, one.state) for one in said] == [(1, FindingState.RAISED)]


def test_counters_of_work_that_stay_zero_change_nothing() -> None:
    frames = build("test", CLUSTER, JOB, [Fault("slow_gpu", 3, 2, start_step=100, severity=0.2)], 3, 250).frames
    filled = frames["rank_steps"].assign(**{"tokens": 0.0, "work.samples": 0.0})
    assert SlowDetector().score({**frames, "rank_steps": filled}) == SlowDetector().score(frames)


def test_a_rank_that_slows_after_a_few_steps_is_found_and_its_onset_told() -> None:
    job = Job(tp=2, pp=2, dp=4)
    fault = Fault("slow_gpu", 0, 3, start_step=14, severity=0.4)
    finding = only(score(fault, job=job, steps=100, cluster=Cluster(nodes=2)))
    assert (finding.rank, finding.blames_hardware) == (3, True)
    assert 10 <= (finding.first_step or 0) <= 15
