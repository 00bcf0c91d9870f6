"""Blocks of rows for tests: named cells, everything else NULL, zero or empty."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa

from flightwatch.core.catalogue import TABLES
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.schema import arrow_schema

#: A moment within every retention, on a minute: two hours before now, so that tests see their rows for years.
HOUR_MS = 3_600_000
_TOKENS = itertools.count()
_EMPTY: dict[str, Any] = {"word": "", "text": "", "bool": False, "map_f64": [], "map_u64": [], "map_text": [],
                          "list_i32": [], "list_text": []}  # fmt: skip


def block(table: str, *rows: dict[str, Any]) -> pa.Table:
    """Build a block; `received_at` is `ts` where it is not given."""
    columns: dict[str, list[Any]] = {}
    for column in TABLES[table].columns:
        default = None if column.nullable else _EMPTY.get(column.type, 0)
        columns[column.name] = [_cell(row, column.name, default) for row in rows]
    return pa.table(columns, schema=arrow_schema(table))


def _cell(row: dict[str, Any], name: str, default: Any) -> Any:
    if name == "received_at" and name not in row:
        return row["ts"]
    if name == "cluster" and name not in row:
        return "c"
    value = row.get(name, default)
    return list(value.items()) if isinstance(value, dict) else value


def insert(store: Store, table: str, *rows: dict[str, Any], token: str | None = None) -> None:
    """Insert rows under a token of their own, or the given one."""
    store.insert_block(table, block(table, *rows), token or f"test-{next(_TOKENS)}")
