"""Evidence that is still to be pinned: which incident, which moment, from when on it can be read."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.control.schema_incidents import EVIDENCE_PINS


@dataclass(frozen=True, slots=True)
class Pin:
    """Evidence to be read.

    Attributes
    ----------
    moment: opening, peak, close. part: 0 what came before `at_ms`, 1 what followed.
    """

    incident: str
    moment: str
    part: int
    at_ms: int


class EvidencePins:
    """Reads and settles pins. Raises TransientError when the database is away."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def due(self, limit: int = 20) -> list[Pin]:
        """Return pins whose time has come, the oldest first."""
        with self._control.reading() as connection:
            chosen = sa.select(EVIDENCE_PINS).where(
                EVIDENCE_PINS.c.done_at_ms.is_(None), EVIDENCE_PINS.c.due_ms <= self._control.now_ms(connection)
            )
            rows = connection.execute(chosen.order_by(EVIDENCE_PINS.c.due_ms).limit(limit)).all()
        return [Pin(row.incident, row.moment, row.part, row.at_ms) for row in rows]

    def done(self, lease: Lease, pin: Pin) -> None:
        """Note that the evidence is in the store. Raises StaleGeneration when the role is lost."""
        with self._control.leases.guarded(lease) as connection:
            settled = sa.update(EVIDENCE_PINS).where(
                EVIDENCE_PINS.c.incident == pin.incident, EVIDENCE_PINS.c.moment == pin.moment,
                EVIDENCE_PINS.c.part == pin.part,
            )  # fmt: skip
            connection.execute(settled.values(done_at_ms=self._control.now_ms(connection)))
