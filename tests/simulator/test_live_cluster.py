"""A simulated cluster as it lives: rows in order, counters that go on, faults where and when they were asked for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import ConfigError
from flightwatch.core.protocols import Row
from flightwatch.pipeline.codec.cells import checked
from flightwatch.simulator.live_cluster import LiveCluster
from flightwatch.simulator.plan import cluster_of, jobs_on, parse_fault, standard_faults

START_MS = 1_700_000_000_000


def world(*faults: str, gpus: int = 64, seed: int = 1, lead_s: float = 0.0) -> LiveCluster:
    cluster = cluster_of(gpus, "sim-", "sim")
    timed = [parse_fault(text, cluster) for text in faults]
    return LiveCluster(cluster, jobs_on(cluster, "sim-", 5.0, "r1"), timed, seed, START_MS, lead_s=lead_s)


def lived(one: LiveCluster, seconds: int, slice_s: int = 30) -> list[Row]:
    return [row for end in range(slice_s, seconds + 1, slice_s) for row in one.until(START_MS + end * 1000)]


def of(rows: list[Row], table: str) -> list[Row]:
    return [row for row in rows if row.table == table]


def test_every_cell_fits_its_column() -> None:
    one = world("row_remap@1,after=10")
    for row in [*one.standing(), *lived(one, 60), *one.ended(START_MS + 60_000)]:
        for name, value in row.values.items():
            checked(TABLES[row.table].column(name), value)
        assert str(row.values["node"]).startswith("sim-")
        assert row.values["cluster"] == "sim"


def test_slices_of_any_length_give_the_same_rows() -> None:
    long, short = lived(world(), 120, 60), lived(world(), 120, 5)
    assert Counter(row.table for row in long) == Counter(row.table for row in short)
    key = [(row.values["ts"], row.values["node"], row.values["device"], row.values["temp_c"])
           for row in of(long, "device_samples")]  # fmt: skip
    assert key == [(row.values["ts"], row.values["node"], row.values["device"], row.values["temp_c"])
                   for row in of(short, "device_samples")]  # fmt: skip


def test_counters_never_go_back_across_stretches() -> None:
    totals: dict[object, int] = {}
    for row in of(lived(world(), 300), "port_samples"):
        value = row.values["rx_bytes_total"]
        assert isinstance(value, int)
        assert value > totals.get(row.values["node"], -1)
        totals[row.values["node"]] = value
    assert len(totals) == 8


def test_steps_take_about_as_long_as_asked() -> None:
    rows = of(lived(world(), 300), "rank_steps")
    steps = {row.values["step"] for row in rows if row.values["job"] == "sim-pretrain"}
    assert 50 <= len(steps) <= 70


def test_a_fault_begins_after_the_healthy_history() -> None:
    one = world("slow_gpu@1:2,severity=0.5,after=60", lead_s=120)
    rows = [row for row in of(lived(one, 400), "rank_steps") if row.values["job"] == "sim-pretrain"]
    guilty = one.cluster.devices_per_node + 2
    compute = {True: [], False: []}  # type: dict[bool, list[float]]
    for row in rows:
        if row.values["rank"] == guilty:
            compute[float(row.values["ts"]) > START_MS + 190_000].append(float(row.values["compute_us"]))  # type: ignore[arg-type]
    assert np.median(compute[True]) > 1.4 * np.median(compute[False])


def test_a_dead_node_is_silent_and_its_job_stands_still() -> None:
    rows = lived(world("dead_node@0,after=60"), 180)
    assert max(float(row.values["ts"]) for row in rows if row.values["node"] == "sim-n0000") <= START_MS + 65_000  # type: ignore[arg-type]
    steps = [row for row in of(rows, "rank_steps") if row.values["job"] == "sim-pretrain"]
    assert max(float(row.values["ts"]) for row in steps) < START_MS + 60_000  # type: ignore[arg-type]
    assert any(float(row.values["ts"]) > START_MS + 120_000 for row in of(rows, "rank_steps"))  # type: ignore[arg-type]


def test_events_come_with_a_row_remap() -> None:
    rows = of(lived(world("row_remap@1:3,after=30"), 60), "events")
    assert [(row.values["code"], row.values["device"]) for row in rows] == [("xid:94", 3), ("xid:63", 3)]


def test_standard_faults_fit_every_size() -> None:
    for gpus in (1, 8, 64, 1024):
        cluster = cluster_of(gpus, "sim-", "sim")
        kinds = [parse_fault(text, cluster).fault.kind for text in standard_faults(cluster)]
        assert kinds == ["slow_gpu", "cooling_zone", "packet_loss"]
        assert sum(job.ranks for job in jobs_on(cluster, "sim-", 5.0, "r1")) <= cluster.nodes * cluster.devices_per_node


@pytest.mark.parametrize(
    "text", ["slow_gpu", "unknown@1", "slow_gpu@99", "slow_gpu@1:9", "slow_gpu@1,after=x", "slow_gpu@1,colour=2"]
)
def test_a_fault_that_cannot_be_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="fault"):
        parse_fault(text, cluster_of(64, "sim-", "sim"))
