"""One lane of the sender: rows being gathered, batches in memory, batches on disk, one on its way.

Batches leave in the order of their numbers. At most one is on its way at a time: when it fails,
nothing that follows it can have been stored before it, so going back to it keeps the order (a later
number stored first would make ingest drop the earlier one as a duplicate).
"""

from __future__ import annotations

import random
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import Lane
from flightwatch.pipeline.bus.base import Ack
from flightwatch.pipeline.spool import Sealed, Spool

_LONGEST_BACKOFF_S = 30.0


@dataclass(slots=True)
class LaneCounts:
    """Totals of one lane since the start of the process."""

    sent_batches: int = 0
    sent_rows: int = 0
    sent_bytes: int = 0
    failures: int = 0
    dropped_rows: int = 0
    dropped_batches: int = 0


@dataclass(slots=True)
class OnItsWay:
    """The batch that was given to the bus and not answered yet."""

    batch: Sealed
    future: Future[Ack]
    since_s: float


class TokenBucket:
    """Limits a speed over time, with a burst of one second.

    Parameters
    ----------
    speed: tokens (bytes) per second.
    """

    def __init__(self, speed: float, now_s: float) -> None:
        self._speed = speed
        self._tokens = speed
        self._now_s = now_s

    def has_any(self, now_s: float) -> bool:
        """Say whether something may pass now."""
        self._tokens = min(self._speed, self._tokens + (now_s - self._now_s) * self._speed)
        self._now_s = now_s
        return self._tokens > 0

    def take(self, tokens: float) -> None:
        """Count what passed; a large piece is paid for afterwards."""
        self._tokens -= tokens


class Backoff:
    """When to try the bus again: longer after each failure in a row, and jittered, so that a fleet does not
    come back in step.

    Parameters
    ----------
    seed: of the jitter; None: random.
    """

    def __init__(self, seed: int | None) -> None:
        self._random = random.Random(seed)
        self._failures = 0
        self.retry_at_s = 0.0

    def failed(self, now_s: float) -> None:
        """Count a failure and put the next try off."""
        self._failures += 1
        delay_s = min(_LONGEST_BACKOFF_S, 0.5 * 2 ** min(self._failures, 10))
        self.retry_at_s = now_s + delay_s * self._random.uniform(0.5, 1.5)

    def succeeded(self) -> None:
        """Forget the failures."""
        self._failures = 0


@dataclass(slots=True)
class LaneQueue:
    """State of one lane. The gathering part is guarded by the sender's lock, the rest by its step lock."""

    lane: Lane
    rows: list[Row] = field(default_factory=list)
    cells: int = 0
    due_s: float = float("inf")
    memory: deque[Sealed] = field(default_factory=deque)
    memory_bytes: int = 0
    on_its_way: OnItsWay | None = None
    counts: LaneCounts = field(default_factory=LaneCounts)
    #: Encoded bytes per cell, learned from the last batches, to close a batch near its size without encoding it.
    bytes_per_cell: float = 4.0

    def gather(self, row: Row, due_s: float) -> None:
        """Add a row to the batch that is being filled."""
        self.rows.append(row)
        self.cells += len(row.values)
        self.due_s = min(self.due_s, due_s)

    def take_rows(self) -> list[Row]:
        """Return the gathered rows and start a new batch."""
        rows, self.rows, self.cells, self.due_s = self.rows, [], 0, float("inf")
        return rows

    def learn(self, cells: int, size_bytes: int) -> None:
        """Remember how large a batch became."""
        if cells:
            self.bytes_per_cell += 0.3 * (size_bytes / cells - self.bytes_per_cell)

    def keep(self, batch: Sealed) -> None:
        """Append a new batch in memory."""
        self.memory.append(batch)
        self.memory_bytes += len(batch.value)

    def first(self, spool: Spool) -> Sealed | None:
        """Return the oldest unacknowledged batch."""
        return spool.first(self.lane) if spool.backlog(self.lane) else (self.memory[0] if self.memory else None)

    def pop(self, spool: Spool, batch: Sealed) -> None:
        """Forget the oldest batch after its acknowledgement; nothing happens when it was evicted meanwhile."""
        first = self.first(spool)
        if first is None or (first.spool_id, first.seq) != (batch.spool_id, batch.seq):
            return
        if spool.backlog(self.lane):
            spool.pop(self.lane)
        else:
            self.memory.popleft()
            self.memory_bytes -= len(batch.value)

    def spill(self, spool: Spool, now_ms: int) -> None:
        """Move all batches in memory behind those on disk. Raises TransientError when the disk takes none."""
        if self.memory:
            spool.append(tuple(self.memory), now_ms)
            self.memory.clear()
            self.memory_bytes = 0

    def figures(self, spool: Spool) -> dict[str, Any]:
        """Return what `self_metrics` tells about the lane."""
        return {
            "sent_batches_total": self.counts.sent_batches,
            "sent_rows_total": self.counts.sent_rows,
            "sent_bytes_total": self.counts.sent_bytes,
            "send_failures_total": self.counts.failures,
            "dropped_rows_total": self.counts.dropped_rows,
            "dropped_batches_total": self.counts.dropped_batches,
            "waiting_batches": len(self.memory) + spool.backlog(self.lane),
            "spool_bytes": spool.size_bytes(self.lane),
        }
