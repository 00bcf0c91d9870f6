"""One stopped host in simulated 3D-parallel jobs: named alone, also when a dump is lost."""

from __future__ import annotations

import random

import pytest

from flightwatch.core.hang_evidence import HangEvidence
from flightwatch.detectors.hang import judge
from tests.detectors.hang_jobs import SimulatedJob


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 4, 2), (4, 1, 2), (2, 4, 1), (1, 1, 8), (2, 2, 4)])
def test_the_rank_whose_host_stopped_is_the_only_root(shape: tuple[int, int, int]) -> None:
    job, chance = SimulatedJob(*shape), random.Random(f"{shape}")
    shortest = min(len(calls) for calls in job.calls.values())
    for _ in range(6):
        victim, at = chance.choice(sorted(job.calls)), chance.randrange(1, shortest - 1)
        ahead = chance.choice((1, 3, 10, 40))
        dumps = job.stopped(victim, at, ahead)
        lost = chance.choice([rank for rank in job.calls if rank != victim])
        for without in (None, victim, lost):
            verdict = judge(HangEvidence({rank: dump for rank, dump in dumps.items() if rank != without}))
            told = (shape, victim, at, ahead, without, verdict.sentence)
            assert (verdict.verdict, verdict.root_ranks) == ("missing_rank", [victim]), told
