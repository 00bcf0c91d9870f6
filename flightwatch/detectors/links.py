"""Which link is slow: transfers are shared by whole groups, so groups are intersected, not ranks ranked.

A collective runs at the pace of its slowest adapter: with one slow adapter every member of every group
through it moves data longer. The places that could be slow are fitted to the growth (`link_places`); the best
one is named, few that steps cannot tell apart are named together.

Does not see: one all-rank group alone (every rank's transfer grows alike; then the finding is about the
job and names no node; port counters do).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding, Frames
from flightwatch.detectors.drift import BLOCK, COMMON_BIAS
from flightwatch.detectors.episodes import Episode
from flightwatch.detectors.grouped import FloatArray
from flightwatch.detectors.link_places import (
    SECOND_GAIN,
    Hypothesis,
    indistinguishable,
    rank_hypotheses,
    second_adapter,
    simplest,
)
from flightwatch.detectors.link_ports import Place, named_by_ports, place_of_ports
from flightwatch.detectors.ports import PortDetector
from flightwatch.detectors.rank_matrix import RunSteps
from flightwatch.detectors.slow_channels import Channel
from flightwatch.detectors.slow_targets import TargetLimits
from flightwatch.detectors.slow_words import end_of_block

#: So many nodes at most, and no more than half of the job's, are named together when steps cannot tell them apart.
MOST_SUSPECTS = 4
#: Growth that no place explains is told only when it shows on this share of the ranks.
WIDESPREAD, WELL_EXPLAINED = 0.25, 0.5
#: Growth of everybody's transfers, as share of the step, that is told.
EVERYWHERE_SHARE = 0.01
#: Blocks between the first alarm and the verdict: the other members of a slow group need time to show.
PATIENCE = 1
#: An onset this close to another one belongs to it.
SAME_CAUSE_BLOCKS = 4
#: Blocks after the first verdict at which a second adapter is sought.
SECOND_LOOKS = (0, 2, 4, 8, 16, 32)
#: On top of one cause, another is only named when it explains this much of the new growth.
SECOND_FIT = 0.6


def link_findings(
    detector: str, version: str, run: RunSteps, channels: Mapping[str, Channel], frames: Frames, limits: TargetLimits
) -> list[Finding]:
    """Return findings of class `link` for one run; `port_samples` break ties that steps alone cannot."""
    found = _without_victims(_from_steps(detector, version, run, channels["transfer"], limits), run, channels)
    if any(one.scope == FindingScope.JOB for one in found):
        ports = PortDetector().score(frames)
        found = [named_by_ports(one, ports, run) for one in found]
    return found


def _without_victims(found: list[Finding], run: RunSteps, channels: Mapping[str, Channel]) -> list[Finding]:
    """Leave out what began with slow computing, data or launching, where transfers were not measured.

    Worked out as the shortest time of each group they hold what a whole group waits for somebody outside of it.
    """
    if not found or run.is_measured("transfer_us") or run.is_measured("wait_us"):
        return found
    begun = [one.begin for name, channel in channels.items() if name != "transfer" for one in channel.episodes]
    steps = [int(run.steps_S[min(begin * BLOCK, len(run.steps_S) - 1)]) for begin in begun]
    near = (SAME_CAUSE_BLOCKS + 1) * BLOCK
    return [one for one in found if not any(abs(int(one.first_step or 0) - step) <= near for step in steps)]


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
        over = _all_over(together)
        if over is not None:
            found.append(_cleared(finding, run, over))
            del said[finding.scope, finding.targets]
        if finding.scope == FindingScope.NODE:
            for second in _second_adapters(detector, version, run, channel, episode, at, limits, finding):
                if (second.scope, second.targets) not in said:
                    found.append(second)
                    if second.state == FindingState.RAISED:
                        said[second.scope, second.targets] = second
    return found + _everywhere(detector, version, run, channel, limits, bool(found))


def _all_over(episodes: list[Episode]) -> int | None:
    """Return when the last of the episodes was over, None while one lasts."""
    ends = [one.over for one in episodes]
    return max((end for end in ends if end is not None), default=None) if None not in ends else None


def _second_adapters(
    detector: str, version: str, run: RunSteps, channel: Channel, episode: Episode, at: int, limits: TargetLimits,
    first: Finding,
) -> Iterator[Finding]:  # fmt: skip
    """Yield further slow adapters that began with the first one or up to 160 steps after it was told."""
    said = set(first.targets)
    for block in sorted({min(at + later, len(channel.dev.own_TR) - 1) for later in SECOND_LOOKS}):
        growth, sigma = _growth_since(channel, episode, block)
        found = second_adapter(run, growth, sigma, said)
        if found is None:
            continue
        said |= set(found.nodes)
        mine = [i for i, node in enumerate(run.layout.node_R) if node == found.name]
        members = set(mine)
        own = [one for one in channel.episodes if one.rank in members and one.begin >= episode.begin]
        began = min(own, key=lambda one: one.begin, default=episode)
        place = Place(FindingScope.NODE, found.name, found.nodes, True, round(0.4 + found.explains / 2, 2))
        finding = _say(detector, version, run, began, block, limits, place, growth, np.array(mine), [found])
        yield finding
        over = _all_over(own) if own else None
        if over is not None and over > block:
            yield _cleared(finding, run, over)


def _growth_since(channel: Channel, episode: Episode, at: int) -> tuple[FloatArray, FloatArray]:
    """Growth of each rank's transfer share over the last blocks, against those before an episode; and its scatter."""
    change_TR: FloatArray = channel.dev.own_TR + channel.compared.to_ranks(channel.dev.common_TG)
    recent = change_TR[max(episode.begin, at - 3) : at + 1]
    prior = change_TR[max(0, episode.begin - 8) : max(1, episode.begin - 1)]
    growth = np.where(np.isfinite(recent), recent, 0.0).mean(axis=0)
    growth = growth - np.where(np.isfinite(prior), prior, 0.0).mean(axis=0)
    return np.maximum(growth - np.quantile(growth, 0.2), 0.0), channel.dev.sigma_TR[at] / np.sqrt(len(recent))


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
    ranked = rank_hypotheses(run, growth)
    best = simplest(ranked)
    best, equal = (None, []) if best is None else indistinguishable(ranked, best, growth, sigma)
    top = max((one for one in ranked if one.scope == FindingScope.NODE), key=lambda one: one.explains, default=None)
    two = None if top is None else second_adapter(run, growth, sigma, set(top.nodes))
    if top is not None and two is not None and (best is None or two.explains > best.explains + SECOND_GAIN):
        # Two slow adapters explain more than any one place; the second is told on its own.
        best, equal = top, [top]
    place = _place(run, best, equal)
    affected = np.nonzero(growth > np.maximum(3 * sigma, 0.3 * growth.max(initial=0.0)))[0]
    unexplained = best is None or best.explains < WELL_EXPLAINED
    if place.scope == FindingScope.JOB and unexplained and len(affected) < WIDESPREAD * len(growth):
        return None
    return _say(detector, version, run, episode, at, limits, place, growth, affected, ranked[:5])


