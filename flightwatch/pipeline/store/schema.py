"""The catalogue's types in Arrow, for blocks on their way into the store."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from flightwatch.core.catalogue import TABLES, Column

_ARROW = {
    "f32": pa.float32(),
    "f64": pa.float64(),
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "u64": pa.uint64(),
    "i16": pa.int16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "bool": pa.bool_(),
    "word": pa.string(),
    "text": pa.string(),
    "time": pa.timestamp("ms", tz="UTC"),
    "map_f64": pa.map_(pa.string(), pa.float64()),
    "map_u64": pa.map_(pa.string(), pa.uint64()),
    "map_text": pa.map_(pa.string(), pa.string()),
    "list_i32": pa.list_(pa.int32()),
    "list_text": pa.list_(pa.string()),
}


def arrow_field(column: Column) -> pa.Field:
    """Return the Arrow field of a catalogue column."""
    return pa.field(column.name, _ARROW[column.type], nullable=column.nullable)


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Return the Arrow schema of a catalogue table, all columns in order; KeyError when there is none."""
    return pa.schema([arrow_field(column) for column in TABLES[table].columns])
