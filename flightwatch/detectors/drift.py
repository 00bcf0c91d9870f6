"""Who leaves its own baseline, and who stands apart from its peers: the statistics behind `slow`.

Times become `L`, either the logarithm of a time or a time as share of the step. From every step the
median of the role group is taken off (what changes for all alike is no deviation), then blocks of
five steps are reduced to their median, so a single long step says nothing.

Every rank carries its own baseline (the median of its first blocks, then moving slowly, each move
clipped to half a sigma), so a chip that is a little slower than its peers all its life is not a
finding: a change is. Four tests read the deviations:
- window: mean over 1, 2, 4, ... blocks against the scatter of such means;
- accumulation: one-sided CUSUM with a drift of one per cent (Page 1954), which finds what is small
  but stays;
- level: a rank far from its role peers from the start (needs peers; healthy chips differ, so only
  far outliers);
- recurrence: bursts of at least three steps above the rank's own level, several times, more often than
  at any peer (single steps on a schedule are logging or evaluation, not hardware).

Shape letters: S steps, T blocks, R ranks, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flightwatch.detectors.bursts import BurstLimits, recurring_bursts, single_steps
from flightwatch.detectors.grouped import (
    MAD_TO_SIGMA,
    BoolArray,
    FloatArray,
    Groups,
    TrailingMeans,
    block_medians,
    keep_lasting,
    quiet_scatter,
    running_total,
    small_group_factor,
    sorted_median,
    trailing_mean,
)
from flightwatch.detectors.levels import far_levels

#: Steps in one block.
BLOCK = 5
#: What is common to a group is read at its lower quartile, not its median: half of a small job's ranks can be on
#: one slow host. A quartile lies this many sigmas below the centre of a normal distribution.
COMMON_QUANTILE, COMMON_BIAS = 0.25, 0.6745
#: In the first blocks only what is so many scatters, and so many drifts, above its peers is kept out of the baseline.
EARLY_Z, EARLY_EFFECT = 8.0, 4.0
#: Blocks over which a settled baseline moves.
BASELINE_MEMORY = 120
#: In groups smaller than this, the scatter about what is common is believed up to so many times the quiet ranks'
#: scatter: what is common is estimated with it, so among few one too large would feed itself until faults drown in it.
SMALL_GROUP, SMALL_GROUP_SCATTER = 8, 2.0


@dataclass(frozen=True)
class DriftThresholds:
    """Defaults of one channel. Effects are in the channel's unit (log ratio or share of the step).

    Attributes
    ----------
    windows: (blocks, z, effect) of the window test.
    floor: smallest believable scatter of one block. drift: change that never accumulates.
    cusum_log_odds: evidence at which the accumulation speaks (natural logarithm of the odds).
    cusum_effect: smallest mean deviation over the accumulating blocks that counts.
    level_z, level_effect, level_floor: the level test; the floor is what healthy chips differ by.
    recurrence_bursts, recurrence_effect, recurrence_z: the recurrence test over `recurrence_window` blocks: how many
    bursts, how high (effect, and scatters of one step).
    singles: whether single long steps without a schedule count as bursts.
    baseline_blocks: blocks that make the first baseline. minimum_blocks: no change test before.
    """

    windows: tuple[tuple[int, float, float], ...] = (
        (1, 8.6, 0.10),
        (2, 7.6, 0.06),
        (4, 6.6, 0.035),
        (8, 6.2, 0.02),
        (16, 5.0, 0.013),
        (32, 4.9, 0.012),
    )
    floor: float = 0.0025
    drift: float = 0.01
    cusum_log_odds: float = 18.0
    cusum_effect: float = 0.013
    level_z: float = 5.0
    level_effect: float = 0.03
    level_floor: float = 0.01
    recurrence_bursts: int = 3
    recurrence_effect: float = 0.025
    recurrence_z: float = 1.6
    recurrence_window: int = 40
    singles: bool = True
    baseline_blocks: int = 12
    minimum_blocks: int = 5


#: Bursts of a rank's compute are remembered as long as a live window is: a tenth of the time, a few steps each, makes
#: three in forty blocks only by luck.
COMPUTE = DriftThresholds(recurrence_window=80)
#: Shares of the step: a channel that takes a few per cent of the step must grow by a per cent of the step.
SHARE = DriftThresholds(
    windows=((1, 10.0, 0.06), (2, 9.0, 0.04), (4, 8.0, 0.02), (8, 7.0, 0.012), (16, 7.0, 0.012)),
    floor=0.002,
    level_z=6.0,
    level_effect=0.02,
    level_floor=0.01,
    recurrence_effect=0.04,
    singles=False,
)
#: Transfers are shared by whole groups and scatter little; a link at half its rate costs 1 % of a step or less.
TRANSFER = DriftThresholds(
    windows=((1, 10.0, 0.05), (2, 9.0, 0.03), (4, 8.0, 0.012), (8, 7.0, 0.006), (16, 7.0, 0.005), (32, 7.0, 0.005)),
    floor=0.001,
    drift=0.003,
    cusum_effect=0.004,
    level_z=6.0,
    level_effect=0.01,
    level_floor=0.004,
    recurrence_effect=0.03,
    singles=False,
)


@dataclass(frozen=True)
class Deviations:
    """Deviations of one channel.

    Attributes
    ----------
    own_TR: block value minus own baseline minus the group's common change.
    level_TR: block value minus the group's median (no baseline).
    shared_TR: how the group's median itself changed since the first blocks (what centring took off).
    sigma_TR: scatter of one block of that rank. inflation: how much more means of 8 blocks scatter than
    independent blocks would (drifting noise), >= 1.
    known_TR: blocks that the baseline has learned from; it stops learning where a fault may have begun.
    centred_SR, usual_TR: values less what is common to a step, and the rank's own level per block: the recurrence
    test reads steps.
    """

    own_TR: FloatArray
    level_TR: FloatArray
    shared_TR: FloatArray
    common_TG: FloatArray
    sigma_TR: FloatArray
    inflation: float
    known_TR: FloatArray
    centred_SR: FloatArray
    usual_TR: FloatArray


def deviations(
    values_SR: FloatArray, groups: Groups, compared: Groups, limits: DriftThresholds, centre_steps: bool = True
) -> Deviations:
    """Take common changes and baselines off.

    Parameters
    ----------
    values_SR: log times or shares. groups: role groups. compared: groups whose median change is common to
        their members (role groups where they are large enough, else all ranks of the job).
    centre_steps: take the group's median off every step first, where steps differ for all alike.
    """
    shared_TR = np.zeros((1, 1), dtype=values_SR.dtype)
    if centre_steps:
        medians_SG = groups.medians(values_SR)
        values_SR = values_SR - groups.to_ranks(medians_SG)
        level_TG = block_medians(medians_SG)
        shared_TR = groups.to_ranks(level_TG - sorted_median(level_TG[: limits.baseline_blocks].T))
    blocks_TR = block_medians(values_SR)
    own_TR, sigma_TR, base_TR, common_TG, known_TR = _follow(blocks_TR, compared, limits)
    level_TR = blocks_TR - groups.to_ranks(groups.medians(blocks_TR))
    inflation = _inflation(own_TR, sigma_TR)
    usual_TR = base_TR + compared.to_ranks(common_TG)
    return Deviations(own_TR, level_TR, shared_TR, common_TG, sigma_TR, inflation, known_TR, values_SR, usual_TR)


def _follow(
    blocks_TR: FloatArray, groups: Groups, limits: DriftThresholds
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Walk through the blocks, keeping each rank's baseline and scatter; causal."""
    blocks, ranks = blocks_TR.shape
    own = np.full_like(blocks_TR, np.nan)
    sigma = np.full_like(blocks_TR, np.nan)
    bases = np.full_like(blocks_TR, np.nan)
    learned_TR = np.empty(blocks_TR.shape, dtype=np.float32)
    learned = np.zeros(ranks, dtype=np.float32)
    clean_TR = np.zeros((min(blocks, limits.baseline_blocks), ranks), dtype=bool)
    commons = np.zeros((blocks, len(groups.size_G)), dtype=blocks_TR.dtype)
    base = np.full(ranks, np.nan, dtype=blocks_TR.dtype)
    scatter_R = np.full(ranks, limits.floor, dtype=np.float64)
    seen, recent = np.zeros(ranks, dtype=np.int64), np.zeros(ranks)
    bias = small_group_factor(groups) * MAD_TO_SIGMA
    small = bool(groups.size_G.min(initial=SMALL_GROUP) < SMALL_GROUP)
    bound_R = np.full(ranks, np.nan)
    for t in range(blocks):
        now = blocks_TR[t]
        fresh = np.isfinite(now)
        seen += fresh
        change = now - base
        common = groups.quantiles(change, COMMON_QUANTILE)
        common += COMMON_BIAS * groups.medians(np.maximum(scatter_R, limits.floor))
        common[np.isnan(common)] = 0
        commons[t], bases[t] = common, base
        deviation = own[t] = change - groups.to_ranks(common)
        known = np.isfinite(deviation)
        low = np.maximum(scatter_R, limits.floor)
        sigma[t], learned_TR[t] = low, learned
        recent += np.where(known, deviation - recent, 0.0) / 8
        suspect = _suspect(t, deviation, recent, low, limits)
        if t >= 2:
            # The group's scatter, or a rank's own where it is the noisier one (moves clipped: a fault is not noise).
            magnitude = np.abs(deviation)
            group_scatter = groups.to_ranks(groups.medians(magnitude) * bias)
            around = np.where(suspect, np.abs(deviation - own[t - 1]) / np.float32(np.sqrt(2)), magnitude)
            # The first two blocks told no scatter.
            rate = np.where(seen <= limits.baseline_blocks, 1 / np.maximum(seen - 2, 1), 1 / 60)
            if small:
                widest = groups.to_ranks(SMALL_GROUP_SCATTER * bias * quiet_scatter(change, suspect, groups))
                bound_R = np.where(np.isfinite(bound_R), bound_R, widest)
                bound_R += np.where(np.isfinite(widest), rate * (widest - bound_R), 0.0)
            target = np.fmax(np.fmin(group_scatter, bound_R), np.minimum(around, 3 * low)) / _early_error(t, limits)
            scatter_R += np.where(known & np.isfinite(target), rate * (target - scatter_R), 0.0)
        learned += fresh & ~suspect
        if t < limits.baseline_blocks:
            clean_TR[t] = fresh & ~suspect
            base = sorted_median(np.where(clean_TR[: t + 1], blocks_TR[: t + 1], np.nan).T)
        else:
            step = np.clip(np.where(known, deviation, 0.0), -low / 2, low / 2) / min(t, BASELINE_MEMORY)
            step[suspect] = 0.0
            base = np.where(np.isfinite(base), base + step, now).astype(blocks_TR.dtype)
    return own, sigma, bases, commons, learned_TR


