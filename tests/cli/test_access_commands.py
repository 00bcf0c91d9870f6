"""`flightwatch token`, `user` and `incident`: on a stopped instance, over its socket, and over a URL with a token."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli import main
from flightwatch.cli.local_client import SOCKET_NAME
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.api.local import create_local_app
from flightwatch.dashboard.serve import HttpServer, bind_port, bind_unix
from flightwatch.pipeline.control.audit import AuditLog
from flightwatch.pipeline.control.incidents import IncidentRecords
from tests.dashboard.access_kit import Site
from tests.pipeline.control.incident_kit import add_incident

AT_MS = 1_795_990_000_000


class Instance:
    """A control database with what serves it: its socket, and a console on loopback that asks for a login."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = Site(folder, AccessSettings(required=True))
        bound = bind_port("127.0.0.1", 23900, trust_network=False)
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        self._servers = [
            HttpServer("local", create_local_app(self.site.services), bind_unix(folder / SOCKET_NAME)),
            HttpServer("console", self.site.app, bound),
        ]
        for server in self._servers:
            server.start()

    def stop(self) -> None:
        for server in self._servers:
            server.stop()
        self.site.close()


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    running = Instance(tmp_path_factory.mktemp("instance"))
    for number in range(3):
        add_incident(running.site.control, f"i{number}", AT_MS + number, tenant=None, severity=f"P{number + 1}")
    yield running
    running.stop()


