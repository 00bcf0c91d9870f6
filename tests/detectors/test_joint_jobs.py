"""Joint analysis of what happens to a job as a whole: crash, regression, numerics."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flightwatch.core.vocabulary import FindingKind
from flightwatch.detectors.contract import Frames
from flightwatch.detectors.joint import explain
from flightwatch.detectors.registry import all_detectors
from tests.contracts.detector_stage import JOB, SLOW_GPU, crash_rows, speaking_frames, timing


def causes_in(frames: Frames) -> dict[FindingKind, set[FindingKind]]:
    """Return the kinds of roots and of what follows from each."""
    found = [one for made in all_detectors() for one in made.score(frames)]
    return {one.root.kind: {effect.kind for effect, _ in one.consequences} for one in explain(found, frames)}


def test_a_device_that_fell_off_the_bus_explains_the_crash() -> None:
    assert causes_in(crash_rows()) == {FindingKind.DEVICE_ERROR: {FindingKind.CRASH}}


def test_a_slow_device_explains_that_the_job_is_slower_than_its_earlier_run() -> None:
    healthy, slow = timing(steps=120), timing(JOB, SLOW_GPU, steps=120)
    again = slow["rank_steps"].assign(run="again", ts=slow["rank_steps"]["ts"] + 3_600_000.0)
    placements = pd.concat([slow["placements"], slow["placements"].assign(run="again")], ignore_index=True)
    rows = pd.concat([healthy["rank_steps"], again], ignore_index=True)
    causes = causes_in({**slow, "rank_steps": rows, "placements": placements})
    assert FindingKind.JOB_REGRESSION in causes[FindingKind.SLOW]
    assert FindingKind.JOB_REGRESSION not in causes


def test_fp8_out_of_range_explains_the_loss_that_follows() -> None:
    amax = speaking_frames("numerics")["training_scalars"]
    step = amax["step"].to_numpy()
    loss = 2.0 * np.exp(np.random.default_rng(2).normal(0, 0.02, len(step))) * np.where(step >= 70, 3.0, 1.0)
    causes = causes_in({"training_scalars": pd.concat([amax, amax.assign(name="loss", value=loss)])})
    assert causes[FindingKind.NUMERICS] == {FindingKind.LOSS_SPIKE}
