"""Bursts and single long steps that recur."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flightwatch.detectors.bursts import BurstLimits, recurring_bursts, single_steps
from flightwatch.detectors.drift import COMPUTE

LIMITS = BurstLimits(minimum_blocks=5, bursts=3, effect=0.025, z=1.6, window=40)
RANKS, STEPS = 16, 400


def series(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.015, (STEPS, RANKS)).astype(np.float32)


def parts(values_SR: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return block medians, their scatter and a level of zero."""
    blocks = np.median(values_SR.reshape(-1, 5, values_SR.shape[1]), axis=1)
    return blocks, np.full_like(blocks, 0.0085), np.zeros_like(blocks)


def told(values_SR: np.ndarray, limits: BurstLimits = LIMITS) -> set[int]:
    own, sigma, usual = parts(values_SR)
    found = recurring_bursts(own, sigma, values_SR, usual, 1.0, limits)
    return set() if found is None else set(np.nonzero(found.on_TR.any(axis=0))[0].tolist())


def told_of_singles(values_SR: np.ndarray) -> set[int]:
    _, sigma, usual = parts(values_SR)
    found = single_steps(sigma, values_SR, usual, 1.0, LIMITS)
    return set() if found is None else set(np.nonzero(found.on_TR.any(axis=0))[0].tolist())


def test_three_short_bursts_or_two_long_ones() -> None:
    short = series()
    for begin in (150, 203, 251):
        short[begin : begin + 5, 7] += 0.06
    assert told(short) == {7}
    two = series()
    for begin in (150, 203):
        two[begin : begin + 5, 7] += 0.06
    assert told(two) == set()
    for begin in (150, 250):
        two[begin : begin + 12, 9] += 0.12
    assert told(two) == {9}


def test_bursts_far_apart_are_remembered_as_long_as_the_window() -> None:
    values = series()
    for begin in (100, 223, 351):
        values[begin : begin + 5, 7] += 0.06
    assert told(values) == set()
    assert told(values, replace(LIMITS, window=COMPUTE.recurrence_window)) == {7}
    assert told(series(), replace(LIMITS, window=COMPUTE.recurrence_window)) == set()


def test_few_quiet_peers_say_little_about_how_often_bursts_happen() -> None:
    values = series()[:, :4].copy()
    for begin in (150, 203, 251):
        values[begin : begin + 5, 2] += 0.06
    assert told(values) == set()
    values[300:305, 2] += 0.06
    assert told(values) == {2}
    # A peer with bursts, too short for its blocks' medians to show, is counted as well.
    for begin in (138, 178, 218, 258, 298):
        values[begin : begin + 4, 1] += 0.06
    assert told(values) == set()


def test_what_all_ranks_do_is_nobodys_burst() -> None:
    values = series()
    for begin in (150, 203, 251, 300):
        values[begin : begin + 5] += 0.08
    assert told(values) == set()
    assert told(series()) == set()


def test_what_stays_is_no_burst() -> None:
    values = series()
    values[150:, 7] += 0.03
    assert told(values) == set()


def test_single_long_steps_without_a_schedule() -> None:
    rng = np.random.default_rng(3)
    values = series()
    at = rng.choice(np.arange(100, 400), 25, replace=False)
    values[at, 5] += 0.3
    assert told_of_singles(values) == {5}
    scheduled = series()
    scheduled[100::10, 5] += 0.3
    assert told_of_singles(scheduled) == set()
    first = series()
    first[at, 0] += 0.3
    assert told_of_singles(first) == set()
    everybody = series()
    everybody[rng.random((STEPS, RANKS)) < 0.05] += 0.3
    assert told_of_singles(everybody) == set()
