"""Which link is slow: transfers are shared by whole groups, so groups are intersected, not ranks ranked.

A collective runs at the pace of its slowest adapter: with one slow adapter every member of every group
through it moves data longer. Each hypothesis (a node's adapter, a link between two nodes, a leaf switch)
predicts a pattern over ranks: its own ranks, the ranks that share a group with it per axis. Patterns are
fitted to the measured growth with non-negative weights; the best fit names the target, equal fits are
said to be equal. After C4D (2024), which reads a sender-receiver matrix: a row is a sender, a column a
receiver, a cell a link.

Does not see: one all-rank group alone (every rank's transfer grows alike; then the finding is about the
job and names no node; port counters do).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.optimize import nnls

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding, Frames
from flightwatch.detectors.drift import BLOCK, COMMON_BIAS
from flightwatch.detectors.episodes import Episode
from flightwatch.detectors.grouped import FloatArray, Groups
from flightwatch.detectors.ports import PortDetector
from flightwatch.detectors.rank_matrix import RunSteps
from flightwatch.detectors.slow_channels import Channel
from flightwatch.detectors.slow_targets import TargetLimits
from flightwatch.detectors.slow_words import end_of_block

#: Fits this close to the best one cannot be told from it.
TIE = 0.02
#: A more complex hypothesis (more weights) must explain this much more per weight.
PENALTY = 0.005
#: Candidate nodes looked at, those with the largest growth first.
CANDIDATES = 24
#: Growth that no place explains is told only when it shows on this share of the ranks.
WIDESPREAD = 0.25
#: Growth of everybody's transfers, as share of the step, that is told.
EVERYWHERE_SHARE = 0.01
#: A port may complain this much earlier than transfers slow down, and its complaint begin as much later than they
#: are told, because counters are read more seldom than steps end.
PORT_SLACK_MS, PORT_LATE_MS = 300_000, 60_000
#: Blocks between the first alarm and the verdict: the other members of a slow group need time to show.
PATIENCE = 1
#: An onset this close to another one belongs to it.
SAME_CAUSE_BLOCKS = 4
#: On top of one cause, another is only named when it explains this much of the new growth.
SECOND_FIT = 0.6


@dataclass(frozen=True)
class _Hypothesis:
    scope: FindingScope
    nodes: tuple[str, ...]
    name: str
    fit: float


def link_findings(
    detector: str, version: str, run: RunSteps, channel: Channel, frames: Frames, limits: TargetLimits
) -> list[Finding]:
    """Return findings of class `link` for one run; `port_samples` break ties that steps alone cannot."""
    found = _from_steps(detector, version, run, channel, limits)
    if any(one.scope == FindingScope.JOB for one in found):
        ports = PortDetector().score(frames)
        found = [_named_by_ports(one, ports, run) for one in found]
    return found


def _named_by_ports(finding: Finding, ports: list[Finding], run: RunSteps) -> Finding:
    """Name the one node, link or leaf switch of the job whose ports complained at the time, if there is exactly one."""
    if finding.scope != FindingScope.JOB or finding.detected_at is None or finding.first_seen_at is None:
        return finding
    mine = {node for node in run.layout.node_R if node is not None}
    near = [
        port
        for port in ports
        if port.state == FindingState.RAISED
        and port.node in mine
        and port.first_seen_at is not None
        and finding.first_seen_at - PORT_SLACK_MS <= port.first_seen_at <= finding.detected_at + PORT_LATE_MS
    ]
    nodes = sorted({str(port.node) for port in near})
    place = _place_of_ports(run, nodes)
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


def _place_of_ports(run: RunSteps, nodes: list[str]) -> _Place | None:
    """Return what a set of complaining nodes has in common: itself, its leaf switch, or nothing."""
    if len(nodes) == 1:
        return _Place(FindingScope.NODE, nodes[0], (nodes[0],), True, 0.8)
    leaf_R = run.layout.domain.get("leaf_switch", ())
    of_node = {node: leaf for node, leaf in zip(run.layout.node_R, leaf_R, strict=False) if node is not None}
    leaves = {of_node.get(node) for node in nodes}
    if len(leaves) == 1 and None not in leaves:
        leaf = str(leaves.pop())
        below = [node for node, name in of_node.items() if name == leaf]
        if len(nodes) >= 0.6 * len(below):
            return _Place(FindingScope.LEAF_SWITCH, None, (leaf,), True, 0.8)
    if len(nodes) == 2:
        return _Place(FindingScope.LINK, nodes[0], tuple(nodes), True, 0.7)
    return None


def _from_steps(detector: str, version: str, run: RunSteps, channel: Channel, limits: TargetLimits) -> list[Finding]:
    found: list[Finding] = []
    said: dict[tuple[FindingScope, tuple[str, ...]], Finding] = {}
    begun: list[int] = []
    for episode in channel.episodes:
        if any(abs(episode.begin - other) <= SAME_CAUSE_BLOCKS for other in begun):
            continue
        begun.append(episode.begin)
        at = min(episode.said + PATIENCE, len(channel.dev.own_TR) - 1)
        together = [one for one in channel.episodes if abs(one.begin - episode.begin) <= SAME_CAUSE_BLOCKS]
        finding = _verdict(detector, version, run, channel, episode, at, limits)
        if finding is None:
            continue
        if said and finding.evidence["hypotheses"] and finding.evidence["hypotheses"][0]["explains"] < SECOND_FIT:
            continue
        if (finding.scope, finding.targets) in said or (said and not finding.blames_hardware):
            # More ranks show what was said, or what came on top of it has no place.
            continue
        said[finding.scope, finding.targets] = finding
        found.append(finding)
        ends = [other.over for other in together]
        if all(end is not None for end in ends):
            over = max(end for end in ends if end is not None)
            found.append(_cleared(finding, run, over))
            del said[finding.scope, finding.targets]
    return found + _everywhere(detector, version, run, channel, limits, bool(found))


def _everywhere(
    detector: str, version: str, run: RunSteps, channel: Channel, limits: TargetLimits, told: bool
) -> list[Finding]:
    """All ranks move data longer at once: one group of all ranks; told once, about the job (or its only link)."""
    common = channel.dev.common_TG[:, 0].astype(float) - COMMON_BIAS * np.median(channel.dev.sigma_TR, axis=1)
    if told or len(common) < 24 or not common[16:].max() >= EVERYWHERE_SHARE:
        return []
    past = np.abs(np.diff(common[1:]))
    for block in range(16, len(common)):
        scatter = max(0.001, 1.4826 * float(np.median(past[: block - 4])))
        recent = common[block - 3 : block + 1]
        rise = float(recent.min())
        if rise < EVERYWHERE_SHARE or rise < 8 * scatter or not _without_compute(run, block, rise):
            continue
        begin = block - 3
        while begin > 0 and common[begin - 1] > 0.5 * rise:
            begin -= 1
        place = _place(run, None, [])
        finding = Finding(
            detector=detector, detector_version=version, kind=FindingKind.SLOW, class_="link", scope=place.scope,
            summary=_sentence(place, rise, run.shape[1]), score=round(rise / scatter, 3),
            severity=Severity.P3 if place.blames else Severity.P4, detected_at=end_of_block(run, block),
            cluster=run.cluster, node=place.node, job=run.job, run=run.run, targets=place.targets,
            first_seen_at=end_of_block(run, max(0, begin - 1)), first_step=int(run.steps_S[begin * BLOCK]),
            detected_step=int(run.steps_S[(block + 1) * BLOCK - 1]), blames_hardware=place.blames,
            confidence=place.confidence, expected_gain=round(rise, 4),
            evidence={"channel": "transfer", "growth_share_of_step": round(rise, 4), "affected_ranks": "all"},
        )  # fmt: skip
        return [finding]
    return []


def _without_compute(run: RunSteps, block: int, rise: float) -> bool:
    """Say whether compute did not grow along: with more work both do, and it is no link."""
    compute = run.channel("compute_us")
    if compute is None:
        return True
    now = np.nanmedian(compute[(block - 3) * BLOCK : (block + 1) * BLOCK])
    before = np.nanmedian(compute[: 12 * BLOCK])
    return bool(now / before - 1 < rise)


def _growth(channel: Channel, episode: Episode, at: int) -> tuple[FloatArray, FloatArray]:
    """Growth of each rank's transfer share since the onset, above the least affected fifth; and its scatter."""
    change_TR: FloatArray = channel.dev.own_TR + channel.compared.to_ranks(channel.dev.common_TG)
    if episode.path == 4:
        change_TR = channel.dev.level_TR
    begin = max(min(episode.begin, at), at - 8)
    recent = change_TR[begin : at + 1]
    growth: FloatArray = np.where(np.isfinite(recent), recent, 0.0).mean(axis=0)
    if episode.path != 4 and begin >= 4:
        # What was there before this episode began has another cause.
        prior = change_TR[max(0, begin - 8) : begin - 1]
        growth = growth - np.where(np.isfinite(prior), prior, 0.0).mean(axis=0)
    least = np.quantile(growth, 0.2)
    return np.maximum(growth - least, 0.0), channel.dev.sigma_TR[at] / np.sqrt(len(recent))


