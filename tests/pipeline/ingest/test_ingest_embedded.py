"""The engine inside the ingest process, ended together with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.ingest.ingest_stage import Agent, check, finish

ROOT = Path(__file__).parents[3]


def test_an_embedded_store_survives_kill_9_of_its_process(tmp_path: Path, bus: Bus) -> None:
    """The engine itself dies with ingest, in the middle of inserts too."""
    folder = tmp_path / "embedded"
    opened = open_store(f"chdb://{folder}", StoreSettings())
    migrate(opened)
    opened.close()
    agent = Agent(bus)
    command = [sys.executable, "-m", "tests.pipeline.ingest.ingest_worker", f"sqlite://{tmp_path}/bus", str(folder)]
    for number, point in enumerate(["insert.during:1", "insert.after:1", "insert.during:2"]):
        agent.send(agent.samples(number, devices=50))
        died = subprocess.run([*command, f"{point}:SIGKILL"], cwd=ROOT, timeout=300, check=False)
        assert died.returncode == -signal.SIGKILL
    last = subprocess.Popen(command, cwd=ROOT)
    finish(last, bus)
    reopened = open_store(f"chdb://{folder}", StoreSettings())
    try:
        check(reopened, agent)
    finally:
        reopened.close()
