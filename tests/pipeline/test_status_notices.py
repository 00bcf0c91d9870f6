"""What the status says when ingest cannot store: the reason, until a try succeeds."""

from __future__ import annotations

from pathlib import Path

from flightwatch.core.clock import ManualClock
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.ingest.metrics import IngestMetrics
from flightwatch.pipeline.status import StatusProbe
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings


def test_the_reason_why_ingest_tries_again_is_shown_until_it_succeeds(tmp_path: Path) -> None:
    clock, metrics = ManualClock(), IngestMetrics()
    bus = open_bus(f"sqlite://{tmp_path}/bus", clock=clock)
    store = open_store(f"chdb://{tmp_path}/store", StoreSettings())
    try:
        migrate(store)
        probe = StatusProbe(
            bus, store, clock, cluster="c", folder=None, components=dict,
            bus_settings=BusSettings(), ingest_error=lambda: metrics.snapshot().last_error,
        )  # fmt: skip
        assert probe.fresh()["notices"] == []
        metrics.failed("the store's disk is full")
        assert probe.fresh()["notices"] == ["Ingest tries again, losing nothing: the store's disk is full"]
        metrics.stored({"events": 1})
        assert probe.fresh()["notices"] == []
    finally:
        store.close()
        bus.close()
