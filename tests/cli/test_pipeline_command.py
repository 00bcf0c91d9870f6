"""`flightwatch pipeline` as a process: stores what is on the bus, ends cleanly on SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.ingest.runner import BULK_TOPICS
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.ingest.ingest_stage import Agent, check, is_stored, setup_topics


def test_it_stores_and_stops(tmp_path: Path) -> None:
    bus = open_bus(f"sqlite://{tmp_path}/bus")
    setup_topics(bus)
    agent = Agent(bus)
    agent.send(agent.samples(1))
    environment = os.environ | {"FLIGHTWATCH_FLIGHTWATCH_DATA_DIR": str(tmp_path)}
    environment.pop("FLIGHTWATCH_CONFIG", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "flightwatch.cli", "pipeline"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        agent.send(agent.samples(2))
        deadline = time.monotonic() + 300
        while not is_stored(bus, BULK_TOPICS):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (tmp_path / "pipeline.alive").exists()
        agent.send(agent.samples(3))
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert not (tmp_path / "pipeline.alive").exists()
    finally:
        process.kill()
        process.wait(300)
        if process.stdout is not None:
            process.stdout.close()
    bus.close()
    store = open_store(f"chdb://{tmp_path}/store", StoreSettings())
    try:
        if store.rows("SELECT count() AS n FROM flightwatch.device_samples")[0]["n"] == 4:
            # The last batch came too late to be read before the stop: it waits on the bus.
            agent.sent = agent.sent[:4]
        check(store, agent)
    finally:
        store.close()
