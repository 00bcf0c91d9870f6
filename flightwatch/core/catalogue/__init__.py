"""The one table catalogue: migrations' column lists, docs/tables.md and validation come from here."""

from __future__ import annotations

from flightwatch.core.catalogue import operations, platform, samples, training
from flightwatch.core.catalogue.model import CLICKHOUSE_TYPES, COMMON, SOURCE, Column, Table

TABLES: dict[str, Table] = {
    table.name: table for group in (samples, training, operations, platform) for table in group.TABLES
}

__all__ = ["CLICKHOUSE_TYPES", "COMMON", "SOURCE", "TABLES", "Column", "Table"]
