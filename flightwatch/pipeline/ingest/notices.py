"""Rows that tell of holes: `data_gaps` and an event for each, stored with the range that showed the hole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from flightwatch.core.catalogue import TABLES
from flightwatch.core.vocabulary import EventSeverity, EventSource
from flightwatch.pipeline.bus.base import Message
from flightwatch.pipeline.ingest.lanes import Gap
from flightwatch.pipeline.ingest.ranges import Hole, Range
from flightwatch.pipeline.store.schema import arrow_schema

GAP_CODE = "data_gap"


def of_holes(rng: Range, messages: Sequence[Message], gaps: Sequence[Gap]) -> Iterator[tuple[str, pa.Table]]:
    """Yield (table, rows) for the gaps of a range and the hole before it; nothing when there are none."""
    facts = [_gap_facts(rng, gap) for gap in gaps]
    if rng.hole is not None and messages:
        facts.append(_hole_facts(rng, rng.hole, messages[0].timestamp_ms))
    if facts:
        yield "data_gaps", table_of("data_gaps", facts)
        yield "events", table_of("events", [_event(rng, fact) for fact in facts])


def table_of(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table of all columns of the catalogue."""
    schema = arrow_schema(name)
    empty: dict[str, Any] = {c.name: [] if c.type.startswith(("map", "list")) else None for c in TABLES[name].columns}
    cells = {f.name: [row.get(f.name, empty[f.name]) for row in rows] for f in schema}
    return pa.table(cells, schema=schema)


def _gap_facts(rng: Range, gap: Gap) -> dict[str, Any]:
    return {
        "ts": gap.received_at_ms,
        "cluster": gap.cluster,
        "node": gap.node,
        "agent_id": gap.key.agent_id,
        "lane": gap.key.lane,
        "first_seq": gap.first_seq,
        "last_seq": gap.last_seq,
        "batches": gap.batches,
        "reason": gap.reason,
        "src_partition": rng.partition.number,
        "src_offset": gap.offset,
    }


def _hole_facts(rng: Range, hole: Hole, received_at_ms: int) -> dict[str, Any]:
    why = {
        "retention": "deleted by the bus's retention before ingest read them",
        "recreated": "the bus was recreated; what it still held unread is gone",
        "damaged": "a part of the bus cannot be read",
    }
    reason = f"{why.get(hole.reason, hole.reason)} ({rng.partition.topic} from offset {hole.wanted} to {hole.resumed})"
    return {
        "ts": received_at_ms,
        "cluster": "",
        "node": "",
        "agent_id": "",
        "lane": rng.partition.topic.rpartition(".")[2],
        "first_seq": None,
        "last_seq": None,
        # Offsets count batches only while the log is whole.
        "batches": hole.resumed - hole.wanted if hole.reason == "retention" else None,
        "reason": reason,
        "src_partition": rng.partition.number,
        "src_offset": rng.start,
    }


def _event(rng: Range, fact: Mapping[str, Any]) -> dict[str, Any]:
    count = "an unknown number of" if fact["batches"] is None else fact["batches"]
    where = f"lane {fact['lane']}" + (f" of node {fact['node']}" if fact["node"] else "")
    return {
        "ts": fact["ts"],
        "received_at": fact["ts"],
        "cluster": fact["cluster"],
        "node": fact["node"],
        "source": EventSource.AGENT.value,
        "code": GAP_CODE,
        "severity": EventSeverity.WARNING.value,
        "message": f"{count} batches are missing in {where}: {fact['reason']}",
        "attrs": [
            (name, str(fact[name]))
            for name in ("agent_id", "lane", "first_seq", "last_seq", "batches")
            if fact[name] not in (None, "")
        ],
        "src_partition": rng.partition.number,
        "src_offset": fact["src_offset"],
    }
