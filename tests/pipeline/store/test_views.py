from __future__ import annotations

import time
from typing import Any

import pytest

from flightwatch.pipeline.store.client import Store
from tests.pipeline.store.blocks import HOUR_MS, insert

NOW = time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS - 2 * HOUR_MS
FULL_32, FULL_64 = 2**32 - 1, 2**64 - 1


def rates(store: Store, node: str) -> list[dict[str, Any]]:
    return store.rows(
        "SELECT ts, ecc_corrected_delta AS delta, ecc_corrected_per_s AS rate, link_tx_bytes_per_s AS bytes, at_least"
        " FROM flightwatch.v_device_rates WHERE node = {node:String} ORDER BY ts",
        {"node": node},
    )


def samples(store: Store, node: str, *counts: int | None, every_ms: int = 10_000) -> list[dict[str, Any]]:
    insert(
        store,
        "device_samples",
        *(
            {"ts": NOW + i * every_ms, "node": node, "device": 0, "vendor": "nvidia", "ecc_corrected_total": count}
            for i, count in enumerate(counts)
        ),
    )
    return rates(store, node)


def test_a_counter_becomes_deltas_and_rates(store: Store) -> None:
    found = samples(store, "plain", 100, 100, 130, 131)
    assert [row["delta"] for row in found] == [None, 0, 30, 1]
    assert [row["rate"] for row in found] == [None, 0, 3.0, 0.1]
    assert [row["bytes"] for row in found] == [None] * 4
    assert all(row["at_least"] == [] for row in found)


def test_a_decrease_is_a_reset_and_the_delta_a_lower_bound(store: Store) -> None:
    found = samples(store, "reset", 100, 7, 9)
    assert [row["delta"] for row in found] == [None, 7, 2]
    assert [row["at_least"] for row in found] == [[], ["ecc_corrected"], []]


@pytest.mark.parametrize("full", [FULL_32, FULL_64])
def test_a_full_register_counts_no_further(store: Store, full: int) -> None:
    found = samples(store, f"full-{full}", full - 5, full, full, 3)
    assert [row["delta"] for row in found] == [None, 5, None, 3]
    assert [row["at_least"] for row in found] == [[], ["ecc_corrected"], [], ["ecc_corrected"]]


def test_rows_without_the_counter_lie_between_not_in_the_way(store: Store) -> None:
    found = samples(store, "gaps", 10, None, 30)
    assert [row["delta"] for row in found] == [None, None, 20]
    assert found[2]["rate"] == 1.0


def test_large_counters_stay_exact(store: Store) -> None:
    insert(
        store,
        "device_samples",
        *(
            {"ts": NOW + i * 1_000, "node": "large", "device": 0, "link_tx_bytes_total": 2**63 + 3 * i}
            for i in range(3)
        ),
    )
    deltas = store.rows(
        "SELECT link_tx_bytes_delta AS delta FROM flightwatch.v_device_rates WHERE node = 'large' ORDER BY ts"
    )
    assert [row["delta"] for row in deltas] == [None, 3, 3]


def test_port_rates(store: Store) -> None:
    port = {"node": "n", "hca": "mlx5_0", "port": 1}
    insert(
        store,
        "port_samples",
        port | {"ts": NOW, "rx_bytes_total": 1_000, "symbol_errors_total": 5},
        port | {"ts": NOW + 2_000, "rx_bytes_total": 5_000, "symbol_errors_total": 2},
        port | {"ts": NOW, "port": 2, "rx_bytes_total": 9_000},
    )
    found = store.rows("SELECT * FROM flightwatch.v_port_rates WHERE node = 'n' ORDER BY port, ts")
    assert [(row["port"], row["rx_bytes_per_s"], row["symbol_errors_delta"]) for row in found] == [
        (1, None, None),
        (1, 2_000.0, 2),
        (2, None, None),
    ]
    assert found[1]["at_least"] == ["symbol_errors"]


