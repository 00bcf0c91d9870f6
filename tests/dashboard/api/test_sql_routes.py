"""People's SQL over HTTP: formats, tenants, limits, audit."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet
import pytest

from flightwatch.dashboard.app import create_app
from flightwatch.dashboard.serve import HttpServer, bind_port
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.store.client import Store
from tests.dashboard.access_kit import Site
from tests.pipeline.store.blocks import insert

NOW_MS = 1_795_990_000_000
QUESTION = "SELECT job, count() AS n FROM flightwatch.runs GROUP BY job ORDER BY job"


@pytest.fixture(scope="module")
def full(site: Site, store: Store) -> Site:
    for job, tenant in (("llm", "red"), ("vision", "blue")):
        cells = {"ts": NOW_MS, "cluster": "lab", "job": job, "run": "1", "phase": "train"}
        insert(store, "runs", cells | {"attrs": {"tenant": tenant}})
    return site


def ask(site: Site, header: dict[str, str], query: str, **more: Any) -> httpx2.Response:
    return site.client().post("/api/v1/sql", headers=header, json={"query": query, **more})


def test_every_format(full: Site) -> None:
    header = full.token(Role.VIEWER, "sql")
    lines = [json.loads(line) for line in ask(full, header, QUESTION).text.splitlines()]
    assert lines == [{"job": "llm", "n": 1}, {"job": "vision", "n": 1}]
    assert ask(full, header, QUESTION, format="csv").text == '"job","n"\n"llm",1\n"vision",1\n'
    table = pa.parquet.read_table(io.BytesIO(ask(full, header, QUESTION, format="parquet").content))
    assert table.column("job").to_pylist() == ["llm", "vision"]
    arrow = pa.ipc.open_file(ask(full, header, QUESTION, format="arrow").content).read_all()
    assert arrow.num_rows == 2
    assert "(2 rows)" in ask(full, header, QUESTION, format="table").text


def test_a_large_result_comes_in_pieces_and_whole(full: Site) -> None:
    header = full.token(Role.VIEWER, "sql")
    text = ask(full, header, "SELECT number, repeat('x', 100) AS x FROM numbers(60000)").text
    assert text.count("\n") == 60_000


def test_a_tenant_sees_its_own_rows(full: Site) -> None:
    header = full.token(Role.VIEWER, "sql", tenant="red")
    assert ask(full, header, QUESTION, format="csv").text == '"job","n"\n"llm",1\n'
    assert ask(full, header, "SELECT * FROM flightwatch.inventory").status_code == 422


def test_only_an_admin_everywhere_reads_what_is_private(full: Site) -> None:
    query = "SELECT count() FROM flightwatch.audit_log"
    assert ask(full, full.token(Role.ADMIN, "sql"), query).status_code == 200
    assert ask(full, full.token(Role.OPERATOR, "sql"), query).status_code == 422
    assert ask(full, full.token(Role.ADMIN, "sql", tenant="red"), query).status_code == 422


@pytest.mark.parametrize(
    "query",
    ["SELECT * FROM system.tables", "DROP TABLE flightwatch.runs", "SELECT 1; SELECT 2", "SELECT file('/etc/passwd')",
     "SELECT throwIf(1)", "SELECT", "SELECT * FROM url('http://127.0.0.1/')"],
)  # fmt: skip
def test_what_the_guard_refuses_has_the_error_shape(full: Site, query: str) -> None:
    answer = ask(full, full.token(Role.ADMIN, "sql"), query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "refused")


def test_queries_are_in_the_audit_log_with_rows_and_time(full: Site) -> None:
    header = full.token(Role.VIEWER, "sql", name="analyst")
    ask(full, header, QUESTION)
    ask(full, header, "SELECT * FROM system.tables")
    assert full.access.audit is not None
    refused, done = full.access.audit.page(actor="token:analyst")
    assert (done.action, done.ok, done.sql, done.rows, done.address) == ("sql", True, QUESTION, 2, "127.0.0.1")
    assert done.elapsed_ms is not None
    assert done.elapsed_ms > 0
    assert (refused.ok, "system.tables" in refused.detail) == (False, True)


def test_a_query_nobody_waits_for_is_stopped(full: Site) -> None:
    """Through the whole console: some middleware hides from a route that its caller hung up."""
    bound = bind_port("127.0.0.1", 24100, trust_network=False)
    server = HttpServer("console", create_app(full.services, loopback_only=True), bound)
    server.start()
    try:
        header = full.token(Role.VIEWER, "sql", name="impatient")
        query = "SELECT sum(cityHash64(a.number, b.number)) FROM numbers(1000000) AS a CROSS JOIN numbers(1000000) AS b"
        body = json.dumps({"query": query}).encode()
        head = f"Host: 127.0.0.1\r\nAuthorization: {header['Authorization']}\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection(bound.getsockname()) as connection:
            connection.sendall(
                b"POST /api/v1/sql HTTP/1.1\r\nContent-Type: application/json\r\n" + head.encode() + b"\r\n" + body
            )
            assert _eventually(lambda: _running(full) == 1)
        assert _eventually(lambda: _reasons(full) == ["the query was cancelled"])
    finally:
        server.stop()


def _running(site: Site) -> int:
    found = site.services.store.rows("SELECT count() AS n FROM system.processes WHERE query LIKE '%cityHash64(a.num%'")
    return int(found[0]["n"]) - 1  # this one says so too


def _reasons(site: Site) -> list[str]:
    assert site.access.audit is not None
    return [entry.detail for entry in site.access.audit.page(actor="token:impatient")]


def _eventually(holds: Callable[[], bool], seconds: float = 300.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False
