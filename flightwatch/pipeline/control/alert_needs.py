"""Messages that are due: written by the engine and by people's changes, handled once by the alerts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import sqlalchemy as sa

from flightwatch.core.incident import AlertReason
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.incident_rows import AlertNeed, incident_of
from flightwatch.pipeline.control.schema_incidents import ALERT_NEEDS, INCIDENTS


class AlertNeeds:
    """The queue between incidents and messages. Raises TransientError when the database is away."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def waiting(self, limit: int = 200) -> list[AlertNeed]:
        """Return needs that nobody handled, the oldest first, each with its incident as it is now."""
        chosen = sa.select(ALERT_NEEDS).where(ALERT_NEEDS.c.handled_at_ms.is_(None)).order_by(ALERT_NEEDS.c.sequence)
        with self._control.reading() as connection:
            rows = connection.execute(chosen.limit(limit)).all()
            ids = sorted({row.incident for row in rows})
            found = connection.execute(sa.select(INCIDENTS).where(INCIDENTS.c.id.in_(ids))).all()
        incidents = {row.id: incident_of(row) for row in found}
        return [
            AlertNeed(row.sequence, incidents[row.incident], row.revision, AlertReason(row.reason), row.at_ms,
                      json.loads(row.detail))
            for row in rows
            if row.incident in incidents
        ]  # fmt: skip

    def handled(self, connection: sa.Connection, sequences: Sequence[int]) -> None:
        """Mark needs in the caller's transaction, together with the deliveries made of them."""
        now_ms = self._control.now_ms(connection)
        marked = sa.update(ALERT_NEEDS).where(ALERT_NEEDS.c.sequence.in_(list(sequences)))
        connection.execute(marked.values(handled_at_ms=now_ms))
