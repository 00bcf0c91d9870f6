"""What the detection loop reads: windows of tables, how far data has arrived, findings that are open."""

from __future__ import annotations

from collections.abc import Iterable

from flightwatch.core.catalogue import TABLES
from flightwatch.core.vocabulary import DATABASE

#: Types whose columns a detector that asks for "*" gets.
_NUMBERS = ("f32", "f64", "u8", "u16", "u32", "u64", "i16", "i32", "i64", "time")


def columns_of(table: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of `table` to select; "*" stands for all numbers, unknown names are left out."""
    names = set(wanted)
    every = "*" in names
    chosen = [c.name for c in TABLES[table].columns if c.name in names or (every and c.type in _NUMBERS)]
    return tuple(dict.fromkeys(("ts", *chosen)))


def window_sql(table: str, columns: Iterable[str]) -> str:
    """Rows of a table with ts in (since, until]; placeholders since and until."""
    listed = ", ".join(f"`{name}`" for name in columns)
    return (
        f"SELECT {listed} FROM {DATABASE}.`{TABLES[table].name}` "
        "WHERE ts > {since:DateTime64(3, 'UTC')} AND ts <= {until:DateTime64(3, 'UTC')}"
    )


def arrival_sql(table: str) -> str:
    """When the newest row of a table arrived and how new it is; placeholder since bounds the partitions read."""
    return (
        f"SELECT max(received_at) AS last_arrival, max(ts) AS last_ts FROM {DATABASE}.`{TABLES[table].name}` "
        "WHERE ts > {since:DateTime64(3, 'UTC')} HAVING count() > 0"
    )


def open_findings_sql() -> str:
    """The last statement of each finding that is not cleared; placeholder since."""
    return (
        "SELECT id, argMax(detector, ts) AS last_detector, argMax(state, ts) AS last_state, "
        "argMax(severity, ts) AS last_severity, argMax(class, ts) AS last_class, "
        "argMax(targets, ts) AS last_targets, min(first_seen_at) AS onset "
        f"FROM {DATABASE}.findings WHERE ts > {{since:DateTime64(3, 'UTC')}} GROUP BY id HAVING last_state != 'cleared'"
    )