def test_a_filter_on_the_node_reaches_the_table(store: Store) -> None:
    plan = store.rows(
        "EXPLAIN indexes = 1, actions = 1 SELECT * FROM flightwatch.v_device_rates"
        " WHERE node = 'plain' AND cluster = 'c'"
    )
    text = "\n".join(row["explain"] for row in plan)
    below_window = text.split("Window", 1)[1]
    assert "equals(node" in below_window or "node IN" in below_window or "(node in" in below_window


def test_step_times_name_the_slowest(store: Store) -> None:
    step = {"ts": NOW, "job": "j", "run": "1", "step": 7}
    insert(
        store,
        "rank_steps",
        step | {"rank": 0, "node": "a", "step_us": 100.0, "compute_us": 50.0, "tokens": 10.0},
        step | {"rank": 1, "node": "b", "step_us": 160.0, "compute_us": 110.0, "tokens": 10.0},
        step | {"rank": 2, "node": "c", "step_us": 101.0, "compute_us": None},
    )
    (found,) = store.rows("SELECT * FROM flightwatch.v_step_times WHERE job = 'j'")
    assert (found["ranks"], found["step_us_median"], found["step_us_max"]) == (3, 101.0, 160.0)
    assert (found["slowest_rank"], found["slowest_node"], found["slowest_compute_node"]) == (1, "b", "b")
    assert found["tokens"] == 20.0


def incident(number: int, version: int, state: str, **cells: Any) -> dict[str, Any]:
    return {"ts": NOW, "id": f"i{number}", "version": version, "state": state, "severity": "P2", "kind": "slow",
            "title": "t", "opened_at": NOW, "updated_at": NOW} | cells  # fmt: skip


def test_open_incidents_and_lost_hours_follow_the_newest_version(store: Store) -> None:
    insert(
        store,
        "incidents",
        incident(1, 1, "open", node="a", lost_gpu_hours=1.0),
        incident(1, 3, "acknowledged", node="a", lost_gpu_hours=5.0),
        incident(1, 2, "open", node="a", lost_gpu_hours=2.0),
        incident(2, 1, "open", node="b", lost_gpu_hours=9.0),
        incident(2, 2, "resolved", node="b", lost_gpu_hours=10.0, closed_at=NOW + 1),
        incident(3, 1, "open", node="a", lost_gpu_hours=None),
        incident(4, 1, "false_positive", node="a", lost_gpu_hours=100.0),
    )
    opened = store.rows("SELECT id, state, open_s FROM flightwatch.v_open_incidents ORDER BY id")
    assert [(row["id"], row["state"]) for row in opened] == [("i1", "acknowledged"), ("i3", "open")]
    assert all(row["open_s"] > 0 for row in opened)
    lost = store.rows("SELECT * FROM flightwatch.v_lost_gpu_hours ORDER BY node")
    assert [(r["node"], r["incidents"], r["lost_gpu_hours"], r["incidents_without_figure"]) for r in lost] == [
        ("a", 2, 5.0, 1),
        ("b", 1, 10.0, 0),
    ]