def _verdict(
    detector: str,
    version: str,
    run: RunSteps,
    channel: Channel,
    episode: Episode,
    at: int,
    limits: TargetLimits,
) -> Finding | None:
    """Return the statement about one onset; None where a few ranks scatter and no place explains them."""
    growth, sigma = _growth(channel, episode, at)
    ranked = _rank_hypotheses(run, growth)
    best = _simplest(ranked)
    equal = [one for one in ranked if best is not None and one.fit > best.fit - TIE and one.scope == best.scope]
    place = _place(run, best, equal)
    gain = float(np.clip(growth.max(initial=0.0), 0, 1))
    layout = run.layout
    affected = np.nonzero(growth > np.maximum(3 * sigma, 0.3 * growth.max(initial=0.0)))[0]
    if place.scope == FindingScope.JOB and len(affected) < WIDESPREAD * len(growth):
        return None
    serious = gain >= limits.serious_gain and run.shape[1] >= limits.serious_ranks
    return Finding(
        detector=detector,
        detector_version=version,
        kind=FindingKind.SLOW,
        class_="link",
        summary=_sentence(place, gain, len(affected)),
        score=round(episode.score, 3),
        severity=Severity.P2 if serious and place.blames else Severity.P3 if place.blames else Severity.P4,
        detected_at=end_of_block(run, at),
        cluster=run.cluster,
        job=run.job,
        run=run.run,
        scope=place.scope,
        node=place.node,
        targets=place.targets,
        first_seen_at=end_of_block(run, max(0, episode.begin - 1)),
        first_step=int(run.steps_S[episode.begin * BLOCK]),
        detected_step=int(run.steps_S[(at + 1) * BLOCK - 1]),
        blames_hardware=place.blames,
        confidence=place.confidence,
        expected_gain=round(gain, 4),
        evidence={
            "channel": "transfer",
            "growth_share_of_step": round(gain, 4),
            "affected_ranks": [int(layout.ranks_R[i]) for i in affected[:64]],
            "hypotheses": [
                {"scope": one.scope.value, "target": one.name, "explains": round(one.fit, 3)} for one in ranked[:5]
            ],
            "roles_known": layout.known,
        },
    )


