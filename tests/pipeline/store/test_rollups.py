from __future__ import annotations

import time
from typing import Any

from flightwatch.pipeline.store import maintenance
from flightwatch.pipeline.store.client import Store
from tests.pipeline.store.blocks import HOUR_MS, insert

NOW = time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS - 2 * HOUR_MS


def minute(store: Store, node: str) -> list[dict[str, Any]]:
    return store.rows(
        "SELECT m, sum(n) AS rows, sum(temp_c_n) AS temps, sum(temp_c_sum) AS total, min(temp_c_min) AS low,"
        " max(temp_c_max) AS high, argMinMerge(ecc_corrected_total_first) AS first,"
        " argMaxMerge(ecc_corrected_total_last) AS last, groupBitOr(throttle_reasons_any) AS reasons"
        " FROM flightwatch.device_1m WHERE node = {node:String} GROUP BY m ORDER BY m",
        {"node": node},
    )


def device(node: str, offset_s: float, **cells: Any) -> dict[str, Any]:
    return {"ts": NOW + round(offset_s * 1000), "node": node, "device": 0} | cells


def test_a_minute_holds_states_that_merge_in_any_order(store: Store) -> None:
    insert(
        store,
        "device_samples",
        device("a", 40, temp_c=50.0, ecc_corrected_total=9, throttle_reasons=4),
        device("a", 70, temp_c=90.0, ecc_corrected_total=12),
    )
    insert(
        store,
        "device_samples",
        device("a", 10, temp_c=40.0, ecc_corrected_total=5, throttle_reasons=1),
        device("a", 20, temp_c=None, ecc_corrected_total=None),
    )
    first, second = minute(store, "a")
    assert (first["m"], second["m"]) == (NOW, NOW + 60_000)
    assert (first["rows"], first["temps"], first["total"]) == (3, 2, 90.0)
    assert (first["low"], first["high"], first["first"], first["last"], first["reasons"]) == (40.0, 50.0, 5, 9, 5)
    assert (second["rows"], second["high"], second["last"]) == (1, 90.0, 12)


def test_a_minute_without_values_is_unknown_not_zero(store: Store) -> None:
    insert(store, "device_samples", device("none", 0))
    (only,) = minute(store, "none")
    assert (only["rows"], only["temps"], only["low"], only["high"], only["first"]) == (1, 0, None, None, None)


def test_a_repeated_block_changes_neither_rows_nor_rollups_nor_newest(store: Store) -> None:
    rows = [device("twice", i, temp_c=50.0 + i) for i in range(3)]
    for _ in range(3):
        insert(store, "device_samples", *rows, token="the-same-block")
    counted = store.rows("SELECT count() AS n FROM flightwatch.device_samples WHERE node = 'twice'")
    assert counted[0]["n"] == 3
    assert minute(store, "twice")[0]["rows"] == 3
    assert len(store.rows("SELECT * FROM flightwatch.v_device_latest WHERE node = 'twice'")) == 1


def test_equal_rows_under_another_token_are_other_rows(store: Store) -> None:
    for token in ("block-1", "block-2"):
        insert(store, "device_samples", device("equal", 0, temp_c=1.0), token=token)
    assert minute(store, "equal")[0]["rows"] == 2


def test_newest_row_ignores_order_of_arrival_and_tells_its_age(store: Store) -> None:
    insert(store, "device_samples", device("late", 30, temp_c=30.0))
    insert(store, "device_samples", device("late", 10, temp_c=10.0))
    (row,) = store.rows("SELECT ts, temp_c, age_s FROM flightwatch.v_device_latest WHERE node = 'late'")
    assert (row["ts"], row["temp_c"]) == (NOW + 30_000, 30.0)
    assert row["age_s"] > 3_000


def test_a_clock_that_is_ahead_does_not_win_for_ever(store: Store) -> None:
    insert(store, "device_samples", device("ahead", 300 * 86_400, temp_c=99.0, received_at=NOW))
    insert(store, "device_samples", device("ahead", 5, temp_c=40.0, received_at=NOW + 6_000))
    (row,) = store.rows("SELECT temp_c FROM flightwatch.v_device_latest WHERE node = 'ahead'")
    assert row["temp_c"] == 40.0


def test_the_bus_offset_decides_between_equal_times(store: Store) -> None:
    insert(store, "device_samples", device("tie", 0, temp_c=2.0, src_offset=8))
    insert(store, "device_samples", device("tie", 0, temp_c=1.0, src_offset=7))
    (row,) = store.rows("SELECT temp_c FROM flightwatch.v_device_latest WHERE node = 'tie'")
    assert row["temp_c"] == 2.0


def test_every_kind_of_target_has_a_newest_row(store: Store) -> None:
    base = {"ts": NOW, "node": "kinds"}
    insert(store, "node_samples", base | {"cpu_pct": 5.0})
    insert(store, "port_samples", base | {"hca": "mlx5_0", "port": 1})
    insert(store, "sensor_samples", base | {"chip": "c", "label": "l", "quantity": "temperature", "value": 1.0})
    insert(store, "storage_samples", base | {"target": "/data", "kind": "nfs"})
    insert(store, "facility_samples", base | {"zone": "z", "label": "l", "quantity": "flow"})
    insert(store, "rank_steps", base | {"job": "j", "run": "1", "rank": 0, "step": 4})
    insert(store, "self_metrics", base | {"component": "agent", "name": "heartbeat_s", "value": 1.0})
    for kind in ("node", "port", "sensor", "storage", "facility", "rank", "self"):
        rows = store.rows(f"SELECT age_s FROM flightwatch.v_{kind}_latest WHERE node = 'kinds'")
        assert len(rows) == 1, kind


def test_op_minutes(store: Store) -> None:
    op = {"ts": NOW, "node": "ops", "job": "j", "run": "1", "rank": 0, "level": "op", "kind": "comm", "op": "ar"}
    insert(
        store,
        "op_timings",
        op | {"step": 10, "steps": 20, "count": 20, "dur_us": 200.0, "dur_sq_us2": 2_100.0, "max_us": 15.0},
        op | {"step": 30, "steps": 20, "count": 20, "dur_us": 300.0, "dur_sq_us2": 4_600.0, "max_us": 25.0},
    )
    (row,) = store.rows(
        "SELECT sum(n) AS calls, min(first_step) AS first, max(last_step) AS last, sum(dur_us_sum) AS total,"
        " max(dur_us_max) AS longest, min(dur_us_min) AS shortest FROM flightwatch.op_1m WHERE node = 'ops'"
    )
    assert row == {"calls": 40, "first": 10, "last": 49, "total": 500.0, "longest": 25.0, "shortest": None}


def test_rollups_are_rebuilt_from_the_rows(store: Store) -> None:
    before = store.rows("SELECT * FROM flightwatch.v_device_latest ORDER BY node")
    assert maintenance.problems(store) == []
    store.command("TRUNCATE TABLE flightwatch.device_1m")
    assert any(problem.startswith("device_1m counts 0") for problem in maintenance.problems(store))
    store.command("TRUNCATE TABLE flightwatch.device_latest")
    maintenance.rebuild_rollups(store)
    assert maintenance.problems(store) == []
    assert minute(store, "a")[0]["last"] == 9
    after = store.rows("SELECT * FROM flightwatch.v_device_latest ORDER BY node")
    assert [row | {"age_s": 0} for row in after] == [row | {"age_s": 0} for row in before]
