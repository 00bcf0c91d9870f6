"""What an operator does to a store as a whole: back up, restore, check, measure, rebuild."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import ConfigError, Refused
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.layout import LATEST
from flightwatch.pipeline.store.migrate import check

#: Rollup tables and the table each is made from; both have daily partitions.
ROLLUP_SOURCES = {
    "device_1m": "device_samples",
    "node_1m": "node_samples",
    "port_1m": "port_samples",
    "op_1m": "op_timings",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


@dataclass(frozen=True, slots=True)
class TableSize:
    """What one table takes on disk.

    Attributes
    ----------
    bytes_on_disk: compressed, with indices and marks.
    bytes_raw: uncompressed.
    """

    table: str
    rows: int
    bytes_on_disk: int
    bytes_raw: int
    parts: int


def backup(store: Store, name: str) -> Path:
    """Write a full backup of an embedded store beside it, in `<folder>.backups/<name>/store`.

    The control database is another file: back it up in the same pause of writes, after the store
    (`Control.backup`), so that no incident in the store is unknown to it.

    Returns
    -------
    Folder of the backup, `<folder>.backups/<name>`.

    Raises
    ------
    ConfigError: servers (their own BACKUP to their own disks), or not a name. Refused: it exists, or the engine failed.
    """
    target = backup_folder(store, name)
    if target.exists():
        raise Refused(f"the backup {target} exists already")
    target.mkdir(mode=0o700, parents=True)
    store.command(f"BACKUP DATABASE {DATABASE} TO File('{target / 'store'}')", settings={"max_execution_time": 0})
    return target


def restore(store: Store, name: str) -> None:
    """Read a backup into a store that holds no rows.

    Raises
    ------
    ConfigError: servers, or not a name. Refused: there is no such backup, the store holds rows, or the
        engine failed.
    """
    source = backup_folder(store, name) / "store"
    if not source.exists():
        raise Refused(f"there is no backup {source}")
    held = [size.table for size in sizes(store) if size.rows and size.table != "schema_versions"]
    if held:
        raise Refused(f"the store holds rows ({', '.join(sorted(held)[:3])}, ...): restore into an empty data folder")
    store.command(f"DROP DATABASE IF EXISTS {DATABASE} SYNC")
    store.command(f"CREATE DATABASE IF NOT EXISTS {DATABASE}_people")
    store.command(f"RESTORE DATABASE {DATABASE} FROM File('{source}')", settings={"max_execution_time": 0})


def backup_folder(store: Store, name: str) -> Path:
    """Return the folder of a backup, made or not; ConfigError for servers and odd names."""
    if store.folder is None:
        raise ConfigError("ClickHouse servers are backed up by their own BACKUP statement (see docs/operations.md)")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a name for a backup: letters, digits, dots, dashes and underscores")
    return store.folder.with_name(store.folder.name + ".backups") / name


def problems(store: Store) -> list[str]:
    """Read every part of every table against its checksums and compare rollups with their sources.

    Returns
    -------
    One sentence for each problem; empty when all is well. Reads everything once: minutes on a large store.
    """
    found = [f"migration {migration.name} is not applied" for migration in check(store)]
    present = _tables(store)
    found += [f"table {name} is missing" for name in sorted(set(TABLES) - present)]
    for name in sorted(present):
        found += [f"{name}: part {part['part_path']} is damaged: {part['message']}" for part in _bad_parts(store, name)]
    for rollup, source in ROLLUP_SOURCES.items():
        if {rollup, source} <= present:
            found += _rollup_problems(store, rollup, source)
    return found


def _bad_parts(store: Store, name: str) -> list[dict[str, str]]:
    sql = f"CHECK TABLE {DATABASE}.{name} SETTINGS check_query_single_value_result = 0"
    parts = [json.loads(line) for line in store.raw(sql, "JSONEachRow").splitlines()]
    return [part for part in parts if not part["is_passed"]]


def _rollup_problems(store: Store, rollup: str, source: str) -> list[str]:
    counted = "sum(toUInt64(count))" if source == "op_timings" else "count()"
    rows = store.rows(
        f"SELECT day, raw, rolled FROM"
        f" (SELECT toDate(ts) AS day, {counted} AS raw FROM {DATABASE}.{source} GROUP BY day) AS r LEFT JOIN"
        f" (SELECT toDate(m) AS day, sum(n) AS rolled FROM {DATABASE}.{rollup} GROUP BY day) AS u USING (day)"
        " WHERE raw != rolled ORDER BY day"
    )
    return [
        f"{rollup} counts {row['rolled']} of {row['raw']} on {row['day']}: `flightwatch store rebuild-rollups`"
        for row in rows
    ]


def sizes(store: Store) -> list[TableSize]:
    """Return what each table takes on disk on this engine or server, largest first."""
    suffix = "_local" if store.cluster else ""
    rows = store.rows(
        "SELECT table, sum(rows) AS total, sum(bytes_on_disk) AS disk, sum(data_uncompressed_bytes) AS raw,"
        " count() AS parts FROM system.parts WHERE database = {database:String} AND active"
        " GROUP BY table ORDER BY disk DESC",
        {"database": DATABASE},
    )
    return [
        TableSize(row["table"].removesuffix(suffix), row["total"], row["disk"], row["raw"], row["parts"])
        for row in rows
    ]


def rebuild_rollups(store: Store) -> list[str]:
    """Make the rollups and the tables of newest rows again from the rows that are still there.

    Days whose raw rows have expired keep their rollups. Ingest must not run meanwhile: rows that arrive
    while a day is rebuilt would count twice.

    Returns
    -------
    What was rebuilt, one line each.
    """
    suffix = "_local" if store.cluster else ""
    done = []
    for rollup, source in ROLLUP_SOURCES.items():
        select = _view_select(store, rollup)
        for day in _days(store, f"{source}{suffix}"):
            store.command(f"ALTER TABLE {DATABASE}.{rollup}{suffix} DROP PARTITION {day}")
            _insert(store, f"{rollup}{suffix}", select, f"{source}{suffix}", day)
            done.append(f"{rollup} of {day}")
    for latest, (source, _) in LATEST.items():
        select = _view_select(store, latest)
        # Rows are versions of their target: writing them again changes nothing that is right.
        for day in _days(store, f"{source}{suffix}"):
            _insert(store, f"{latest}{suffix}", select, f"{source}{suffix}", day)
        done.append(latest)
    return done


def _view_select(store: Store, target: str) -> str:
    rows = store.rows(
        "SELECT as_select FROM system.tables WHERE database = {database:String} AND name = {name:String}",
        {"database": DATABASE, "name": f"mv_{target}"},
    )
    if not rows:
        raise Refused("the store is older than this program: `flightwatch store migrate` brings it up to date")
    return str(rows[0]["as_select"])


def _insert(store: Store, target: str, select: str, source: str, day: str) -> None:
    one_day = f"(SELECT * FROM {DATABASE}.{source} WHERE toYYYYMMDD(ts) = {day})"
    of_day = re.sub(rf"\bFROM {DATABASE}\.{source}\b(?! *\))", f"FROM {one_day}", select, count=1)
    store.command(
        f"INSERT INTO {DATABASE}.{target} {of_day}", settings={"insert_deduplicate": 0, "max_execution_time": 0}
    )


def _days(store: Store, source: str) -> list[str]:
    rows = store.rows(f"SELECT DISTINCT toString(toYYYYMMDD(ts)) AS day FROM {DATABASE}.{source} ORDER BY day")
    return [str(row["day"]) for row in rows]


def _tables(store: Store) -> set[str]:
    rows = store.rows(
        "SELECT name FROM system.tables WHERE database = {database:String} AND engine LIKE '%MergeTree'",
        {"database": DATABASE},
    )
    suffix = "_local" if store.cluster else ""
    return {str(row["name"]).removesuffix(suffix) for row in rows}
