"""Which of the job's nodes, links or leaf switches ports complained about when its transfers became slower.

Ranks of one group over all nodes slow down together, whichever adapter is slow: steps name nobody there, ports do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flightwatch.core.vocabulary import FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.rank_matrix import RunSteps

#: A port may complain this much earlier than transfers slow down, and its complaint begin as much later than they
#: are told, because counters are read more seldom than steps end.
PORT_SLACK_MS, PORT_LATE_MS = 300_000, 60_000


@dataclass(frozen=True)
class Place:
    """What a finding about a link names. doubtful: a leaf switch, or one of the nodes below it."""

    scope: FindingScope
    node: str | None
    targets: tuple[str, ...]
    blames: bool
    confidence: float
    doubtful: bool = False


def named_by_ports(finding: Finding, ports: list[Finding], run: RunSteps) -> Finding:
    """Name the one node, link or leaf switch of the job whose ports complained at the time, if there is exactly one."""
    if finding.scope != FindingScope.JOB or finding.detected_at is None or finding.first_seen_at is None:
        return finding
    near = [
        port
        for port in ports
        if port.state == FindingState.RAISED
        and port.first_seen_at is not None
        and finding.first_seen_at - PORT_SLACK_MS <= port.first_seen_at <= finding.detected_at + PORT_LATE_MS
    ]
    near, place = _place_told(run, near)
    if place is None:
        return finding
    evidence = dict(finding.evidence) | {"port": near[0].summary, "ports": len(near)}
    what = {FindingScope.NODE: "The network adapter or link of", FindingScope.LINK: "The link between"}
    text = f"{what.get(place.scope, 'Leaf switch')} {' and '.join(place.targets)} is slow: transfers grew as "
    return replace(
        finding, scope=place.scope, node=place.node, targets=place.targets, blames_hardware=True,
        confidence=place.confidence, severity=Severity.P3, evidence=evidence, summary=text + "its ports complained.",
        detected_at=max(finding.detected_at, min(port.detected_at or 0 for port in near)),
    )  # fmt: skip


def _place_told(run: RunSteps, ports: list[Finding]) -> tuple[list[Finding], Place | None]:
    """Return those of the complaints that touch the job, and the one place that they have in common, if any.

    A leaf switch is told as a whole where ports of several of its nodes complain; a port below it says nothing else.
    """
    mine = {node for node in run.layout.node_R if node is not None}
    leaf_R = run.layout.domain.get("leaf_switch", ())
    leaf_of = {node: leaf for node, leaf in zip(run.layout.node_R, leaf_R, strict=False) if node is not None}
    switches = [one for one in ports if one.scope == FindingScope.LEAF_SWITCH and one.targets[0] in leaf_of.values()]
    single = [one for one in ports if one.node in mine]
    told = {one.targets[0] for one in switches}
    nodes = sorted({str(one.node) for one in single})
    if not told:
        return single, place_of_ports(run, nodes)
    if len(told) == 1 and {leaf_of.get(node) for node in nodes} <= told:
        return switches + single, Place(FindingScope.LEAF_SWITCH, None, tuple(told), True, 0.8)
    return switches + single, None


def place_of_ports(run: RunSteps, nodes: list[str]) -> Place | None:
    """Return what a set of complaining nodes has in common: itself, its leaf switch, or nothing."""
    if len(nodes) == 1:
        return Place(FindingScope.NODE, nodes[0], (nodes[0],), True, 0.8)
    leaf_R = run.layout.domain.get("leaf_switch", ())
    of_node = {node: leaf for node, leaf in zip(run.layout.node_R, leaf_R, strict=False) if node is not None}
    leaves = {of_node.get(node) for node in nodes}
    if len(leaves) == 1 and None not in leaves:
        leaf = str(leaves.pop())
        below = [node for node, name in of_node.items() if name == leaf]
        if len(nodes) >= 0.6 * len(below):
            return Place(FindingScope.LEAF_SWITCH, None, (leaf,), True, 0.8)
    if len(nodes) == 2:
        return Place(FindingScope.LINK, nodes[0], tuple(nodes), True, 0.7)
    return None