def _simplest(ranked: list[_Hypothesis]) -> _Hypothesis | None:
    """Return the best fit; a link rather than one of its ends where both explain the same."""
    if not ranked or ranked[0].scope != FindingScope.NODE:
        return ranked[0] if ranked else None
    node = ranked[0].nodes[0]
    links = [one for one in ranked if one.scope == FindingScope.LINK and node in one.nodes]
    return links[0] if links and links[0].fit > ranked[0].fit - PENALTY else ranked[0]


@dataclass(frozen=True)
class _Place:
    scope: FindingScope
    node: str | None
    targets: tuple[str, ...]
    blames: bool
    confidence: float


def _place(run: RunSteps, best: _Hypothesis | None, equal: list[_Hypothesis]) -> _Place:
    nodes = sorted({node for node in run.layout.node_R if node is not None})
    if len(nodes) == 2:
        # Two nodes share one path: either adapter, or the link between them.
        return _Place(FindingScope.LINK, nodes[0], tuple(nodes), True, 0.6)
    if best is None or best.fit < 0.3:
        return _Place(FindingScope.JOB, None, (run.job or "job",), False, 0.4)
    if len(equal) == 1:
        node = best.nodes[0] if best.scope != FindingScope.LEAF_SWITCH else None
        targets = (best.name,) if best.scope == FindingScope.LEAF_SWITCH else best.nodes
        return _Place(best.scope, node, targets, True, round(min(0.95, 0.5 + best.fit / 2), 2))
    names = tuple(sorted({node for one in equal for node in one.nodes}))
    if len(names) == 2:
        return _Place(FindingScope.LINK, names[0], names, True, 0.6)
    return _Place(FindingScope.JOB, None, names, False, 0.5)


