"""Reads of the inventory: what was known at a time, merged over its sources.

Each source writes rows of what it knows (a fabric scan the leaf switch, a CSV the rack). One thing is a
node, a device, a port or a named part; its row shows, column by column, the newest known value.
"""

from __future__ import annotations

from typing import Any

from flightwatch.core.vocabulary import DATABASE

#: What tells one thing from another.
KEYS = ("node", "device", "hca", "port", "part")
#: Columns with the newest known value at the time.
COLUMNS = ("model", "serial", "rack", "slot", "cooling_zone", "power_zone", "scale_up_domain", "leaf_switch", "rail",
           "plane", "attrs")  # fmt: skip


def inventory_sql(at_ms: int, cluster: str | None = None) -> str:
    """Return the SELECT of the inventory as known at `at_ms`; text is bound as {cluster:String} where given."""

    def known(column: str) -> str:
        return "notEmpty(i.attrs)" if column == "attrs" else f"isNotNull(i.{column})"

    newest = ",\n  ".join(f"argMaxIf(i.{column}, i.ts, {known(column)}) AS {column}" for column in COLUMNS)
    where = " AND i.cluster = {cluster:String}" if cluster is not None else ""
    return (
        # A power supply or module is told from the node it sits in by its part and slot.
        "SELECT i.node AS node, i.device AS device, i.hca AS hca, i.port AS port,\n"
        "  if(i.attrs['part'] = '', '', concat(i.attrs['part'], ' ', ifNull(i.slot, ''))) AS part,\n"
        f"  {newest},\n  toUnixTimestamp64Milli(max(i.ts)) AS last_seen_ms\n"
        f"FROM {DATABASE}.inventory AS i\n"
        f"WHERE toUnixTimestamp64Milli(i.ts) <= {int(at_ms)}{where}\n"
        "GROUP BY node, device, hca, port, part\nORDER BY node, device, hca, port, part"
    )


def changes(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what differs between two readings: one entry a thing and column, added things as one entry.

    A thing that only `before` has is not reported: inventory is never deleted, a source may just not
    have been read again.
    """
    known = {tuple(row.get(key) for key in KEYS): row for row in before}
    found: list[dict[str, Any]] = []
    for row in after:
        identity = {key: row.get(key) for key in KEYS if row.get(key) not in (None, "")}
        old = known.get(tuple(row.get(key) for key in KEYS))
        if old is None:
            values = {column: row[column] for column in COLUMNS if row.get(column)}
            found.append({**identity, "change": "added", "values": values})
            continue
        found.extend(
            {**identity, "change": "changed", "column": column, "before": old.get(column), "after": row[column]}
            for column in COLUMNS
            if row.get(column) and row[column] != old.get(column)
        )
    return found
