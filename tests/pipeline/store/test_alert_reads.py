"""Reads for messages: places, owners, changes, coverage and the evidence of pictures."""

from __future__ import annotations

import time

from flightwatch.pipeline.store.alert_reads import AlertReads, ChangedFact, Place
from flightwatch.pipeline.store.client import Store
from tests.pipeline.store.blocks import HOUR_MS, insert

NOW_MS = (int(time.time() * 1000) - 2 * HOUR_MS) // 60_000 * 60_000


def reads(store: Store) -> AlertReads:
    return AlertReads(store, "c", seconds=10)


def test_place_is_put_together_from_its_sources(store: Store) -> None:
    insert(store, "inventory", {"ts": NOW_MS, "node": "p1", "rack": "R1", "slot": "U7", "attrs": {"bmc": "10.0.0.7"}})
    insert(store, "inventory", {"ts": NOW_MS + 1, "node": "p1", "serial": "HOST-1"})
    insert(store, "inventory", {"ts": NOW_MS, "node": "p1", "device": 3, "serial": "GPU-3", "cooling_zone": "Z2"})
    insert(store, "inventory", {"ts": NOW_MS, "node": "p1", "hca": "mlx5_0", "port": 1, "serial": "PORT"})
    assert reads(store).place("p1", 3) == Place("U7", "HOST-1", "GPU-3", "10.0.0.7", "R1", "Z2")
    assert reads(store).place("p1", None).device_serial is None
    assert reads(store).place("nowhere", 0) == Place()


def test_owner_and_time_to_start(store: Store) -> None:
    assert reads(store).owner("j-own") is None
    assert reads(store).start_seconds("j-own") is None
    for run, took in (("1", 300_000), ("2", 500_000), ("3", 420_000)):
        start = NOW_MS + int(run) * 1_000_000
        insert(store, "runs", {"ts": start, "job": "j-own", "run": run, "phase": "init", "started_at": start,
                               "attrs": {"owner": "wang"}})  # fmt: skip
        insert(store, "runs", {"ts": start + took, "job": "j-own", "run": run, "phase": "train",
                               "started_at": start + took})  # fmt: skip
    assert reads(store).owner("j-own") == "wang"
    assert reads(store).start_seconds("j-own") == 420.0


def test_only_changes_of_the_last_day_are_told(store: Store) -> None:
    for at, name, value in (
        (-30, "driver", "550"), (-29, "driver", "551"), (-26, "mtu", "9000"), (-5, "mtu", "1500"), (-4, "mtu", "1500"),
        (-3, "kernel", "6.1"),
    ):  # fmt: skip
        insert(store, "config_facts", {"ts": NOW_MS + at * HOUR_MS, "node": "p2", "name": name, "value": value})
    assert reads(store).changes("p2", NOW_MS) == [ChangedFact(None, "mtu", "9000", "1500", NOW_MS - 5 * HOUR_MS)]


def test_coverage_of_a_job(store: Store) -> None:
    assert reads(store).coverage("j-cov") is None
    for rank in range(4):
        insert(store, "placements", {"ts": NOW_MS, "job": "j-cov", "run": "1", "rank": rank, "node": "p3"})
    for rank in range(3):
        insert(store, "rank_steps", {"ts": NOW_MS, "job": "j-cov", "run": "1", "rank": rank, "step": 1, "node": "p3"})
    assert reads(store).coverage("j-cov") == (3, 4)


def test_step_times_of_a_rank_beside_its_peers(store: Store) -> None:
    rows = [
        {"ts": NOW_MS + step * 1000, "job": "j-pic", "run": "1", "rank": rank, "step": step, "node": "p4",
         "compute_us": 200_000 if rank == 2 and step >= 10 else 100_000 + 1000 * rank, "loss": 2.0 + step}
        for step in range(20) for rank in range(8)
    ]  # fmt: skip
    insert(store, "rank_steps", *rows)
    window = (NOW_MS - 1, NOW_MS + 60_000)
    series = reads(store).step_times("j-pic", [2], "compute_us", *window)
    assert series is not None
    assert (series.target[0], series.target[-1]) == (102.0, 200.0)
    assert series.low[-1] == 100.0
    assert len(series.times_ms) == 20
    progress = reads(store).progress("j-pic", *window)
    assert progress is not None
    assert progress.target[-1] == 19
    loss = reads(store).scalar("j-pic", "loss", *window)
    assert loss is not None
    assert list(loss.target)[:2] == [2.0, 3.0]
    assert reads(store).step_times("j-pic", [99], "compute_us", *window) is None
    assert reads(store).progress("nothing", *window) is None


def test_temperatures_of_nodes_beside_the_others(store: Store) -> None:
    rows = [
        {"ts": NOW_MS + minute * 60_000, "node": f"t{node}", "device": device, "vendor": "nvidia",
         "temp_c": 80.0 if node == 0 else 60.0 + device}
        for minute in range(5) for node in range(4) for device in range(2)
    ]  # fmt: skip
    insert(store, "device_samples", *rows)
    series = reads(store).temperatures(["t0"], None, NOW_MS - 1, NOW_MS + 600_000)
    assert series is not None
    assert set(series.target) == {80.0}
    assert (series.low[0], series.high[0]) == (60.0, 61.0)
