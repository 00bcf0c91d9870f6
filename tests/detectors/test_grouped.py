from __future__ import annotations

import numpy as np
import pytest

from flightwatch.detectors.grouped import (
    Groups,
    TrailingMeans,
    block_medians,
    burst_heights,
    sorted_median,
    trailing_sum,
)


def test_median_ignores_unknown_values() -> None:
    values = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan], [4.0, 2.0, 9.0]])
    assert np.array_equal(sorted_median(values), [2.0, np.nan, 4.0], equal_nan=True)


def test_groups_of_unequal_size_keep_to_themselves() -> None:
    groups = Groups.from_labels(["a", "b", "a", "b", "a"])
    values = np.array([1.0, 10.0, 2.0, 20.0, 9.0])
    assert groups.medians(values).tolist() == [2.0, 15.0]
    assert groups.to_ranks(groups.medians(values)).tolist() == [2.0, 15.0, 2.0, 15.0, 2.0]
    assert groups.quantiles(values, 0.0).tolist() == [1.0, 10.0]
    assert groups.quantiles(values, 0.5).tolist() == [2.0, 15.0]


def test_blocks_of_five_match_numpy() -> None:
    values = np.random.default_rng(1).normal(size=(23, 6)).astype(np.float32)
    cut = np.sort(values[:20].reshape(4, 5, 6), axis=1)
    assert np.allclose(block_medians(values), cut[:, 2])


def test_bursts_are_four_steps_in_a_row_without_the_longest() -> None:
    values = np.zeros((15, 1), dtype=np.float32)
    values[2] = 90.0
    values[7:11, 0] = (3.0, 3.0, 3.0, 50.0)
    heights = burst_heights(values)[:, 0]
    # A single long step is left out; the burst ends in the third block.
    assert heights[0] == 0.0
    assert heights[1] == pytest.approx(2.0)
    assert heights[2] == pytest.approx(3.0)
    values[8] = np.nan
    assert burst_heights(values)[2, 0] == pytest.approx(1.0)
    assert burst_heights(values[:4]).shape == (0, 1)


def test_a_block_with_one_known_step_says_nothing() -> None:
    values = np.full((5, 2), np.nan, dtype=np.float32)
    values[0] = 7.0
    values[1, 1] = 9.0
    median = block_medians(values)
    assert np.isnan(median[0, 0])
    assert median[0, 1] == 7.0


@pytest.mark.parametrize("width", [1, 3, 10])
def test_trailing_means_match_a_loop(width: int) -> None:
    values = np.random.default_rng(2).normal(size=(10, 3))
    values[4, 1] = np.nan
    means = TrailingMeans(values).over(width)
    for t in range(width - 1, 10):
        part = values[t - width + 1 : t + 1]
        known = np.isfinite(part)
        expected = np.where(
            known.sum(axis=0) * 2 >= width, np.nansum(part, axis=0) / np.maximum(known.sum(axis=0), 1), np.nan
        )
        assert np.allclose(means[t], expected, equal_nan=True)
    assert np.isnan(means[: width - 1]).all()


def test_trailing_sum_forgets() -> None:
    assert trailing_sum(np.array([[1], [2], [3], [4]]), 2)[:, 0].tolist() == [1, 3, 5, 7]
