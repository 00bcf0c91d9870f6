"""Clustering confirms or doubts a slow rank, and moves nothing but confidence."""

from __future__ import annotations

import numpy as np
import pytest

from flightwatch.detectors.contract import Finding
from flightwatch.detectors.episodes import LEVEL, RECURRENCE, WINDOW, Episode
from flightwatch.detectors.rank_matrix import runs_of
from flightwatch.detectors.second_opinion import Opinion, second_opinion
from flightwatch.detectors.slow import SlowDetector
from flightwatch.detectors.slow_channels import ChannelLimits, score_channels
from flightwatch.simulator.cluster import Job
from flightwatch.simulator.faults import Fault
from tests.contracts.detector_stage import JOB, SLOW_GPU, Frames, timing


def opinion_on(frames: Frames, rank: int, path: int = WINDOW) -> Opinion:
    """Ask about a rank as if the tests had spoken of it at step 80, with an onset at step 60."""
    (run,) = runs_of(frames)
    episode = Episode("compute", rank, 12, 16, None, 0.2, 9.0, path)
    return second_opinion(score_channels(run, ChannelLimits()), episode, [rank], slice(60, 85))


def found_in(*faults: Fault) -> list[Finding]:
    return [one for one in SlowDetector().score(timing(JOB, *faults)) if "second_opinion" in one.evidence]


def test_a_slow_rank_is_confirmed_and_a_healthy_one_is_not() -> None:
    frames = timing(JOB, SLOW_GPU)
    slow = opinion_on(frames, 11)
    assert (slow.verdict, slow.like_suspect) == ("agrees", 0.0)
    assert {"compute", "transfer"} <= set(slow.channels)
    healthy = opinion_on(frames, 12)
    assert healthy.verdict == "disagrees"
    assert slow.confidence_change > 0 > healthy.confidence_change


def test_ranks_that_differ_from_the_start_are_clustered_by_level() -> None:
    from_start = timing(JOB, Fault("slow_gpu", 1, 3, start_step=0, severity=0.25))
    assert opinion_on(from_start, 11, LEVEL).verdict == "agrees"
    assert opinion_on(from_start, 11, WINDOW).verdict == "disagrees"


def test_bursts_and_few_ranks_are_left_undecided() -> None:
    assert opinion_on(timing(JOB, SLOW_GPU), 11, RECURRENCE).verdict == "undecided"
    few = opinion_on(timing(Job(dp=4, step_ms=500)), 1)
    assert (few.verdict, few.confidence_change) == ("undecided", 0.0)


@pytest.mark.parametrize("kind", ["slow_gpu", "slow_host"])
def test_findings_carry_the_opinion(kind: str) -> None:
    found = found_in(Fault(kind, 1, 3 if kind == "slow_gpu" else None, start_step=60, severity=0.25))
    assert [one.evidence["second_opinion"] for one in found if one.node == "n0001"]
    assert {one.evidence["second_opinion"] for one in found} == {"agrees"}


def test_only_confidence_depends_on_the_opinion(monkeypatch: pytest.MonkeyPatch) -> None:
    before = found_in(SLOW_GPU)
    doubt = Opinion("disagrees", 16, ("compute",), 1.0)
    monkeypatch.setattr("flightwatch.detectors.slow_targets.second_opinion", lambda *_: doubt)
    after = found_in(SLOW_GPU)
    assert [(a.id, a.class_, a.rank, a.severity, a.blames_hardware, a.detected_step) for a in after] == [
        (b.id, b.class_, b.rank, b.severity, b.blames_hardware, b.detected_step) for b in before
    ]
    changes = [float(a.confidence or 0) - float(b.confidence or 0) for a, b in zip(after, before, strict=True)]
    assert np.allclose(changes, -0.17)
