"""Bursts that come and go: a rank that is slow for a few steps, again and again.

A loose cable, a marginal regulator or a noisy neighbour slows a rank for a few steps and lets go before means over
blocks show it. Counted are bursts of at least three steps above the rank's own level; single steps on a schedule are
logging or evaluation, not hardware.

Single long steps count as well where they are many, unlike those of any peer, and keep no schedule: logging and
evaluation do.

Does not see: two short bursts in the window, single long steps on a schedule or of rank 0, which logs in most programs.

Shape letters: S steps, T blocks, R ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from flightwatch.detectors.grouped import BoolArray, FloatArray, burst_heights, sorted_median, trailing_sum

#: A block this many scatters above its level is worth reading step by step.
HINT = 2.5
#: Blocks of a rank's recent level, which bursts must exceed.
LATELY = 9
#: Scatter of one step over that of the median of five.
STEP_SCATTER = float(np.sqrt(5) / 1.2)
#: Bursts that a healthy rank is allowed in a window, and how unlikely the suspect's number must be.
LEAST_EXPECTED, CHANCE = 0.05, 1e-4
#: That a few peers had no burst does not say that there are none: the half that Jeffreys' prior of a rate adds; how
#: many peers are few.
UNSEEN, FEW = 0.5, 16
#: Blocks that two long bursts fill.
LONG_BLOCKS = 4
#: Single long steps: blocks of their window (they are common: a longer one tells no more), how many in it, how high
#: (effect, scatters of a step), and how unlikely their number; the share of intervals that are multiples of one
#: interval from which they keep a schedule.
SINGLE_WINDOW, SINGLES, SINGLE_EFFECT, SINGLE_Z, SINGLE_CHANCE, SCHEDULED = 40, 8, 0.05, 4.0, 1e-7, 0.7


@dataclass(frozen=True)
class BurstLimits:
    """Thresholds: no test before `minimum_blocks`; at least `bursts` in `window` blocks, each `effect` and `z` scatters
    of one step high."""

    minimum_blocks: int
    bursts: int
    effect: float
    z: float
    window: int


@dataclass(frozen=True)
class Bursts:
    """Where bursts recur, their mean height and how far their number is from the usual, all [T, R]."""

    on_TR: BoolArray
    height_TR: FloatArray
    score_TR: FloatArray


def recurring_bursts(
    own_TR: FloatArray,
    sigma_TR: FloatArray,
    centred_SR: FloatArray,
    usual_TR: FloatArray,
    inflation: float,
    limits: BurstLimits,
) -> Bursts | None:
    """Return where bursts recur; None where they do not.

    Parameters
    ----------
    own_TR, sigma_TR, centred_SR, usual_TR, inflation: see `drift.Deviations`.
    """
    # A burst of three steps or more moves the median of some block: only such ranks are read step by step.
    with np.errstate(invalid="ignore"):
        moved = (own_TR > 0.6 * limits.effect) & (own_TR > HINT * sigma_TR)
    moved[: limits.minimum_blocks] = False
    suspects = moved.sum(axis=0) >= 2
    if own_TR.shape[1] < 2 or not suspects.any():
        return None
    # Of few peers each is read: none of theirs may be missed.
    ranks = np.nonzero(suspects | (len(suspects) <= FEW))[0]
    height = burst_heights(centred_SR[:, ranks]) - usual_TR[:, ranks]
    # Above where the rank lately was, too: what stays slow is for the other tests, bursts come and go.
    height = height - np.nan_to_num(np.maximum(_lately(own_TR[:, ranks]), 0.0))
    with np.errstate(invalid="ignore"):
        high = (height > limits.effect) & (
            height > limits.z * sigma_TR[:, ranks] * np.float32(STEP_SCATTER * inflation)
        )
    high[: limits.minimum_blocks] = False
    starts = high.copy()
    starts[1:] &= ~high[:-1]
    bursts = trailing_sum(starts.astype(np.int32), limits.window)
    if bursts.max(initial=0) < 2:
        return None
    # The usual number of bursts, without the worst fifth: more than one suspect is possible. Ranks not read have none.
    kept = max(1, int(0.8 * own_TR.shape[1]))
    read = max(0, kept - (own_TR.shape[1] - len(ranks)))
    usual = (np.sort(bursts, axis=1)[:, :read].sum(axis=1) + UNSEEN) / kept
    expected = np.maximum(usual, LEAST_EXPECTED)[:, None]
    count = np.maximum(trailing_sum(high.astype(np.int32), limits.window), 1)
    mean = trailing_sum(np.where(high, height, 0.0), limits.window) / count
    where = high & (bursts >= limits.bursts) & (stats.poisson.sf(bursts - 1, expected) < CHANCE)
    # Two are enough where they are long and high and nobody else has any.
    where |= (
        high & (bursts >= 2) & (count >= LONG_BLOCKS) & (mean > 2 * limits.effect) & (expected <= 2 * LEAST_EXPECTED)
    )
    where &= suspects[ranks]
    if not where.any():
        return None
    z = (bursts - expected) / np.sqrt(expected)
    found = Bursts(np.zeros(own_TR.shape, dtype=bool), np.zeros_like(own_TR), np.zeros_like(own_TR))
    found.on_TR[:, ranks], found.height_TR[:, ranks], found.score_TR[:, ranks] = where, mean, z
    return found


def single_steps(
    sigma_TR: FloatArray, centred_SR: FloatArray, usual_TR: FloatArray, inflation: float, limits: BurstLimits
) -> Bursts | None:
    """Return where single long steps recur without a schedule; None where they do not. Parameters as before."""
    blocks, ranks = sigma_TR.shape
    if ranks < 2 or not blocks:
        return None
    steps = centred_SR[: blocks * 5].reshape(blocks, 5, ranks)
    least = usual_TR + np.maximum(SINGLE_EFFECT, SINGLE_Z * np.float32(STEP_SCATTER * inflation) * sigma_TR)
    with np.errstate(invalid="ignore"):
        hits = steps > least[:, None, :]
    hits[: limits.minimum_blocks] = False
    per_block = hits.sum(axis=1, dtype=np.int32)
    chosen = np.nonzero(per_block.sum(axis=0) >= SINGLES)[0]
    # Of many ranks with long steps none stands out; the first rank logs.
    chosen = chosen[chosen > 0] if len(chosen) <= max(2, ranks // 8) else chosen[:0]
    if not len(chosen):
        return None
    usual = np.sort(trailing_sum(per_block, SINGLE_WINDOW), axis=1)[:, : max(1, int(0.8 * ranks))].mean(axis=1)
    found = Bursts(np.zeros(sigma_TR.shape, dtype=bool), np.zeros_like(sigma_TR), np.zeros_like(sigma_TR))
    for rank in chosen.tolist():
        count = trailing_sum(per_block[:, rank], SINGLE_WINDOW)
        expected = np.maximum(usual, 0.2)
        on = (count >= SINGLES) & (per_block[:, rank] > 0) & (stats.poisson.sf(count - 1, expected) < SINGLE_CHANCE)
        mine = hits[:, :, rank].reshape(-1)
        height = steps[:, :, rank].reshape(-1) - np.repeat(usual_TR[:, rank], 5)
        for block in np.nonzero(on)[0].tolist():
            window = slice(max(0, (block - SINGLE_WINDOW + 1) * 5), (block + 1) * 5)
            if _scheduled(np.nonzero(mine[window])[0]):
                continue
            found.on_TR[block, rank] = True
            found.height_TR[block, rank] = float(np.median(height[window][mine[window]]))
            found.score_TR[block, rank] = (count[block] - expected[block]) / np.sqrt(expected[block])
    return found if found.on_TR.any() else None


def _scheduled(at_S: np.ndarray) -> bool:
    """Say whether steps keep a schedule: most intervals are a multiple of the most common one."""
    gaps = np.diff(at_S)
    if len(gaps) < 2:
        return True
    values, counts = np.unique(gaps, return_counts=True)
    base = int(values[counts.argmax()])
    return bool((gaps % base == 0).mean() >= SCHEDULED) if base > 1 else bool((gaps == 1).mean() >= SCHEDULED)


def _lately(own_TR: FloatArray) -> FloatArray:
    """Return the median of the last `LATELY` blocks, 0 before there are so many."""
    result = np.zeros_like(own_TR)
    if len(own_TR) >= LATELY:
        result[LATELY - 1 :] = sorted_median(np.lib.stride_tricks.sliding_window_view(own_TR, LATELY, axis=0))
    return result
