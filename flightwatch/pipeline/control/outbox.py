"""The outbox: what a transaction makes true reaches the bus, even when the process dies after the commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from flightwatch.pipeline.control.schema import OUTBOX

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control
    from flightwatch.pipeline.control.leases import Lease


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the outbox.

    Attributes
    ----------
    sequence: grows; the second part of a projection's version (lease epoch, sequence).
    topic, key: where on the bus it goes.
    payload: JSON-ready values.
    """

    sequence: int
    topic: str
    key: str
    payload: Mapping[str, Any]


class Outbox:
    """Appends inside a caller's transaction, publishes outside of it.

    Delivery is at least once: a process that dies between publishing and marking publishes again, and
    readers tell repeats by the version in the payload.
    """

    def __init__(self, control: Control) -> None:
        self._control = control

    def append(self, connection: sa.Connection, topic: str, key: str, payload: Mapping[str, Any]) -> int:
        """Add an entry to the open transaction; return its sequence number."""
        result = connection.execute(
            sa.insert(OUTBOX)
            .values(
                topic=topic,
                key=key,
                payload=json.dumps(payload, ensure_ascii=False, allow_nan=False),
                created_at_ms=self._control.now_ms(connection),
            )
            .returning(OUTBOX.c.sequence)
        )
        return int(result.scalar_one())

    def waiting(self, limit: int = 500) -> list[Entry]:
        """Return entries that were not published yet, oldest first."""
        with self._control.reading() as connection:
            rows = connection.execute(
                sa.select(OUTBOX).where(OUTBOX.c.published_at_ms.is_(None)).order_by(OUTBOX.c.sequence).limit(limit)
            ).all()
        return [Entry(row.sequence, row.topic, row.key, json.loads(row.payload)) for row in rows]

    def drain(self, lease: Lease, publish: Callable[[Entry], None], limit: int = 500) -> int:
        """Publish waiting entries in order and mark them.

        Parameters
        ----------
        lease: of the role that drains; only its holder does.
        publish: returns when the bus acknowledged the entry; what it raises stops the drain, and the entries
            before stay marked.

        Returns
        -------
        Number of entries published.

        Raises
        ------
        StaleGeneration: the lease was lost; the new holder publishes the rest.
        """
        done: list[int] = []
        try:
            for entry in self.waiting(limit):
                publish(entry)
                done.append(entry.sequence)
        finally:
            if done:
                self._mark(lease, done)
        return len(done)

    def forget(self, older_than_ms: int) -> int:
        """Delete entries published before a time; return how many."""
        with self._control.transaction() as connection:
            result = connection.execute(sa.delete(OUTBOX).where(OUTBOX.c.published_at_ms < older_than_ms))
            return int(result.rowcount)

    def _mark(self, lease: Lease, sequences: list[int]) -> None:
        with self._control.leases.guarded(lease) as connection:
            connection.execute(
                sa.update(OUTBOX)
                .where(OUTBOX.c.sequence.in_(sequences))
                .values(published_at_ms=self._control.now_ms(connection))
            )
