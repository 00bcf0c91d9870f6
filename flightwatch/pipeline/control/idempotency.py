"""Answers of writes by the key their sender chose, so that a repeat changes nothing and gets the same answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from flightwatch.pipeline.control.claims import claimed
from flightwatch.pipeline.control.schema_access import IDEMPOTENCY

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control

#: So long a repeat is recognised.
KEPT_HOURS = 24
#: A write that has not ended after this time died with its process; the key may be used again.
_STUCK_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is known about a key.

    Attributes
    ----------
    same: the request was the same. status: of the answer, None while the write runs. body: None where it is not kept.
    """

    same: bool
    status: int | None
    body: str | None


class IdempotencyKeys:
    """Keys by subject; each call is one transaction."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def begin(self, subject: str, key: str, request_hash: str) -> Earlier | None:
        """Claim a key; None when it is new and the write may run, else what is known about it."""
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            old, stuck = now_ms - KEPT_HOURS * 3_600_000, now_ms - _STUCK_SECONDS * 1000
            dead = sa.and_(IDEMPOTENCY.c.status.is_(None), IDEMPOTENCY.c.created_at_ms < stuck)
            connection.execute(sa.delete(IDEMPOTENCY).where(sa.or_(IDEMPOTENCY.c.created_at_ms < old, dead)))
            new = {"subject": subject, "key": key, "request_hash": request_hash, "created_at_ms": now_ms}
            if claimed(connection, IDEMPOTENCY, new):
                return None
            row = connection.execute(sa.select(IDEMPOTENCY).where(*_key(subject, key))).one_or_none()
        # Gone meanwhile: the other write was not done, and its sender tries again.
        return (
            Earlier(True, None, None)
            if row is None
            else Earlier(row.request_hash == request_hash, row.status, row.body)
        )

    def end(self, subject: str, key: str, status: int, body: str | None) -> None:
        """Keep the answer of a write that was done."""
        with self._control.transaction() as connection:
            connection.execute(sa.update(IDEMPOTENCY).where(*_key(subject, key)).values(status=status, body=body))

    def abandon(self, subject: str, key: str) -> None:
        """Free the key of a write that was not done."""
        with self._control.transaction() as connection:
            connection.execute(sa.delete(IDEMPOTENCY).where(*_key(subject, key)))


def _key(subject: str, key: str) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return IDEMPOTENCY.c.subject == subject, IDEMPOTENCY.c.key == key
