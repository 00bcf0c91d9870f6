from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from flightwatch.cli.common_settings import local_url
from flightwatch.core.clock import SystemClock
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings


def test_the_engine_runs_alone_and_ends_when_asked(tmp_path: Path) -> None:
    store = open_store(local_url("chdb", str(tmp_path), "store"), StoreSettings())
    migrate(store)
    store.close()
    bus = open_bus(local_url("sqlite", str(tmp_path), "bus"), BusSettings(), SystemClock())
    setup_topics(bus, BusSettings())
    bus.close()
    environment = os.environ | {"FLIGHTWATCH_FLIGHTWATCH_DATA_DIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "flightwatch.cli", "engine"], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "READY\n"
        while "is the incident engine" not in (line := process.stderr.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.communicate()
