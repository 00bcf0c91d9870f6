from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flightwatch.core.catalogue import TABLES
from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import ConfigError
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.guard import ADMIN_TABLES, ROLLUPS, VIEWS
from flightwatch.pipeline.store.layout import LATEST, RETENTION
from flightwatch.pipeline.store.migrate import (
    Migration,
    applied,
    check,
    migrate,
    migrations,
    wait_until_migrated,
)
from flightwatch.pipeline.store.render import Renderer
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.store.blocks import insert

NOW = time.time_ns() // 1_000_000


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path / 'data'}", StoreSettings())
    yield opened
    opened.close()


def test_a_new_store_gets_every_table_and_a_second_run_does_nothing(empty: Store) -> None:
    assert check(empty) == migrations()
    done = migrate(empty, clock=ManualClock())
    assert [line for line in done if not line.startswith("applied")] == []
    assert migrate(empty) == []
    assert [line.version for line in applied(empty)] == [migration.version for migration in migrations()]
    columns: dict[str, list[tuple[str, str]]] = {}
    for row in empty.rows(
        "SELECT table, name, type FROM system.columns WHERE database = 'flightwatch' ORDER BY table, position"
    ):
        columns.setdefault(row["table"], []).append((row["name"], row["type"]))
    for table in TABLES.values():
        assert columns[table.name] == [(column.name, column.clickhouse_type) for column in table.columns]
    assert set(columns) >= ADMIN_TABLES
    assert VIEWS | ROLLUPS | set(LATEST) <= set(columns)


def test_every_table_that_holds_rows_remembers_tokens_and_syncs(empty: Store) -> None:
    migrate(empty)
    for row in empty.rows(
        "SELECT name, engine_full FROM system.tables WHERE database = 'flightwatch' AND engine LIKE '%MergeTree'"
    ):
        for setting in (
            "non_replicated_deduplication_window = 10000",
            "fsync_after_insert = 1",
            "fsync_part_directory",
        ):
            assert setting in row["engine_full"], row["name"]


def test_an_older_store_comes_forward_with_its_rows(empty: Store) -> None:
    """A store of an earlier catalogue: no later migrations, a column less."""
    older = migrations()[:1]
    migrate(empty, older)
    insert(empty, "device_samples", {"ts": NOW, "node": "old", "device": 0, "temp_c": 50.0})
    empty.command("ALTER TABLE flightwatch.device_samples DROP COLUMN pcie_gen")
    done = migrate(empty)
    assert "added device_samples.pcie_gen" in done
    assert any("0002" in line for line in done)
    assert check(empty) == []
    insert(empty, "device_samples", {"ts": NOW, "node": "new", "device": 0, "pcie_gen": 5})
    rows = empty.rows("SELECT node, temp_c, pcie_gen FROM flightwatch.device_samples ORDER BY node")
    assert rows == [
        {"node": "new", "temp_c": None, "pcie_gen": 5},
        {"node": "old", "temp_c": 50.0, "pcie_gen": None},
    ]


def test_a_column_the_catalogue_gains_reaches_the_newest_rows(empty: Store) -> None:
    migrate(empty)
    view = empty.rows("SELECT as_select FROM system.tables WHERE name = 'mv_device_latest'")[0]["as_select"]
    empty.command(f"ALTER TABLE flightwatch.mv_device_latest MODIFY QUERY {view.replace('pcie_gen,', '')}")
    empty.command("ALTER TABLE flightwatch.device_latest DROP COLUMN pcie_gen")
    empty.command("ALTER TABLE flightwatch.device_samples DROP COLUMN pcie_gen")
    migrate(empty)
    insert(empty, "device_samples", {"ts": NOW, "node": "n", "device": 0, "pcie_gen": 5})
    assert empty.rows("SELECT pcie_gen FROM flightwatch.v_device_latest") == [{"pcie_gen": 5}]


def test_a_column_that_may_now_be_unknown_keeps_what_is_stored(empty: Store) -> None:
    migrate(empty)
    empty.command("ALTER TABLE flightwatch.data_gaps DROP COLUMN batches")
    empty.command("ALTER TABLE flightwatch.data_gaps ADD COLUMN batches UInt64")
    insert(empty, "data_gaps", {"ts": NOW, "node": "n", "batches": 7})
    assert "data_gaps.batches may be NULL" in " ".join(migrate(empty))
    insert(empty, "data_gaps", {"ts": NOW, "node": "n", "batches": None})
    rows = empty.rows("SELECT batches FROM flightwatch.data_gaps ORDER BY batches NULLS LAST")
    assert rows == [{"batches": 7}, {"batches": None}]


def test_a_changed_migration_is_refused(empty: Store) -> None:
    migrate(empty)
    known = migrations()
    known[0] = replace(known[0], template=known[0].template + "\n-- changed")
    with pytest.raises(ConfigError, match=r"0001_tables\.sql was applied with other text"):
        migrate(empty, known)


