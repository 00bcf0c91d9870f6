"""`flightwatch alerts` as people call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flightwatch.cli import main
from flightwatch.cli.local_client import SOCKET_NAME
from flightwatch.dashboard.api.local import create_local_app
from flightwatch.dashboard.serve import HttpServer, bind_unix
from tests.dashboard.access_kit import Site
from tests.incidents.alert_kit import alert, channel


@pytest.fixture
def receiver() -> object:
    process = subprocess.Popen(
        [sys.executable, "-m", "flightwatch.cli", "alerts", "receive", "--format", "json"],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("READY http://127.0.0.1:")
    yield process, line.split()[1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0
    process.stdout.close()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "flightwatch.toml"
    file.write_text(
        f'[flightwatch]\ndata_dir = "{tmp_path / "data"}"\ncluster = "blue"\n'
        '[outgoing]\nallowed_addresses = ["127.0.0.1"]\n'
        '[channels.hook]\nservice = "webhook"\nurl = "http://127.0.0.1:9/"\n'
        '[channels.off]\nservice = "webhook"\nurl = "http://127.0.0.1:9/"\nenabled = false\n',
        encoding="utf-8",
    )
    return file


def test_test_and_receive(
    receiver: tuple[subprocess.Popen[str], str],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    process, url = receiver
    monkeypatch.setenv("FLIGHTWATCH_CHANNELS_HOOK_URL", url)
    assert main(["alerts", "test", "hook", "--config", str(config)]) == 0
    assert "took the test message" in capsys.readouterr().out
    assert process.stdout is not None
    message = json.loads(process.stdout.readline())
    assert (message["reason"], message["cluster"]) == ("test", "blue")
    assert channel("webhook", url.rstrip("/")).notifier.send(alert(), None).ok
    assert json.loads(process.stdout.readline())["incident"]["node"] == "gpu-0417"


def test_a_test_that_fails_says_why(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "test", "hook", "--config", str(config)]) == 1
    assert "did not take the test message" in capsys.readouterr().err
    for name in ("nobody", "off"):
        assert main(["alerts", "test", name, "--config", str(config)]) == 2
        assert "no enabled channel" in capsys.readouterr().err


def test_channels_and_deliveries(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alerts", "channels", "--config", str(config)]) == 0
    out = capsys.readouterr().out
    assert "hook" in out
    assert "P1,P2,P3" in out
    assert "not used yet" in out
    assert main(["alerts", "channels", "--format", "json", "--config", str(config)]) == 0
    assert json.loads(capsys.readouterr().out)["default"] == ["P1", "P2", "P3"]
    assert main(["alerts", "deliveries", "--config", str(config)]) == 0
    assert capsys.readouterr().out == ""


def test_a_running_instance_says_which_channels_it_has(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir(exist_ok=True)
    own = replace(Site(data).services, channels={"demo": channel("webhook", "http://127.0.0.1:9")})
    server = HttpServer("local", create_local_app(own), bind_unix(data / SOCKET_NAME))
    server.start()
    try:
        assert main(["alerts", "channels", "--json", "--config", str(config)]) == 0
        row = json.loads(capsys.readouterr().out)
        assert (row["channel"], row["default"], row["last_ok"]) == ("demo", ["P1", "P2", "P3"], None)
        assert main(["alerts", "channels", "--config", str(config)]) == 0
        assert "not used yet" in capsys.readouterr().out
    finally:
        server.stop()


def test_a_wrong_channel_is_one_sentence(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLIGHTWATCH_CHANNELS_HOOK_SERVICE", "pigeon")
    assert main(["alerts", "channels", "--config", str(config)]) == 2
    error = capsys.readouterr().err
    assert "channels.hook.service" in error
    assert "Traceback" not in error
