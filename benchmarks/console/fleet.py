"""A filled store behind a running console, for measurements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from flightwatch.core.clock import SystemClock
from flightwatch.dashboard.app import create_app
from flightwatch.dashboard.serve import HttpServer, bind_port
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.bus.local import LocalBus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.schema_incidents import INCIDENTS
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.status import StatusProbe
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from flightwatch.simulator.fill import fill_store

PORT = 18_650
INCIDENTS_OPEN = 100
FAULTS = ("slow_gpu@3:5,severity=0.25,after=600", "cooling_zone@0,after=900")


@dataclass(frozen=True)
class Console:
    """A running console: its address, the store behind it, a job, a node and an incident in it."""

    url: str
    store: Store
    job: str
    node: str
    incident: str


@contextmanager
def console(folder: Path, devices: int, hours: float) -> Iterator[Console]:
    """Serve a store that holds `hours` of a simulated cluster up to now; it is filled when it is empty."""
    clock = SystemClock()
    store = open_store(f"chdb://{folder / 'store'}", StoreSettings())
    try:
        migrate(store)
        if not store.rows("SELECT count() AS n FROM flightwatch.device_latest")[0]["n"]:
            fill_store(store, devices, hours, clock.now_ms(), faults=FAULTS)
        bus = LocalBus(folder / "bus", BusSettings(), clock)
        setup_topics(bus, BusSettings())
        control = open_control(f"sqlite:///{folder / 'control.sqlite'}", ControlSettings())
        probe = StatusProbe(
            bus, store, clock, cluster="sim", folder=folder, components=dict, bus_settings=BusSettings()
        )
        bound = bind_port("127.0.0.1", PORT, trust_network=False)
        server = HttpServer(
            "console", create_app(Services(store, probe, lambda: None, control), loopback_only=True), bound
        )
        server.start()
        try:
            job = store.rows("SELECT job FROM flightwatch.rank_latest GROUP BY job ORDER BY count() DESC LIMIT 1")[0][
                "job"
            ]
            node = store.rows("SELECT min(node) AS node FROM flightwatch.device_latest")[0]["node"]
            incident = _incidents(control, job, node, clock.now_ms())
            yield Console(f"http://127.0.0.1:{bound.getsockname()[1]}", store, job, node, incident)
        finally:
            server.stop()
            control.close()
            bus.close()
    finally:
        store.close()


def _incidents(control: Control, job: str, node: str, now_ms: int) -> str:
    """Store a hundred open incidents of a slow rank; return the id of one."""
    rows = []
    for number in range(INCIDENTS_OPEN):
        id_, at_ms = f"bench-{now_ms}-{number}", now_ms - 60_000 * (number + 10)
        row: dict[str, Any] = dict.fromkeys(INCIDENTS.c.keys())
        rows.append(
            row
            | {
                "id": id_, "revision": 1, "cluster": "sim", "state": "open", "severity": "P2" if number else "P1",
                "kind": "slow", "class_": "compute", "scope": "device", "node": node, "device": number % 8, "job": job,
                "rank": number % 8, "title": f"{node} device {number % 8} is slow", "summary": "It is slow.",
                "targets": "[]", "opened_at_ms": at_ms, "updated_at_ms": now_ms, "evidence_at_ms": now_ms,
                "blames_hardware": True, "progress": "slowed", "reopened": 0, "stale": False, "findings_count": 0,
                "thread": id_, "peak_severity": "P2", "gpus_affected": 8, "lost_gpu_hours": 1.5,
            }
        )  # fmt: skip
    with control.transaction() as connection:
        connection.execute(sa.insert(INCIDENTS), rows)
    return str(rows[0]["id"])
