"""Leases with epochs: one active holder of a role, and nothing from one that was paused and came back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from flightwatch.core.errors import StaleGeneration
from flightwatch.pipeline.control.schema import LEASES

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act in a role until a time.

    Attributes
    ----------
    epoch: grows with every acquisition of the role; part of the version of everything written under it.
    """

    role: str
    holder: str
    epoch: int
    expires_at_ms: int


class Leases:
    """Acquires, renews and checks leases; each call is one transaction."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def acquire(self, role: str, holder: str, ttl_seconds: float) -> Lease | None:
        """Take the role when it is free or expired, with a new epoch; None when another holder has it.

        A holder that asks again (after a restart) gets a new epoch, so what its former self still does is void.
        """
        with self._control.transaction() as connection:
            self._ensure_row(connection, role)
            row = connection.execute(sa.select(LEASES).where(LEASES.c.role == role).with_for_update()).one()
            # After the lock: it may have been waited for.
            now_ms = self._control.now_ms(connection)
            if row.expires_at_ms > now_ms and row.holder != holder:
                return None
            lease = Lease(role, holder, row.epoch + 1, now_ms + round(ttl_seconds * 1000))
            connection.execute(
                sa.update(LEASES)
                .where(LEASES.c.role == role)
                .values(holder=holder, epoch=lease.epoch, expires_at_ms=lease.expires_at_ms)
            )
            return lease

    def renew(self, lease: Lease, ttl_seconds: float) -> Lease:
        """Extend a lease that is still held.

        Raises
        ------
        StaleGeneration: it expired or somebody else has the role: stop, write nothing, acquire again.
        """
        with self.guarded(lease) as connection:
            expires_at_ms = self._control.now_ms(connection) + round(ttl_seconds * 1000)
            connection.execute(sa.update(LEASES).where(LEASES.c.role == lease.role).values(expires_at_ms=expires_at_ms))
        return Lease(lease.role, lease.holder, lease.epoch, expires_at_ms)

    def release(self, lease: Lease) -> None:
        """Give the role up so that another takes it at once; does nothing when it is held no more."""
        with self._control.transaction() as connection:
            connection.execute(
                sa.update(LEASES)
                .where(LEASES.c.role == lease.role, LEASES.c.epoch == lease.epoch)
                .values(expires_at_ms=0)
            )

    @contextmanager
    def guarded(self, lease: Lease) -> Iterator[sa.Connection]:
        """Open a transaction that holds only while the lease does.

        The epoch is checked in the same transaction and the role's row stays locked until the commit, so
        nobody can take the role between check and write.

        Raises
        ------
        StaleGeneration: before the block when the lease is lost; after it, with everything rolled back, when
            the lease expired while the block ran.
        """
        with self._control.transaction() as connection:
            self._check(connection, lease)
            yield connection
            self._check(connection, lease)

    def holder(self, role: str) -> Lease | None:
        """Return who holds the role now, None when it is free."""
        with self._control.reading() as connection:
            row = connection.execute(sa.select(LEASES).where(LEASES.c.role == role)).one_or_none()
            if row is None or row.expires_at_ms <= self._control.now_ms(connection):
                return None
            return Lease(row.role, row.holder, row.epoch, row.expires_at_ms)

    def held(self, prefix: str) -> list[str]:
        """Return the roles that begin with `prefix` and are held now, in order."""
        with self._control.reading() as connection:
            now_ms = self._control.now_ms(connection)
            named = sa.select(LEASES.c.role).where(
                LEASES.c.role.startswith(prefix, autoescape=True), LEASES.c.expires_at_ms > now_ms
            )
            return sorted(row.role for row in connection.execute(named))

    def _check(self, connection: sa.Connection, lease: Lease) -> None:
        row = connection.execute(
            sa.select(LEASES.c.epoch, LEASES.c.expires_at_ms).where(LEASES.c.role == lease.role).with_for_update()
        ).one_or_none()
        if row is None or row.epoch != lease.epoch:
            raise StaleGeneration(f"the role {lease.role} passed to another process (epoch {lease.epoch} is over)")
        if row.expires_at_ms <= self._control.now_ms(connection):
            raise StaleGeneration(f"the lease of the role {lease.role} expired (epoch {lease.epoch})")

    @staticmethod
    def _ensure_row(connection: sa.Connection, role: str) -> None:
        values = {"role": role, "holder": "", "epoch": 0, "expires_at_ms": 0}
        if connection.dialect.name == "postgresql":
            from sqlalchemy.dialects.postgresql import insert
        else:
            from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]
        connection.execute(insert(LEASES).values(values).on_conflict_do_nothing(index_elements=["role"]))
