"""People's SQL over HTTP: formats, tenants, limits, audit."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx2
import pyarrow as pa
import pyarrow.parquet
import pytest

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
