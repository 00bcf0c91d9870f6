"""Where a rank opens torch's worker server, and what is said when it cannot (real ranks: tests/cli/test_hang_up.py)."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from flightwatch.collectors.training.probe import Probe
from flightwatch.collectors.training.worker_server import WorkerServer


class Notes:
    """A probe that keeps what it is told."""

    off = False
    self_ns = 0

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def event(self, code: str, severity: str, message: str, attrs: dict[str, Any]) -> None:
        self.events.append((code, message))

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def failed(self, error: BaseException) -> None:
        raise error


class Server:
    """Binds as torch's server does."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)


class Dist:
    def __init__(self, ready: bool) -> None:
        self.ready = ready
        self.calls = 0

    def is_initialized(self) -> bool:
        return self.ready

    def init_process_group(self, backend: str) -> str:
        self.calls += 1
        return backend


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torch._C", "torch._C._distributed_c10d"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    vars(sys.modules["torch._C._distributed_c10d"])["_WorkerServer"] = Server
    monkeypatch.delenv("KINETO_IPC_SOCKET_DIR", raising=False)


def server(folder: Path) -> tuple[WorkerServer, Notes]:
    notes = Notes()
    return WorkerServer(cast(Probe, notes), str(folder / "probe.sock")), notes


def test_an_old_torch_is_named_and_nothing_else_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    made, notes = server(tmp_path)
    made.open()
    assert notes.events == [("probe:missing", "not available: worker server for hang evidence: this torch has none")]
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("torch")
def test_the_socket_is_its_owners_alone_and_opened_once_before_the_group_is_made(tmp_path: Path) -> None:
    made, notes = server(tmp_path)
    dist = Dist(ready=False)
    made.install(dist)
    assert os.listdir(tmp_path) == []
    assert dist.init_process_group("gloo") == "gloo"
    path = tmp_path / f"worker-{os.getpid()}.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    assert dist.init_process_group("gloo") == "gloo"
    assert (dist.calls, made.path, notes.events) == (2, str(path), [])


@pytest.mark.usefixtures("torch")
def test_a_process_group_that_is_there_opens_it_at_once(tmp_path: Path) -> None:
    made, _ = server(tmp_path)
    made.install(Dist(ready=True))
    assert Path(made.path).exists()


@pytest.mark.usefixtures("torch")
def test_a_folder_that_is_not_there_leads_to_the_profilers_or_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, notes = server(tmp_path / "none")
    made.open()
    assert "is not there or cannot be written" in notes.events[0][1]
    monkeypatch.setenv("KINETO_IPC_SOCKET_DIR", str(tmp_path))
    again, notes = server(tmp_path / "none")
    again.open()
    assert (Path(again.path).parent, notes.events) == (tmp_path, [])
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.delenv("KINETO_IPC_SOCKET_DIR")
    last, notes = server(long)
    last.open()
    assert "too long a path" in notes.events[0][1] or "is not there" in notes.events[0][1]
