"""Reads of the console's pages over a small simulated past."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flightwatch.core.clock import SystemClock
from flightwatch.core.protocols import Row
from flightwatch.pipeline.store import (
    counter_reads,
    fleet_reads,
    jobs_reads,
    node_reads,
    schema_reads,
    search_reads,
    setup_reads,
    step_reads,
)
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.frames import insert_rows
from flightwatch.simulator.fill import fill_store

JOB, NODE, DEVICES = "sim-pretrain", "sim-n0000", 64


@pytest.fixture(scope="module")
def filled(store: Store) -> tuple[Store, int]:
    now_ms = SystemClock().now_ms()
    fill_store(store, DEVICES, 0.3, now_ms, faults=["slow_gpu@0:5,severity=0.3,after=300"])
    base: dict[str, Any] = {
        "received_at": now_ms, "cluster": "sim", "node": NODE, "src_partition": 0, "detector": "slow",
        "detector_version": "1", "kind": "slow", "scope": "device", "targets": [], "detected_at": now_ms - 60_000,
        "score": 9.0, "severity": "P2", "blames_hardware": True, "summary": "slow", "evidence": "{}", "job": JOB,
        "device": 5,
    }  # fmt: skip
    rows = [
        Row("findings", base | {"ts": now_ms - 60_000, "id": "a", "state": "raised", "src_offset": 1}),
        Row(
            "findings", base | {"ts": now_ms - 50_000, "id": "a", "state": "changed", "severity": "P1", "src_offset": 2}
        ),
        Row("findings", base | {"ts": now_ms - 60_000, "id": "b", "state": "raised", "src_offset": 3}),
        Row("findings", base | {"ts": now_ms - 40_000, "id": "b", "state": "cleared", "src_offset": 4}),
    ]
    host: dict[str, Any] = {"ts": now_ms, "received_at": now_ms, "cluster": "sim", "node": "login-1", "cpu_pct": 12.5,
            "src_partition": 0, "src_offset": 9}  # fmt: skip
    insert_rows(store, [*rows, Row("node_samples", host)], "reads:extra")
    return store, now_ms


def test_the_roster_has_every_device_with_its_places_and_hosts_without_any(filled: tuple[Store, int]) -> None:
    store, now_ms = filled
    found = fleet_reads.roster(store, now_ms)
    assert len(found.keys) == len(set(found.keys.tolist())) == DEVICES + 1
    assert found.nodes == sorted(found.nodes)
    host = found.nodes.index("login-1")
    assert found.devices[host] == fleet_reads.HOST
    assert found.places["rack"][host] == ""
    device = found.nodes.index(NODE)
    assert found.places["rack"][device] == "sim-r000"
    assert found.places["cooling_zone"][device] == "sim-z00"
    assert found.places["leaf_switch"][device].startswith("sim-leaf")
    assert found.places["job"][device] == JOB
    assert {"nvidia SIM-H100 busy", "nvidia SIM-H100 idle"} <= set(found.cohort)


@pytest.mark.parametrize("metric", [*fleet_reads.DEVICE_METRICS])
def test_newest_values_have_a_key_of_the_roster_and_unknown_is_not_a_number(
    filled: tuple[Store, int], metric: str
) -> None:
    store, now_ms = filled
    found = fleet_reads.newest_values(store, metric)
    assert set(found.keys.tolist()) <= set(fleet_reads.roster(store, now_ms).keys.tolist())
    assert len(found.keys) == DEVICES
    simulated = metric in ("temp_c", "power_w", "util_pct", "sm_clock_mhz", "voltage_mv", "fan_pct")
    assert np.isnan(found.values).all() != simulated
    assert (found.ages_s >= 0).all()


@pytest.mark.parametrize("metric", [*counter_reads.COUNTER_METRICS])
def test_growth_of_counters(filled: tuple[Store, int], metric: str) -> None:
    found = counter_reads.counter_growth(filled[0], metric)
    assert len(found.keys) == DEVICES
    known = found.values[~np.isnan(found.values)]
    assert (known >= 0).all()
    assert len(known) == (0 if metric == "link_errors_per_h" else DEVICES)


def test_the_slow_device_is_slow_against_its_role(filled: tuple[Store, int]) -> None:
    store, now_ms = filled
    found = fleet_reads.step_slowness(store)
    fleet = fleet_reads.roster(store, now_ms)
    worst = int(np.flatnonzero(fleet.keys == found.keys[np.argmax(found.values)])[0])
    assert (fleet.nodes[worst], int(fleet.devices[worst])) == (NODE, 5)
    assert 1.2 < float(found.values.max()) < 1.5


def test_findings_are_what_their_newest_row_says(filled: tuple[Store, int]) -> None:
    found = fleet_reads.open_findings(filled[0])
    assert [(row["id"], row["severity"], row["state"]) for row in found] == [("a", "P1", "changed")]
    changes = fleet_reads.recent_changes(filled[0], 3600)
    assert {row["source"] for row in changes} >= {"finding.raised", "finding.changed", "finding.cleared", "run"}
    assert [row["ts"] for row in changes] == sorted((row["ts"] for row in changes), reverse=True)


def test_figures_of_the_fleet(filled: tuple[Store, int]) -> None:
    store, _ = filled
    assert JOB in [row["job"] for row in fleet_reads.running_jobs(store)]
    assert fleet_reads.lost_gpu_hours(store, "2026-01-01", None) is None
    assert fleet_reads.lost_gpu_hours(store, "2026-01-01", ["somebody"]) is None
    share = fleet_reads.training_share(store)
    assert share is None or 0 < share <= 1
    assert fleet_reads.nodes_of(store, ["nobody"]) == set()


def test_steps_of_a_stretch_of_time(filled: tuple[Store, int]) -> None:
    store, now_ms = filled
    attempt = step_reads.attempts(store, JOB)[0]
    every = step_reads.chosen_steps(store, JOB, attempt, 0, now_ms + 1000, 10_000)
    assert every == list(range(every[0], attempt.newest_step + 1))
    last_minutes = step_reads.chosen_steps(store, JOB, attempt, now_ms - 300_000, now_ms + 1000, 10_000)
    times = dict(zip(*_times(store, attempt, every), strict=True))
    wanted = [step for step in every if times[step] >= now_ms - 300_000]
    assert abs(len(last_minutes) - len(wanted)) <= 1
    assert len(step_reads.chosen_steps(store, JOB, attempt, 0, now_ms, 20)) <= 21
    assert step_reads.chosen_steps(store, JOB, attempt, now_ms + 10_000, now_ms + 20_000, 20) == []
    assert step_reads.attempts(store, "no such job") == []


def _times(store: Store, attempt: step_reads.Attempt, steps: list[int]) -> tuple[list[int], list[int]]:
    found = step_reads.matrix(store, JOB, attempt, steps, "step_us", [0])
    return found.steps.tolist(), found.starts_ms.tolist()


def test_a_matrix_has_ranks_by_steps_and_nothing_invented(filled: tuple[Store, int]) -> None:
    store, now_ms = filled
    attempt = step_reads.attempts(store, JOB)[0]
    steps = step_reads.chosen_steps(store, JOB, attempt, 0, now_ms + 1000, 30)
    found = step_reads.matrix(store, JOB, attempt, steps, "compute_us")
    assert found.values_RS.shape == (attempt.ranks, len(found.steps))
    assert set(found.steps.tolist()) <= set(steps)
    one = step_reads.matrix(store, JOB, attempt, steps, "compute_us", [5])
    assert one.ranks.tolist() == [5]
    assert np.allclose(one.values_RS[0], found.values_RS[5], equal_nan=True)
    assert np.isnan(step_reads.matrix(store, JOB, attempt, steps, "launch_gap_us").values_RS).sum() >= 0
    with pytest.raises(KeyError):
        step_reads.matrix(store, JOB, attempt, steps, "1; DROP TABLE x")
    empty = step_reads.matrix(store, JOB, attempt, [10**9], "compute_us")
    assert empty.values_RS.shape == (0, 0)


def test_roles_come_from_placements(filled: tuple[Store, int]) -> None:
    attempt = step_reads.attempts(filled[0], JOB)[0]
    roles = step_reads.roles(filled[0], JOB, attempt)
    assert (roles.nodes[5], roles.devices[5]) == (NODE, 5)
    assert len(set(roles.cohort(roles.ranks).tolist())) == len(set(roles.axes["pp"].tolist()))


def test_jobs_with_their_figures(filled: tuple[Store, int]) -> None:
    store, now_ms = filled
    found = {row["job"]: row for row in jobs_reads.jobs(store)}
    row = found[JOB]
    assert row["reporting"] == row["expected"] == row["ranks"]
    assert row["findings"] == 1
    assert row["tokens_per_s"] is None
    assert row["step_us"] > 1e6
    attempt = step_reads.attempts(store, JOB)[0]
    steps = step_reads.chosen_steps(store, JOB, attempt, 0, now_ms + 1000, 10)
    summary = jobs_reads.step_summary(store, JOB, attempt, steps)
    assert summary[-1]["slowest_rank"] == 5
    assert all(row["longest_us"] >= row["step_us"] for row in summary)
    assert jobs_reads.phases(store, JOB)[0]["phase"] in ("train", "init")
    assert [row["id"] for row in jobs_reads.findings_of(store, JOB, now_ms - 3_600_000)] == ["a", "b"]
    assert jobs_reads.findings_of(store, "x", 0) == []
    assert jobs_reads.goodput(store, "x") is None
    assert jobs_reads.scalars(store, JOB, attempt, 0, 10, 5) == []


@pytest.mark.parametrize("hours", [0.3, 5.0])
def test_series_of_a_node_raw_and_from_minutes(filled: tuple[Store, int], hours: float) -> None:
    store, now_ms = filled
    by_device = node_reads.device_series(store, NODE, now_ms - round(hours * 3_600_000), now_ms, 30)
    assert set(by_device) == set(range(8))
    for columns in by_device.values():
        assert len(columns["bucket"]) == len(columns["temp_c"]) > 1
        assert (np.diff(columns["bucket"]) > 0).all()
        assert (columns["temp_c"] > 20).all()
        assert np.isnan(columns["hotspot_c"]).all()
    host = node_reads.node_series(store, NODE, now_ms - round(hours * 3_600_000), now_ms, 30)
    assert ((host["cpu_pct"] > 0) & (host["cpu_pct"] <= 100)).all()
    assert np.isnan(host["mem_used_bytes"]).all()
    assert len(host["bucket"]) > 1
    ports = node_reads.port_series(store, NODE, now_ms - round(hours * 3_600_000), now_ms, 60)
    assert len(ports) == 1
    assert all(len(columns["bucket"]) for columns in ports.values())
    assert node_reads.device_series(store, "nobody", 0, now_ms, 30) == {}


def test_what_a_node_is_and_has(filled: tuple[Store, int]) -> None:
    store, now_ms = filled
    assert [row["device"] for row in node_reads.devices(store, NODE)] == list(range(8))
    facts = node_reads.facts(store, NODE, now_ms)
    assert (facts["rack"], facts["cooling_zone"]) == ("sim-r000", "sim-z00")
    assert node_reads.facts(store, "nobody", now_ms)["parts"] == 0
    ranks = node_reads.ranks_on(store, NODE)
    assert [row["rank"] for row in ranks] == list(range(8))
    history = node_reads.history(store, NODE, now_ms - 3_600_000, now_ms)
    assert "finding.raised" in {row["source"] for row in history}
    assert node_reads.history(store, "nobody", 0, now_ms) == []


def test_growth_between_buckets() -> None:
    nothing = np.nan
    columns = {"bucket": np.arange(5) * 60_000, "a": np.array([10, 12, nothing, 16, 3])}
    times, values = node_reads.increments(columns, ("a",), per_s=60.0)
    assert times.tolist() == [0, 60_000, 120_000, 180_000, 240_000]
    # Nothing before the first; a hole is bridged; a lower reading was counted from zero.
    assert np.allclose(values, [nothing, 2.0, nothing, 2.0, 3.0], equal_nan=True)
    two = columns | {"b": np.array([nothing, 5, 6, nothing, 9])}
    # Growth of a counter that was not read in between counts where it was read again.
    summed = node_reads.increments(two, ("a", "b"), per_s=60.0)[1]
    assert np.allclose(summed, [nothing, 2.0, 1.0, 4.0, 3.0 + 3.0], equal_nan=True)
    assert np.isnan(node_reads.increments({"bucket": np.zeros(0), "a": np.zeros(0)}, ("a",), per_s=1.0)[1]).all()


def test_what_was_seen_saves_probes(filled: tuple[Store, int], monkeypatch: pytest.MonkeyPatch) -> None:
    store, now_ms = filled
    attempt = step_reads.attempts(store, JOB)[0]
    seen: dict[int, int] = {}
    first = step_reads.chosen_steps(store, JOB, attempt, now_ms - 300_000, now_ms + 1000, 40, seen)
    assert seen
    monkeypatch.setattr(step_reads, "_probe", lambda *_: pytest.fail("asked again"))
    assert step_reads.chosen_steps(store, JOB, attempt, now_ms - 300_000, now_ms + 1000, 40, seen) == first


def test_search_schema_and_setup(filled: tuple[Store, int]) -> None:
    store, _ = filled
    assert [hit.path for hit in search_reads.find(store, "n0000", 5)] == [f"/nodes/{NODE}"]
    assert search_reads.find(store, "PRETRAIN", 5)[0].kind == "job"
    assert search_reads.find(store, "%", 5) == []
    schema = schema_reads.columns(store, ["events", "v_step_times", "no_such_table"])
    assert list(schema) == ["events", "v_step_times"]
    assert schema["events"][:3] == ["ts", "received_at", "cluster"]
    newest = setup_reads.tables_with_rows(store, ["device_samples", "collectives"])
    assert newest["device_samples"] is not None
    assert newest["collectives"] is None
    assert setup_reads.places_known(store)["racked"] > 0
