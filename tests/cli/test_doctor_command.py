from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli import main
from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.doctor import (
    clock_check,
    folder_check,
    node_checks,
    profiler_environment,
    socket_check,
    torch_check,
)
from flightwatch.cli.sections import load_agent_settings
from flightwatch.collectors.profiler.folder import prepare


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


def test_a_node_without_agent_fails_line_by_line(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--data-dir", str(short), "--format", "json", "--python", sys.executable])
    checks: dict[str, dict[str, Any]] = {
        one["name"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())
    }
    assert code == 1
    assert list(checks) == ["agent", "socket folder", "profiler", "py-spy", "clock", "torch"]
    assert checks["agent"]["state"] == checks["socket folder"]["state"] == "fail"
    assert "the agent does not run" in checks["agent"]["text"]


def test_sockets_that_answer_and_that_do_not(short: Path) -> None:
    path = str(short / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(path)
        assert socket_check("agent", path, "rows come").state == "ok"
    assert "nobody answers" in socket_check("agent", path, "rows come").text


def test_folders(short: Path) -> None:
    folder = short / "p"
    assert "the agent makes it" in folder_check(str(folder)).text
    folder.mkdir()
    folder.chmod(0o755)
    assert "must be 1777" in folder_check(str(folder)).text
    folder.chmod(0o1777)
    assert folder_check(str(folder)).state == "ok"
    (short / "link").symlink_to(folder)
    assert "symbolic link" in folder_check(str(short / "link")).text
    assert folder_check("relative").state == "fail"


def test_a_job_gets_the_variables_only_where_the_agent_is_ready(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLIGHTWATCH_FLIGHTWATCH_DATA_DIR", str(short))
    monkeypatch.delenv("FLIGHTWATCH_CONFIG", raising=False)
    settings = load_agent_settings(None)
    common = settings.section(CommonSettings)
    assert profiler_environment(settings, common) == {}
    folder = short / "profiler"
    prepare(str(folder))
    assert profiler_environment(settings, common) == {}
    monkeypatch.delenv("FLIGHTWATCH_SOCKET", raising=False)

    def given(offset_us: float = 10.0) -> dict[str, str]:
        return profiler_environment(settings, common, node_checks(settings, common, lambda: offset_us))

    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probes,
    ):
        bound.bind(str(folder / "dynolog"))
        assert given() == {}, "nobody receives probes: the doctor would fail"
        probes.bind(str(short / "probe.sock"))
        wanted = {"KINETO_USE_DAEMON": "1", "KINETO_IPC_SOCKET_DIR": str(folder)}
        assert given() == wanted
        assert given(9e6) == {}, "the clock is off: the doctor fails"
        monkeypatch.setenv("KINETO_USE_DAEMON", "0")
        assert given() == {}


def python(short: Path, answer: str, status: int = 0) -> str:
    script = short / "python"
    script.write_text(f"#!/bin/sh\ncat <<'E'\n{answer}\nE\nexit {status}\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "ok", "probe, profiles, flight recorder"),
        ({"torch": "2.3.1"}, "note", "below 2.5"),
        ({"torch": "2.0.1"}, "fail", "2.1 is the oldest"),
        ({"torch": None}, "fail", "has no torch"),
        ({"kineto": False}, "note", "no profiles"),
        ({"flightwatch": False}, "note", "no probe"),
        ({"worker_server": False}, "note", "no worker server"),
    ],
)
def test_torch_as_a_python_tells_it(short: Path, changes: dict[str, Any], state: str, words: str) -> None:
    found = {"torch": "2.13.0+cpu", "flightwatch": True, "kineto": True, "worker_server": True} | changes
    check = torch_check(python(short, json.dumps(found)))
    assert (check.state, words in check.text) == (state, True)


def test_a_python_that_cannot_be_asked(short: Path) -> None:
    assert torch_check(str(short / "none")).state == "fail"
    assert torch_check(python(short, "no json")).state == "fail"
    assert torch_check(python(short, "", 3)).text.endswith("status 3")
    assert os.path.isdir(short)


def test_clock() -> None:
    assert clock_check(None).state == "note"
    assert clock_check(-120.0).state == "ok"
    assert clock_check(9000.0).state == "fail"
