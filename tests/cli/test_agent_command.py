"""The agent as a process: real clock, real bus on SQLite."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli import main
from flightwatch.collectors.identity import make_identity
from flightwatch.core.catalogue import TABLES
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.codec import decode
from flightwatch.pipeline.codec.read import signature_of

#: Packages an agent must not pay for.
HEAVY = ("pydantic", "typer", "rich", "numpy", "pandas", "pyarrow", "sqlalchemy", "chdb", "clickhouse_connect", "dash",
         "sklearn", "cryptography", "kafka")  # fmt: skip


def _config(folder: Path, **changes: str) -> Path:
    root = folder / "root"
    (root / "proc").mkdir(parents=True, exist_ok=True)
    (root / "proc/loadavg").write_text("1.5 1 1 1/1 1\n")
    values = {"node": "node-1", "data_dir": f"{folder}/data", "log_level": "info", **changes}
    lines = "".join(f'{name} = "{value}"\n' for name, value in values.items())
    path = folder / "flightwatch.toml"
    path.write_text(
        f'[flightwatch]\n{lines}[agent]\nroot = "{root}"\nsysfs_interval_seconds = 0.5\nheartbeat_seconds = 1.0\n'
        "[spool]\nbatch_seconds = 0.2\n[store]\n"
    )
    return path


def _start(config: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flightwatch.cli", "agent", "--config", str(config), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def _messages(folder: Path, topic: Topic) -> list[Any]:
    bus = open_bus(f"sqlite:///{folder}/data/bus")
    try:
        return [
            message for part in bus.partitions(topic.value) for message in bus.read(part, 0, 10_000_000)
        ]  # fmt: skip
    finally:
        bus.close()


def _topics(folder: Path) -> None:
    bus = open_bus(f"sqlite:///{folder}/data/bus")
    for topic in (Topic.SAMPLES, Topic.EVENTS):
        bus.create_topic(topic.value, 2, None, None)
    bus.close()


def _wait_for(folder: Path, topic: Topic, count: int) -> list[Any]:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        found = _messages(folder, topic)
        if len(found) >= count:
            return found
        time.sleep(0.1)
    raise AssertionError(f"fewer than {count} messages in {topic.value}")


def test_rows_reach_the_bus_signed_and_sigterm_ends_it_cleanly(folder: Path) -> None:
    make_identity(str(folder / "data/agent"))
    _topics(folder)
    agent = _start(_config(folder))
    _wait_for(folder, Topic.SAMPLES, 2)
    second = _start(folder / "flightwatch.toml")
    _, said = second.communicate(timeout=300)
    assert second.returncode == 1
    assert "another agent uses" in said
    assert "Traceback" not in said
    agent.send_signal(signal.SIGTERM)
    out, said = agent.communicate(timeout=300)
    assert (agent.returncode, out) == (0, "")
    assert "Traceback" not in said
    messages = _messages(folder, Topic.SAMPLES)
    assert {message.key for message in messages} == {"node-1"}
    assert all(signature_of(message.value)[1] is not None for message in messages)
    tables = {row.table for message in messages for row in decode(message.value).rows}
    assert {"node_samples", "self_metrics"} <= tables
    again = _start(folder / "flightwatch.toml")
    _wait_for(folder, Topic.SAMPLES, len(messages) + 1)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=300)
    assert again.returncode == 0
    headers = [decode(message.value).header for message in _messages(folder, Topic.SAMPLES)]
    assert [header.seq for header in headers] == list(range(1, len(headers) + 1)), "numbers continue after a restart"
    assert len({header.spool_id for header in headers}) == 1


def test_without_a_bus_it_spools_and_sends_later(folder: Path) -> None:
    config = _config(folder)
    agent = _start(config)
    deadline = time.monotonic() + 300
    while not (folder / "data/spool/state.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2)
    agent.send_signal(signal.SIGTERM)
    _, said = agent.communicate(timeout=300)
    assert agent.returncode == 0, said
    _topics(folder)
    later = _start(config)
    messages = _wait_for(folder, Topic.SAMPLES, 2)
    later.send_signal(signal.SIGTERM)
    later.communicate(timeout=300)
    assert decode(messages[0].value).header.seq == 1


def test_once_prints_rows_without_any_bus(folder: Path) -> None:
    config = _config(folder, bus="kafka://192.0.2.1:9")
    once = _start(config, "--once", "--print")
    out, said = once.communicate(timeout=300)
    assert once.returncode == 0
    rows = [json.loads(line) for line in out.splitlines()]
    host = next(line["row"] for line in rows if line["table"] == "node_samples")
    assert (host["node"], host["cluster"], host["load1"]) == ("node-1", "default", 1.5)
    assert host["ts"].endswith("Z")
    assert all(set(line["row"]) <= set(TABLES[line["table"]].column_names) for line in rows)
    assert "infiniband: no RDMA adapter" in said
    assert os.listdir(folder) == ["root", "flightwatch.toml"] or not (folder / "data").exists()


def test_the_agent_loads_nothing_heavy(folder: Path) -> None:
    program = (
        "import sys\nimport flightwatch.cli.agent as agent\nfrom flightwatch.collectors.agent import Agent\n"
        "from flightwatch.pipeline.sender import Sender\nfrom flightwatch.pipeline.codec import encode\n"
        "from flightwatch.pipeline.commands import CommandReader\n"
        "from flightwatch.pipeline.bus.local import LocalBus\n"
        "from flightwatch.collectors.environment import environment_at\n"
        "from flightwatch.collectors.registry import make_collectors\n"
        f"make_collectors(environment_at({str(folder)!r}))\n"
        f"print(sorted(name for name in sys.modules if name.split('.')[0] in {HEAVY!r}))\n"
        "print([name for name in sys.modules if name.startswith('flightwatch.collectors.captures.')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "[]\n[]\n"


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ('[flightwatch]\nnode = "a;reboot"\n', [], "flightwatch.node = 'a;reboot' is not a node name"),
        ('[agent]\ndisabled = ["nvlm"]\n', ["--once", "--print"], "agent.disabled names nvlm"),
        ('[agent]\ncontrol_keys = ["zz"]\n', [], "agent.control_keys: a public key is 64 hexadecimal digits"),
        ("[agnet]\n", [], "unknown section [agnet]"),
        ("", ["--once"], "--once and --print are used together"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    tmp_path: Path, text: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "flightwatch.toml"
    if "[flightwatch]" not in text:
        text = '[flightwatch]\nnode = "n"\n' + text
    config.write_text(text.replace("[flightwatch]\n", f'[flightwatch]\ndata_dir = "{tmp_path}/data"\n'))
    assert main(["agent", "--config", str(config), *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
