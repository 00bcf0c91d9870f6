"""Bursts that come and go: a rank that is slow for a few steps, again and again.

A loose cable, a marginal regulator or a noisy neighbour slows a rank for a few steps and lets go before means over
blocks show it. Counted are bursts of at least three steps above the rank's own level; single steps on a schedule are
logging or evaluation, not hardware.

Does not see: bursts of one or two steps, fewer than three bursts in the window.

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
    ranks = np.nonzero(moved.sum(axis=0) >= 2)[0]
    if own_TR.shape[1] < 2 or not len(ranks):
        return None
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
    if bursts.max(initial=0) < limits.bursts:
        return None
    # The usual number of bursts, without the worst fifth: more than one suspect is possible. Ranks not read have none.
    kept = max(1, int(0.8 * own_TR.shape[1]))
    read = max(0, kept - (own_TR.shape[1] - len(ranks)))
    usual = np.sort(bursts, axis=1)[:, :read].sum(axis=1) / kept
    expected = np.maximum(usual, LEAST_EXPECTED)[:, None]
    where = high & (bursts >= limits.bursts) & (stats.poisson.sf(bursts - 1, expected) < CHANCE)
    if not where.any():
        return None
    count = np.maximum(trailing_sum(high.astype(np.int32), limits.window), 1)
    mean = trailing_sum(np.where(high, height, 0.0), limits.window) / count
    z = (bursts - expected) / np.sqrt(expected)
    found = Bursts(np.zeros(own_TR.shape, dtype=bool), np.zeros_like(own_TR), np.zeros_like(own_TR))
    found.on_TR[:, ranks], found.height_TR[:, ranks], found.score_TR[:, ranks] = where, mean, z
    return found


def _lately(own_TR: FloatArray) -> FloatArray:
    """Return the median of the last `LATELY` blocks, 0 before there are so many."""
    result = np.zeros_like(own_TR)
    if len(own_TR) >= LATELY:
        result[LATELY - 1 :] = sorted_median(np.lib.stride_tricks.sliding_window_view(own_TR, LATELY, axis=0))
    return result
