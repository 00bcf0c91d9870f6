"""Robust statistics over groups of ranks, vectorised.

Shape letters: S steps, T blocks of steps, R ranks, G groups, N members of the largest group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]
BoolArray = npt.NDArray[np.bool_]

#: Turns a median absolute deviation into a standard deviation of a normal distribution.
MAD_TO_SIGMA = 1.4826


def sorted_median(values: FloatArray) -> FloatArray:
    """Return the median over the last axis, ignoring NaN; NaN where nothing is known.

    About ten times faster than `numpy.nanmedian` on many small rows.
    """
    ordered = np.sort(values, axis=-1)
    size = values.shape[-1]
    if size and not np.isnan(ordered[..., -1]).any():
        # Unknown values sort last: none there, none anywhere.
        return np.asarray((ordered[..., (size - 1) // 2] + ordered[..., size // 2]) * 0.5)
    known = np.count_nonzero(~np.isnan(ordered), axis=-1)
    low = np.maximum((known - 1) // 2, 0)[..., None]
    high = np.maximum(known // 2, 0)[..., None]
    high = np.minimum(high, values.shape[-1] - 1)
    middle = np.take_along_axis(ordered, low, -1) + np.take_along_axis(ordered, high, -1)
    return np.asarray(middle[..., 0] * 0.5)


@dataclass(frozen=True)
class Groups:
    """A partition of ranks into groups.

    Attributes
    ----------
    of_rank_R: group of each rank.
    members_GN: rank positions of each group, padded with R (one past the last rank).
    size_G: members of each group.
    """

    of_rank_R: IntArray
    members_GN: IntArray
    size_G: IntArray

    @staticmethod
    def from_labels(labels_R: Sequence[object]) -> Groups:
        """Group ranks by equal labels, in order of first appearance."""
        order: dict[object, list[int]] = {}
        for position, label in enumerate(labels_R):
            order.setdefault(label, []).append(position)
        of_rank = np.zeros(len(labels_R), dtype=np.intp)
        widest = max((len(member) for member in order.values()), default=0)
        members = np.full((len(order), widest), len(labels_R), dtype=np.intp)
        for index, positions in enumerate(order.values()):
            of_rank[positions] = index
            members[index, : len(positions)] = positions
        sizes = np.array([len(member) for member in order.values()], dtype=np.intp)
        return Groups(of_rank, members, sizes)

    def spread_out(self, values_xR: FloatArray) -> FloatArray:
        """Return values as [..., G, N], NaN in padding."""
        if self.members_GN.size == values_xR.shape[-1]:
            return np.asarray(values_xR[..., self.members_GN])
        pad = np.full((*values_xR.shape[:-1], 1), np.nan, dtype=values_xR.dtype)
        return np.asarray(np.concatenate([values_xR, pad], axis=-1)[..., self.members_GN])

    def medians(self, values_xR: FloatArray) -> FloatArray:
        """Return the median of each group, [..., G]."""
        return sorted_median(self.spread_out(values_xR))

    def quantiles(self, values_xR: FloatArray, share: float) -> FloatArray:
        """Return a lower quantile of each group, [..., G]: `share` of its known members are at or below it."""
        ordered = np.sort(self.spread_out(values_xR), axis=-1)
        if ordered.size and not np.isnan(ordered[..., -1]).any():
            position = (ordered.shape[-1] - 1) * share
            first = int(position)
            second = min(first + 1, ordered.shape[-1] - 1)
            return np.asarray(ordered[..., first] + (ordered[..., second] - ordered[..., first]) * (position - first))
        known = np.count_nonzero(~np.isnan(ordered), axis=-1)
        place = np.maximum(known - 1, 0) * share
        low = place.astype(np.intp)
        high = np.minimum(low + 1, np.maximum(known - 1, 0))
        below = np.take_along_axis(ordered, low[..., None], -1)[..., 0]
        above = np.take_along_axis(ordered, high[..., None], -1)[..., 0]
        return np.asarray(below + (above - below) * (place - low))

    def members_of(self, chosen_G: BoolArray) -> BoolArray:
        """Say which ranks belong to the chosen groups."""
        return np.asarray(chosen_G[self.of_rank_R])

    def to_ranks(self, values_xG: FloatArray) -> FloatArray:
        """Repeat a value of each group for its members, [..., R]."""
        return np.asarray(values_xG[..., self.of_rank_R])


def quiet_scatter(values_R: FloatArray, suspect_R: BoolArray, groups: Groups) -> FloatArray:
    """Return the median distance of each group's unsuspected members from their median, [G].

    NaN where fewer than three are left, or fewer than all of a group of two.
    """
    spread_GN = groups.spread_out(np.where(suspect_R, np.nan, values_R))
    distance = sorted_median(np.abs(spread_GN - sorted_median(spread_GN)[:, None]))
    enough = np.isfinite(spread_GN).sum(axis=1) >= np.minimum(groups.size_G, 3)
    return np.asarray(np.where(enough, distance, np.nan))


def small_group_factor(groups: Groups) -> FloatArray:
    """Make up for the median of a few members lying close to some of them."""
    size = np.maximum(groups.size_G, 2).astype(float)
    return np.asarray(size / np.maximum(size - 0.8, 1.0))


def block_medians(values_SR: FloatArray, block: int = 5) -> FloatArray:
    """Return the median over consecutive blocks of five steps, [T, R].

    A single long step (garbage collection, evaluation) does not move it. An incomplete last block is left
    out. Blocks with unknown steps use the known ones; one known step of five says nothing.
    """
    steps, ranks = values_SR.shape
    blocks = steps // block
    cut = values_SR[: blocks * block].reshape(blocks, block, ranks)
    median = _middle_of_five(*(cut[:, i] for i in range(block)))
    holes = np.isnan(median)
    if holes.any():
        at_block, at_rank = np.nonzero(holes)
        some = np.sort(cut[at_block, :, at_rank], axis=-1)
        known = np.count_nonzero(~np.isnan(some), axis=-1)
        # The lower of two middles: where a step is unknown, two long ones of four are no median.
        middle = np.take_along_axis(some, np.maximum((known - 1) // 2, 0)[:, None], -1)[:, 0]
        median[holes] = np.where(known >= 2, middle, np.nan)
    return median


def _middle_of_five(a: FloatArray, b: FloatArray, c: FloatArray, d: FloatArray, e: FloatArray) -> FloatArray:
    """Median by a comparison network over whole arrays; NaN in, NaN out."""
    a, b = np.minimum(a, b), np.maximum(a, b)
    c, d = np.minimum(c, d), np.maximum(c, d)
    # The larger of the two minima and the smaller of the two maxima are next to the middle; e is inserted.
    low, high = np.maximum(a, c), np.minimum(b, d)
    below, above = np.minimum(low, high), np.maximum(low, high)
    return np.maximum(below, np.minimum(above, e))


def burst_heights(values_SR: FloatArray, block: int = 5) -> FloatArray:
    """Return per block the highest run of four consecutive steps that ends in it, [T, R].

    The longest of the four is left out before they are averaged, so that a single long step is no burst. NaN
    where no four steps in a row are known.
    """
    blocks, ranks = len(values_SR) // block, values_SR.shape[1]
    if not blocks:
        return np.empty((0, ranks), dtype=values_SR.dtype)
    padded = np.concatenate([np.full((3, ranks), np.nan, dtype=values_SR.dtype), values_SR[: blocks * block]])
    pair, most = padded[:-1] + padded[1:], np.maximum(padded[:-1], padded[1:])
    run = (pair[:-2] + pair[2:] - np.maximum(most[:-2], most[2:])) / 3
    return np.asarray(np.fmax.reduce(run.reshape(blocks, block, ranks), axis=1))


def running_total(values_TR: np.ndarray) -> np.ndarray:
    """Return the cumulative sum along axis 0; row by row, several times faster than `cumsum` on wide arrays."""
    total = np.array(values_TR)
    for t in range(1, len(total)):
        total[t] += total[t - 1]
    return total


def trailing_sum(values_TR: np.ndarray, width: int) -> np.ndarray:
    """Return the sum of the last `width` rows (fewer at the start)."""
    total = running_total(values_TR)
    if width < len(total):
        total[width:] = total[width:] - total[:-width]
    return total


class TrailingMeans:
    """Means over the last rows of one array, for several widths, ignoring NaN.

    Parameters
    ----------
    values_TR: [T, R].
    """

    def __init__(self, values_TR: FloatArray) -> None:
        missing = np.isnan(values_TR)
        self._complete = not missing.any()
        self._total = running_total(
            np.where(missing, 0.0, values_TR) if not self._complete else values_TR.astype(float)
        )
        self._count = None if self._complete else running_total((~missing).astype(np.int32))
        self._dtype = values_TR.dtype

    def over(self, width: int) -> FloatArray:
        """Return means of the last `width` rows, [T, R]; NaN in the first `width` - 1 rows and where fewer than half
        of the rows are known."""
        total = _difference(self._total, width)
        if self._count is None:
            mean = total / width
        else:
            count = _difference(self._count, width)
            with np.errstate(invalid="ignore", divide="ignore"):
                mean = np.where(count * 2 >= width, total / count, np.nan)
        mean = mean.astype(self._dtype)
        mean[: width - 1] = np.nan
        return np.asarray(mean)


def _difference(total: np.ndarray, width: int) -> np.ndarray:
    if width >= len(total):
        return total.copy()
    moved = np.empty_like(total)
    moved[:width] = total[:width]
    np.subtract(total[width:], total[:-width], out=moved[width:])
    return moved


def trailing_mean(values_TR: FloatArray, width: int) -> FloatArray:
    """Return the mean of the last `width` rows; see `TrailingMeans`."""
    return TrailingMeans(values_TR).over(width)


def keep_lasting(after: BoolArray, own_TR: FloatArray, mean_TR: FloatArray, width: int) -> None:
    """Take back alarms that one or two blocks made alone: most blocks of the window before them must deviate.

    Parameters
    ----------
    after: alarms, [T, R], changed in place. own_TR, mean_TR: deviations and their means over `width` blocks.
    """
    if width < 4:
        return
    for block, rank in zip(*np.nonzero(after), strict=True):
        window = own_TR[max(0, block - width) : block, rank]
        if not np.nanmedian(window) > 0.5 * mean_TR[block - 1, rank]:
            after[block, rank] = False
