"""The store's contract, over the embedded engine and, where FLIGHTWATCH_TEST_CLICKHOUSE names one, a server.

The variable holds a URL such as `clickhouse://default@127.0.0.1:8123/flightwatch` of a server that may lose
its database `flightwatch`; the password comes from FLIGHTWATCH_STORE_PASSWORD.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import BadRecord, ConfigError, Refused
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import check, migrate
from flightwatch.pipeline.store.people import run_people_sql
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.store.blocks import insert

NOW = time.time_ns() // 1_000_000


@pytest.fixture(scope="module", params=["embedded", "server"])
def any_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    url = f"chdb://{tmp_path_factory.mktemp('store') / 'data'}"
    settings = StoreSettings()
    if request.param == "server":
        url = os.environ.get("FLIGHTWATCH_TEST_CLICKHOUSE", "")
        if not url:
            pytest.skip("no ClickHouse server: FLIGHTWATCH_TEST_CLICKHOUSE is not set")
        settings = StoreSettings(password=os.environ.get("FLIGHTWATCH_STORE_PASSWORD", ""))
    store = open_store(url, settings)
    if request.param == "server":
        store.command("DROP DATABASE IF EXISTS flightwatch SYNC")
    migrate(store)
    yield store
    store.close()


def test_migrating_again_changes_nothing(any_store: Store) -> None:
    assert check(any_store) == []
    assert migrate(any_store) == []


def test_every_table_takes_a_row_and_gives_it_back(any_store: Store) -> None:
    for table in TABLES.values():
        if table.name == "schema_versions":
            continue
        row = {column.name: NOW for column in table.columns if column.type == "time" and not column.nullable}
        insert(any_store, table.name, row)
        (back,) = any_store.rows(f"SELECT * FROM flightwatch.{table.name}")
        assert {name: back[name] for name in row} == row
        assert all(back[column.name] is None for column in table.columns if column.nullable), table.name


def test_the_same_token_is_the_same_block(any_store: Store) -> None:
    for _ in range(2):
        insert(any_store, "node_samples", {"ts": NOW, "node": "twice", "cpu_pct": 1.0}, token="contract-twice")
    rows = any_store.rows("SELECT n FROM (SELECT sum(n) AS n FROM flightwatch.node_1m WHERE node = 'twice')")
    assert rows == [{"n": 1}]
    assert len(any_store.rows("SELECT node FROM flightwatch.node_samples WHERE node = 'twice'")) == 1


def test_errors_are_sorted_for_the_caller(any_store: Store) -> None:
    with pytest.raises(Refused):
        any_store.rows("SELECT nope")
    with pytest.raises(ConfigError):
        any_store.rows("SELECT * FROM flightwatch.nope")
    with pytest.raises(BadRecord):
        any_store.insert_block("events", pa.table({"nope": [1]}), "contract-bad")


def test_people_read_and_never_write(any_store: Store) -> None:
    assert run_people_sql(any_store, "SELECT toUInt64(18446744073709551615) AS n") == b'{"n":18446744073709551615}\n'
    for query in ("DROP TABLE flightwatch.events", "SELECT * FROM system.tables", "SELECT file('/etc/passwd')"):
        with pytest.raises(Refused):
            run_people_sql(any_store, query)
