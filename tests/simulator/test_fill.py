"""A past for an empty store: what it holds, that the same call again changes nothing, words and maps as ingest has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from flightwatch.core.clock import SystemClock
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.frames import insert_frame
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from flightwatch.simulator.fill import fill_store

END_MS = SystemClock().now_ms()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('store') / 'data'}", StoreSettings())
    migrate(opened)
    yield opened
    opened.close()


def count(store: Store, table: str) -> int:
    return int(store.rows(f"SELECT count() AS n FROM flightwatch.{table} WHERE cluster = 'sim'")[0]["n"])


def test_the_past_is_there_once(store: Store) -> None:
    told: list[str] = []
    filled = fill_store(store, 64, 0.1, END_MS, faults=["slow_gpu@1:2,after=60"], progress=told.append)
    assert filled.rows["device_samples"] == 64 * 36
    assert filled.rows["rank_steps"] > 0.9 * 0.1 * 3600 / 5 * sum(job.ranks for job in filled.jobs)
    assert told[-1].startswith("steps of")
    again = fill_store(store, 64, 0.1, END_MS, faults=["slow_gpu@1:2,after=60"])
    assert again.rows == filled.rows
    assert {table: count(store, table) for table in filled.rows} == filled.rows


def test_rows_are_as_ingest_writes_them(store: Store) -> None:
    row = store.rows("SELECT * FROM flightwatch.rank_steps WHERE job = 'sim-pretrain' ORDER BY step, rank LIMIT 1")[0]
    assert row["node"] == "sim-n0000"
    assert row["rank"] == 0
    assert set(row["comm_by_axis_us"]) >= {"dp"}
    assert row["tokens"] is None
    assert row["received_at"] == row["ts"]
    idle = store.rows(
        "SELECT job, temp_c FROM flightwatch.device_samples WHERE cluster = 'sim' AND job IS NULL LIMIT 1"
    )
    assert idle[0]["temp_c"] > 20


def test_unknown_cells_and_map_entries_stay_unknown(store: Store) -> None:
    frame = pd.DataFrame(
        {
            "ts": [float(END_MS)] * 2, "cluster": "other", "node": ["a", None], "step": [1.0, 1.0], "rank": [0.0, 1.0],
            "device": [np.nan, 3.0], "comm_by_axis_us.tp": [np.nan, 5.0], "comm_by_axis_us.dp": [np.nan, np.nan],
        }
    )  # fmt: skip
    insert_frame(store, "rank_steps", frame, "unknown")
    rows = store.rows("SELECT * FROM flightwatch.rank_steps WHERE cluster = 'other' ORDER BY rank")
    assert [(row["node"], row["device"], row["comm_by_axis_us"]) for row in rows] == [
        ("a", None, {}), ("", 3, {"tp": 5.0}),
    ]  # fmt: skip
