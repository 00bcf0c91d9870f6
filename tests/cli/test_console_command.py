"""`flightwatch console` alone: pages over a store that another process filled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.cli import main
from tests.conftest import free_port


@pytest.fixture
def console(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    port = free_port()
    environment = os.environ | {"FLIGHTWATCH_FLIGHTWATCH_DATA_DIR": str(tmp_path / "data")}
    environment.pop("FLIGHTWATCH_CONFIG", None)
    # A file of the machine that detects: the pages go without.
    environment["FLIGHTWATCH_DETECT_EXPECTATION"] = str(tmp_path / "elsewhere.json")
    command = [sys.executable, "-m", "flightwatch.cli", "console", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    yield process, port
    process.kill()
    process.wait(300)
    assert process.stdout is not None
    process.stdout.close()


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
        return str(answer.read().decode())


def test_it_serves_a_store_that_is_still_empty_and_ends_when_asked(console: tuple[subprocess.Popen[str], int]) -> None:
    process, port = console
    assert process.stdout is not None
    assert process.stdout.readline() == f"READY http://127.0.0.1:{port}\n"
    assert "Flightwatch" in get(port, "/")
    status = json.loads(get(port, "/api/v1/status"))
    assert (status["components"], status["newest_row_age_seconds"]) == ({}, None)
    assert "flightwatch_" in get(port, "/metrics")
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0


def test_an_address_beyond_this_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--host", "0.0.0.0", "--port", str(free_port())]) == 2
    said = capsys.readouterr().err
    assert "trust" in said
    assert said.count("\n") == 1
