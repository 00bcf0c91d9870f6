"""Every recipe of docs/sql.md passes the guard and runs; figures of some are compared."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.people import run_people_sql
from tests.pipeline.store.blocks import insert

PAGE = Path(__file__).parents[3] / "docs" / "sql.md"
RECIPES = re.findall(r"^([^\n]+):\n\n```sql\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def now_ms() -> int:
    # Not once for the module: it may have been read long before its tests run.
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def fleet(store: Store) -> Store:
    """Eight devices, the last one hot and power-hungry, with a counter that resets."""
    now = now_ms()
    rows = [
        {"ts": now - 180_000 + 60_000 * minute, "node": "node-0001", "device": device, "vendor": "nvidia",
         "temp_c": 60.0 + device % 3 + 25 * (device == 7), "power_w": 400.0 + device % 3 + 250 * (device == 7),
         "energy_j_total": 1e6 + 36_000.0 * minute, "ecc_corrected_total": (5, 9, 2)[minute]}
        for minute in range(3) for device in range(8)
    ]  # fmt: skip
    insert(store, "device_samples", *rows)
    return store


def answer(store: Store, title: str) -> list[dict[str, object]]:
    (query,) = [query for name, query in RECIPES if name.startswith(title)]
    return [json.loads(line) for line in run_people_sql(store, query).decode().splitlines()]


@pytest.mark.parametrize(("title", "query"), RECIPES, ids=[title[:40] for title, _ in RECIPES])
def test_a_recipe_runs(fleet: Store, title: str, query: str) -> None:
    assert title
    run_people_sql(fleet, query, "table")


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 14


def test_the_odd_one_is_first(fleet: Store) -> None:
    rows = answer(fleet, "Accelerators that draw unlike")
    assert rows[0]["device"] == 7
    assert float(str(rows[0]["z"])) > 50


def test_errors_across_a_reset_are_a_lower_bound(fleet: Store) -> None:
    rows = answer(fleet, "Corrected memory errors")
    assert sum(int(str(row["errors"])) for row in rows if row["device"] == 0) == 4 + 2


def test_energy_is_the_difference_of_counters(fleet: Store) -> None:
    rows = answer(fleet, "Energy of one node")
    assert rows[0] == {"device": 0, "kwh": pytest.approx(0.02)}


def test_waits_of_groups_across_nodes_are_split(store: Store) -> None:
    """Two data-parallel groups of two, one for each stage; rank 3 is late, so rank 1 waits for it."""
    now = now_ms()
    spent = {0: 500.0, 1: 3000.0, 2: 400.0, 3: 700.0}
    places = [
        {"ts": now, "node": f"n{rank}", "job": "llama", "run": "0", "rank": rank, "pp": rank % 2, "dp": rank // 2}
        for rank in spent
    ]
    steps = [
        {"ts": now, "node": f"n{rank}", "job": "llama", "run": "0", "rank": rank, "step": step, "step_us": 9e3,
         "comm_us": us + 5.0, "comm_by_axis_us": {"dp": us}}
        for step in range(3) for rank, us in spent.items()
    ]  # fmt: skip
    insert(store, "placements", *places)
    insert(store, "rank_steps", *steps)
    rows = {row["rank"]: (row["wait_us"], row["transfer_us"], row["steps"]) for row in answer(store, "Waiting and tra")}
    assert {rank: (float(str(wait)), float(str(sent))) for rank, (wait, sent, _) in rows.items()} == {
        0: (105.0, 400.0), 1: (2305.0, 700.0), 2: (5.0, 400.0), 3: (5.0, 700.0),
    }  # fmt: skip
