"""What runs and how far it is: the picture behind `flightwatch status`, `/api/v1/status` and `/metrics`."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flightwatch import __version__
from flightwatch.core.clock import Clock, iso_utc
from flightwatch.core.errors import FlightwatchError
from flightwatch.pipeline.bus.base import Bus, Committed, Partition
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import topic_plans
from flightwatch.pipeline.ingest.runner import BULK_TOPICS, FAST_TOPICS
from flightwatch.pipeline.ingest.settings import GROUP, fast_group
from flightwatch.pipeline.store import machine_reads
from flightwatch.pipeline.store.client import Store

CACHE_SECONDS = 1.0
#: How long the sum of the files on disk stands.
DISK_SECONDS = 20.0
#: Topics that ingest stores, by the consumer group that reads them.
STORED_TOPICS = {fast_group(): FAST_TOPICS, GROUP: BULK_TOPICS}
LAGGING_SECONDS = 60.0
#: Lag as a share of the bus's retention from which rows are about to be lost.
RETENTION_SHARE = 0.5
DISK_LOW_SHARE = 0.05


class StatusProbe:
    """Collects the status at most once a second, however many ask.

    Parameters
    ----------
    bus, store: handles of this process.
    folder: data folder whose disk is reported, None when everything is on servers.
    components: returns name to state ("running", "stopped: why") of the parts this process runs.
    bus_settings: say how long each topic keeps its messages, which the lag is compared with.
    ingest_error: returns why ingest's last try failed, None when it succeeded or another process ingests.
    """

    def __init__(
        self,
        bus: Bus,
        store: Store,
        clock: Clock,
        *,
        cluster: str,
        folder: Path | None,
        components: Callable[[], Mapping[str, str]],
        bus_settings: BusSettings,
        ingest_error: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._bus, self._store, self._clock = bus, store, clock
        self._cluster, self._folder, self._components = cluster, folder, components
        self._ingest_error = ingest_error
        self._retention_s = {plan.name: plan.retention_ms / 1000 for plan in topic_plans(bus_settings)}
        self._started_ms = clock.now_ms()
        self._activity = machine_reads.TableActivity(store, clock)
        self._used: tuple[float, int] | None = None
        self._lock = threading.Lock()
        self._cached: dict[str, Any] | None = None
        self._cached_at = float("-inf")

    def __call__(self) -> dict[str, Any]:
        """Return the status as JSON-ready values; None means unknown."""
        with self._lock:
            if self._cached is None or self._clock.monotonic_s() - self._cached_at > CACHE_SECONDS:
                self._cached = self._collect()
                self._cached_at = self._clock.monotonic_s()
            return self._cached

    def fresh(self) -> dict[str, Any]:
        """Return the status as of now, not from the cache."""
        with self._lock:
            self._cached = None
        return self()

    def _collect(self) -> dict[str, Any]:
        now_ms = self._clock.now_ms()
        tables = self._activity()
        gaps, unknown_holes, dead = machine_reads.holes_and_dead_letters(self._store)
        ages = [row["age_seconds"] for row in tables if row["age_seconds"] is not None]
        partitions, bus_notice = self._lag(now_ms)
        lags = [part["lag_seconds"] for part in partitions if part["lag_seconds"] is not None]
        shares = [part["retention_share"] for part in partitions]
        status = {
            "version": __version__,
            "cluster": self._cluster,
            "now": iso_utc(now_ms),
            "uptime_seconds": (now_ms - self._started_ms) / 1000,
            "components": dict(self._components()),
            "rows_per_second": sum(row["rows_per_second"] for row in tables),
            "newest_row_age_seconds": min(ages) if ages else None,
            "lag_seconds": max(lags) if lags and not bus_notice else None,
            "retention_share": max(shares) if shares and not bus_notice else None,
            "partitions": partitions,
            "tables": [row | {"last_ts": iso_utc(row["last_ts"])} for row in tables],
            "coverage": machine_reads.coverage(self._store),
            "data_gaps_24h": gaps,
            "holes_of_unknown_size_24h": unknown_holes,
            "dead_letters_24h": dead,
            "disk": self._disk(),
        }
        status["notices"] = ([bus_notice] if bus_notice else []) + _notices(status)
        if (error := self._ingest_error()) is not None:
            status["notices"].append(f"Ingest tries again, losing nothing: {error}")
        return status

    def _lag(self, now_ms: int) -> tuple[list[dict[str, Any]], str | None]:
        """Return the lag per partition; a partition never read is behind by all it holds."""
        found: list[dict[str, Any]] = []
        try:
            for group, topics in STORED_TOPICS.items():
                positions = self._bus.group_positions(group)
                for topic in topics:
                    for partition in self._bus.partitions(topic):
                        found.append(self._partition_lag(partition, positions.get(partition), now_ms))
        except FlightwatchError as error:
            return found, f"The bus does not answer, so the lag is unknown: {error}"
        return found, None

    def _partition_lag(self, partition: Partition, stored: Committed | None, now_ms: int) -> dict[str, Any]:
        end = self._bus.end_offset(partition)
        start = max(stored.offset if stored else 0, self._bus.begin_offset(partition))
        behind = max(0, end - start)
        oldest = self._bus.read(partition, start, 1) if behind else ()
        lag = max(0.0, (now_ms - oldest[0].timestamp_ms) / 1000) if oldest else 0.0
        # Damage leaves offsets that no message has: they are not work to be done.
        behind = max(0, end - oldest[0].offset) if oldest else 0
        return {
            "topic": partition.topic,
            "partition": partition.number,
            "behind": behind,
            "lag_seconds": lag,
            "retention_share": lag / self._retention_s[partition.topic],
        }

    def _disk(self) -> dict[str, Any]:
        if self._folder is None:
            return {"path": None, "used_bytes": None, "free_bytes": None}
        free = shutil.disk_usage(self._folder).free
        # Every file is looked at: thousands, whose sum changes slowly.
        now_s = self._clock.monotonic_s()
        if self._used is None or now_s - self._used[0] > DISK_SECONDS:
            self._used = (now_s, folder_bytes(self._folder))
        return {"path": str(self._folder), "used_bytes": self._used[1], "free_bytes": free}


def folder_bytes(folder: Path) -> int:
    """Return the bytes that a folder takes on disk; files that vanish meanwhile do not count."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _notices(status: Mapping[str, Any]) -> list[str]:
    notices = []
    lag, share, disk = status["lag_seconds"], status["retention_share"], status["disk"]
    if lag is not None and lag > LAGGING_SECONDS:
        notices.append(f"Ingest is {lag:.0f} s behind: what is shown is old, and silence of a node means nothing now.")
    if share is not None and share > RETENTION_SHARE:
        notices.append(
            f"Ingest is behind by {share:.0%} of the time that the bus keeps rows: what it reaches too late is lost."
        )
    if disk["free_bytes"] is not None:
        total = disk["used_bytes"] + disk["free_bytes"]
        if total and disk["free_bytes"] < DISK_LOW_SHARE * total:
            notices.append(f"The disk of {disk['path']} is nearly full: ingest stops, losing nothing, when it is.")
    if status["data_gaps_24h"]:
        notices.append(f"{status['data_gaps_24h']} batches are missing in the last day: see the table data_gaps.")
    if status["holes_of_unknown_size_24h"]:
        count = status["holes_of_unknown_size_24h"]
        notices.append(f"{count} holes of unknown size in the last day: a part of the bus was damaged or recreated.")
    if status["dead_letters_24h"]:
        notices.append(f"{status['dead_letters_24h']} records were put aside in the last day: `flightwatch dead list`.")
    for name, state in status["components"].items():
        if state != "running":
            notices.append(f"{name} is {state}.")
    return notices
