"""Bring a store to this program's schema, forward only, and refuse what this program does not understand."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from dataclasses import dataclass
from importlib import resources

import pyarrow as pa

from flightwatch import __version__
from flightwatch.core.catalogue import TABLES
from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.layout import LATEST, codec, ttl_expression
from flightwatch.pipeline.store.render import Renderer, latest_select
from flightwatch.pipeline.store.schema import arrow_schema

log = logging.getLogger(__name__)
#: How often a process asks whether somebody has migrated its servers, seconds.
MIGRATION_WAIT_SECONDS = 10.0
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_MIN_PROGRAM = re.compile(r"^-- min_program: (\d+\.\d+\.\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered template.

    Attributes
    ----------
    min_program: oldest program version that may use the store once this migration is applied.
    """

    version: int
    name: str
    template: str
    min_program: str

    @property
    def checksum(self) -> str:
        """Sha256 of the template: what the migration does, apart from catalogue and retention."""
        return hashlib.sha256(self.template.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Applied:
    """One line of `schema_versions`."""

    version: int
    name: str
    checksum: str
    min_program: str


def migrations() -> list[Migration]:
    """Return this program's migrations in order."""
    found = []
    for entry in resources.files("flightwatch.pipeline.store.migrations").iterdir():
        match = _FILE.fullmatch(entry.name)
        if match:
            template = entry.read_text(encoding="utf-8")
            minimum = _MIN_PROGRAM.search(template)
            if minimum is None:
                raise ConfigError(f"migration {entry.name} names no min_program")
            found.append(Migration(int(match[1]), entry.name, template, minimum[1]))
    return sorted(found, key=lambda migration: migration.version)


def applied(store: Store) -> list[Applied]:
    """Return the migrations the store has seen; empty for a new store."""
    if not _has_table(store, "schema_versions"):
        return []
    rows = store.rows(
        f"SELECT version, argMax(name, applied_at) AS file, argMax(checksum, applied_at) AS sum,"
        f" argMax(min_program, applied_at) AS minimum FROM {DATABASE}.schema_versions GROUP BY version ORDER BY version"
    )
    return [Applied(row["version"], row["file"], row["sum"], row["minimum"]) for row in rows]


def check(store: Store, known: list[Migration] | None = None, program: str = __version__) -> list[Migration]:
    """Return the migrations the store lacks.

    Raises
    ------
    ConfigError: the store needs a newer program, or an applied migration differs from this program's.
    """
    known = migrations() if known is None else known
    by_version = {migration.version: migration for migration in known}
    seen = applied(store)
    for line in seen:
        if _version_key(line.min_program) > _version_key(program):
            raise ConfigError(
                f"the store was migrated by a newer Flightwatch: {line.name} needs at least {line.min_program},"
                f" this is {program}"
            )
        mine = by_version.get(line.version)
        if mine is not None and mine.checksum != line.checksum:
            raise ConfigError(
                f"migration {line.name} was applied with other text (checksum {line.checksum[:12]}, here"
                f" {mine.checksum[:12]}): this program does not fit this store"
            )
    done = {line.version for line in seen}
    return [migration for migration in known if migration.version not in done]


def wait_until_migrated(store: Store, stop: threading.Event) -> bool:
    """Migrate an embedded store; wait for `flightwatch store migrate` on servers.

    Returns
    -------
    bool: False when `stop` was set before the store had every migration.

    Raises
    ------
    ConfigError: the store needs a newer program, or an applied migration differs from this program's.
    """
    if store.embedded:
        migrate(store)
        return True
    while check(store):
        log.warning("the store is older than this program: waiting for `flightwatch store migrate`")
        if stop.wait(MIGRATION_WAIT_SECONDS):
            return False
    return True


def migrate(
    store: Store, known: list[Migration] | None = None, program: str = __version__, clock: Clock | None = None
) -> list[str]:
    """Apply what the store lacks, add columns the catalogue gained, and set retention.

    Statements are idempotent: a migration that was interrupted runs again from its start.

    Returns
    -------
    What was done, one line each; empty when the store was up to date.

    Raises
    ------
    ConfigError: see `check`; or a column has another type than the catalogue says.
    """
    renderer = Renderer(store.settings, store.cluster)
    done = []
    lacking = check(store, known, program)
    # Columns first: a later migration's views may read what the catalogue gained since the tables were made.
    added = _expand_columns(store)
    for migration in lacking:
        for statement in renderer.statements(migration.template):
            store.command(statement)
        _record(store, migration, (clock or SystemClock()).now_ms())
        done.append(f"applied {migration.name}")
    added += _expand_columns(store)
    if added:
        _expand_latest(store)
    return done + added + _apply_retention(store)


def _record(store: Store, migration: Migration, now_ms: int) -> None:
    columns = {
        "version": [migration.version],
        "name": [migration.name],
        "checksum": [migration.checksum],
        "min_program": [migration.min_program],
        "applied_at": [now_ms],
    }
    store.insert_block(
        "schema_versions",
        pa.table(columns, schema=arrow_schema("schema_versions")),
        f"migration:{migration.version}:{migration.checksum}",
    )


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _has_table(store: Store, table: str) -> bool:
    return bool(
        store.rows(
            "SELECT 1 AS found FROM system.tables WHERE database = {database:String} AND name = {name:String}",
            {"database": DATABASE, "name": table},
        )
    )


def _expand_columns(store: Store) -> list[str]:
    """Add columns the catalogue has and the store has not; refuse a column of another type."""
    suffix = "_local" if store.cluster else ""
    on_cluster = f" ON CLUSTER '{store.cluster}'" if store.cluster else ""
    live: dict[tuple[str, str], str] = {
        (row["table"], row["name"]): row["type"]
        for row in store.rows(
            "SELECT table, name, type FROM system.columns WHERE database = {database:String}", {"database": DATABASE}
        )
    }
    done = []
    present = {table for table, _ in live}
    for table in TABLES.values():
        if f"{table.name}{suffix}" not in present:
            continue
        previous = ""
        for column in table.columns:
            there = live.get((f"{table.name}{suffix}", column.name))
            if there is None:
                place = f"AFTER `{previous}`" if previous else "FIRST"
                definition = f"`{column.name}` {column.clickhouse_type}"
                store.command(
                    f"ALTER TABLE {DATABASE}.{table.name}{suffix}{on_cluster}"
                    f" ADD COLUMN IF NOT EXISTS {definition} {codec(column)} {place}"
                )
                if store.cluster:
                    store.command(
                        f"ALTER TABLE {DATABASE}.{table.name}{on_cluster} ADD COLUMN IF NOT EXISTS {definition} {place}"
                    )
                done.append(f"added {table.name}.{column.name}")
            elif column.clickhouse_type == f"Nullable({there})":
                # "Unknown" became a possible answer: what is stored stays as it is.
                kind = f"MODIFY COLUMN `{column.name}` {column.clickhouse_type}"
                store.command(f"ALTER TABLE {DATABASE}.{table.name}{suffix}{on_cluster} {kind} {codec(column)}")
                if store.cluster:
                    store.command(f"ALTER TABLE {DATABASE}.{table.name}{on_cluster} {kind}")
                done.append(f"{table.name}.{column.name} may be NULL")
            elif there != column.clickhouse_type:
                raise ConfigError(
                    f"{table.name}.{column.name} is {there} in the store and {column.clickhouse_type} in this program:"
                    " no release made such a store; keep its folder and start with a new one"
                )
            previous = column.name
    return done


def _expand_latest(store: Store) -> None:
    """Give the tables of newest rows the columns their sources gained."""
    suffix = "_local" if store.cluster else ""
    on_cluster = f" ON CLUSTER '{store.cluster}'" if store.cluster else ""
    for latest, (source, _) in LATEST.items():
        columns = ", ".join(
            f"ADD COLUMN IF NOT EXISTS `{column.name}` {column.clickhouse_type}" for column in TABLES[source].columns
        )
        for name in dict.fromkeys((f"{latest}{suffix}", latest)):
            store.command(f"ALTER TABLE {DATABASE}.{name}{on_cluster} {columns}")
        store.command(f"ALTER TABLE {DATABASE}.mv_{latest}{on_cluster} MODIFY QUERY {latest_select(latest, suffix)}")


def _apply_retention(store: Store) -> list[str]:
    suffix = "_local" if store.cluster else ""
    on_cluster = f" ON CLUSTER '{store.cluster}'" if store.cluster else ""
    done = []
    for row in store.rows(
        "SELECT name, engine_full FROM system.tables WHERE database = {database:String} AND engine LIKE '%MergeTree'",
        {"database": DATABASE},
    ):
        name = row["name"].removesuffix(suffix)
        wanted = ttl_expression(name, store.settings)
        match = re.search(r" TTL (.+?)(?: SETTINGS |$)", row["engine_full"])
        current = match[1] if match else None
        if wanted is not None and current != wanted:
            # Old parts get the new limit when they merge; rewriting all of them now would stop ingest.
            store.command(
                f"ALTER TABLE {DATABASE}.{row['name']}{on_cluster} MODIFY TTL {wanted}",
                settings={"materialize_ttl_after_modify": 0},
            )
            done.append(f"retention of {name}: {wanted}")
    return done
