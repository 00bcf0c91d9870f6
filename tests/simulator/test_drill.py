"""How a drill is graded: right, related and false findings; times; domains that a fault fills."""

from __future__ import annotations

from typing import Any

from flightwatch.simulator.drill import Injected, grade_drill, injected_of
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.plan import cluster_of, jobs_on

BEGIN_MS = 1_700_000_000_000
CLUSTER = cluster_of(256, "sim-drill-", "sim-drill")
JOBS = jobs_on(CLUSTER, "sim-drill-", 5.0, "r1")


def row(kind: str, node: str | None, after_s: float = 50, **more: Any) -> dict[str, Any]:
    values = {"id": f"{kind}:{node}:{more.get('job')}", "kind": kind, "node": node, "job": None, "rank": None,
              "targets": [node] if node else [], "severity": "P3", "state": "raised", "summary": f"{kind} {node}",
              "detected_at": BEGIN_MS + round(after_s * 1000),
              "received_at": BEGIN_MS + round(after_s * 1000) + 3000}  # fmt: skip
    return values | more


def injected(kind: str, node: int, device: int | None = None) -> Injected:
    return injected_of(CLUSTER, JOBS, Fault(kind, node, device), BEGIN_MS)


def test_right_related_and_false_are_told_apart() -> None:
    faults = [injected("slow_gpu", 3, 5), injected("packet_loss", 9)]
    grade = grade_drill(
        faults,
        [
            row("slow", "sim-drill-n0003", rank=29),
            row("slow", "sim-drill-n0003", 80, rank=29, state="changed"),
            row("fail_slow", None, job="sim-drill-pretrain"),
            row("anomaly", "sim-drill-n0003"),
            row("imbalance", None, severity="info"),
            row("overheat", "sim-drill-n0020"),
        ],
    )
    assert (grade["found"], grade["injected"], grade["recall"]) == (1, 2, 0.5)
    assert (grade["right"], grade["related"], grade["precision"]) == (1, 3, 0.5)
    assert [one["kind"] for one in grade["false"]] == ["overheat"]
    first, second = grade["faults"]
    assert (first["detect_seconds"], first["stored_seconds"], first["target"]) == (50.0, 53.0, "sim-drill-n0003")
    assert (second["found"], second["detect_seconds"]) == (False, None)


def test_what_was_said_before_the_fault_began_does_not_tell_it() -> None:
    grade = grade_drill([injected("ecc_ramp", 4, 1)], [row("ecc", "sim-drill-n0004", -30)])
    assert (grade["found"], grade["false"], grade["related"]) == (0, [], 1)


def test_a_domain_is_right_when_the_fault_fills_it() -> None:
    zone = injected("cooling_zone", 0)
    assert "sim-drill-z00" in zone.targets
    assert "sim-drill-r000" in zone.targets
    assert "sim-drill-z01" not in zone.targets
    assert "sim-drill-z00" not in injected("slow_host", 0).targets
    grade = grade_drill([zone], [row("cooling", None, targets=["sim-drill-z00"])])
    assert (grade["recall"], grade["precision"]) == (1.0, 1.0)


def test_nothing_said_about_nothing_injected_divides_by_nothing() -> None:
    grade = grade_drill([], [])
    assert (grade["recall"], grade["precision"], grade["false"]) == (None, None, [])


def test_ports_and_ranks_name_their_node() -> None:
    port = row("rdma", None, targets=["sim-drill-n0009/mlx5_0/1"])
    assert grade_drill([injected("packet_loss", 9)], [port])["recall"] == 1.0
    rank = Injected("slow_rank", frozenset(("slow",)), frozenset(("rank 2",)), frozenset(("sim-drill-x",)), BEGIN_MS)
    assert grade_drill([rank], [row("slow", "here", rank=2)])["recall"] == 1.0