def flightwatch(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_first_token_is_made_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--data-dir", str(tmp_path))
    code, secret, said = flightwatch(capsys, "token", "create", "ci", "--scope", "read", "--scope", "sql", *where)
    assert (code, secret.startswith("fw_"), "token " in said) == (0, True, True)
    assert flightwatch(capsys, "token", "create", "ci", *where)[0] == 1  # a valid one is called so
    assert flightwatch(capsys, "token", "create", "a b", *where)[0] == 2
    assert flightwatch(capsys, "token", "create", "x", "--days", "0", *where)[0] == 2
    code, out, _ = flightwatch(capsys, "token", "list", "--format", "json", *where)
    (token,) = [json.loads(line) for line in out.splitlines()]
    assert (token["name"], token["state"], token["scopes"]) == ("ci", "valid", ["read", "sql"])
    assert secret.strip() not in out
    assert flightwatch(capsys, "token", "revoke", token["id"], *where)[0] == 0
    code, _, said = flightwatch(capsys, "token", "revoke", token["id"], *where)
    assert (code, "to revoke" in said) == (1, True)
    assert "revoked" in flightwatch(capsys, "token", "list", *where)[1]


def test_people_are_given_roles_and_kept_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--data-dir", str(tmp_path))
    assert "nobody" in flightwatch(capsys, "user", "list", *where)[2]
    assert "operator red" in flightwatch(capsys, "user", "grant", "alice", "operator", "--tenant", "red", *where)[1]
    assert "slack:U1" in flightwatch(capsys, "user", "link", "alice", "slack", "U1", *where)[1]
    assert "kept out" in flightwatch(capsys, "user", "disable", "alice", *where)[1]
    assert "kept out" not in flightwatch(capsys, "user", "enable", "alice", *where)[1]
    assert flightwatch(capsys, "user", "unlink", "slack", "U1", *where)[0] == 0
    assert "no role" in flightwatch(capsys, "user", "withdraw", "alice", "--tenant", "red", *where)[1]
    assert flightwatch(capsys, "user", "withdraw", "alice", *where)[0] == 1
    assert flightwatch(capsys, "user", "disable", "bob", *where)[0] == 1
    assert flightwatch(capsys, "user", "grant", "token:x", "viewer", *where)[0] == 2
    _, out, _ = flightwatch(capsys, "user", "list", "--format", "json", *where)
    assert json.loads(out)["subject"] == "alice"


def test_incidents_over_the_socket(instance: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--data-dir", str(instance.folder))
    code, out, _ = flightwatch(capsys, "incident", "list", *where)
    assert (code, [line.split()[:2] for line in out.splitlines()]) == (0, [["i2", "P3"], ["i1", "P2"], ["i0", "P1"]])
    _, out, _ = flightwatch(capsys, "incident", "list", "--severity", "P1", "--format", "json", *where)
    assert json.loads(out)["id"] == "i0"
    assert len(flightwatch(capsys, "incident", "list", "--limit", "2", *where)[1].splitlines()) == 2
    assert "acknowledged" in flightwatch(capsys, "incident", "ack", "i0", "--note", "on it", *where)[1]
    assert "looked" in flightwatch(capsys, "incident", "note", "i0", "looked at it", *where)[1]
    assert ", bob" in flightwatch(capsys, "incident", "assign", "i0", "bob", *where)[1]
    silence = ("incident", "silence", "i0", "--hours", "2", "--reason", "known", *where)
    assert "id=i0" in flightwatch(capsys, *silence)[1]
    assert "node=n1" in flightwatch(capsys, *silence, "--whole-node")[1]
    _, out, _ = flightwatch(capsys, "incident", "show", "i0", *where)
    assert all(words in out for words in ("It is slow.", "on it", "looked at it", "assigned"))
    assert "false_positive" in flightwatch(capsys, "incident", "resolve", "i0", "--false-positive", *where)[1]
    assert "open" in flightwatch(capsys, "incident", "reopen", "i0", *where)[1]
    actors = {entry.actor for entry in AuditLog(instance.site.control).page()}
    assert all(actor.startswith("socket:") for actor in actors)


def test_states_of_a_list(instance: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--data-dir", str(instance.folder))
    for number, state in enumerate(("open", "acknowledged", "resolved", "false_positive")):
        add_incident(instance.site.control, f"s{number}", AT_MS + number, tenant=None, node="states", state=state)
    listed: Any = ("incident", "list", "--node", "states", *where)

    def ids(*words: str) -> list[str]:
        return sorted(line.split()[0] for line in flightwatch(capsys, *listed, *words)[1].splitlines())

    assert ids() == ids("--state", "active") == ids("--state", "open", "--state", "acknowledged") == ["s0", "s1"]
    assert ids("--state", "open") == ["s0"]
    assert ids("--state", "resolved", "--state", "active") == ["s0", "s1", "s2"]
    assert ids("--state", "all") == ["s0", "s1", "s2", "s3"]
    assert json.loads(flightwatch(capsys, *listed, "--state", "open", "--json")[1])["state"] == "open"


def test_a_report_for_friday(instance: Instance, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--data-dir", str(instance.folder))
    code, text, _ = flightwatch(capsys, "incident", "post-mortem", "i2", *where)
    assert code == 0
    assert text.startswith("# ")
    assert "It is slow." in text
    assert "FROM flightwatch.incidents WHERE id = 'i2'" in text
    file = tmp_path / "report.md"
    code, out, said = flightwatch(capsys, "incident", "post-mortem", "i2", "--output", str(file), *where)
    assert (code, out, file.read_text(encoding="utf-8")) == (0, "", text)
    assert str(file) in said
    assert (
        json.loads(flightwatch(capsys, "incident", "post-mortem", "i2", "--json", *where)[1])["incident"]["id"] == "i2"
    )
    assert "<html" in flightwatch(capsys, "incident", "post-mortem", "i2", "--format", "html", *where)[1]
    assert flightwatch(capsys, "incident", "post-mortem", "nothing", *where)[0] == 1
    code, _, said = flightwatch(capsys, "incident", "post-mortem", "i2", "--output", str(tmp_path / "no" / "x"), *where)
    assert (code, "--output" in said) == (2, True)


def test_silences_are_added_listed_and_ended(instance: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--data-dir", str(instance.folder))
    add: Any = ("silence", "add", "--hours", "2", "--reason", "pump", *where)
    code, out, _ = flightwatch(capsys, *add, "--match", "cooling_zone=z3", "--match", "kind=overheat", "--json")
    made = json.loads(out)
    assert (code, made["matchers"]) == (0, {"cooling_zone": "z3", "kind": "overheat"})
    assert "maintenance of node=gpu-04*" in flightwatch(capsys, *add, "--match", "node=gpu-04*", "--maintenance")[1]
    for words in (("--match", "node"), ("--match", "=x"), ("--match", "node=a", "--match", "node=b"),
                  ("--match", "colour=red"), ("--match", "node=*")):  # fmt: skip
        code, _, said = flightwatch(capsys, *add, *words)
        assert (code, said.count("\n")) == (2, 1)
    for hours in ("nan", "inf", "1e300", "0", "-1"):
        for verb in (["silence", "add", "--match", "node=a"], ["incident", "silence", "i0"]):
            code, _, said = flightwatch(capsys, *verb, f"--hours={hours}", "--reason", "pump", *where)
            assert (code, said.count("\n"), "--hours" in said) == (2, 1, True)
    ids = [line.split()[0] for line in flightwatch(capsys, "silence", "list", *where)[1].splitlines()]
    assert made["id"] in ids
    assert "ended" in flightwatch(capsys, "silence", "end", made["id"], *where)[1]
    code, _, said = flightwatch(capsys, "silence", "end", made["id"], *where)
    assert (code, said) == (1, f"flightwatch silence: silence {made['id']} has ended already\n")
    assert made["id"] not in flightwatch(capsys, "silence", "list", *where)[1]
    assert made["id"] in flightwatch(capsys, "silence", "list", "--all", *where)[1]
    assert flightwatch(capsys, "silence", "end", "nothing", *where)[0] == 1


def test_lines_fit_a_narrow_terminal(instance: Instance) -> None:
    reader, writer = pty.openpty()
    environment = os.environ | {"COLUMNS": "80"}
    command = [sys.executable, "-m", "flightwatch.cli", "incident", "show", "i1", "--data-dir", str(instance.folder)]
    with subprocess.Popen(command, stdout=writer, env=environment) as process:
        os.close(writer)
        text = b""
        with suppress(OSError):  # the end of a terminal whose other side closed
            while part := os.read(reader, 65_536):
                text += part
        os.close(reader)
    assert process.returncode == 0
    lines = text.decode().splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 80


def test_refusals_are_one_sentence(instance: Instance, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--data-dir", str(instance.folder))
    code, _, said = flightwatch(capsys, "incident", "ack", "nothing", *where)
    assert (code, said) == (1, "flightwatch incident: there is no incident nothing\n")
    assert flightwatch(capsys, "incident", "note", "i1", "", *where)[0] == 2
    assert flightwatch(capsys, "incident", "list", "--limit", "0", *where)[0] == 2
    code, _, said = flightwatch(capsys, "incident", "list", "--data-dir", str(tmp_path))
    assert (code, "nothing runs on" in said) == (1, True)


def test_incidents_over_a_url_with_a_token(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FLIGHTWATCH_TOKEN", raising=False)
    code, _, said = flightwatch(capsys, "incident", "list", "--url", instance.url)
    assert (code, "FLIGHTWATCH_TOKEN" in said) == (2, True)
    made: Any = ("token", "create", "remote", "--role", "operator", "--scope", "read", "--scope", "write")
    _, secret, _ = flightwatch(capsys, *made, "--data-dir", str(instance.folder))
    (tmp_path / "token").write_text(secret)
    monkeypatch.setenv("FLIGHTWATCH_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("FLIGHTWATCH_URL", instance.url)
    assert "i1" in flightwatch(capsys, "incident", "list")[1]
    assert flightwatch(capsys, "incident", "ack", "i1")[0] == 0
    assert IncidentRecords(instance.site.control).get("i1").acknowledged_by == "token:remote"
    monkeypatch.setenv("FLIGHTWATCH_TOKEN", "fw_wrong")
    code, _, said = flightwatch(capsys, "incident", "list")
    assert (code, "unknown, expired or revoked" in said) == (1, True)
    _, secret, _ = flightwatch(capsys, "token", "create", "reader", "--data-dir", str(instance.folder))
    monkeypatch.setenv("FLIGHTWATCH_TOKEN", secret.strip())
    assert flightwatch(capsys, "incident", "list")[0] == 0
    code, _, said = flightwatch(capsys, "incident", "ack", "i1")
    assert (code, said.count("\n"), "operator" in said or "write" in said) == (1, 1, True)
    for url in ("ftp://x", "nonsense", "http://"):
        assert flightwatch(capsys, "incident", "list", "--url", url)[0] == 2
    code, _, said = flightwatch(capsys, "incident", "list", "--url", "http://127.0.0.1:9")
    assert (code, "does not answer" in said) == (1, True)


def test_a_token_is_not_made_for_an_installation_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLIGHTWATCH_FLIGHTWATCH_DATA_DIR", str(tmp_path / "absent"))
    code, _, said = flightwatch(capsys, "token", "list")
    assert code == 2
    assert "name the installation with --data-dir" in said
    assert not (tmp_path / "absent").exists()
