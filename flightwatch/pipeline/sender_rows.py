"""What the sender says about itself: its state, its figures as rows, and an event for every hole it made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import EventSeverity, EventSource
from flightwatch.pipeline.lane_queue import LaneQueue
from flightwatch.pipeline.spool import Evicted, Sealed, Spool


@dataclass(frozen=True, slots=True)
class SenderState:
    """What the agent's heartbeat tells about sending.

    Attributes
    ----------
    last_sent_ms: agent clock at the last acknowledgement, None before the first.
    oldest_waiting_ms: agent clock when the oldest unacknowledged batch was made, None when nothing waits.
    """

    last_sent_ms: int | None
    oldest_waiting_ms: int | None
    dropped_rows: int


def single(batch: Sealed, reason: str) -> Evicted:
    """Return the loss of one batch."""
    return Evicted(batch.lane, batch.spool_id, batch.seq, batch.seq, batch.rows, reason)


def gap_event(gap: Evicted, now_ms: int) -> Row:
    """Return the event that names a hole, so that ingest can give it a reason when the numbers jump."""
    batches = gap.last_seq - gap.first_seq + 1
    return Row(
        "events",
        {
            "ts": now_ms,
            "source": EventSource.AGENT.value,
            "code": "data_gap",
            "severity": EventSeverity.WARNING.value,
            "message": f"{batches} batches ({gap.rows} rows) of lane {gap.lane.value} were given up: {gap.reason}",
            "attrs": {
                "lane": gap.lane.value,
                "spool_id": gap.spool_id,
                "first_seq": str(gap.first_seq),
                "last_seq": str(gap.last_seq),
                "batches": str(batches),
                "rows": str(gap.rows),
                "reason": gap.reason,
            },
        },
    )


def metric_rows(queues: Iterable[LaneQueue], spool: Spool, now_ms: int) -> list[Row]:
    """Return the figures of every lane that was ever used."""
    rows = []
    for queue in queues:
        figures = queue.figures(spool)
        if not any(figures.values()):
            continue
        for name, value in figures.items():
            values = {"ts": now_ms, "component": "agent", "instance": queue.lane.value, "name": name, "value": value}
            rows.append(Row("self_metrics", values))
    return rows
