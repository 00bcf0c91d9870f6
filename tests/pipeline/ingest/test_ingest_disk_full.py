"""A store whose disk is really full, and one that really cannot be written to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.ingest.ingest_stage import SETTINGS, Agent, check, consumer, drain


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "flightwatch-test", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_store(small_disk: Path) -> Iterator[Store]:
    store = open_store(f"chdb://{small_disk}/store", StoreSettings())
    migrate(store)
    yield store
    store.close()


def test_a_full_disk_stops_ingest_and_loses_nothing(bus: Bus, small_disk: Path, small_store: Store) -> None:
    agent = Agent(bus)
    ballast = small_disk / "ballast"
    filled = os.statvfs(small_disk)
    with open(ballast, "wb") as file:
        file.write(bytes(filled.f_bavail * filled.f_frsize - 20_000))
    ingest = Ingest(bus, small_store, SETTINGS, cluster="c1", node="x")
    reading = consumer(ingest)
    for number in range(12):
        agent.send(agent.samples(number, devices=200))
        reading.turn(0.02)
    snapshot = ingest.metrics.snapshot()
    assert snapshot.retries > 0
    assert snapshot.dead == 0, "an unknown outcome is never a dead letter"
    assert snapshot.last_error
    ballast.unlink()
    drain(reading, bus=bus)
    reading._subscription.close()
    check(small_store, agent)


def test_a_store_that_became_read_only_stops_ingest_and_loses_nothing(
    bus: Bus, small_disk: Path, small_store: Store
) -> None:
    agent = Agent(bus)
    ingest = Ingest(bus, small_store, SETTINGS, cluster="c1", node="x")
    reading = consumer(ingest)
    agent.send(agent.samples(0))
    drain(reading, bus=bus)
    # As when the kernel turns a file system read-only after an error: paths are looked up through a read-only mount.
    folder = str(small_disk / "store")
    _mount("--bind", folder, folder)
    try:
        _mount("-o", "remount,bind,ro", folder)
        for number in range(1, 6):
            agent.send(agent.samples(number))
            reading.turn(0.02)
        snapshot = ingest.metrics.snapshot()
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    assert snapshot.retries > 0
    assert snapshot.dead == 0, "an unknown outcome is never a dead letter"
    assert "ead-only file system" in str(snapshot.last_error)
    drain(reading, bus=bus)
    reading._subscription.close()
    check(small_store, agent)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], capture_output=True, check=True)