def _rank_hypotheses(run: RunSteps, growth: FloatArray) -> list[_Hypothesis]:
    layout = run.layout
    by_node = layout.positions_by(layout.node_R)
    if len(by_node) < 2 or not growth.any():
        return []
    order = sorted(by_node, key=lambda name: (-float(growth[by_node[name]].mean()), name))[:CANDIDATES]
    groups = {axis: layout.communication_groups(axis) for axis in ("dp", "cp") if layout.known}
    groups = {axis: group for axis, group in groups.items() if (layout.axis_R[axis] >= 0).any()}
    total = float(((growth - growth.mean()) ** 2).sum()) or 1.0
    found = [
        _Hypothesis(FindingScope.NODE, (name,), name, _fit(growth, _node_patterns(run, {name}, groups), total))
        for name in order
    ]
    for i, a in enumerate(order[:8]):
        for b in order[i + 1 : 8]:
            patterns = _link_patterns(run, a, b)
            found.append(_Hypothesis(FindingScope.LINK, (a, b), f"{a} - {b}", _fit(growth, patterns, total)))
    leaf = layout.domain.get("leaf_switch")
    if leaf is not None:
        members: dict[str, set[str]] = {}
        for node, name in zip(layout.node_R, leaf, strict=True):
            if node is not None and name is not None:
                members.setdefault(name, set()).add(node)
        for name, nodes in sorted(members.items()):
            if len(nodes) >= 2 and len(members) >= 2:
                patterns = _node_patterns(run, nodes, groups)
                fit = _fit(growth, patterns, total) - PENALTY
                found.append(_Hypothesis(FindingScope.LEAF_SWITCH, tuple(sorted(nodes)), name, fit))
    return sorted(found, key=lambda one: (-one.fit, one.name))


def _node_patterns(run: RunSteps, nodes: set[str], groups: dict[str, Groups]) -> list[FloatArray]:
    """Own ranks; members of groups across nodes that contain one of them; pipeline neighbours."""
    layout = run.layout
    own = np.array([node in nodes for node in layout.node_R], dtype=float)
    patterns = [own]
    for group in groups.values():
        touched = np.zeros(len(group.size_G))
        np.maximum.at(touched, group.of_rank_R, own)
        patterns.append(group.to_ranks(touched))
    neighbours = _pipeline_neighbours(run, own)
    if neighbours is not None:
        patterns.append(neighbours)
    return patterns


def _pipeline_neighbours(run: RunSteps, own: FloatArray) -> FloatArray | None:
    layout = run.layout
    if (layout.axis_R["pp"] < 0).all():
        return None
    result = own.copy()
    pipeline = layout.communication_groups("pp")
    for members in pipeline.members_GN:
        real = [int(i) for i in members if i < len(own)]
        chain = sorted(real, key=lambda i: int(layout.axis_R["pp"][i]))
        for a, b in pairwise(chain):
            result[a], result[b] = max(result[a], own[b]), max(result[b], own[a])
    return result


def _link_patterns(run: RunSteps, a: str, b: str) -> list[FloatArray]:
    """The ranks of both ends that talk to each other over the pipeline; else all ranks of both ends."""
    layout = run.layout
    at_a = np.array([node == a for node in layout.node_R], dtype=float)
    at_b = np.array([node == b for node in layout.node_R], dtype=float)
    near_a, near_b = _pipeline_neighbours(run, at_a), _pipeline_neighbours(run, at_b)
    if near_a is None or near_b is None:
        return [at_a + at_b]
    pair = at_a * near_b + at_b * near_a
    return [pair] if pair.any() else [at_a + at_b]


def _fit(growth: FloatArray, patterns: list[FloatArray], total: float) -> float:
    """Share of the growth's variance that the patterns explain, less a penalty per pattern."""
    design = np.stack([*patterns, np.ones(len(growth))], axis=1)
    gram, moment = design.T @ design, design.T @ growth
    # Non-negative least squares on the normal equations: a few weights, whatever the number of ranks.
    root = np.linalg.cholesky(gram + 1e-9 * np.trace(gram) * np.eye(len(gram)))
    weights, _ = nnls(root.T, np.linalg.solve(root, moment))
    rest = float(((growth - design @ weights) ** 2).sum())
    used = int((weights[:-1] > 1e-6).sum())
    return 1 - rest / total - PENALTY * used


def _sentence(place: _Place, gain: float, affected: int) -> str:
    tail = f"{affected} ranks move data longer; the step would be {100 * gain:.1f} % shorter without it."
    if place.scope == FindingScope.NODE:
        return f"The network adapter or link of {place.node} is slow: {tail}"
    if place.scope == FindingScope.LINK:
        return f"The link between {place.targets[0]} and {place.targets[1]} is slow: {tail}"
    if place.scope == FindingScope.LEAF_SWITCH:
        return f"Leaf switch {place.targets[0]} is congested or slow: {tail}"
    return f"Transfers became slower, the place cannot be told from step times alone: {tail}"


def _cleared(finding: Finding, run: RunSteps, block: int) -> Finding:
    return replace(
        finding,
        state=FindingState.CLEARED,
        detected_at=end_of_block(run, block),
        detected_step=int(run.steps_S[(block + 1) * BLOCK - 1]),
        summary=finding.summary.split(":")[0] + ": over.",
    )