def test_node_history_knows_the_serial_of_the_time(store: Store) -> None:
    device = {"node": "h", "device": 3}
    insert(
        store,
        "inventory",
        device | {"ts": NOW, "serial": "OLD", "model": "m"},
        device | {"ts": NOW + 50_000, "serial": "NEW", "model": "m"},
    )
    insert(
        store,
        "events",
        device | {"ts": NOW - 1, "source": "kernel", "code": "xid:13", "severity": "error", "message": "before"},
        device | {"ts": NOW + 1, "source": "kernel", "code": "xid:79", "severity": "critical", "message": "old"},
        device | {"ts": NOW + 60_000, "source": "kernel", "code": "xid:48", "severity": "error", "message": "new"},
        device | {"ts": NOW + 60_001, "source": "kernel", "code": "chat", "severity": "info", "message": "no"},
    )
    insert(store, "actions", {"ts": NOW + 70_000, "id": "x", "node": "h", "kind": "drain", "mode": "dry_run",
                              "state": "done", "actor": "rule", "version": 1})  # fmt: skip
    insert(store, "findings", device | {"ts": NOW + 61_000, "id": "f", "detector": "d", "kind": "ecc",
                                        "severity": "P3", "summary": "s", "detected_at": NOW})  # fmt: skip
    found = store.rows(
        "SELECT source, kind, serial, summary FROM flightwatch.v_node_history WHERE node = 'h' ORDER BY ts"
    )
    assert [(row["source"], row["kind"], row["serial"]) for row in found] == [
        ("event", "xid:13", None),
        ("inventory", "m", "OLD"),
        ("event", "xid:79", "OLD"),
        ("inventory", "m", "NEW"),
        ("event", "xid:48", "NEW"),
        ("finding", "ecc", "NEW"),
        ("action", "drain", None),
    ]
    assert found[-1]["summary"] == "dry_run done"


def test_coverage_counts_silent_ranks_and_devices(store: Store) -> None:
    insert(store, "placements", *({"ts": NOW, "job": "cov", "run": "1", "rank": r, "node": "n"} for r in range(4)))
    insert(
        store, "placements", {"ts": NOW + 1, "job": "cov", "run": "1", "rank": 3, "node": "n", "valid_until": NOW + 2}
    )
    insert(store, "rank_steps", {"ts": NOW, "job": "cov", "run": "1", "rank": 0, "step": 1, "node": "n"})
    insert(store, "rank_steps", {"ts": NOW + HOUR_MS, "job": "cov", "run": "1", "rank": 1, "step": 9, "node": "n"})
    (job,) = store.rows("SELECT * FROM flightwatch.v_coverage WHERE scope = 'job' AND job = 'cov'")
    assert (job["expected"], job["reporting"], job["silent"]) == (3, 1, ["0", "2"])
    assert job["newest_at"] == NOW + HOUR_MS
    insert(store, "inventory", *({"ts": NOW, "node": "cov-node", "device": d} for d in range(2)))
    insert(store, "device_samples", {"ts": NOW + HOUR_MS, "node": "cov-node", "device": 1})
    (node,) = store.rows("SELECT * FROM flightwatch.v_coverage WHERE scope = 'node' AND node = 'cov-node'")
    assert (node["expected"], node["reporting"], node["silent"], node["coverage_ratio"]) == (2, 1, ["0"], 0.5)


def test_goodput_counts_a_repeated_step_once(store: Store) -> None:
    run = {"job": "g", "attrs": {}}
    insert(
        store,
        "runs",
        run | {"ts": NOW, "run": "1", "phase": "init", "started_at": NOW},
        run | {"ts": NOW + 20_000, "run": "1", "phase": "init", "started_at": NOW, "ended_at": NOW + 20_000},
        run
        | {"ts": NOW + 100_000, "run": "1", "phase": "train", "started_at": NOW + 20_000, "ended_at": NOW + 100_000},
    )
    steps = [("1", 1, 10), ("1", 2, 10), ("2", 2, 12)]
    insert(
        store,
        "rank_steps",
        *(
            {"ts": NOW + 30_000 + 1_000 * i, "job": "g", "run": attempt, "step": step, "rank": 0, "step_us": s * 1e6}
            for i, (attempt, step, s) in enumerate(steps)
        ),
    )
    (found,) = store.rows("SELECT * FROM flightwatch.v_goodput WHERE job = 'g'")
    assert (found["wall_s"], found["steps"], found["steps_repeated"]) == (100.0, 2, 1)
    assert found["phase_s"] == {"init": 20.0, "train": 80.0}
    assert found["productive_s"] == 22.0
    assert found["goodput_ratio"] == pytest.approx(0.22)
