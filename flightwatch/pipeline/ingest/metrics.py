"""Counters of ingest, readable by status while it runs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class IngestSnapshot:
    """Totals since the start of the process.

    Attributes
    ----------
    rows: rows stored, by table.
    bytes, messages: read from the bus and stored.
    inserts: blocks given to the store, repetitions included.
    dead: dead letters. gaps: batches missing. duplicates: batches dropped because they were there already.
    retries: tries that failed and were repeated.
    lag_seconds: by topic, age of the oldest message read and not yet stored; 0 when there is none.
    last_error: why the last try failed; None once a try succeeded.
    """

    rows: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    messages: int = 0
    inserts: int = 0
    dead: int = 0
    gaps: int = 0
    duplicates: int = 0
    retries: int = 0
    lag_seconds: dict[str, float] = field(default_factory=dict)
    last_error: str | None = None


class IngestMetrics:
    """Thread-safe counters."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = IngestSnapshot()

    def add(self, **counts: int) -> None:
        """Add to counters by name."""
        with self._lock:
            for name, count in counts.items():
                setattr(self._now, name, getattr(self._now, name) + count)

    def stored(self, rows: Mapping[str, int]) -> None:
        """Count stored rows; the last try succeeded."""
        with self._lock:
            self._now.rows.update(rows)
            self._now.last_error = None

    def failed(self, error: str) -> None:
        """Count a failed try."""
        with self._lock:
            self._now.retries += 1
            self._now.last_error = error

    def lag(self, topic: str, seconds: float) -> None:
        """Note the age of the oldest unstored message of a topic."""
        with self._lock:
            self._now.lag_seconds[topic] = seconds

    def snapshot(self) -> IngestSnapshot:
        """Return a copy."""
        with self._lock:
            now = self._now
            return IngestSnapshot(
                Counter(now.rows), now.bytes, now.messages, now.inserts, now.dead, now.gaps, now.duplicates,
                now.retries, dict(now.lag_seconds), now.last_error,
            )  # fmt: skip
