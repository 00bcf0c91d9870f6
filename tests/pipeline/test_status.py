"""The status of an installation: lag in time and as a share of retention, tables, disk, notices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.cli.status import status_text
from flightwatch.core.clock import ManualClock
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.status import StatusProbe
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.ingest.ingest_stage import SETTINGS as INGEST
from tests.pipeline.ingest.ingest_stage import Agent, ingest_all, now_ms

SETTINGS = BusSettings(rows_retention_hours=2.0)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    opened = open_bus(f"sqlite://{tmp_path}/bus", SETTINGS)
    setup_topics(opened, SETTINGS)
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path}/store", StoreSettings())
    migrate(opened)
    yield opened
    opened.close()


def test_behind_then_caught_up(bus: Bus, store: Store, tmp_path: Path) -> None:
    agent = Agent(bus)
    agent.send(agent.samples(1))
    clock = ManualClock(now_ms())
    states = {"ingest": "stopped: disk full"}
    probe = StatusProbe(
        bus, store, clock, cluster="c7", folder=tmp_path, components=lambda: states, bus_settings=SETTINGS
    )
    clock.advance(5_400)
    status = probe()
    assert (status["cluster"], status["components"]) == ("c7", states)
    assert status["newest_row_age_seconds"] is None, "nothing is stored: unknown, not 0"
    assert sum(part["behind"] for part in status["partitions"]) == 1
    assert status["lag_seconds"] == pytest.approx(5_400, abs=60)
    assert status["retention_share"] == pytest.approx(0.75, abs=0.01)
    assert min(status["disk"]["used_bytes"], status["disk"]["free_bytes"]) > 0
    said = "\n".join(status["notices"])
    assert "% of the time that the bus keeps rows: what it reaches too late is lost" in said
    assert "ingest is stopped: disk full." in said
    text = status_text(status)
    assert "behind    1.5 h, 75." in text
    assert "newest unknown old" in text

    ingest_all(Ingest(bus, store, INGEST, cluster="c7", node="x"), bus)
    states["ingest"] = "running"
    status = probe.fresh()
    assert (status["lag_seconds"], status["retention_share"]) == (0.0, 0.0)
    assert [row["age_seconds"] is None for row in status["tables"] if row["table"] == "device_samples"] == [False]
    assert status["rows_per_second"] > 0
    assert status["coverage"]["devices_reporting"] == 2
    assert not [notice for notice in status["notices"] if "behind" in notice]
