"""A rank far from its role peers, whatever its past: what was slow from the start.

Healthy chips differ, so only far outliers count; with few peers the scatter itself is uncertain. Needs roles.

Shape letters: T blocks of steps, R ranks, G groups.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import stats

from flightwatch.detectors.grouped import (
    MAD_TO_SIGMA,
    BoolArray,
    FloatArray,
    Groups,
    TrailingMeans,
    small_group_factor,
    sorted_median,
)
from flightwatch.detectors.layout import MINIMUM_PEERS

#: Blocks in which a level is asked for every time; later every fourth.
EAGER = 12
#: Blocks averaged; one block alone must be farther away by these factors (z, effect, floor).
WIDTHS, ALONE = (1, 4), (1.6, 4.0, 2.0)
#: Chance of a healthy rank per test, by which few peers raise the limit.
CHANCE = 3e-7


def far_levels(
    level_TR: FloatArray, sigma_TR: FloatArray, groups: Groups, z_limit: float, least: float, floor: float
) -> Iterator[tuple[FloatArray, FloatArray, BoolArray]]:
    """Yield (mean, z, where) [T, R] per width; a block confirms what those before it say.

    Parameters
    ----------
    level_TR, sigma_TR: see `drift.Deviations`. z_limit, least, floor: limits of the level test.
    """
    in_large = groups.members_of(groups.size_G >= MINIMUM_PEERS)
    blocks = len(level_TR)
    if not in_large.any() or blocks < 2:
        return
    means = TrailingMeans(level_TR)
    # A level does not hurry.
    asked = np.array([t for t in range(blocks - 1) if t < EAGER or t % 4 == 0])
    for width in WIDTHS:
        if blocks <= width:
            continue
        more_z, more_effect, more_floor = ALONE if width == 1 else (1.0, 1.0, 1.0)
        mean = means.over(width)[asked]
        sigma, freedom = level_sigma(mean, groups, floor * more_floor)
        # With few peers the scatter itself is uncertain: Student's quantile, not the normal one.
        limit = max(z_limit * more_z, float(stats.t.isf(CHANCE, freedom)))
        z = (mean / sigma).astype(np.float32)
        with np.errstate(invalid="ignore"):
            far = (z > limit) & (mean > least * more_effect) & in_large
            far &= level_TR[asked + 1] > 0.6 * mean
        if not far.any():
            continue
        # A rank that is noisier than its peers scatters more than they do: its own error counts too.
        own = sigma_TR[asked]
        extra = np.maximum(own**2 - groups.to_ranks(groups.medians(own)) ** 2, 0.0) / width
        z = (mean / np.sqrt(sigma**2 + extra)).astype(np.float32)
        far &= z > limit
        where = np.zeros(level_TR.shape, dtype=bool)
        means_TR, z_TR = np.zeros(level_TR.shape, dtype=np.float32), np.zeros(level_TR.shape, dtype=np.float32)
        where[asked + 1], means_TR[asked + 1], z_TR[asked + 1] = far, mean, z
        yield means_TR, z_TR, where


def level_sigma(level_TR: FloatArray, groups: Groups, floor: float) -> tuple[FloatArray, float]:
    """Return the scatter between peers per rank, pooled over the job and shrunk to it, and the z limit's degrees of
    freedom."""
    large = groups.size_G >= MINIMUM_PEERS
    in_large = groups.members_of(large)
    bias = small_group_factor(groups)
    own = groups.medians(np.abs(level_TR)) * bias * MAD_TO_SIGMA
    pooled = sorted_median(np.abs(level_TR[:, in_large])) * MAD_TO_SIGMA
    weight = groups.size_G / (groups.size_G + 16.0)
    mixed = np.sqrt(weight * own**2 + (1 - weight) * pooled[:, None] ** 2)
    # A few peers that happen to lie close say little: never below what the whole job scatters.
    sigma = groups.to_ranks(np.maximum(np.maximum(mixed, pooled[:, None]), floor))
    return sigma, float(max(1.0, 0.6 * (in_large.sum() - large.sum())))