def _say(
    detector: str, version: str, run: RunSteps, episode: Episode, at: int, limits: TargetLimits, place: Place,
    growth: FloatArray, affected: np.ndarray, ranked: list[Hypothesis],
) -> Finding:  # fmt: skip
    gain = float(np.clip(growth.max(initial=0.0), 0, 1))
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
            "affected_ranks": [int(run.layout.ranks_R[i]) for i in affected[:64]],
            "hypotheses": [
                {"scope": one.scope.value, "target": one.name, "explains": round(one.fit, 3)} for one in ranked
            ],
            "roles_known": run.layout.known,
        },
    )


def _place(run: RunSteps, best: Hypothesis | None, equal: list[Hypothesis]) -> Place:
    nodes = sorted({node for node in run.layout.node_R if node is not None})
    if len(nodes) == 2:
        # Two nodes share one path: either adapter, or the link between them.
        return Place(FindingScope.LINK, nodes[0], tuple(nodes), True, 0.6)
    if best is None or best.fit < 0.3:
        return Place(FindingScope.JOB, None, (run.job or "job",), False, 0.4)
    if len(equal) == 1:
        node = best.nodes[0] if best.scope != FindingScope.LEAF_SWITCH else None
        targets = (best.name,) if best.scope == FindingScope.LEAF_SWITCH else best.nodes
        return Place(best.scope, node, targets, True, round(min(0.95, 0.5 + best.fit / 2), 2))
    names = tuple(sorted({node for one in equal for node in one.nodes}))
    if len(names) == 2:
        return Place(FindingScope.LINK, names[0], names, True, 0.6)
    if len(names) <= min(MOST_SUSPECTS, len(nodes) // 2):
        # One group alone is slow: its own network is, whichever member it is.
        return Place(FindingScope.LINK, None, names, True, 0.5)
    leaf = place_of_ports(run, list(names))
    if leaf is not None and leaf.scope == FindingScope.LEAF_SWITCH and len(nodes) > len(names):
        return replace(leaf, confidence=0.5, doubtful=True)
    return Place(FindingScope.JOB, None, names, False, 0.5)


def _sentence(place: Place, gain: float, affected: int) -> str:
    tail = f"{affected} ranks move data longer; the step would be {100 * gain:.1f} % shorter without it."
    if place.scope == FindingScope.NODE:
        return f"The network adapter or link of {place.node} is slow: {tail}"
    if place.scope == FindingScope.LINK and len(place.targets) > 2:
        names = f"{', '.join(place.targets[:-1])} and {place.targets[-1]}"
        return f"One of the network adapters or links of {names}, which share groups, is slow: {tail}"
    if place.scope == FindingScope.LINK:
        return f"The link between {place.targets[0]} and {place.targets[1]} is slow: {tail}"
    if place.scope == FindingScope.LEAF_SWITCH:
        also = " or one of the nodes below it" if place.doubtful else ""
        return f"Leaf switch {place.targets[0]}{also} is congested or slow: {tail}"
    return f"Transfers became slower, the place cannot be told from step times alone: {tail}"


def _cleared(finding: Finding, run: RunSteps, block: int) -> Finding:
    return replace(
        finding,
        state=FindingState.CLEARED,
        detected_at=end_of_block(run, block),
        detected_step=int(run.steps_S[(block + 1) * BLOCK - 1]),
        summary=finding.summary.split(":")[0] + ": over.",
    )
