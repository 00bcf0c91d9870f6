"""Rows that one of several processes inserts, whoever comes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa


def claimed(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its primary key is there; return whether it was inserted.

    A process that inserts the same key at the same moment waits for the other's transaction, then gets False.
    """
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]
    keys = list(table.primary_key)
    tried = insert(table).values(dict(values)).on_conflict_do_nothing(index_elements=[key.name for key in keys])
    return connection.execute(tried.returning(*keys)).first() is not None
