from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLIENT = Path(__file__).with_name("profiler_client.py")


@pytest.fixture(scope="session")
def torch_python() -> str:
    """An interpreter with torch."""
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    for candidate in (os.environ.get("FLIGHTWATCH_TEST_TORCH_PYTHON", ""), str(ROOT / ".venv-torch/bin/python")):
        if candidate and Path(candidate).exists():
            return candidate
    pytest.skip("no Python with torch: `make test` makes .venv-torch, or set FLIGHTWATCH_TEST_TORCH_PYTHON")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for the sockets in it."""
    made = Path(tempfile.mkdtemp(prefix="fwk", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


Client = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def client() -> Iterator[Client]:
    """Start processes that ask as libkineto does; arguments: socket path, then environment."""
    running: list[subprocess.Popen[str]] = []

    def start(socket_path: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(CLIENT), socket_path, *words]
        base = {"PATH": os.environ["PATH"]}
        process = subprocess.Popen(
            command, env=base | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
