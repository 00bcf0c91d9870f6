"""`make bench-latency`: from collect() to queryable, on a local pipeline with an agent's sender at its defaults.

Rows enter where a collector hands them over, travel through sender, bus, ingest and store, and count as arrived when
a SELECT shows them.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics
from flightwatch.pipeline.codec import encode
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.ingest.settings import IngestSettings
from flightwatch.pipeline.sender import Sender
from flightwatch.pipeline.spool import Spool, SpoolSettings
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings

GOALS_S = {"events": 1.0, "device_samples": 4.0}


class Watch:
    """Emits numbered rows of one table and notes when each becomes visible."""

    def __init__(self, store: Store, table: str, make: Callable[[int, int], list[Row]], pause_s: float) -> None:
        self._store = store
        self._table = table
        self._make = make
        self._pause_s = pause_s
        self._emitted: dict[int, float] = {}
        self.latencies: list[float] = []

    def emit(self, sender: Sender, seconds: float) -> None:
        """Emit for some time at random moments around `pause_s`."""
        dice = random.Random(self._table)
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            number += 1
            self._emitted[number] = time.monotonic()
            sender.emit(self._make(number, time.time_ns() // 1_000_000))
            time.sleep(self._pause_s * dice.uniform(0.5, 1.5))

    def look(self, stop: threading.Event) -> None:
        """Ask every 10 ms how far the table is."""
        seen = 0
        while not stop.is_set() or seen < len(self._emitted):
            rows = self._store.rows(f"SELECT max(rank) AS newest FROM {DATABASE}.{self._table}")
            now, newest = time.monotonic(), rows[0]["newest"] or 0
            self.latencies += [now - self._emitted[number] for number in range(seen + 1, newest + 1)]
            seen = max(seen, newest)
            time.sleep(0.01)


def event(number: int, now_ms: int) -> list[Row]:
    """One urgent event."""
    return [
        Row("events", {"ts": now_ms, "source": "kernel", "code": "xid:79", "severity": "error", "rank": number,
                       "message": "GPU has fallen off the bus"})
    ]  # fmt: skip


def scrape(number: int, now_ms: int) -> list[Row]:
    """Eight device rows."""
    return [
        Row("device_samples", {"ts": now_ms, "device": device, "vendor": "nvidia", "temp_c": 60.0 + device,
                               "power_w": 650.0 + number % 7, "rank": number})
        for device in range(8)
    ]  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to emit")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        bus = open_bus(f"sqlite://{name}/bus")
        setup_topics(bus, BusSettings())
        store = open_store(f"chdb://{name}/store", StoreSettings())
        migrate(store)
        ingest = Ingest(bus, store, IngestSettings(), cluster="bench")
        spool = Spool(Path(name) / "spool", SpoolSettings())
        sender = Sender(bus, spool, encode, "bench-node", "bench")
        stop, emitted = threading.Event(), threading.Event()
        watches = [Watch(store, "events", event, 0.3), Watch(store, "device_samples", scrape, 1.0)]
        running = threading.Thread(target=ingest.run, args=(stop,))
        running.start()
        sender.start()
        time.sleep(2)
        lookers = [threading.Thread(target=watch.look, args=(emitted,)) for watch in watches]
        emitters = [threading.Thread(target=watch.emit, args=(sender, seconds)) for watch in watches]
        for thread in (*lookers, *emitters):
            thread.start()
        for thread in emitters:
            thread.join()
        emitted.set()
        for thread in lookers:
            thread.join()
        sender.stop(5.0)
        stop.set()
        running.join()
        bus.close()
        store.close()
    print(f"{'collect() to queryable, s':28} {'P50':>7} {'P99':>7} {'max':>7} {'goal P99':>9} {'n':>6}")
    for table, watch in zip(GOALS_S, watches, strict=True):
        taken = sorted(watch.latencies)
        p99 = taken[math.ceil(0.99 * len(taken)) - 1]
        print(f"{table:28} {statistics.median(taken):7.2f} {p99:7.2f} {taken[-1]:7.2f} {GOALS_S[table]:9.1f}"
              f" {len(taken):6}")  # fmt: skip


if __name__ == "__main__":
    main()
