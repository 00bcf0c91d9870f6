"""A control server of profiles that dies where it is told to.

usage: profile_process.py BUS_URL FOLDER [POINT:COUNT ...]
Points: `take.before`, `take.after` (a message of the blobs lane), `whole` (a trace is whole, its last
chunk not committed), `insert.before`, `insert.after` (a projection); the
process kills itself (-9) when it passes one for the COUNT-th time. Projections go to FOLDER/projections.jsonl.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from flightwatch.core.clock import SystemClock
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.base import Message
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.profiles.server import GROUP, ProfileServer
from flightwatch.pipeline.profiles.server_key import server_key
from flightwatch.pipeline.profiles.settings import ProfilesSettings
from flightwatch.pipeline.store.client import Store


class Fate:
    """Ends the process at a point."""

    def __init__(self, orders: list[str]) -> None:
        self._due = {(point, int(count)) for point, _, count in (order.partition(":") for order in orders)}
        self._passed: Counter[str] = Counter()

    def passes(self, point: str) -> None:
        self._passed[point] += 1
        if (point, self._passed[point]) in self._due:
            print(f"ends at {point}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


class FileStore:
    """Keeps what is projected, with its deduplication token, in a file."""

    def __init__(self, path: Path, fate: Fate) -> None:
        self._path = path
        self._fate = fate

    def rows(self, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
        return []

    def insert_block(self, table: str, block: pa.Table, token: str) -> None:
        self._fate.passes("insert.before")
        with self._path.open("a") as file:
            file.write(json.dumps({"token": token, "rows": block.to_pylist()}, default=str) + "\n")
        self._fate.passes("insert.after")


class MortalServer(ProfileServer):
    """Passes a point before and after each message."""

    fate: Fate
    traces: Path

    def take(self, message: Message) -> None:
        self.fate.passes("take.before")
        before = self._whole()
        super().take(message)
        self.fate.passes("take.after")
        if self._whole() > before:
            self.fate.passes("whole")

    def _whole(self) -> int:
        return sum(1 for _ in self.traces.glob("*/rank*.json.gz"))


def main() -> None:
    """Serve until killed; trouble with the bus is waited out as `ProfileServer.run` does."""
    url, folder, fate = sys.argv[1], Path(sys.argv[2]), Fate(sys.argv[3:])
    clock, stop = SystemClock(), threading.Event()
    bus = open_bus(url, BusSettings(session_timeout_seconds=6.0))
    control = open_control(f"sqlite://{folder}/control.db", ControlSettings(), clock)
    store = cast(Store, FileStore(folder / "projections.jsonl", fate))
    server = MortalServer(
        bus, control, store, server_key(folder).sign, folder / "profiles", ProfilesSettings(), clock, cluster="test"
    )
    server.fate, server.traces = fate, folder / "profiles"
    print("READY", flush=True)
    while not stop.is_set():
        subscription = bus.subscribe([Topic.BLOBS.value], GROUP)
        try:
            while not stop.is_set():
                server.step(subscription, 0.1)
        except FlightwatchError as error:
            print(f"waits: {error}", flush=True)
            stop.wait(0.5)
        finally:
            subscription.close()


if __name__ == "__main__":
    main()
