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

    def to_ranks(self, values_xG: FloatArray) -> FloatArray:
        """Repeat a value of each group for its members, [..., R]."""
        return np.asarray(values_xG[..., self.of_rank_R])


def block_medians(values_SR: FloatArray, block: int) -> FloatArray:
    """Return medians over consecutive blocks of steps, [T, R]; an incomplete last block is left out.

    A single long step (garbage collection, evaluation) does not move the median of five.
    """
    steps, ranks = values_SR.shape
    blocks = steps // block
    cut = np.ascontiguousarray(values_SR[: blocks * block].reshape(blocks, block, ranks))
    if block == 5:
        fast = _median_of_five(cut)
        holes = np.isnan(fast)
        if holes.any():
            at_block, at_rank = np.nonzero(holes)
            fast[holes] = sorted_median(cut[at_block, :, at_rank])
        return fast
    return sorted_median(np.moveaxis(cut, 1, -1))


def _median_of_five(cut_T5R: FloatArray) -> FloatArray:
    """Median by a comparison network: ten passes over contiguous memory; NaN in, NaN out."""
    a, b, c, d, e = (cut_T5R[:, i] for i in range(5))
    a, b = np.minimum(a, b), np.maximum(a, b)
    c, d = np.minimum(c, d), np.maximum(c, d)
    a, c = np.minimum(a, c), np.maximum(a, c)  # the smallest of four goes, c survives
    b, d = np.minimum(b, d), np.maximum(b, d)  # the largest of four goes, b survives
    low, high = np.minimum(b, c), np.maximum(b, c)
    return np.asarray(np.maximum(low, np.minimum(high, e)))


def trailing_mean(values_TxR: FloatArray, width: int) -> FloatArray:
    """Return the mean of the last `width` entries along axis 0, ignoring NaN.

    NaN where fewer than half of the entries are known; the first `width` - 1 entries use what there is
    and are NaN.
    """
    known = ~np.isnan(values_TxR)
    total = np.cumsum(np.where(known, values_TxR, 0.0), axis=0, dtype=np.float64)
    count = np.cumsum(known, axis=0, dtype=np.int32)
    if width < len(total):
        total[width:], count[width:] = total[width:] - total[:-width], count[width:] - count[:-width]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / count
    mean[count * 2 < width] = np.nan
    mean[: width - 1] = np.nan
    return np.asarray(mean.astype(values_TxR.dtype))
