"""Faults of training itself are drawn and named."""

from __future__ import annotations

import pytest

from flightwatch.core.vocabulary import FindingState
from flightwatch.detectors.contract import Detector, Finding
from flightwatch.detectors.hang_live import HangDetector
from flightwatch.detectors.nonfinite import NonfiniteDetector
from flightwatch.detectors.scalars import ScalarDetector
from flightwatch.simulator.training_faults import TRAINING_KINDS, training_scenario

DETECTORS: tuple[Detector, ...] = (NonfiniteDetector(), ScalarDetector(), HangDetector())


def raised(kind: str, seed: int) -> tuple[list[Finding], frozenset[str]]:
    scenario = training_scenario(kind, seed)
    found = [one for detector in DETECTORS for one in detector.score(scenario.frames)]
    return [one for one in found if one.state == FindingState.RAISED], scenario.guilty[
        0
    ] if scenario.guilty else frozenset()


@pytest.mark.parametrize("kind", TRAINING_KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_kind_is_told_and_the_place_where_there_is_one(kind: str, seed: int) -> None:
    found, guilty = raised(kind, seed)
    right = [one for one in found if one.kind.value == TRAINING_KINDS[kind]]
    assert right
    assert all(one.node in guilty or one.job in guilty for one in right)


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_job_says_nothing(seed: int) -> None:
    assert raised("clean", seed) == ([], frozenset())
