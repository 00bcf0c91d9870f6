"""Places that could be slow, and how well each explains whose transfers grew.

Each hypothesis (a node's adapter, a link between two nodes, a leaf switch) predicts a pattern over ranks: its own
ranks, the ranks that share a group with it per axis. Patterns are fitted to the measured growth with non-negative
weights; the best fit names the place, fits that cannot be told apart are said to be equal. After C4D (2024), which
reads a sender-receiver matrix: a row is a sender, a column a receiver, a cell a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.optimize import nnls

from flightwatch.core.vocabulary import FindingScope
from flightwatch.detectors.grouped import FloatArray, Groups
from flightwatch.detectors.rank_matrix import RunSteps

#: Fits cannot be told from the best one when they explain nearly as much (share of the variance), or when what they
#: explain less is so little in units of what the best one leaves over.
TIE, TIE_EVIDENCE = 0.0005, 30.0
#: A more complex hypothesis (more weights) must explain this much more per weight.
PENALTY = 0.005
#: Candidate nodes looked at, those with the largest growth first.
CANDIDATES = 24
#: A second adapter must explain so much of the variance beside the first, and so many times what both leave over per
#: rank; its own ranks' transfers must have grown by this share of the largest growth.
SECOND_GAIN, SECOND_EVIDENCE, SECOND_OWN = 0.05, 60.0, 0.3


@dataclass(frozen=True)
class Hypothesis:
    """A place; the share of the growth's variance its patterns explain, and the same less a penalty per weight."""

    scope: FindingScope
    nodes: tuple[str, ...]
    name: str
    fit: float
    explains: float


def rank_hypotheses(run: RunSteps, growth: FloatArray) -> list[Hypothesis]:
    """Return the places that could explain the growth of each rank's transfers, [R], best fit first."""
    layout = run.layout
    by_node = layout.positions_by(layout.node_R)
    if len(by_node) < 2 or not growth.any():
        return []
    order = sorted(by_node, key=lambda name: (-float(growth[by_node[name]].mean()), name))[:CANDIDATES]
    groups = _groups_across(run)
    total = float(((growth - growth.mean()) ** 2).sum()) or 1.0
    found = [
        Hypothesis(FindingScope.NODE, (name,), name, *_fit(growth, _node_patterns(run, {name}, groups), total))
        for name in order
    ]
    for i, a in enumerate(order[:8]):
        for b in order[i + 1 : 8]:
            patterns = _link_patterns(run, a, b)
            found.append(Hypothesis(FindingScope.LINK, (a, b), f"{a} - {b}", *_fit(growth, patterns, total)))
    leaf = layout.domain.get("leaf_switch")
    if leaf is not None:
        members: dict[str, set[str]] = {}
        for node, name in zip(layout.node_R, leaf, strict=True):
            if node is not None and name is not None:
                members.setdefault(name, set()).add(node)
        for name, nodes in sorted(members.items()):
            if len(nodes) >= 2 and len(members) >= 2:
                patterns = _node_patterns(run, nodes, groups)
                fit, explains = _fit(growth, patterns, total)
                found.append(Hypothesis(FindingScope.LEAF_SWITCH, tuple(sorted(nodes)), name, fit - PENALTY, explains))
    return sorted(found, key=lambda one: (-one.fit, one.name))


def second_adapter(run: RunSteps, growth: FloatArray, sigma_R: FloatArray, said: set[str]) -> Hypothesis | None:
    """Return the one node whose adapter explains what those said before leave over; None where none or several do.

    A group runs at the pace of its slowest adapter, so the patterns of all of them together are fitted, not their sum.
    """
    groups = _groups_across(run)
    total = float(((growth - growth.mean()) ** 2).sum())
    before = _node_patterns(run, said, groups)
    known = _fit(growth, before, total or 1.0)[1]
    own = {name: float(growth[ranks].mean()) for name, ranks in run.layout.positions_by(run.layout.node_R).items()}
    order = sorted((name for name in own if name not in said), key=lambda name: (-own[name], name))[:CANDIDATES]
    order = [name for name in order if own[name] > SECOND_OWN * growth.max(initial=0.0)]
    if not total or not order:
        return None
    found = [
        Hypothesis(FindingScope.NODE, (name,), name,
                   *_fit(growth, [*before, *_node_patterns(run, {*said, name}, groups)], total))
        for name in order
    ]  # fmt: skip
    best = max(found, key=lambda one: one.explains)
    left = max((1 - best.explains) * total / max(1, len(growth) - 7), float(np.median(sigma_R)) ** 2)
    enough = best.explains - known > max(SECOND_GAIN, SECOND_EVIDENCE * left / total)
    alone = sum(one.explains > best.explains - max(TIE, TIE_EVIDENCE * left / total) for one in found) == 1
    return best if enough and alone else None


def _groups_across(run: RunSteps) -> dict[str, Groups]:
    layout = run.layout
    groups = {axis: layout.communication_groups(axis) for axis in ("dp", "cp") if layout.known}
    return {axis: group for axis, group in groups.items() if (layout.axis_R[axis] >= 0).any()}


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


def _fit(growth: FloatArray, patterns: list[FloatArray], total: float) -> tuple[float, float]:
    """Share of the growth's variance that the patterns explain, with a penalty per pattern used and without."""
    design = np.stack([*patterns, np.ones(len(growth))], axis=1)
    gram, moment = design.T @ design, design.T @ growth
    # Non-negative least squares on the normal equations: a few weights, whatever the number of ranks.
    root = np.linalg.cholesky(gram + 1e-9 * np.trace(gram) * np.eye(len(gram)))
    weights, _ = nnls(root.T, np.linalg.solve(root, moment))
    rest = float(((growth - design @ weights) ** 2).sum())
    used = int((weights[:-1] > 1e-6).sum())
    return 1 - rest / total - PENALTY * used, 1 - rest / total


def simplest(ranked: list[Hypothesis]) -> Hypothesis | None:
    """Return the best fit; a link rather than one of its ends where both explain the same."""
    if not ranked or ranked[0].scope != FindingScope.NODE:
        return ranked[0] if ranked else None
    node = ranked[0].nodes[0]
    links = [one for one in ranked if one.scope == FindingScope.LINK and node in one.nodes]
    return links[0] if links and links[0].fit > ranked[0].fit - PENALTY else ranked[0]


def indistinguishable(
    ranked: list[Hypothesis], best: Hypothesis, growth: FloatArray, sigma_R: FloatArray
) -> tuple[Hypothesis, list[Hypothesis]]:
    """Return the best of the best one's kind and those that cannot be told from it, itself among them.

    Places of one kind have equally many weights: they are compared without the penalty.
    """
    rivals = [one for one in ranked if one.scope == best.scope]
    best = max(rivals, key=lambda one: one.explains) if best.scope == FindingScope.NODE else best
    total = float(((growth - growth.mean()) ** 2).sum())
    left = max((1 - best.explains) * total / max(1, len(growth) - 4), float(np.median(sigma_R)) ** 2)
    margin = max(TIE, TIE_EVIDENCE * left / total) if total > 0 else 1.0
    return best, [one for one in rivals if one.explains > best.explains - margin]
