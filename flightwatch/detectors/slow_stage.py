"""A whole stage that slows at once: a throttled rack, or just more work; clocks decide.

A rack can be exactly one pipeline stage: then all peers are slow alike and no peer stands out. The stage
is compared with the other stages' change; only falling clocks of its devices make it hardware.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.clocks import change_around
from flightwatch.detectors.contract import Finding, Frames
from flightwatch.detectors.drift import BLOCK
from flightwatch.detectors.grouped import MAD_TO_SIGMA, FloatArray, sorted_median, trailing_mean
from flightwatch.detectors.rank_matrix import RunSteps
from flightwatch.detectors.slow_channels import Channel
from flightwatch.detectors.slow_targets import TargetLimits
from flightwatch.detectors.slow_words import end_of_block

#: Smallest change of a stage against the others (log ratio), and its strength in sigmas.
STAGE_EFFECT, STAGE_Z = 0.03, 7.0
#: Blocks averaged; blocks after the onset in which clocks are read.
WIDTH = 4
#: Clocks must have fallen by this share of the effect.
CLOCK_SHARE = 0.4
#: Blocks for which clocks are asked again.
CLOCK_PATIENCE = 12


def stage_findings(
    detector: str, version: str, run: RunSteps, channel: Channel, frames: Frames, limits: TargetLimits
) -> list[Finding]:
    """Return findings about whole stages of one run."""
    layout = run.layout
    if not layout.known or len(channel.role.size_G) < 2:
        return []
    change_TR = channel.dev.own_TR + channel.compared.to_ranks(channel.dev.common_TG) + channel.dev.shared_TR
    # All ranks of the stage alike: its quarter that changed least changed too.
    stage_TG = channel.role.quantiles(change_TR, 0.25)
    found: list[Finding] = []
    for group in range(stage_TG.shape[1]):
        others = np.delete(stage_TG, group, axis=1)
        excess = stage_TG[:, group] - sorted_median(others)
        found += _of_stage(detector, version, run, channel, frames, limits, group, excess)
    # Two stages of one rack are one statement about the rack.
    once = {(one.id if one.state != FindingState.CHANGED else one.targets, one.state): one for one in reversed(found)}
    return sorted(once.values(), key=lambda one: one.detected_step or 0)


def _of_stage(
    detector: str,
    version: str,
    run: RunSteps,
    channel: Channel,
    frames: Frames,
    limits: TargetLimits,
    group: int,
    excess: FloatArray,
) -> list[Finding]:
    mean = trailing_mean(excess[:, None], WIDTH)[:, 0]
    if not np.nanmax(mean[12:], initial=0.0) > STAGE_EFFECT:
        return []
    found: list[Finding] = []
    open_: Finding | None = None
    said = 0
    for block in range(12, len(excess)):
        past = excess[max(0, block - 60) : block - WIDTH]
        sigma = max(0.004, MAD_TO_SIGMA * float(np.nanmedian(np.abs(past - np.nanmedian(past)))))
        strength = mean[block] / (sigma * np.sqrt(1 / WIDTH + 1 / 12))
        if open_ is None and mean[block] > STAGE_EFFECT and strength > STAGE_Z and excess[block] > 0.5 * mean[block]:
            open_ = _say(detector, version, run, channel, frames, limits, group, excess, block, float(strength))
            found.append(open_)
            said = block
        elif open_ is not None and open_.kind == FindingKind.IMBALANCE and block - said <= CLOCK_PATIENCE:
            # Telemetry is slower than steps: ask the clocks again for a while before work is blamed for good.
            again = _say(detector, version, run, channel, frames, limits, group, excess, block, float(strength))
            if again.kind == FindingKind.SLOW:
                open_ = replace(again, id=open_.id, state=FindingState.CHANGED, first_step=open_.first_step)
                found.append(open_)
        if open_ is not None and mean[block] < 0.35 * float(open_.evidence["effect"]):
            step = int(run.steps_S[(block + 1) * BLOCK - 1])
            found.append(
                replace(open_, state=FindingState.CLEARED, detected_step=step, detected_at=end_of_block(run, block))
            )
            open_ = None
    return found


def _say(
    detector: str,
    version: str,
    run: RunSteps,
    channel: Channel,
    frames: Frames,
    limits: TargetLimits,
    group: int,
    excess: FloatArray,
    block: int,
    strength: float,
) -> Finding:
    layout = run.layout
    effect = float(np.nanmean(excess[block - WIDTH + 1 : block + 1]))
    begin = block
    while begin > 0 and excess[begin - 1] > 0.4 * effect:
        begin -= 1
    slowed, seen = _clocks_fell(run, frames, begin, block, effect)
    positions = [int(i) for i in channel.role.members_GN[group] if i < len(layout.ranks_R)]
    stage = int(layout.axis_R["pp"][positions[0]])
    seen |= {"effect": round(effect, 4), "stage": stage, "z": round(strength, 2)}
    common: dict[str, Any] = {
        "detector": detector,
        "detector_version": version,
        "score": round(strength, 3),
        "cluster": run.cluster,
        "job": run.job,
        "run": run.run,
        "detected_at": end_of_block(run, block),
        "first_seen_at": end_of_block(run, max(0, begin - 1)),
        "first_step": int(run.steps_S[begin * BLOCK]),
        "detected_step": int(run.steps_S[(block + 1) * BLOCK - 1]),
        "evidence": seen,
    }
    percent = 100 * (np.exp(effect) - 1)
    if slowed is not None and np.mean([slowed[i] for i in positions]) >= limits.rack_share:
        scope, node, targets, class_ = _domain(run, slowed)
        return Finding(
            kind=FindingKind.SLOW, class_=class_, scope=scope, node=node, targets=targets,
            summary=f"{targets[0]} slowed stage {stage} by {percent:.1f} %: the clocks of its devices fell with it.",
            severity=Severity.P2 if run.shape[1] >= limits.serious_ranks and effect >= limits.serious_gain
            else Severity.P3,
            blames_hardware=True, confidence=0.9, expected_gain=round(float(1 - np.exp(-effect)), 4), **common,
        )  # fmt: skip
    return Finding(
        kind=FindingKind.IMBALANCE, class_="stage", scope=FindingScope.STAGE, targets=(f"stage {stage}",),
        summary=f"Stage {stage} takes {percent:.1f} % longer than before, all its ranks alike, at unchanged clocks: "
        "more work, not hardware.",
        severity=Severity.INFO, confidence=0.6, **common,
    )  # fmt: skip


def _clocks_fell(
    run: RunSteps, frames: Frames, begin: int, block: int, effect: float
) -> tuple[np.ndarray | None, dict[str, Any]]:
    start = end_of_block(run, max(0, begin - 1))
    end, origin = end_of_block(run, block), end_of_block(run, max(0, begin - 13))
    if start is None or end is None or origin is None:
        return None, {"clocks": "no times"}
    ratio = change_around(frames, run.layout, "sm_clock_mhz", (origin, start), (start + (end - start) / 2, end))
    if ratio is None:
        return None, {"clocks": "not collected"}
    usual = float(np.nanmedian(ratio))
    fell = np.nan_to_num(1 - ratio, nan=0.0) > CLOCK_SHARE * (1 - np.exp(-effect))
    return fell, {"clock_ratio_of_job": round(usual, 3), "devices_with_lower_clocks": int(fell.sum())}


def _domain(run: RunSteps, slowed: np.ndarray) -> tuple[FindingScope, str | None, tuple[str, ...], str]:
    layout = run.layout
    nodes = sorted({str(layout.node_R[i]) for i in np.nonzero(slowed)[0]})
    racks = layout.domain.get("rack")
    if racks is not None and len(nodes) > 1:
        names = {racks[i] for i in np.nonzero(slowed)[0]}
        if len(names) == 1 and None not in names:
            return FindingScope.RACK, None, (str(names.pop()),), "rack"
    if len(nodes) == 1:
        return FindingScope.NODE, nodes[0], (nodes[0],), "host"
    return FindingScope.RACK, None, tuple(nodes), "rack"
