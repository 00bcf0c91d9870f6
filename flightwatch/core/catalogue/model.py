"""Shape of the table catalogue: columns and tables as data."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.vocabulary import Lane

#: Column types of the catalogue and what they are in ClickHouse.
CLICKHOUSE_TYPES = {
    "f32": "Float32",
    "f64": "Float64",
    "u8": "UInt8",
    "u16": "UInt16",
    "u32": "UInt32",
    "u64": "UInt64",
    "i16": "Int16",
    "i32": "Int32",
    "i64": "Int64",
    "bool": "Bool",
    "word": "LowCardinality(String)",
    "text": "String",
    "time": "DateTime64(3, 'UTC')",
    "map_f64": "Map(LowCardinality(String), Float64)",
    "map_u64": "Map(LowCardinality(String), UInt64)",
    "map_text": "Map(LowCardinality(String), String)",
    "list_i32": "Array(Int32)",
    "list_text": "Array(String)",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    name: with its unit as suffix.
    type: a key of CLICKHOUSE_TYPES.
    nullable: True when "unknown" is a possible answer; such a column holds NULL, never 0.
    unit: unit of the value, "" for none.
    meaning: one phrase.
    source: who fills it.
    counter: True for a monotonic counter stored as read (deltas, resets and saturation are computed when read).
    """

    name: str
    type: str
    nullable: bool
    unit: str
    meaning: str
    source: str
    counter: bool = False

    @property
    def clickhouse_type(self) -> str:
        """Type in a CREATE TABLE statement, without codec."""
        base = CLICKHOUSE_TYPES[self.type]
        if not self.nullable:
            return base
        return f"LowCardinality(Nullable({base[15:-1]}))" if self.type == "word" else f"Nullable({base})"


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes
    ----------
    name: table name in the database `flightwatch`.
    meaning: what one row is.
    lane: lane in which agents send its rows; None when no agent writes it.
    columns: all columns, the common ones first.
    ttl_days: default retention of rows; None keeps them.
    """

    name: str
    meaning: str
    lane: Lane | None
    columns: tuple[Column, ...]
    ttl_days: int | None

    def column(self, name: str) -> Column:
        """Return the column `name`; KeyError when the table has none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name} has no column {name}")

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of all columns in order."""
        return tuple(column.name for column in self.columns)


def col(name: str, kind: str, unit: str, meaning: str, source: str = "agent") -> Column:
    """Build a column; `kind` is a key of CLICKHOUSE_TYPES, with a trailing "?" when nullable.

    A `u64`/`f64` column whose name ends in `_total` is a counter.
    """
    nullable = kind.endswith("?")
    return Column(name, kind.rstrip("?"), nullable, unit, meaning, source, counter=name.endswith("_total"))


#: Columns of every ingested table, set by the agent and by ingest.
COMMON = (
    col("ts", "time", "", "time of the measurement on the node; the start of the op where there is one"),
    col("received_at", "time", "", "time at which the broker stored the batch", "ingest"),
    col("cluster", "word", "", "cluster name"),
    col("node", "word", "", "node (host) name"),
)
#: Where an ingested row came from: replays beyond the deduplication window go by presence of these.
SOURCE = (
    col("src_partition", "u16", "", "bus partition the row was read from", "ingest"),
    col("src_offset", "u64", "", "bus offset of the batch that carried the row", "ingest"),
)


def ingested(name: str, meaning: str, lane: Lane, ttl_days: int | None, *columns: Column) -> Table:
    """Build a table that agents fill through the bus: common columns, its own, source columns."""
    return Table(name, meaning, lane, COMMON + columns + SOURCE, ttl_days)
