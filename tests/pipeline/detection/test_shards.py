"""Detection processes share shards: everyone agrees, nobody speaks twice, a paused one changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.detectors.registry import all_detectors
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.shards import Membership, all_shards, owner_of

SHARDS = all_shards(8)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def control(tmp_path: Path, clock: ManualClock) -> Iterator[Control]:
    opened = open_control(f"sqlite:///{tmp_path / 'control.db'}", ControlSettings(), clock)
    yield opened
    opened.close()


def names(member: Membership) -> set[str]:
    return {shard.name for shard, _ in member.shards()}


def test_every_detector_is_in_exactly_one_kind_of_shard() -> None:
    fleet, jobs = SHARDS[0], SHARDS[1]
    for detector in all_detectors():
        assert fleet.has(detector) != jobs.has(detector)
    assert {"slow", "scalars", "crash"} <= {one.name for one in all_detectors() if jobs.has(one)}
    assert {"overheat", "dead_node", "device_errors"} <= {one.name for one in all_detectors() if fleet.has(one)}


def test_members_share_all_shards_and_a_new_one_takes_only_its_part(control: Control) -> None:
    one = Membership(control.leases, "one", 60, SHARDS)
    assert names(one) == {shard.name for shard in SHARDS}
    two = Membership(control.leases, "two", 60, SHARDS)
    assert names(two) == set()
    kept = names(one)
    moved = names(two)
    assert kept | moved == {shard.name for shard in SHARDS}
    assert not kept & moved
    assert moved
    assert kept == {shard.name for shard in SHARDS if owner_of(shard.name, ["one", "two"]) == "one"}
    two.leave()
    assert names(one) == {shard.name for shard in SHARDS}


def test_a_paused_member_loses_its_shards_and_its_epoch(control: Control, clock: ManualClock) -> None:
    one, two = (Membership(control.leases, name, 60, SHARDS) for name in ("one", "two"))
    before = {shard.name: epoch for shard, epoch in one.shards()}
    clock.advance(61)
    assert names(two) == {shard.name for shard in SHARDS}
    assert not any(one.still_holds(shard) for shard in SHARDS)
    names(one), names(two)
    again = {shard.name: epoch for shard, epoch in one.shards()}
    assert again
    assert all(epoch > before[name] for name, epoch in again.items())
    assert all(one.still_holds(shard) for shard in SHARDS if shard.name in again)
