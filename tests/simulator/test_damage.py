"""Recordings that are not as ours: whatever is lost, late, absent or named otherwise, a clear fault is found."""

from __future__ import annotations

import numpy as np
import pytest

from flightwatch.core.vocabulary import FindingState
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.registry import all_detectors
from flightwatch.pipeline.detection.run import run_detectors
from flightwatch.simulator.damage import DAMAGES, Damage
from flightwatch.simulator.scenarios import timing_scenario


def blamed(kind: str, seed: int, damages: tuple[Damage, ...]) -> tuple[list[Finding], frozenset[str]]:
    scenario = timing_scenario(kind, seed, severity=0.2, steps=240)
    frames = dict(scenario.frames)
    for number, damage in enumerate(damages):
        frames = damage(frames, np.random.default_rng([seed, number]))
    outcome = run_detectors(all_detectors(), frames)
    assert outcome.failures == {}
    raised = [one for one in outcome.findings if one.blames_hardware and one.state == FindingState.RAISED]
    return raised, scenario.guilty[0] if scenario.guilty else frozenset()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_slow_device_is_found_in_any_recording(damage: Damage) -> None:
    found, guilty = blamed("slow_gpu", 4, (damage,))
    assert found
    assert all(one.node is not None and any(one.node.endswith(name) for name in guilty) for one in found)


@pytest.mark.parametrize("damage", DAMAGES)
def test_nothing_is_found_in_healthy_ones(damage: Damage) -> None:
    assert blamed("clean", 5, (damage,))[0] == []


@pytest.mark.parametrize("seed", range(6))
def test_damages_together(seed: int) -> None:
    rng = np.random.default_rng([seed, 5])
    chosen = [DAMAGES[i] for i in rng.choice(7, 4, replace=False)]
    found, guilty = blamed("slow_host", seed, tuple(chosen))
    assert found
    assert all(one.node is not None and any(one.node.endswith(name) for name in guilty) for one in found)
    assert blamed("clean", seed, tuple(chosen))[0] == []
