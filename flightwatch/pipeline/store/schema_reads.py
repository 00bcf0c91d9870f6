"""Which columns the tables and views have that a person may read."""

from __future__ import annotations

from collections.abc import Collection

from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store


def columns(store: Store, tables: Collection[str]) -> dict[str, list[str]]:
    """Return table to column names, in order; tables that do not exist are left out."""
    rows = store.rows(
        """
        SELECT table, groupArray(name) AS names FROM (
            SELECT table, name FROM system.columns
            WHERE database = {database:String} AND table IN {tables:Array(String)} ORDER BY table, position
        ) GROUP BY table ORDER BY table
        """,
        {"database": DATABASE, "tables": sorted(tables)},
    )
    return {row["table"]: list(row["names"]) for row in rows}
