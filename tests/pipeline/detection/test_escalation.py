"""A slow finding asks for evidence of the suspect and two role peers, once, within limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import TransientError
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.detection import DetectorRequests
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.escalation import Escalation, pairing
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.profiles.records import Profiles
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.scenarios import START_MS, build

CLUSTER, JOB = Cluster(nodes=8), Job(tp=4, pp=2, dp=8)
FINDING = Finding(
    detector="slow", detector_version="1", kind=FindingKind.SLOW, scope=FindingScope.DEVICE, summary="rank 5 is slow.",
    score=9.0, severity=Severity.P3, detected_at=START_MS + 600_000, first_seen_at=START_MS + 300_000, job="job",
    run="run-1", node="n0000", device=5, rank=5, class_="compute",
)  # fmt: skip


@pytest.fixture(scope="module")
def frames() -> dict[str, pd.DataFrame]:
    return build("x", CLUSTER, JOB, [], 1, 12, lost=0.0).frames


class Agents:
    def __init__(self, away: bool = False) -> None:
        self.away = away
        self.asked: list[dict[str, Any]] = []

    def request(
        self, *, job: str, run: str, ranks_by_node: Mapping[str, Sequence[int]], since_ms: int, until_ms: int,
        actor: str, what: Sequence[str] = ("ring",),
    ) -> list[str]:  # fmt: skip
        if self.away:
            raise TransientError("the bus is away")
        self.asked.append(
            {"job": job, "run": run, "nodes": dict(ranks_by_node), "since": since_ms, "until": until_ms, "actor": actor}
        )
        return ["e1"]


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    opened = open_control(f"sqlite:///{tmp_path / 'control.db'}", ControlSettings(), ManualClock(START_MS))
    yield opened
    opened.close()


def test_peers_have_the_same_stage_and_tensor_rank_on_other_nodes(frames: dict[str, pd.DataFrame]) -> None:
    pair = pairing(FINDING, frames)
    assert pair is not None
    assert pair.suspects == (5,)
    assert all(rank % 4 == 5 % 4 and rank < 32 for rank in pair.peers)
    assert len({pair.node_of[rank] for rank in pair.ranks} - {"n0000"}) >= 1
    assert all(pair.node_of[rank] != "n0000" for rank in pair.peers)


def test_a_host_is_looked_at_by_two_of_its_ranks(frames: dict[str, pd.DataFrame]) -> None:
    host = replace(FINDING, rank=None, device=None, node="n0002", scope=FindingScope.NODE, targets=("n0002",), id="")
    pair = pairing(host, frames)
    assert pair is not None
    assert pair.suspects == (16, 17)
    assert len(pair.peers) == 2
    assert pairing(replace(host, node=None, targets=("elsewhere",)), frames) is None
    assert pairing(FINDING, {}) is None


def test_a_raised_slow_finding_asks_once(control: Control, frames: dict[str, pd.DataFrame]) -> None:
    agents = Agents()
    escalate = Escalation(DetectorRequests(control), agents, Profiles(control), DetectSettings(), "c")
    over = replace(FINDING, state=FindingState.CLEARED)
    other = replace(FINDING, kind=FindingKind.FAIL_SLOW, id="")
    escalate([FINDING, over, other], frames)
    escalate([FINDING], frames)
    (asked,) = agents.asked
    assert asked["actor"] == "detector:slow"
    assert asked["since"] == START_MS + 240_000
    assert sum(len(ranks) for ranks in asked["nodes"].values()) == 3
    assert Profiles(control).newest() == []


def test_a_profile_is_started_where_settings_allow(control: Control, frames: dict[str, pd.DataFrame]) -> None:
    settings = DetectSettings(evidence=False, profile=True, profile_steps=4)
    agents = Agents()
    Escalation(DetectorRequests(control), agents, Profiles(control), settings, "c")([FINDING], frames)
    (request,) = Profiles(control).newest()
    assert agents.asked == []
    assert (request["job"], request["steps"], request["requested_by"]) == ("job", 4, "detector:slow")
    assert 5 in [row["rank"] for row in request["ranks"]]
    assert len(request["ranks"]) == 3


def test_what_cannot_be_asked_stops_nothing(control: Control, frames: dict[str, pd.DataFrame]) -> None:
    settings = DetectSettings(profile=True)
    Escalation(DetectorRequests(control), Agents(away=True), Profiles(control), settings, "c")([FINDING], frames)
    assert len(Profiles(control).newest()) == 1
