"""The audit log: every write by a person or a rule, and every denied attempt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from flightwatch.pipeline.control.schema_access import AUDIT

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control

#: Topic of the outbox from which the projection `audit_log` of the store is written.
PROJECTION = "projection:audit_log"
#: Days that entries stay in the control database; the store keeps them longer.
KEPT_DAYS = 90
_LONGEST = 4_000
_LONGEST_SQL = 50_000
#: How often, in entries, old ones are deleted.
_SWEEP_EVERY = 500


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One write or one denied attempt.

    Attributes
    ----------
    sequence: grows. ok: allowed and done. detail: arguments, or the reason of a refusal.
    sql, rows, elapsed_ms: of a query, else None. address: of the client where there is one.
    """

    sequence: int
    at_ms: int
    actor: str
    action: str
    target: str
    ok: bool
    detail: str
    sql: str | None
    rows: int | None
    elapsed_ms: float | None
    address: str | None


class AuditLog:
    """Appends and reads entries. Nothing changes or deletes one before its time."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def record(
        self,
        connection: sa.Connection | None,
        actor: str,
        action: str,
        target: str,
        ok: bool,
        detail: str,
        sql: str | None = None,
        rows: int | None = None,
        elapsed_ms: float | None = None,
        address: str | None = None,
    ) -> int:
        """Append an entry and the row of its projection; return its sequence number.

        Parameters
        ----------
        connection: open transaction in which the audited write happens; None: one of its own.
        actor: subject of a viewer ("alice@example.com", "token:ci", "local"), or a rule ("rule:xid-79").
        action: a verb and its thing: "incident.acknowledge", "token.create", "sql".
        target: what it was done to.

        Raises
        ------
        TransientError: the control database is away. The caller's write must then fail too.
        """
        with self._within(connection) as own:
            at_ms = self._control.now_ms(own)
            values: dict[str, Any] = {
                "actor": actor[:500], "action": action[:100], "target": target[:_LONGEST], "ok": ok,
                "detail": detail[:_LONGEST], "sql": sql[:_LONGEST_SQL] if sql is not None else None,
                "rows": rows, "elapsed_ms": elapsed_ms, "address": address,
            }  # fmt: skip
            added = sa.insert(AUDIT).values(at_ms=at_ms, **values).returning(AUDIT.c.sequence)
            sequence = int(own.execute(added).scalar_one())
            self._control.outbox.append(own, PROJECTION, actor[:500], {"ts": at_ms} | values)
            if sequence % _SWEEP_EVERY == 0:
                own.execute(sa.delete(AUDIT).where(AUDIT.c.at_ms < at_ms - KEPT_DAYS * 86_400_000))
        return sequence

    def page(
        self,
        *,
        before: int | None = None,
        limit: int = 100,
        actor: str | None = None,
        action: str | None = None,
        ok: bool | None = None,
    ) -> list[AuditEntry]:
        """Return entries below sequence `before`, the newest first, that match what is given."""
        chosen = sa.select(AUDIT).order_by(AUDIT.c.sequence.desc()).limit(limit)
        if before is not None:
            chosen = chosen.where(AUDIT.c.sequence < before)
        for column, value in ((AUDIT.c.actor, actor), (AUDIT.c.action, action), (AUDIT.c.ok, ok)):
            if value is not None:
                chosen = chosen.where(column == value)
        with self._control.reading() as connection:
            return [AuditEntry(**row._mapping) for row in connection.execute(chosen)]

    @contextmanager
    def _within(self, connection: sa.Connection | None) -> Iterator[sa.Connection]:
        if connection is not None:
            yield connection
            return
        with self._control.transaction() as own:
            yield own
