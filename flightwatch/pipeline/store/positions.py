"""Queries of ingest about itself: how far it came, and which batches of which agent it has seen."""

from __future__ import annotations

from typing import Any

from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store

#: One row for each lane of each stored range; written by ingest, not part of the public tables.
LANES = "ingest_lanes"
#: Clocks of ingest processes may differ by this much.
_CLOCKS_DIFFER_MS = 300_000


def lane_numbers(store: Store, topic: str, partition: int, incarnation: str, start: int) -> list[dict[str, Any]]:
    """Return agent_id, spool_id, lane and last seq of all lanes as of offset `start` of a log, and of older logs."""
    return store.rows(
        f"SELECT agent_id, spool_id, lane, max(seq) AS seq FROM {DATABASE}.{LANES}"
        " WHERE topic = {topic:String} AND src_partition = {partition:UInt16}"
        " AND (incarnation != {incarnation:String} OR src_offset < {start:UInt64})"
        " GROUP BY agent_id, spool_id, lane",
        {"topic": topic, "partition": partition, "incarnation": incarnation, "start": start},
    )


def highest_offset(store: Store, topic: str, partition: int, incarnation: str) -> int:
    """Return the highest offset of a log whose range is known to be stored, -1 when there is none."""
    rows = store.rows(
        f"SELECT max(toInt64(src_offset)) AS highest, count() AS found FROM {DATABASE}.{LANES}"
        " WHERE topic = {topic:String} AND src_partition = {partition:UInt16} AND incarnation = {incarnation:String}",
        {"topic": topic, "partition": partition, "incarnation": incarnation},
    )
    return int(rows[0]["highest"]) if rows and rows[0]["found"] else -1


def blocks_since(store: Store, since_ms: int) -> int:
    """Return how many blocks all ingest processes inserted since a time, with 5 min allowed for clocks that differ."""
    rows = store.rows(
        f"SELECT sum(blocks) AS blocks FROM {DATABASE}.{LANES} WHERE ts >= fromUnixTimestamp64Milli({{since:Int64}})",
        {"since": since_ms - _CLOCKS_DIFFER_MS},
    )
    return int(rows[0]["blocks"]) if rows else 0