def _suspect(
    block: int, deviation_R: FloatArray, recent_R: FloatArray, scatter_R: FloatArray, limits: DriftThresholds
) -> BoolArray:
    """Say what looks like a fault: it is neither learned as a level nor as scatter.

    Early baselines are rough: there only what stands out clearly is kept out.
    """
    if block < limits.minimum_blocks:
        threshold_R = np.maximum(EARLY_Z * scatter_R, EARLY_EFFECT * limits.drift)
        return np.asarray(deviation_R > threshold_R) & np.bool_(block > 2)
    strictness = 1.2 if block < limits.baseline_blocks else 0.6
    floor = limits.drift if block < limits.baseline_blocks else limits.drift / 2
    return np.asarray(recent_R > np.maximum(strictness * scatter_R, floor))


def _early_error(block: int, limits: DriftThresholds) -> float:
    """How much more deviations scatter while the baseline is the median of fewer blocks than it will be."""
    return float(np.sqrt((1 + 1.57 / block) / (1 + 1.57 / max(block, limits.baseline_blocks)))) if block else 1.0


def _inflation(own_TR: FloatArray, sigma_TR: FloatArray, width: int = 8) -> float:
    """Scatter of means of `width` blocks over that of independent blocks, one standard error (1.17 / sqrt(n)) lower."""
    if len(own_TR) < 3 * width:
        return 1.0
    means = trailing_mean(own_TR / sigma_TR, width)[2 * width :: width]
    means = means - sorted_median(means.T)[None, :] if len(means) > 4 else means
    typical = sorted_median(np.abs(means).reshape(1, -1))[0] * MAD_TO_SIGMA * np.sqrt(width)
    # Few means tell it badly, and too large a figure hides faults (decision 0106).
    typical /= 1 + 1.17 / np.sqrt(max(1, int(np.isfinite(means).sum())))
    return float(max(1.0, typical)) if np.isfinite(typical) else 1.0


