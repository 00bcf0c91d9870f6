from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import ConfigError, Refused
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.guard import ADMIN_TABLES
from flightwatch.pipeline.store.people import People, Ran
from flightwatch.pipeline.store.people_slots import Slots
from flightwatch.pipeline.store.people_stream import RowCounter, pieces
from flightwatch.pipeline.store.row_scope import TENANT_TABLES, RowScope, scope_of

OURS, THEIRS = "o'ur\\s", "theirs"
SCOPE = RowScope(frozenset({OURS}))


def _literal(name: str, value: object) -> str:
    if isinstance(value, dict):
        return f"map('tenant', {_literal(name, value['tenant'])})"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return f"fromUnixTimestamp64Milli({value})" if name in ("ts", "received_at") else str(value)


@pytest.fixture(scope="module")
def shared(store: Store) -> Store:
    """Two tenants with one job each, the same kinds of rows of both in every table that names a job."""
    now_ms = int(time.time() * 1000)
    for job, tenant in (("job-a", OURS), ("job-b", THEIRS)):
        for table in sorted(TABLES):
            names = TABLES[table].column_names
            if "job" not in names:
                continue
            values: dict[str, object] = {
                "ts": now_ms,
                "received_at": now_ms,
                "cluster": "c",
                "node": f"n-{job}",
                "job": job,
            }
            values |= {"run": "r1", "rank": 3, "step": 1, "step_us": 5, "device": 0, "id": job, "severity": "error"}
            values |= {"attrs": {"tenant": tenant}, "tenant": tenant, "phase": "train", "version": 1, "state": "open"}
            row = {name: value for name, value in values.items() if name in names}
            if table not in ("runs", "events"):
                row.pop("attrs", None)
            columns, cells = ", ".join(row), ", ".join(_literal(name, value) for name, value in row.items())
            store.command(f"INSERT INTO flightwatch.{table} ({columns}) SELECT {cells}", settings={"async_insert": 0})
    return store


@pytest.mark.parametrize("table", sorted(TENANT_TABLES))
def test_a_person_of_a_tenant_sees_no_row_of_another(shared: Store, table: str) -> None:
    everything = People(shared).run(f"SELECT * FROM flightwatch.{table}", tables=ADMIN_TABLES).decode()
    mine = People(shared).run(f"SELECT * FROM flightwatch.{table}", tables=ADMIN_TABLES, scope=SCOPE).decode()
    assert "job-b" in everything
    assert "job-b" not in mine
    assert "job-a" in mine


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count() FROM flightwatch.rank_steps WHERE job = 'job-b'",
        "WITH x AS (SELECT * FROM flightwatch.rank_steps) SELECT count() FROM x WHERE job = 'job-b'",
        "SELECT count() FROM flightwatch.rank_steps a JOIN flightwatch.events b ON a.job = b.job WHERE b.job = 'job-b'",
        "SELECT toUInt8('job-b' IN (SELECT job FROM flightwatch.runs)) AS n",
        "SELECT toUInt8('job-b' IN flightwatch.placements) AS n FROM (SELECT 1) WHERE 0 UNION ALL SELECT 0",
        "SELECT countIf(job = 'job-b') AS n FROM flightwatch.findings PREWHERE 1",
        "SELECT count() FROM flightwatch.rank_steps AS a ARRAY JOIN [1] AS z WHERE a.job = 'job-b'",
        "SELECT max(exists(SELECT 1 FROM flightwatch.v_step_times WHERE job = 'job-b')) AS n",
        "SELECT ifNull((SELECT count() FROM flightwatch.events WHERE job = 'job-b'), 0) AS n",
    ],
)
def test_no_way_of_asking_reaches_another_tenant(shared: Store, query: str) -> None:
    try:
        answer = People(shared).run(query, "csv", scope=SCOPE).decode().splitlines()[1:]
    except Refused:
        return
    assert answer == ["0"]


