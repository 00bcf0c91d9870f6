"""Reads behind lists and names: the slowest rank of each job, names that are written alike, figures of some nodes."""

from __future__ import annotations

import pytest

from flightwatch.core.clock import SystemClock
from flightwatch.pipeline.store import fleet_reads, jobs_reads, machine_reads, search_reads
from flightwatch.pipeline.store.client import Store
from flightwatch.simulator.fill import fill_store

JOB, NODE, DEVICES = "sim-pretrain", "sim-n0000", 64


@pytest.fixture(scope="module")
def filled(store: Store) -> Store:
    fill_store(store, DEVICES, 0.1, SystemClock().now_ms(), faults=["slow_gpu@0:5,severity=0.3,after=60"])
    return store


def test_the_slowest_rank_is_told_by_compute_against_its_role(filled: Store) -> None:
    store = filled
    jobs = jobs_reads.jobs(store)
    found = jobs_reads.slowest_ranks(store, jobs)
    row = next(one for one in jobs if one["job"] == JOB)
    rank, times = found[row["cluster"], JOB]
    assert rank == 5
    assert 1.2 < times < 1.5
    assert row["slowest_us"] / row["step_us"] < 1.05, "the steps of a synchronous job are equally long"
    assert jobs_reads.slowest_ranks(store, []) == {}


def test_names_that_nobody_knows_have_neighbours(filled: Store) -> None:
    store = filled
    assert search_reads.is_known(store, "node", NODE)
    assert search_reads.is_known(store, "job", JOB)
    assert not search_reads.is_known(store, "node", "sim-n0009x")
    assert search_reads.near(store, "node", "sim-n000", 3)[0].startswith("sim-n000")
    assert search_reads.near(store, "job", "sim-pretran", 3)[0] == JOB
    assert search_reads.near(store, "node", "something else altogether", 3) == []
    assert search_reads.near(store, "node", "sim-n000", 5, ["sim-n0001"]) == ["sim-n0001"]


def test_coverage_and_training_share_of_some(filled: Store) -> None:
    store = filled
    everybody, one = machine_reads.coverage(store), machine_reads.coverage(store, [NODE])
    assert everybody["devices_reporting"] == DEVICES
    assert one["devices_reporting"] == 8
    assert machine_reads.coverage(store, [])["devices_reporting"] == 0
    assert fleet_reads.training_share(store, [JOB]) == fleet_reads.training_share(store)
    assert fleet_reads.training_share(store, ["another"]) is None