@dataclass(frozen=True)
class Alarms:
    """Where each test speaks, [T, R]: an alarm at block t is known at the end of block t.

    `effect_TR` is the estimate of the deviation, `score_TR` its strength in sigmas, and `path_TR` a bit
    set: 1 window, 2 accumulation, 4 level, 8 recurrence.
    """

    on_TR: BoolArray
    effect_TR: FloatArray
    score_TR: FloatArray
    path_TR: np.ndarray


def alarms(dev: Deviations, groups: Groups, limits: DriftThresholds, with_level: bool) -> Alarms:
    """Run the four tests; the level test compares with peers, so it needs to know them."""
    shape = dev.own_TR.shape
    effect, score = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    path = np.zeros(shape, dtype=np.uint8)
    fresh, means = dev.own_TR, TrailingMeans(dev.own_TR)
    # No mean exceeds the largest block: where that is small, most tests need not run.
    peak = float(np.fmax.reduce(fresh[limits.minimum_blocks :], axis=None, initial=0.0))
    for width, z_limit, effect_limit in limits.windows:
        if shape[0] <= width or not peak > effect_limit:
            continue
        mean = means.over(width)
        # The baseline has read every block before the window; its own error counts too.
        known = np.clip(np.arange(shape[0], dtype=np.float32) + 1 - width, limits.baseline_blocks, BASELINE_MEMORY // 2)
        known_TR = np.maximum(np.minimum(known[:, None], dev.known_TR), 2)
        spread = dev.sigma_TR * np.sqrt(np.float32(1 / width) + 1 / known_TR)
        spread = np.maximum(spread * _stretch(dev.inflation, width), limits.floor)
        z = mean / spread
        # Confirmation: the block after the window, which the test did not use, deviates as well.
        after = np.zeros(shape, dtype=bool)
        with np.errstate(invalid="ignore"):
            before = (z > z_limit) & (mean > effect_limit)
            after[1:] = before[:-1] & (fresh[1:] > 0.5 * mean[:-1]) & (fresh[1:] > 1.5 * dev.sigma_TR[1:])
        after[: limits.minimum_blocks] = False
        keep_lasting(after, fresh, mean, width)
        _mark(after, _shift(mean), _shift(z), 1, effect, score, path)
    if peak > limits.cusum_effect:
        _accumulate(dev, means, limits, effect, score, path)
    if with_level:
        found = far_levels(dev.level_TR, dev.sigma_TR, groups, limits.level_z, limits.level_effect, limits.level_floor)
        for mean, z, after in found:
            _mark(after, mean, z, 4, effect, score, path)
    burst = BurstLimits(
        limits.minimum_blocks, limits.recurrence_bursts, limits.recurrence_effect, limits.recurrence_z,
        limits.recurrence_window,
    )  # fmt: skip
    for bursts in (
        recurring_bursts(dev.own_TR, dev.sigma_TR, dev.centred_SR, dev.usual_TR, dev.inflation, burst),
        single_steps(dev.sigma_TR, dev.centred_SR, dev.usual_TR, dev.inflation, burst) if limits.singles else None,
    ):
        if bursts is not None:
            _mark(bursts.on_TR, bursts.height_TR, bursts.score_TR, 8, effect, score, path)
    return Alarms(path > 0, effect, score, path)


def _shift(values_TR: FloatArray) -> FloatArray:
    moved = np.empty_like(values_TR)
    moved[0], moved[1:] = np.nan, values_TR[:-1]
    return moved


def _stretch(inflation: float, width: int) -> np.float32:
    return np.float32(1 + (inflation - 1) * min(1.0, width / 8))


def _mark(
    where: BoolArray, mean: FloatArray, z: FloatArray, bit: int, effect: FloatArray, score: FloatArray, path: np.ndarray
) -> None:
    path[where] |= bit
    better = where & (z > score)
    score[better], effect[better] = z[better], mean[better]


def _accumulate(
    dev: Deviations,
    means: TrailingMeans,
    limits: DriftThresholds,
    effect: FloatArray,
    score: FloatArray,
    path: np.ndarray,
) -> None:
    variance = (dev.sigma_TR * np.float32(dev.inflation)) ** 2
    # One block may bring at most a third of the evidence: what lasts one block is no finding.
    cap = limits.cusum_log_odds / 3
    # The baseline is itself an estimate: its error must not accumulate.
    known = np.clip(dev.known_TR, 1, BASELINE_MEMORY // 2)
    drift = limits.drift + 2.5 * dev.sigma_TR * np.float32(dev.inflation) / np.sqrt(known)
    raw = np.nan_to_num((dev.own_TR - drift) * (2 * limits.drift) / variance)
    gain = np.clip(raw, -cap, cap)
    gain[: limits.minimum_blocks] = 0
    total = running_total(gain.astype(np.float64))
    least = np.minimum(total, 0)
    for t in range(1, len(least)):
        np.minimum(least[t], least[t - 1], out=least[t])
    evidence = total - least
    if evidence.max(initial=0) <= limits.cusum_log_odds:
        return
    width = 8 if len(gain) >= 8 else max(1, len(gain))
    mean, half = means.over(width), means.over(max(1, width // 2))
    with np.errstate(invalid="ignore"):
        where = (evidence > limits.cusum_log_odds) & (dev.own_TR > 0)
        where &= np.fmin(np.nan_to_num(mean, nan=np.inf), half) > limits.cusum_effect
    strength = np.sqrt(2 * np.minimum(evidence, 1e6))
    estimate = np.where(np.isfinite(half), half, dev.own_TR)
    _mark(where, estimate.astype(np.float32), strength.astype(np.float32), 2, effect, score, path)
