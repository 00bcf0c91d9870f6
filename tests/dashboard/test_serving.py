"""Binding, the local socket, headers: what is reachable, and from where."""

from __future__ import annotations

import http.client
import socket
import stat
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from flightwatch.cli.local_client import LocalClient
from flightwatch.core.errors import ConfigError, FlightwatchError, Refused
from flightwatch.dashboard.api.health import router
from flightwatch.dashboard.api.local import create_local_app
from flightwatch.dashboard.serve import HttpServer, bind_port, bind_unix, is_loopback
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.people import People
from flightwatch.pipeline.store.settings import StoreSettings

STATUS: dict[str, Any] = {
    "version": "9", "cluster": "c", "uptime_seconds": 1.0, "components": {"ingest": "running"}, "rows_per_second": 2.5,
    "newest_row_age_seconds": None, "lag_seconds": None, "partitions": [],
    "tables": [
        {"table": "events", "rows_per_second": 0.0, "last_ts": None, "age_seconds": None},
        {"table": "node_samples", "rows_per_second": 0.2, "last_ts": "x", "age_seconds": 3.5},
    ],
    "coverage": {"nodes_reporting": 1, "nodes_known": 2, "devices_reporting": 0}, "data_gaps_24h": 0,
    "holes_of_unknown_size_24h": 0,
    "dead_letters_24h": 0, "disk": {"path": None, "used_bytes": None, "free_bytes": None}, "notices": ["careful"],
}  # fmt: skip


def services(missing: str | None = None) -> Services:
    store = cast(Store, SimpleNamespace(settings=StoreSettings()))
    return Services(store, lambda: STATUS, lambda: missing)


def client(missing: str | None = None) -> TestClient:
    app = FastAPI()
    app.include_router(router(services(missing)))
    return TestClient(app)


def test_health_ready_and_why_not() -> None:
    assert client().get("/healthz").json() == {"status": "ok"}
    assert client().get("/readyz").status_code == 200
    answer = client("ingest is stopped").get("/readyz")
    assert (answer.status_code, answer.json()["reason"]) == (503, "ingest is stopped")


def test_metrics_leave_out_what_is_unknown() -> None:
    answer = client().get("/metrics")
    assert "openmetrics-text" in answer.headers["content-type"]
    assert "flightwatch_rows_per_second 2.5" in answer.text
    assert 'flightwatch_table_age_seconds{table="node_samples"} 3.5' in answer.text
    assert "\nflightwatch_lag_seconds " not in answer.text
    assert "disk_used_bytes " not in answer.text.replace("# HELP flightwatch_disk_used_bytes ", "")


def test_an_outside_address_needs_the_network_declared_trusted() -> None:
    with pytest.raises(ConfigError, match="no login"):
        bind_port("0.0.0.0", 0, trust_network=False)
    for allowed in ({"trust_network": True}, {"trust_network": False, "login": True}):
        with pytest.raises(ConfigError, match="cannot listen there"):
            bind_port("192.0.2.1", 18080, **allowed)
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert not is_loopback("example.org")


def test_a_taken_port_gives_the_next_free_one() -> None:
    first = bind_port("127.0.0.1", 23100, trust_network=False)
    second = bind_port("127.0.0.1", first.getsockname()[1], trust_network=False)
    try:
        assert second.getsockname()[1] > first.getsockname()[1]
        with pytest.raises(ConfigError, match="it is taken"):
            bind_port("127.0.0.1", first.getsockname()[1], trust_network=False, next_free=False)
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("port", [-4, 0, 65_536])
def test_what_is_no_port_is_said(port: int) -> None:
    with pytest.raises(ConfigError, match=f"console.port = {port} is not a port"):
        bind_port("127.0.0.1", port, trust_network=False)


def test_the_local_socket_is_the_owners_alone_and_replaces_a_leftover(tmp_path: Path) -> None:
    path = tmp_path / "flightwatch.sock"
    bind_unix(path).close()
    server = HttpServer("local", create_local_app(services()), bind_unix(path))
    server.start()
    try:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert LocalClient(str(tmp_path)).get_json("/status")["rows_per_second"] == 2.5
        with pytest.raises(FlightwatchError, match="status 404"):
            LocalClient(str(tmp_path)).get_json("/nothing")
    finally:
        server.stop()
    assert not server.alive


class SlowPeople(People):
    """Answers only when the query is cancelled."""

    def __init__(self) -> None:
        self.asked, self.cancelled = threading.Event(), threading.Event()

    def run(self, text: str, form: str = "json", tables: Any = (), query_id: str | None = None, **_: Any) -> bytes:
        self.asked.set()
        assert self.cancelled.wait(300)
        return b""

    def cancel(self, query_id: str) -> None:
        self.cancelled.set()


def test_a_query_nobody_waits_for_is_cancelled(tmp_path: Path) -> None:
    people = SlowPeople()
    server = HttpServer("local", create_local_app(services(), people), bind_unix(tmp_path / "flightwatch.sock"))
    server.start()
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "flightwatch.sock"))
            body = b'{"query": "SELECT 1"}'
            client.sendall(b"POST /sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            assert people.asked.wait(300)
        assert people.cancelled.wait(300)
    finally:
        server.stop()


def test_nothing_running_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="nothing runs on"):
        LocalClient(str(tmp_path)).get_json("/status")
    (tmp_path / "flightwatch.sock").touch()
    with pytest.raises((Refused, FlightwatchError)):
        LocalClient(str(tmp_path)).get_json("/status")


def test_a_path_too_long_for_a_socket_is_said(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with pytest.raises(ConfigError, match="cannot make the local socket"):
        bind_unix(deep / "flightwatch.sock")


def test_a_server_answers_on_the_given_socket_and_stops() -> None:
    bound = bind_port("127.0.0.1", 23300, trust_network=False)
    app = FastAPI()
    app.include_router(router(services()))
    server = HttpServer("console", app, bound)
    server.start()
    connection = http.client.HTTPConnection("127.0.0.1", bound.getsockname()[1], timeout=60)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    server.stop()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", connection.port), timeout=0.5)
