"""Which action an incident asks for, and how far it may go without a person. Pure: facts in, decision out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flightwatch.core.incident import Incident, Progress
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.actuators.marks import is_node_name
from flightwatch.incidents.cost import Cost, cost_of

CHECKPOINT = "the next durable checkpoint"
#: Kinds that may ask for a drain at all; the first group never acts without a person, whatever the settings say.
SUSPICIONS = frozenset(
    {FindingKind.SLOW, FindingKind.FAIL_SLOW, FindingKind.SDC_PRECURSOR, FindingKind.REPLICA_DIGEST,
     FindingKind.NONFINITE, FindingKind.HANG, FindingKind.OVERHEAT, FindingKind.THROTTLE, FindingKind.POWER,
     FindingKind.RDMA, FindingKind.LINK_FLAP}
)  # fmt: skip
FAILURES = frozenset({FindingKind.DEVICE_ERROR, FindingKind.ECC, FindingKind.DEAD_NODE, FindingKind.CRASH})
#: A hang or crash asks for a drain only when the same node had one before within a day.
_TWICE = frozenset({FindingKind.HANG, FindingKind.CRASH})
_PLACES = (FindingScope.NODE, FindingScope.DEVICE, FindingScope.RANK, FindingScope.PORT)


@dataclass(frozen=True, slots=True)
class Statement:
    """One finding of an incident, as far as the policy reads it."""

    kind: str
    node: str | None
    state: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beyond the incident; None where nobody knows.

    Attributes
    ----------
    known_nodes: names in the inventory. spares: usable nodes without a job.
    job_gpus, checkpoint_at_ms: of the incident's job.
    hangs_in_a_day: earlier hangs and crashes rooted in this node in 24 h.
    returned_at_ms: when the node was last brought back by us. drains_counted: its drains in `repeat_days`.
    maintenance: a maintenance window covers the incident.
    """

    now_ms: int
    known_nodes: frozenset[str]
    spares: int | None = None
    job_gpus: int | None = None
    checkpoint_at_ms: int | None = None
    hangs_in_a_day: int = 0
    returned_at_ms: int | None = None
    drains_counted: int = 0
    maintenance: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What should be done: a drain of the incident's node, or nothing and why.

    Attributes
    ----------
    mode: dry_run, approve, automatic; None: nothing is proposed.
    why: one sentence: the reason of the action, or of not acting.
    waits_for: what must come first, None when nothing.
    """

    mode: str | None
    why: str
    cost: Cost | None = None
    waits_for: str | None = None


def decide(incident: Incident, findings: Sequence[Statement], facts: Facts, settings: ActionSettings) -> Decision:
    """Decide about one open incident.

    A drain is proposed only where hardware is blamed, the node is in the inventory, the evidence is fresh, and, while
    the job still progresses, going on costs more than a restart and a spare exists; then it waits for the next
    durable checkpoint.
    """
    unfit = _unfit(incident, facts, settings)
    if unfit is not None:
        return Decision(None, unfit)
    fail_stop = fail_stop_kind(findings, incident.node or "")
    cost = cost_of(
        loss_gpu_hours_per_hour=incident.loss_gpu_hours_per_hour, gpus=facts.job_gpus,
        restart_minutes=settings.restart_minutes, checkpoint_at_ms=facts.checkpoint_at_ms, now_ms=facts.now_ms,
        horizon_hours=settings.loss_horizon_hours,
    )  # fmt: skip
    runs_on = incident.job is not None and incident.progress in (Progress.PROGRESSING, Progress.SLOWED)
    if runs_on:
        doubt = _doubt_about_stopping(cost, facts)
        if doubt is not None:
            return Decision(None, doubt, cost)
    why = _why(incident, cost if runs_on else None, facts, settings)
    mode = _mode(incident, findings, fail_stop, facts, settings)
    return Decision(mode, why, cost, CHECKPOINT if runs_on else None)


def _unfit(incident: Incident, facts: Facts, settings: ActionSettings) -> str | None:
    """Return why the incident asks for no action, None when it may."""
    kind = incident.kind
    if settings.mode == "off":
        return "actions are off (actions.mode)"
    if incident.closed:
        return "the incident is over"
    if not incident.blames_hardware:
        return "no hardware is to blame"
    if kind not in SUSPICIONS | FAILURES:
        return f"findings of kind {kind} ask for no drain"
    if incident.node is None or incident.scope not in _PLACES:
        return "the cause is not one node"
    if not is_node_name(incident.node):
        return "the name of the node cannot be passed on"
    if incident.node not in facts.known_nodes:
        return f"{incident.node} is not in the inventory"
    if incident.stale:
        return "it rests on old data"
    if facts.maintenance:
        return "a maintenance window covers it"
    if kind in _TWICE and facts.hangs_in_a_day < 1:
        return f"a {kind} asks for a drain only when the node had one before within a day"
    return None


def _doubt_about_stopping(cost: Cost, facts: Facts) -> str | None:
    if cost.worth_it is None:
        return f"the job still runs, and {cost.sentence()}"
    if not cost.worth_it:
        return f"the job still runs: {cost.sentence()}"
    if not facts.spares:
        return "the job still runs, and " + (
            "no spare node is free" if facts.spares == 0 else "spare nodes are not known"
        )
    return None


def _mode(
    incident: Incident, findings: Sequence[Statement], fail_stop: str | None, facts: Facts, settings: ActionSettings
) -> str:
    if settings.mode != "automatic":
        return settings.mode
    alone = (
        fail_stop is None
        or fail_stop not in settings.automatic_kinds
        or incident.kind in SUSPICIONS
        or not has_witness(findings, incident.node or "")
        or _cools_down(facts, settings)
    )
    return "approve" if alone else "automatic"


def _cools_down(facts: Facts, settings: ActionSettings) -> bool:
    since = facts.returned_at_ms
    return since is not None and facts.now_ms - since < settings.cool_down_hours * 3_600_000


def fail_stop_kind(findings: Sequence[Statement], node: str) -> str | None:
    """Return which failure with a vendor's own instruction the findings about a node show, None when none does."""
    for one in findings:
        if one.node != node or one.state == FindingState.CLEARED:
            continue
        if one.kind == FindingKind.DEAD_NODE:
            return "dead_node"
        if one.evidence.get("root") == "xid:79":
            return "xid:79"
        if one.evidence.get("remap_failure") or one.evidence.get("root") == "remap:failure":
            return "remap_failure"
    return None


def has_witness(findings: Sequence[Statement], node: str) -> bool:
    """Say whether anybody but the node itself speaks against it: a peer, the job, or its silence seen from outside.

    A node whose own rows lie could otherwise take itself out, or be taken out by whoever writes them.
    """
    open_ = [one for one in findings if one.state != FindingState.CLEARED]
    return any(one.node != node or one.kind == FindingKind.DEAD_NODE for one in open_)


def _why(incident: Incident, cost: Cost | None, facts: Facts, settings: ActionSettings) -> str:
    parts = [incident.title.rstrip(".")]
    if cost is not None:
        parts.append(cost.sentence())
    if facts.drains_counted + 1 >= settings.repeat_drains:
        parts.append(
            f"drain number {facts.drains_counted + 1} in {settings.repeat_days} days: have it repaired or replaced"
        )
    return "; ".join(parts)
