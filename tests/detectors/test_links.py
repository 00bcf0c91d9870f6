from __future__ import annotations

import pandas as pd
import pytest

from flightwatch.core.vocabulary import FindingScope, FindingState
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.slow import SlowDetector
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.scenarios import START_MS, build
from flightwatch.simulator.telemetry import TelemetryModel, TelemetrySpec

CLUSTER = Cluster(nodes=16)
JOB = Job(tp=4, pp=4, dp=8, step_ms=1500)


def frames_of(*faults: Fault, job: Job = JOB, cluster: Cluster = CLUSTER) -> dict[str, pd.DataFrame]:
    return build("test", cluster, job, list(faults), 3, 220).frames


def link(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.class_ == "link" and one.state == FindingState.RAISED]


def test_a_slow_adapter_is_where_slow_groups_meet() -> None:
    (found,) = link(SlowDetector().score(frames_of(Fault("slow_nic", 6, start_step=100))))
    assert (found.scope, found.node, found.blames_hardware) == (FindingScope.NODE, "n0006", True)
    assert len(found.evidence["affected_ranks"]) > 8


def test_a_slow_link_names_both_ends() -> None:
    (found,) = link(SlowDetector().score(frames_of(Fault("slow_link", 5, other_node=9, start_step=100))))
    assert found.scope == FindingScope.LINK
    assert set(found.targets) == {"n0005", "n0009"}


def test_a_congested_switch_is_named() -> None:
    (found,) = link(SlowDetector().score(frames_of(Fault("congested_switch", 6, start_step=100))))
    assert (found.scope, found.targets, found.node) == (FindingScope.LEAF_SWITCH, ("leaf001",), None)


def test_a_second_slow_link_on_top_of_the_first() -> None:
    faults = (Fault("slow_link", 1, other_node=5, start_step=80), Fault("slow_link", 10, other_node=14, start_step=140))
    found = link(SlowDetector().score(frames_of(*faults)))
    assert {frozenset(one.targets) for one in found} == {frozenset({"n0001", "n0005"}), frozenset({"n0010", "n0014"})}


@pytest.mark.parametrize("later", [0, 12, 60])
def test_two_slow_adapters_are_two_findings(later: int) -> None:
    faults = Fault("slow_nic", 6, start_step=100), Fault("slow_nic", 13, start_step=100 + later)
    found = link(SlowDetector().score(frames_of(*faults)))
    assert sorted(one.node or "" for one in found) == ["n0006", "n0013"]
    assert all(one.blames_hardware for one in found)


def test_one_group_of_all_ranks_names_nobody_until_a_port_complains() -> None:
    cluster, job = Cluster(nodes=8), Job(dp=64, step_ms=3000)
    frames = frames_of(Fault("slow_nic", 2, start_step=100, severity=0.2), job=job, cluster=cluster)
    (found,) = link(SlowDetector().score(frames))
    assert (found.scope, found.node, found.blames_hardware) == (FindingScope.JOB, None, False)
    seconds = float(frames["rank_steps"]["ts"].max() - START_MS) / 1000
    spec = TelemetrySpec(interval_s=10, samples=int(seconds / 10), step_s=seconds / 220)
    port_fault = [Fault("packet_loss", 2, start_step=99)]
    ports = TelemetryModel(cluster, [job], port_fault, 3, START_MS, spec).frames()["port_samples"]
    (named,) = link(SlowDetector().score({**frames, "port_samples": ports}))
    assert (named.scope, named.node, named.blames_hardware) == (FindingScope.NODE, "n0002", True)


def test_one_group_of_all_ranks_names_the_switch_that_ports_complain_about() -> None:
    # The job has two of the four nodes below the switch.
    cluster, job = Cluster(nodes=16, nodes_per_leaf=4), Job(dp=112, step_ms=3000)
    fault = Fault("congested_switch", 13, start_step=100, severity=0.2)
    frames = build("test", cluster, job, [fault], 3, 220, "ports").frames
    (named,) = link(SlowDetector().score(frames))
    assert (named.scope, named.targets, named.node) == (FindingScope.LEAF_SWITCH, ("leaf003",), None)
    assert named.blames_hardware


def test_a_slow_ring_names_its_few_nodes_together() -> None:
    job = Job(tp=8, pp=4, dp=4, step_ms=1500)
    (found,) = link(SlowDetector().score(frames_of(Fault("slow_link", 1, other_node=2, start_step=100), job=job)))
    assert (found.scope, found.node, found.blames_hardware) == (FindingScope.LINK, None, True)
    assert found.targets == ("n0000", "n0001", "n0002", "n0003")
    assert found.confidence == 0.5


def test_a_slow_ring_below_one_switch_names_the_switch() -> None:
    job, cluster = Job(tp=8, pp=2, dp=8, step_ms=1500), Cluster(nodes=16, nodes_per_leaf=8)
    frames = frames_of(Fault("slow_link", 9, other_node=10, start_step=100), job=job, cluster=cluster)
    (found,) = link(SlowDetector().score(frames))
    assert (found.scope, found.targets, found.confidence) == (FindingScope.LEAF_SWITCH, ("leaf001",), 0.5)
    assert "or one of the nodes below it" in found.summary


def test_a_slow_ring_of_half_the_job_blames_nobody() -> None:
    job, cluster = Job(tp=8, pp=2, dp=8, step_ms=1500), Cluster(nodes=16)
    frames = frames_of(Fault("slow_link", 9, other_node=10, start_step=100), job=job, cluster=cluster)
    (found,) = link(SlowDetector().score({**frames, "inventory": frames["inventory"].drop(columns="leaf_switch")}))
    assert (found.scope, found.blames_hardware, len(found.targets)) == (FindingScope.JOB, False, 8)


def test_two_nodes_share_one_path() -> None:
    found = link(
        SlowDetector().score(frames_of(Fault("slow_nic", 1, start_step=100), job=Job(dp=16), cluster=Cluster(nodes=2)))
    )
    assert [(one.scope, one.targets) for one in found] == [(FindingScope.LINK, ("n0000", "n0001"))]


@pytest.mark.parametrize("missing", ["transfer_us", "wait_us"])
def test_transfers_are_worked_out_from_what_is_there(missing: str) -> None:
    frames = frames_of(Fault("slow_nic", 6, start_step=100, severity=0.2))
    frames["rank_steps"] = frames["rank_steps"].drop(columns=missing)
    assert [one.node for one in link(SlowDetector().score(frames))] == ["n0006"]
