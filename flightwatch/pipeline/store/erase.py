"""Removal of what a simulation wrote: rows that are marked by their cluster or job."""

from __future__ import annotations

from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store

#: Tables of the platform itself, whose rows are not of the simulation.
_KEPT = ("audit_log", "schema_versions")


def erase_marked(store: Store, column: str, value: str) -> int:
    """Delete every row with `value` in `column` (cluster or job) from tables and rollups; return how many.

    Waits until the rows are gone on every replica. Rows that arrive later stay: erase when the sender has ended.

    Raises
    ------
    TransientError: the store is away; the same call may be repeated.
    """
    if column not in ("cluster", "job"):
        raise ValueError(column)
    suffix = "_local" if store.cluster else ""
    everywhere = f" ON CLUSTER `{store.cluster}`" if store.cluster else ""
    removed = 0
    for table in _tables_with(store, column):
        if table.endswith("_local") != bool(suffix) or table.removesuffix("_local") in _KEPT:
            continue
        where = f"`{column}` = {{value:String}}"
        counted = store.rows(f"SELECT count() AS rows FROM {DATABASE}.`{table}` WHERE {where}", {"value": value})
        if not counted[0]["rows"]:
            continue
        removed += int(counted[0]["rows"])
        store.command(
            f"ALTER TABLE {DATABASE}.`{table}`{everywhere} DELETE WHERE {where}",
            {"value": value},
            {"mutations_sync": 2},
        )
    return removed


def _tables_with(store: Store, column: str) -> list[str]:
    """Return the tables that hold rows and have a column."""
    rows = store.rows(
        "SELECT c.table AS name FROM system.columns AS c INNER JOIN system.tables AS t "
        "ON c.database = t.database AND c.table = t.name "
        "WHERE c.database = {database:String} AND c.name = {column:String} AND t.engine LIKE '%MergeTree%' "
        "ORDER BY name",
        {"database": DATABASE, "column": column},
    )
    return [str(row["name"]) for row in rows]