@pytest.mark.parametrize("table", sorted(ADMIN_TABLES - TENANT_TABLES))
def test_tables_without_an_owner_are_closed_to_a_tenant(shared: Store, table: str) -> None:
    with pytest.raises(Refused, match="not open to you"):
        People(shared).run(f"SELECT * FROM flightwatch.{table}", tables=ADMIN_TABLES, scope=SCOPE)


def test_every_table_of_the_catalogue_was_thought_of() -> None:
    named = {name for name, table in TABLES.items() if {"job", "tenant"} & set(table.column_names)}
    assert named == TENANT_TABLES & set(TABLES)


def test_a_scope_without_a_tenant_is_an_error_not_everything() -> None:
    with pytest.raises(ConfigError):
        RowScope(frozenset())
    with pytest.raises(ConfigError):
        scope_of([])
    assert scope_of(None) is None
    assert scope_of(["a"]) == RowScope(frozenset({"a"}))


def test_one_person_cannot_take_all_places() -> None:
    slots = Slots(3, 2)
    with slots.place("ann"), slots.place("ann"):
        with pytest.raises(Refused, match="you have 2"), slots.place("ann"):
            pass
        with slots.place("bob"), pytest.raises(Refused, match="too many"), slots.place("cai"):
            pass
    with slots.place("ann"):
        pass


def test_every_query_is_noted_with_its_rows_and_refused_ones_too(store: Store) -> None:
    seen: list[Ran] = []
    people = People(store, note=seen.append)
    for form in ("json", "csv", "parquet", "arrow", "table"):
        people.run("SELECT number, 'a\n\"b' AS t FROM numbers(3)", form, who="ann")
    with pytest.raises(Refused):
        people.run("DROP TABLE flightwatch.events", who="ann")
    with pytest.raises(Refused):
        people.run("SELECT toInt8('a')", who="ann")
    assert [(one.ok, one.rows) for one in seen] == [(True, 3)] * 5 + [(False, None)] * 2
    assert all(one.who == "ann" and one.elapsed_ms > 0 for one in seen)
    assert "only SELECT" in seen[5].reason


def test_a_large_result_comes_in_pieces_and_an_error_in_the_middle_is_said(store: Store) -> None:
    seen: list[Ran] = []
    people = People(store, note=seen.append)
    result = people.open("SELECT number, repeat('x', 100) AS t FROM numbers(90000)")
    sizes = [len(piece) for piece in result]
    assert len(sizes) > 5
    assert seen[-1].rows == 90_000
    with pytest.raises(Refused, match="failed"):
        b"".join(people.open("SELECT toInt8(if(number = 80000, 'a', '1')) FROM numbers(90000)"))
    assert not seen[-1].ok
    people.open("SELECT 1").close()
    assert seen[-1].reason == "the reader went away"
    assert people.run("SELECT 1 AS x") == b'{"x":1}\n'


class _Slow:
    """A stream that gives one byte at a time: every boundary falls everywhere."""

    def __init__(self, text: bytes) -> None:
        self._bytes: Iterator[int] = iter(text)

    def read(self, size: int = -1, /) -> bytes:
        return bytes([one]) if (one := next(self._bytes, None)) is not None else b""

    def close(self) -> None: ...


def test_formulas_are_disarmed_wherever_a_piece_ends() -> None:
    text = b'"=a","b"\n"c","+d"\n1,"@e"\n"f=","-g"\n'
    assert b"".join(pieces(_Slow(text), "csv")) == b'"\'=a","b"\n"c","\'+d"\n1,"\'@e"\n"f=","\'-g"\n'
    assert b"".join(pieces(_Slow(b""), "csv")) == b""


def test_rows_of_a_csv_are_counted_across_line_feeds_in_cells() -> None:
    counter = RowCounter("csv")
    for byte in b'"n"\n"a\nb"\n"c""\n"\n':
        counter.add(bytes([byte]))
    assert counter.rows() == 2
