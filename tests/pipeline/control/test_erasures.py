"""Traces of a simulation go, from store and control database; nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from flightwatch.core.clock import ManualClock, SystemClock
from flightwatch.core.errors import ConfigError
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.erasures import Erasures
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.erasing import Eraser
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.frames import insert_frame
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings

NOW_MS = float(SystemClock().now_ms())


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    opened = open_control(f"sqlite:///{tmp_path / 'control.db'}", ControlSettings(), ManualClock())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('store') / 'data'}", StoreSettings())
    migrate(opened)
    yield opened
    opened.close()


def put(store: Store, cluster: str, job: str) -> None:
    place = {"ts": NOW_MS, "cluster": cluster, "node": f"{cluster}-n", "job": job, "run": "r"}
    insert_frame(store, "rank_steps", pd.DataFrame([{**place, "step": 1.0, "rank": 0.0}]), f"s{cluster}{job}")
    sample = {"ts": NOW_MS, "cluster": cluster, "node": f"{cluster}-n", "device": 0.0, "vendor": "v", "temp_c": 50.0}
    insert_frame(store, "device_samples", pd.DataFrame([sample]), f"d{cluster}{job}")


def clusters(store: Store, table: str) -> set[str]:
    return {str(row["cluster"]) for row in store.rows(f"SELECT DISTINCT cluster FROM flightwatch.{table}")}


def test_only_what_is_marked_goes(store: Store, control: Control) -> None:
    put(store, "real", "train")
    put(store, "real", "sim-drill-job")
    put(store, "sim-drill-1", "sim-drill-1-job")
    erasures = Erasures(control)
    erase = Eraser(store, erasures)
    assert erase() == []
    erasures.ask("cluster", "sim-drill-1")
    erasures.ask("job", "sim-drill-job")
    assert {(one.column, one.value) for one in erase()} == {("cluster", "sim-drill-1"), ("job", "sim-drill-job")}
    for table in ("rank_steps", "device_samples", "device_1m", "device_latest", "rank_latest"):
        assert clusters(store, table) == {"real"}
    jobs = {row["job"] for row in store.rows("SELECT DISTINCT job FROM flightwatch.rank_steps")}
    assert jobs == {"train"}
    done = erasures.get("cluster", "sim-drill-1")
    assert done is not None
    assert done.done_at_ms is not None
    assert (done.rows or 0) >= 4
    assert erase() == []


@pytest.mark.parametrize(
    ("column", "value"), [("cluster", "default"), ("node", "sim-1"), ("job", "sim'; DROP"), ("job", "")]
)
def test_nothing_else_can_be_asked_for(control: Control, column: str, value: str) -> None:
    with pytest.raises(ConfigError, match="simulated"):
        Erasures(control).ask(column, value)
    assert Erasures(control).waiting() == []
