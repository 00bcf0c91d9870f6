"""Deployment files: their shape, and that every setting and command they name exists. They are not run here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flightwatch.cli.registry import COMMANDS
from flightwatch.cli.sections import all_sections
from flightwatch.core.settings import load
from flightwatch.core.vocabulary import Topic

ROOT = Path(__file__).parents[2]
NAMES = {name for name, _, _ in COMMANDS}


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def settings_accept(environment: dict[str, str]) -> dict[str, str]:
    """Load the settings from an environment; return which values came from it."""
    loaded = load(all_sections(), None, environment)
    return {origin.path: str(origin.value) for origin in loaded.origins if origin.source.startswith("environment")}


def test_compose_has_the_cluster_shape() -> None:
    services = compose()["services"]
    assert set(services) == {"kafka", "clickhouse", "postgres", "setup", "pipeline", "console"}
    for name in ("kafka", "clickhouse", "postgres", "pipeline", "console"):
        assert services[name]["healthcheck"]["test"]
    for name in ("kafka", "clickhouse", "postgres"):
        assert services[name]["volumes"]
    assert services["kafka"]["image"].startswith("apache/kafka:4")
    assert services["kafka"]["environment"]["KAFKA_PROCESS_ROLES"] == "broker,controller"
    assert int(services["kafka"]["environment"]["KAFKA_OFFSETS_RETENTION_MINUTES"]) >= 30 * 24 * 60
    assert services["console"]["ports"] == ["127.0.0.1:8080:8080"]


def test_compose_has_no_default_password() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    passwords = re.findall(r"^\s*\S*PASSWORD\S*: (.*)$", text, re.M)
    assert len(passwords) >= 4
    assert all(re.fullmatch(r"\$\{[A-Z_]+:\?[^}]+\}", value) for value in passwords)
    for line in (ROOT / "deploy/compose.env.example").read_text().splitlines():
        if "PASSWORD" in line and not line.startswith("#"):
            assert line.endswith("=")


def test_compose_environment_is_accepted_by_the_settings() -> None:
    environment = {
        key: re.sub(r"\$\{[^}]*\}", "x", str(value))
        for key, value in compose()["services"]["pipeline"]["environment"].items()
    }
    accepted = settings_accept(environment)
    assert len(accepted) == len(environment)
    assert accepted["flightwatch.bus"] == "kafka://kafka:9092"
    assert accepted["flightwatch.store"].startswith("clickhouse://")
    assert accepted["flightwatch.control"].startswith("postgresql://")


def test_compose_commands_exist() -> None:
    services = compose()["services"]
    commands = [services["pipeline"]["command"][0], services["console"]["command"][0]]
    commands += re.findall(r"flightwatch (\w+)", services["setup"]["entrypoint"][-1])
    assert set(commands) <= NAMES
    assert commands[-2:] == ["bus", "store"]


@pytest.mark.parametrize("unit", ["flightwatch.service", "flightwatch-agent.service"])
def test_units_start_commands_that_exist_and_are_confined(unit: str) -> None:
    text = (ROOT / "deploy/systemd" / unit).read_text()
    start = re.search(r"^ExecStart=/opt/flightwatch/bin/flightwatch (\w+)$", text, re.M)
    assert start is not None
    assert start.group(1) in NAMES
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "UMask=0077", "StateDirectory=flightwatch"):
        assert line in text


def test_daemonset_runs_the_agent_with_settings_that_exist() -> None:
    document = yaml.safe_load((ROOT / "deploy/kubernetes/agent-daemonset.yaml").read_text())
    assert document["kind"] == "DaemonSet"
    container = document["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][0] in NAMES
    variables = {one["name"]: one.get("value", "node-1") for one in container["env"]}
    variables.pop("FLIGHTWATCH_CONFIG")
    assert len(settings_accept(variables)) == len(variables)
    assert container["resources"]["limits"]["memory"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in document["spec"]["template"]["spec"]["volumes"]}
    host = variables["FLIGHTWATCH_AGENT_ROOT"]
    assert {f"{host}/sys", f"{host}/proc"} <= {mount["mountPath"] for mount in container["volumeMounts"]}


def test_access_lists_name_every_topic_and_parse() -> None:
    path = ROOT / "deploy/kafka/acls.sh"
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text()
    prefixes = ("flightwatch.rows.", "flightwatch.blobs", "flightwatch.commands", "flightwatch.")
    assert all(prefix in text for prefix in prefixes)
    assert all(topic.value.startswith(prefixes) for topic in Topic)
    agent = [line for line in text.splitlines() if "flightwatch-agent" in line]
    assert not any("--topic flightwatch.findings" in line or "--operation Create" in line for line in agent)


def test_dockerfile_installs_the_package_and_drops_root() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    assert "'.[server,nvidia]'" in text
    assert re.search(r"^USER flightwatch$", text, re.M)
