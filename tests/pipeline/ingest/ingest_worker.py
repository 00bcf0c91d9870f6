"""An ingest process that dies, or stops, where it is told to.

usage: ingest_worker.py BUS_URL STORE_ADDRESS [POINT:COUNT:SIGNAL ...]
A point is `commit.before`, `commit.after`, `insert.before`, `insert.during` or `insert.after`; the process sends
itself SIGNAL when it passes the point for the COUNT-th time. `random:SEED:PERCENT` kills at any point. STORE_ADDRESS
is the socket of a StoreServer, or the folder of an embedded store of this process's own.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.ingest.settings import IngestSettings
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.ingest.ingest_stage import RemoteStore


class Fate:
    """Decides at which point the process ends or stops."""

    def __init__(self, orders: list[str]) -> None:
        self._passed: Counter[str] = Counter()
        self._orders = {}
        self._random: random.Random | None = None
        self._percent = 0.0
        for order in orders:
            point, first, second = order.split(":")
            if point == "random":
                self._random, self._percent = random.Random(int(first)), float(second)
            else:
                self._orders[point, int(first)] = getattr(signal, second)

    def passes(self, point: str) -> None:
        self._passed[point] += 1
        due = self._orders.get((point, self._passed[point]))
        if due is None and self._random is not None and self._random.random() * 100 < self._percent:
            due = signal.SIGKILL
        if due is not None:
            os.kill(os.getpid(), due)


class FatefulStore:
    """A store on the way to which the process may end."""

    def __init__(self, store: Any, fate: Fate) -> None:
        self._store = store
        self._fate = fate

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._store.rows(sql, parameters)
        return rows

    def insert_block(self, table: str, block: pa.Table, token: str) -> None:
        self._fate.passes("insert.before")
        # During: another thread ends the process while the engine works.
        during = threading.Timer(0.002, self._fate.passes, ["insert.during"])
        during.start()
        self._store.insert_block(table, block, token)
        during.cancel()
        self._fate.passes("insert.after")


class FatefulBus:
    """A bus whose commits the process may not survive."""

    def __init__(self, bus: Any, fate: Fate) -> None:
        self._bus = bus
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def subscribe(self, topics: Any, group: str) -> Any:
        subscription = self._bus.subscribe(topics, group)
        commit = subscription.commit

        def fateful(*arguments: Any) -> None:
            self._fate.passes("commit.before")
            commit(*arguments)
            self._fate.passes("commit.after")

        subscription.commit = fateful
        return subscription


def main() -> None:
    bus_url, address, *orders = sys.argv[1:]
    fate = Fate(orders)
    bus = open_bus(bus_url, BusSettings(session_timeout_seconds=float(os.environ.get("TEST_SESSION_SECONDS", "1"))))
    embedded = Path(address).is_dir()
    store: Any = open_store(f"chdb://{address}", StoreSettings()) if embedded else RemoteStore(address)
    settings = IngestSettings(0.0, 0.02, ownership_seconds=0.4, retry_seconds=0.2)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print("ready", flush=True)
    fateful_store: Any = FatefulStore(store, fate)
    fateful_bus: Any = FatefulBus(bus, fate)
    Ingest(fateful_bus, fateful_store, settings, cluster="c1", node="ingest-node").run(stop)
    bus.close()
    if embedded:
        store.close()


if __name__ == "__main__":
    main()