def test_a_store_of_a_newer_program_is_refused(empty: Store) -> None:
    newer = Migration(9000, "9000_future.sql", "SELECT 1\n;\n", "7.1.0")
    migrate(empty, [*migrations(), newer], program="7.2.0")
    with pytest.raises(ConfigError, match=r"needs at least 7\.1\.0"):
        check(empty)


def test_an_additive_migration_of_a_newer_program_is_fine(empty: Store) -> None:
    newer = Migration(
        9000, "9000_future.sql", "CREATE TABLE @table(more)@ (x UInt8) ENGINE = @merge@ ORDER BY x\n;", "0.1.0"
    )
    migrate(empty, [*migrations(), newer])
    assert check(empty) == []


def test_an_interrupted_migration_runs_again(empty: Store) -> None:
    renderer = Renderer(empty.settings)
    for statement in list(renderer.statements(migrations()[0].template))[:7]:
        empty.command(statement)
    migrate(empty)
    assert check(empty) == []


def test_a_column_of_another_type_is_refused(empty: Store) -> None:
    migrate(empty)
    empty.command("ALTER TABLE flightwatch.node_samples MODIFY COLUMN load1 Nullable(Float64)")
    with pytest.raises(ConfigError, match=r"node_samples\.load1 is Nullable"):
        migrate(empty)


def test_retention_follows_the_settings(empty: Store) -> None:
    migrate(empty)
    again = Store(empty._connect, embedded=True, settings=StoreSettings(samples_days=3, rank_scalars_days=2))
    done = migrate(again)
    assert "retention of device_samples: toDateTime(ts) + toIntervalDay(3)" in done
    assert sum(line.startswith("retention of training_scalars") for line in done) == 1
    assert migrate(again) == []
    again.close()


def test_the_documented_retention_is_the_default_one() -> None:
    defaults = StoreSettings()
    for name, setting in RETENTION.items():
        if name in TABLES:
            assert TABLES[name].ttl_days == getattr(defaults, setting), name
    assert TABLES["training_scalars"].ttl_days == defaults.history_days


def test_expired_rows_go_and_kept_ones_stay(empty: Store) -> None:
    migrate(empty)
    day_ms, now_ms = 86_400_000, empty.rows("SELECT now64(3) AS now")[0]["now"]
    scalar = {"job": "j", "run": "1", "name": "loss", "value": 1.0}
    insert(
        empty,
        "training_scalars",
        scalar | {"ts": now_ms - 40 * day_ms, "rank": 3},
        scalar | {"ts": now_ms - 40 * day_ms, "rank": -1},
        scalar | {"ts": now_ms, "rank": 3},
    )
    empty.command("OPTIMIZE TABLE flightwatch.training_scalars FINAL")
    assert empty.rows("SELECT rank FROM flightwatch.training_scalars ORDER BY rank") == [{"rank": -1}, {"rank": 3}]


def test_the_cluster_rendering_is_valid_for_the_engine(empty: Store) -> None:
    renderer = Renderer(StoreSettings(), cluster="main")
    statements = [text for migration in migrations() for text in renderer.statements(migration.template)]
    for statement in statements:
        empty.rows("SELECT formatQuerySingleLine({text:String}) AS query", {"text": statement})
    created = [text for text in statements if text.startswith("CREATE TABLE")]
    held = [text for text in created if "_local ON CLUSTER 'main'" in text.split("\n")[0] and "Distributed" not in text]
    read = [text for text in created if "ENGINE = Distributed('main'" in text]
    assert len(held) == len(read) > len(TABLES)
    assert all("Replicated" in text and "replicated_deduplication_window = 10000" in text for text in held)
    for text in statements:
        assert "@" not in re.sub(r"'[^']*'", "", text)
        if "MATERIALIZED VIEW" in text:
            assert re.search(r" TO flightwatch\.\w+_local ", text)
            assert re.search(r"FROM flightwatch\.\w+_local", text)


def test_the_single_rendering_names_no_cluster() -> None:
    renderer = Renderer(StoreSettings())
    for migration in migrations():
        for statement in renderer.statements(migration.template):
            assert "ON CLUSTER" not in statement
            assert "_local" not in statement
            assert "Replicated" not in statement


def test_numbers_are_unique_and_every_file_names_the_oldest_program() -> None:
    numbers = [migration.version for migration in migrations()]
    assert numbers == sorted(set(numbers))
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", migration.min_program) for migration in migrations())


class SomebodyMigrates(threading.Event):
    """Stands for the time a process waits: in the second wait somebody runs `flightwatch store migrate`."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store, self.waits = store, 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        if self.waits == 2:
            migrate(self.store)
        return False


def test_processes_wait_for_servers_to_be_migrated(empty: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(empty, "embedded", False)
    waiting = SomebodyMigrates(empty)
    assert wait_until_migrated(empty, waiting)
    assert waiting.waits == 2


def test_a_process_told_to_stop_does_not_wait(empty: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(empty, "embedded", False)
    stop = threading.Event()
    stop.set()
    assert not wait_until_migrated(empty, stop)
