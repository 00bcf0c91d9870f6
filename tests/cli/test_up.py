"""`flightwatch up` as a user runs it: real processes, real rows, real browser; on this machine's own sensors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def flightwatch(*words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flightwatch.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


@dataclass
class Instance:
    folder: Path
    process: subprocess.Popen[str]
    url: str

    def sql(self, query: str) -> list[dict[str, Any]]:
        done = flightwatch("sql", "--data-dir", str(self.folder), "--format", "json", query)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def wait_for(self, query: str) -> Any:
        """Ask until the first cell of the answer is true; the loop is bounded by tries, not by a duration."""
        for _ in range(600):
            value = next(iter(self.sql(query)[0].values()))
            if value:
                return value
            time.sleep(0.25)
        raise AssertionError(f"never true: {query}")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(300)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def ended(instance: Instance) -> Iterator[Instance]:
    """Leave no process behind, however the test ends."""
    try:
        yield instance
    finally:
        if instance.process.poll() is None:
            instance.stop()


def start(folder: Path) -> Instance:
    environment = os.environ | {"FLIGHTWATCH_FLIGHTWATCH_NODE": "test-node", "FLIGHTWATCH_CONSOLE_PORT": "23500"}
    command = [sys.executable, "-m", "flightwatch.cli", "up", "--data-dir", str(folder)]
    log = (folder.parent / "up.log").open("a")
    with log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("READY http://127.0.0.1:"), (folder.parent / "up.log").read_text()
    return Instance(folder, process, line.split()[1])


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with ended(start(tmp_path_factory.mktemp("up") / "data")) as running:
        running.wait_for("SELECT count() > 1 FROM flightwatch.node_samples")
        yield running


def test_this_machine_is_in_sql(instance: Instance) -> None:
    row = instance.sql(
        "SELECT node, max(mem_used_bytes) AS used, max(load1) AS load FROM flightwatch.node_samples GROUP BY node"
    )
    assert [one["node"] for one in row] == ["test-node"]
    assert row[0]["used"] > 0
    facts = instance.sql("SELECT value FROM flightwatch.config_facts WHERE name = 'kernel'")
    assert facts[0]["value"].startswith(os.uname().release)


def test_people_cannot_write_through_the_socket(instance: Instance) -> None:
    done = flightwatch("sql", "--data-dir", str(instance.folder), "DROP TABLE flightwatch.node_samples")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert instance.sql("SELECT count() > 0 AS kept FROM flightwatch.node_samples")[0]["kept"]


def test_status_says_what_runs(instance: Instance) -> None:
    status = json.loads(flightwatch("status", "--data-dir", str(instance.folder), "--format", "json").stdout)
    assert status["components"] == dict.fromkeys(("ingest", "detect", "profiles", "incidents", "agent"), "running")
    assert status["coverage"]["nodes_reporting"] == 1
    assert {table["table"] for table in status["tables"] if table["age_seconds"] is not None} >= {
        "node_samples",
        "self_metrics",
    }
    text = flightwatch("status", "--data-dir", str(instance.folder))
    assert text.returncode == 0
    assert "ingest running" in text.stdout


def test_a_second_start_on_the_same_folder_is_refused(instance: Instance) -> None:
    done = flightwatch("up", "--data-dir", str(instance.folder))
    assert done.returncode == 1
    assert f"already running on {instance.folder} (pid {instance.process.pid})" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_node_name_is_refused_at_the_start(tmp_path: Path) -> None:
    environment = os.environ | {"FLIGHTWATCH_FLIGHTWATCH_NODE": "a;reboot"}
    command = [sys.executable, "-m", "flightwatch.cli", "up", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 2
    assert "flightwatch.node = 'a;reboot' is not a node name" in done.stderr
    assert not (tmp_path / "data").exists()


def test_everything_private_is_the_owners_alone(instance: Instance) -> None:
    for path in (instance.folder, instance.folder / "flightwatch.sock", instance.folder / "control.db"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_metrics_and_health(instance: Instance) -> None:
    with urllib.request.urlopen(f"{instance.url}/readyz", timeout=120) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{instance.url}/metrics", timeout=120) as answer:
        assert b"flightwatch_nodes_reporting 1.0" in answer.read()


def test_no_dead_letters_is_said(instance: Instance) -> None:
    done = flightwatch("dead", "list", "--data-dir", str(instance.folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no dead letters\n")


def test_an_unknown_api_route_is_not_found_as_json(instance: Instance) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{instance.url}/api/v1/nothing", timeout=120)
    assert (caught.value.code, json.loads(caught.value.read())["error"]["code"]) == (404, "not_found")
    caught.value.close()


def test_another_host_name_is_refused(instance: Instance) -> None:
    request = urllib.request.Request(f"{instance.url}/api/v1/status", headers={"Host": "attacker.example"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=120)
    assert caught.value.code == 400
    caught.value.close()


@pytest.mark.browser
@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="Debian's chromium is not installed")
def test_the_page_shows_live_readings_and_asks_nobody_else(instance: Instance, tmp_path: Path) -> None:
    from playwright.sync_api import expect, sync_playwright

    asked: list[str] = []
    said: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        node = instance.sql("SELECT any(node) AS n FROM flightwatch.node_samples")[0]["n"]
        page.goto(f"{instance.url}/nodes/{node}")
        expect(page.get_by_text("load average over a minute")).to_be_visible(timeout=300_000)
        expect(page.locator("html")).to_have_attribute("data-live", "live", timeout=300_000)
        page.locator("[data-action=theme]").click()
        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", "light")
        page.goto(instance.url)
        expect(page.locator("#fleet-tiles .fw-tile").first).to_be_visible(timeout=300_000)
        page.screenshot(path=str(tmp_path / "fleet.png"))
        browser.close()
    assert said == []
    assert asked
    assert all(url.startswith((instance.url, "data:", "blob:")) for url in asked)


def test_stop_is_clean_and_a_restart_continues(tmp_path: Path) -> None:
    with ended(start(tmp_path / "data")) as first:
        first.wait_for("SELECT count() > 0 FROM flightwatch.node_samples")
        assert first.stop() == 0
    assert not (tmp_path / "data" / "flightwatch.sock").exists()
    closed = flightwatch(
        "sql",
        "--data-dir",
        str(tmp_path / "data"),
        "--format",
        "json",
        "SELECT count() AS n FROM flightwatch.self_metrics",
    )
    before = json.loads(closed.stdout)["n"]
    assert before > 0
    second = start(tmp_path / "data")
    try:
        assert second.sql("SELECT count() AS n FROM flightwatch.self_metrics")[0]["n"] >= before
        second.wait_for(f"SELECT count() > {before} FROM flightwatch.self_metrics")
        assert second.sql("SELECT count() AS n FROM flightwatch.data_gaps")[0]["n"] == 0
        twice = """
            SELECT count() AS n FROM (
                SELECT count() AS c FROM flightwatch.self_metrics
                GROUP BY node, ts, component, instance, name HAVING c > 1
            )
        """
        assert second.sql(twice)[0]["n"] == 0
    finally:
        assert second.stop() == 0


def test_a_killed_instance_leaves_no_agent_and_starts_again_with_a_backlog(tmp_path: Path) -> None:
    with ended(start(tmp_path / "data")) as first:
        first.wait_for("SELECT count() > 0 FROM flightwatch.node_samples")
        children = [
            int(child)
            for task in Path(f"/proc/{first.process.pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
        assert len(children) == 1
        first.process.kill()
        first.process.wait(300)
        assert first.process.stdout is not None
        first.process.stdout.close()
    for _ in range(1200):
        if not Path(f"/proc/{children[0]}").exists():
            break
        time.sleep(0.25)
    assert not Path(f"/proc/{children[0]}").exists()
    # What the agent sent at its end waits on the bus, so ingest works while the page is being built.
    restarted_ms = time.time_ns() // 1_000_000
    second = start(tmp_path / "data")
    try:
        second.wait_for(
            f"SELECT count() > 0 FROM flightwatch.node_samples WHERE ts > fromUnixTimestamp64Milli({restarted_ms})"
        )
        assert second.sql("SELECT count() AS n FROM flightwatch.data_gaps")[0]["n"] == 0
    finally:
        assert second.stop() == 0
