"""Ranks against their cohort: ratios, the worst, bins, density."""

from __future__ import annotations

import numpy as np

from flightwatch.dashboard.components import rank_view
from flightwatch.pipeline.store.step_reads import AXES, Roles, StepMatrix

RANKS, STEPS = 64, 24


def matrix() -> tuple[StepMatrix, Roles]:
    """Two stages of which the second computes twice as long; rank 5 gets slow, rank 9 tells nothing at first."""
    rng = np.random.default_rng(7)
    stage = np.arange(RANKS) // 32
    values = (1000.0 * (1 + stage))[:, None] * (1 + rng.normal(0, 0.01, (RANKS, STEPS)))
    values[5, 16:] *= 1.3
    values[9, :8] = np.nan
    steps = np.arange(100, 100 + STEPS)
    found = StepMatrix(steps, steps * 1000, np.arange(RANKS), values.astype(np.float32))
    axes = {axis: np.full(RANKS, -1) for axis in AXES} | {"pp": stage}
    return found, Roles(np.arange(RANKS), [f"n{r // 8}" for r in range(RANKS)], [r % 8 for r in range(RANKS)], axes)


def test_a_stage_that_has_more_to_do_is_not_slow() -> None:
    found, roles = matrix()
    ratios = rank_view.ratio_to_cohort(found, roles.cohort(found.ranks))
    assert abs(float(np.nanmedian(ratios[32:])) - 1.0) < 0.01
    assert rank_view.worst(ratios, 3)[0] == 5
    assert np.isnan(ratios[9, :8]).all()
    assert not np.isnan(ratios[9, 8:]).any()


def test_a_rank_that_told_nothing_is_not_among_the_worst() -> None:
    ratios = np.full((3, 8), np.nan, dtype=np.float32)
    ratios[1] = 1.0
    assert rank_view.worst(ratios, 10).tolist() == [1]
    assert rank_view.worst(np.empty((0, 0), np.float32), 10).tolist() == []


def test_rows_are_the_worst_of_their_ranks() -> None:
    found, roles = matrix()
    ratios = rank_view.ratio_to_cohort(found, roles.cohort(found.ranks))
    rows, firsts = rank_view.heat_rows(ratios, 16)
    assert rows.shape == (16, STEPS)
    assert firsts[:3] == [0, 4, 8]
    assert rows[1, -1] > 1.25
    whole, every = rank_view.heat_rows(ratios, 1000)
    assert whole is ratios
    assert every == list(range(RANKS))


def test_density_counts_every_value_once() -> None:
    found, _ = matrix()
    drawn = rank_view.density(found, 1 / 1000)
    counts = np.array(drawn.counts)
    assert counts.shape == (rank_view.DENSITY_BINS, STEPS)
    assert counts.sum() == np.isfinite(found.values_RS).sum()
    nothing = StepMatrix(found.steps, found.starts_ms, found.ranks, np.full_like(found.values_RS, np.nan))
    assert rank_view.density(nothing, 1.0).edges == []


def test_stages_have_medians() -> None:
    found, roles = matrix()
    stages, medians = rank_view.stage_medians(found, roles)
    assert stages == [0, 1]
    assert abs(medians[1] / medians[0] - 2.0) < 0.02


def test_a_rank_without_a_placement_is_a_cohort_of_its_own() -> None:
    _, roles = matrix()
    assert roles.cohort(np.array([0, 40, 999])).tolist()[2] == -1


def test_the_scale_widens_where_ordinary_ranks_scatter() -> None:
    rng = np.random.default_rng(3)
    calm = (1 + rng.normal(0, 0.01, (20, 20))).astype(np.float32)
    assert rank_view.half_scale(calm) == rank_view.NARROWEST
    assert rank_view.half_scale((calm - 1) * 30 + 1) > 0.6
    assert rank_view.half_scale(calm * 100) == rank_view.WIDEST
    assert rank_view.half_scale(np.full((2, 2), np.nan, np.float32)) == rank_view.NARROWEST
