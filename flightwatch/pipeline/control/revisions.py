"""A number that changes when anything changes that people see."""

from __future__ import annotations

import sqlalchemy as sa

from flightwatch.pipeline.control.audit import PROJECTION
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.schema import OUTBOX


def latest_change(control: Control) -> int:
    """Return the sequence of the newest change of incidents, notes, silences, deliveries, actions.

    Every such change has an entry in the outbox; entries of the audit log are passed over. Compare for
    inequality: after a day without a change it may become smaller.
    """
    newest = sa.select(OUTBOX.c.sequence).where(OUTBOX.c.topic != PROJECTION).order_by(OUTBOX.c.sequence.desc())
    with control.reading() as connection:
        return int(connection.execute(newest.limit(1)).scalar() or 0)
