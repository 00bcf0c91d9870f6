from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flightwatch.core.incident import Incident, IncidentState, Progress
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.breaker import objection
from flightwatch.incidents.contract import NodeView
from flightwatch.incidents.cost import cost_of
from flightwatch.incidents.policy import CHECKPOINT, Facts, Statement, decide, fail_stop_kind, has_witness
from flightwatch.pipeline.control.action_model import Action

NOW = 1_700_000_000_000
HOUR = 3_600_000
SLOW = Incident(
    id="i1", revision=3, cluster="c", state=IncidentState.OPEN, severity=Severity.P2, kind="slow", scope="device",
    title="n1 device 3 is 20 % slow", summary="", opened_at_ms=NOW - HOUR, updated_at_ms=NOW, evidence_at_ms=NOW,
    node="n1", device=3, job="llm", blames_hardware=True, progress=Progress.SLOWED, loss_gpu_hours_per_hour=200.0,
)  # fmt: skip
DEAD = replace(SLOW, kind="dead_node", scope="node", progress=Progress.STOPPED, title="n1 is silent")
FACTS = Facts(NOW, frozenset({"n1", "n2"}), spares=2, job_gpus=1024, checkpoint_at_ms=NOW - HOUR // 4)
APPROVE = ActionSettings(mode="approve")
AUTOMATIC = ActionSettings(mode="automatic", automatic_kinds=("xid:79", "remap_failure", "dead_node"))
FELL_OFF = Statement("device_error", "n1", "raised", {"root": "xid:79"})
PEER = Statement("hang", None, "raised", {})


def test_a_slow_node_whose_loss_exceeds_a_restart_is_proposed_after_the_next_checkpoint() -> None:
    decision = decide(SLOW, [Statement("slow", "n1", "raised", {})], FACTS, APPROVE)
    assert (decision.mode, decision.waits_for) == ("approve", CHECKPOINT)
    # 200 GPU-h/h for 24 h against 1,024 GPUs for a quarter of an hour to start and a quarter lost.
    assert decision.cost is not None
    assert (decision.cost.loss, decision.cost.restart) == (4800.0, 512.0)
    assert decision.cost.break_even_hours == pytest.approx(2.56)
    assert "going on costs 4,800 GPU-hours in 24 h, a restart 512" in decision.why


@pytest.mark.parametrize(
    ("change", "facts", "why"),
    [
        ({"loss_gpu_hours_per_hour": 10.0}, {}, "going on costs 240 GPU-hours in 24 h, a restart 512"),
        ({"loss_gpu_hours_per_hour": None}, {}, "what going on costs is not known"),
        ({}, {"checkpoint_at_ms": None}, "what a restart costs is not known"),
        ({}, {"spares": 0}, "no spare node is free"),
        ({}, {"spares": None}, "spare nodes are not known"),
        ({"blames_hardware": False}, {}, "no hardware is to blame"),
        ({"kind": "imbalance"}, {}, "ask for no drain"),
        ({"node": None, "scope": "cooling_zone"}, {}, "not one node"),
        ({"scope": "rack"}, {}, "not one node"),
        ({"node": "n3"}, {}, "not in the inventory"),
        ({"node": "n1;reboot"}, {"known_nodes": frozenset({"n1;reboot"})}, "cannot be passed on"),
        ({"stale": True}, {}, "old data"),
        ({"state": IncidentState.RESOLVED}, {}, "is over"),
        ({}, {"maintenance": True}, "maintenance"),
        ({"kind": "hang", "progress": Progress.STOPPED}, {}, "one before within a day"),
    ],
)
def test_why_nothing_is_proposed_is_said(change: dict[str, Any], facts: dict[str, Any], why: str) -> None:
    decision = decide(replace(SLOW, **change), [], replace(FACTS, **facts), APPROVE)
    assert decision.mode is None
    assert why in decision.why


def test_a_second_hang_in_a_day_is_proposed() -> None:
    hang = replace(SLOW, kind="hang", progress=Progress.STOPPED)
    assert decide(hang, [], replace(FACTS, hangs_in_a_day=1), APPROVE).mode == "approve"


def test_a_stopped_job_waits_for_no_checkpoint_and_no_spare() -> None:
    decision = decide(DEAD, [Statement("dead_node", "n1", "raised", {})], replace(FACTS, spares=None), APPROVE)
    assert (decision.mode, decision.waits_for) == ("approve", None)


@pytest.mark.parametrize("mode", ["dry_run", "approve"])
def test_the_mode_bounds_what_happens(mode: str) -> None:
    assert decide(DEAD, [Statement("dead_node", "n1", "raised", {})], FACTS, ActionSettings(mode=mode)).mode == mode
    assert decide(DEAD, [], FACTS, ActionSettings(mode="off")).mode is None


def test_only_failures_with_an_instruction_and_a_witness_go_alone() -> None:
    fallen = replace(SLOW, kind="device_error", progress=Progress.STOPPED)
    assert decide(fallen, [FELL_OFF, PEER], FACTS, AUTOMATIC).mode == "automatic"
    assert decide(fallen, [FELL_OFF], FACTS, AUTOMATIC).mode == "approve", "only its own rows speak"
    assert decide(fallen, [FELL_OFF, replace(PEER, state="cleared")], FACTS, AUTOMATIC).mode == "approve"
    other = replace(AUTOMATIC, automatic_kinds=("dead_node",))
    assert decide(fallen, [FELL_OFF, PEER], FACTS, other).mode == "approve", "not a kind the operator allowed"
    assert decide(DEAD, [Statement("dead_node", "n1", "raised", {})], FACTS, AUTOMATIC).mode == "automatic"
    back = replace(FACTS, returned_at_ms=NOW - HOUR)
    assert decide(fallen, [FELL_OFF, PEER], back, AUTOMATIC).mode == "approve", "it was brought back an hour ago"


@pytest.mark.parametrize("kind", ["slow", "fail_slow", "sdc_precursor", "replica_digest", "overheat", "hang", "rdma"])
def test_suspicions_never_act_alone_whatever_else_is_said(kind: str) -> None:
    suspicion = replace(SLOW, kind=kind, progress=Progress.STOPPED)
    decision = decide(suspicion, [FELL_OFF, PEER], replace(FACTS, hangs_in_a_day=3), AUTOMATIC)
    assert decision.mode == "approve"


def test_any_metric_anomalies_ask_for_nothing() -> None:
    assert decide(replace(SLOW, kind="anomaly"), [FELL_OFF, PEER], FACTS, AUTOMATIC).mode is None


def test_a_repeat_offender_is_called_one() -> None:
    decision = decide(DEAD, [], replace(FACTS, drains_counted=2), APPROVE)
    assert "drain number 3 in 30 days: have it repaired or replaced" in decision.why


def test_fail_stop_kinds_are_read_from_evidence_about_the_node() -> None:
    assert fail_stop_kind([FELL_OFF], "n1") == "xid:79"
    assert fail_stop_kind([FELL_OFF], "n2") is None
    assert fail_stop_kind([replace(FELL_OFF, state="cleared")], "n1") is None
    assert fail_stop_kind([Statement("ecc", "n1", "raised", {"remap_failure": True})], "n1") == "remap_failure"
    assert fail_stop_kind([Statement("ecc", "n1", "raised", {"remap_pending": True})], "n1") is None
    assert has_witness([FELL_OFF, PEER], "n1")
    assert not has_witness([], "n1")


def test_a_cost_without_its_figures_is_unknown_not_zero() -> None:
    cost = cost_of(
        loss_gpu_hours_per_hour=None, gpus=None, restart_minutes=15, checkpoint_at_ms=None, now_ms=NOW, horizon_hours=24
    )  # fmt: skip
    assert (cost.loss, cost.restart, cost.break_even_hours, cost.worth_it) == (None, None, None, None)


def _drained(node: str) -> Action:
    return Action("a" + node, None, 0, "drain", node, "automatic", "done", "rule", "", NOW, NOW, applied_at_ms=NOW)


def _cluster(usable: int, out: int = 0) -> dict[str, NodeView]:
    views = {f"n{i}": NodeView(True, False) for i in range(1, usable + 1)}
    return views | {f"out{i}": NodeView(False, True) for i in range(out)}


@pytest.mark.parametrize(
    ("views", "drained", "by_person", "settings", "why"),
    [
        (_cluster(10), [], False, {}, None),
        (_cluster(10), ["n2"], False, {}, "20.0 % of the nodes"),
        (_cluster(1000), ["n2"], False, {}, None),
        (_cluster(1000), ["n2", "n3"], False, {}, "2 nodes were drained in the last 60 min"),
        (_cluster(1000), ["n2", "n3"], True, {}, "2 nodes were drained"),
        (_cluster(1000), ["n1", "n2"], False, {}, None),
        (_cluster(1000), [], False, {"max_nodes_in_window": 0}, "0 nodes were drained"),
        (None, [], False, {}, "does not say how many healthy nodes"),
        (None, [], True, {}, None),
        ({"n2": NodeView(True, False)}, [], False, {}, "knows no node n1"),
        (_cluster(8, out=2), [], False, {"min_healthy_nodes": 8}, "7 usable nodes would be left"),
        (_cluster(8, out=2), [], True, {"min_healthy_nodes": 7}, None),
    ],
)
def test_the_circuit_breaker(
    views: dict[str, NodeView] | None, drained: list[str], by_person: bool, settings: dict[str, Any], why: str | None
) -> None:
    said = objection("n1", ActionSettings(**settings), views, [_drained(one) for one in drained], by_person=by_person)
    assert said is None if why is None else why in (said or "")
