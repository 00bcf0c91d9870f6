"""People: their roles, and their accounts on chat services."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from flightwatch.core.errors import ConfigError, Refused
from flightwatch.pipeline.control.claims import claimed
from flightwatch.pipeline.control.roles import Grant, Role
from flightwatch.pipeline.control.schema_access import ACCOUNTS, GRANTS, PEOPLE

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control

#: Subjects of programs and of viewers without a login start so; no person may be called like one.
RESERVED = ("token:", "rule:", "socket:")
RESERVED_NAMES = ("local", "anonymous")
_SUBJECT = re.compile(r"[^\s\x00-\x1f\x7f]{1,200}")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: How exactly the last visit is known.
_SEEN_EVERY_MS = 60_000
#: Chat services whose buttons are obeyed.
SERVICES = ("slack", "feishu", "dingtalk", "discord", "telegram")


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody with an account.

    Attributes
    ----------
    subject: stable name. grants: everything they may do. accounts: service and account there.
    disabled: may not come in.
    """

    subject: str
    name: str
    grants: Sequence[Grant]
    accounts: Sequence[tuple[str, str]]
    created_at_ms: int
    seen_at_ms: int | None
    disabled: bool


class PeopleRecords:
    """Reads and changes people; each call is one transaction. Raises TransientError when the database is away."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def get(self, subject: str) -> Person | None:
        """Return a person, None when nobody is called so."""
        with self._control.reading() as connection:
            row = connection.execute(sa.select(PEOPLE).where(PEOPLE.c.subject == subject)).one_or_none()
            return None if row is None else self._person(connection, row)

    def all(self, limit: int = 1_000) -> list[Person]:
        """Return people by subject."""
        with self._control.reading() as connection:
            rows = connection.execute(sa.select(PEOPLE).order_by(PEOPLE.c.subject).limit(limit)).all()
            return [self._person(connection, row) for row in rows]

    def by_account(self, service: str, account: str) -> Person | None:
        """Return whose account this is on a chat service, None when nobody's."""
        with self._control.reading() as connection:
            row = connection.execute(
                sa.select(PEOPLE)
                .join(ACCOUNTS, ACCOUNTS.c.subject == PEOPLE.c.subject)
                .where(ACCOUNTS.c.service == service, ACCOUNTS.c.account == account)
            ).one_or_none()
            return None if row is None else self._person(connection, row)

    def seen(self, subject: str, name: str, claimed: Iterable[Grant] | None = None) -> Person:
        """Note a login; what the identity provider says about roles replaces what it said before.

        A repeat within a minute that says nothing new writes nothing: a proxy says it with every request.

        Parameters
        ----------
        claimed: grants by groups; None: the provider says nothing about groups.

        Raises
        ------
        ConfigError: not a subject.
        """
        checked_subject(subject)
        said = None if claimed is None else _highest(claimed)
        with self._control.reading() as connection:
            known = self._said_lately(connection, subject, name, said)
        if known is not None:
            return known
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            self._ensure(connection, subject, name, now_ms)
            connection.execute(
                sa.update(PEOPLE).where(PEOPLE.c.subject == subject).values(name=name[:200], seen_at_ms=now_ms)
            )
            if said is not None:
                connection.execute(sa.delete(GRANTS).where(GRANTS.c.subject == subject, GRANTS.c.source == "claims"))
                for grant in said:
                    self._insert_grant(connection, subject, grant, "claims", "identity provider", now_ms)
            row = connection.execute(sa.select(PEOPLE).where(PEOPLE.c.subject == subject)).one()
            return self._person(connection, row)

    def grant(self, subject: str, grant: Grant, granted_by: str, name: str | None = None) -> None:
        """Give a person a role, for one tenant or everywhere; it replaces the one held there by hand.

        Raises
        ------
        ConfigError: not a subject or tenant.
        """
        checked_subject(subject)
        if grant.tenant is not None and not _TENANT.fullmatch(grant.tenant):
            raise ConfigError(f"{grant.tenant[:100]!r} is not a tenant's name: letters, digits, dots, dashes")
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            self._ensure(connection, subject, name or subject, now_ms)
            self._delete_grant(connection, subject, grant.tenant)
            self._insert_grant(connection, subject, grant, "manual", granted_by, now_ms)

    def withdraw(self, subject: str, tenant: str | None) -> None:
        """Take a role given by hand away. Raises Refused when there is none."""
        with self._control.transaction() as connection:
            if not self._delete_grant(connection, subject, tenant):
                raise Refused(f"{subject} has no role given by hand {'everywhere' if tenant is None else 'there'}")

    def disable(self, subject: str, *, disabled: bool = True) -> None:
        """Keep a person out, with their sessions and tokens, or let them in again. Raises Refused when unknown."""
        with self._control.transaction() as connection:
            at_ms = self._control.now_ms(connection) if disabled else None
            changed = connection.execute(
                sa.update(PEOPLE).where(PEOPLE.c.subject == subject).values(disabled_at_ms=at_ms)
            )
            if not changed.rowcount:
                raise Refused(f"nobody is called {subject}")

    def link(self, subject: str, service: str, account: str) -> None:
        """Say which account on a chat service is a person's.

        Raises
        ------
        ConfigError: unknown service, or no account. Refused: unknown person, or somebody else's account.
        """
        if service not in SERVICES:
            raise ConfigError(f"{service!r} is not one of {', '.join(SERVICES)}")
        if not _SUBJECT.fullmatch(account):
            raise ConfigError(f"{account[:100]!r} is not an account")
        with self._control.transaction() as connection:
            if connection.execute(sa.select(PEOPLE).where(PEOPLE.c.subject == subject)).one_or_none() is None:
                raise Refused(f"nobody is called {subject}")
            where = (ACCOUNTS.c.service == service, ACCOUNTS.c.account == account)
            claimed(connection, ACCOUNTS, {"service": service, "account": account, "subject": subject})
            row = connection.execute(sa.select(ACCOUNTS).where(*where)).one()
            if row.subject != subject:
                raise Refused(f"this {service} account is {row.subject}'s")

    def unlink(self, service: str, account: str) -> None:
        """Forget an account. Raises Refused when it is nobody's."""
        with self._control.transaction() as connection:
            gone = connection.execute(
                sa.delete(ACCOUNTS).where(ACCOUNTS.c.service == service, ACCOUNTS.c.account == account)
            )
            if not gone.rowcount:
                raise Refused(f"this {service} account is nobody's")

    def _said_lately(
        self, connection: sa.Connection, subject: str, name: str, said: tuple[Grant, ...] | None
    ) -> Person | None:
        row = connection.execute(sa.select(PEOPLE).where(PEOPLE.c.subject == subject)).one_or_none()
        if row is None or row.name != name[:200] or row.seen_at_ms is None:
            return None
        if self._control.now_ms(connection) - row.seen_at_ms >= _SEEN_EVERY_MS:
            return None
        claims = sa.select(GRANTS).where(GRANTS.c.subject == subject, GRANTS.c.source == "claims")
        stored = _highest(Grant(Role(one.role), one.tenant or None) for one in connection.execute(claims))
        return self._person(connection, row) if said is None or said == stored else None

    @staticmethod
    def _ensure(connection: sa.Connection, subject: str, name: str, now_ms: int) -> None:
        claimed(connection, PEOPLE, {"subject": subject, "name": name[:200], "created_at_ms": now_ms})

    @staticmethod
    def _insert_grant(
        connection: sa.Connection, subject: str, grant: Grant, source: str, granted_by: str, now_ms: int
    ) -> None:
        key = {"subject": subject, "tenant": grant.tenant or "", "source": source}
        given = {"role": grant.role.value, "granted_by": granted_by, "granted_at_ms": now_ms}
        claimed(connection, GRANTS, key | given)

    @staticmethod
    def _delete_grant(connection: sa.Connection, subject: str, tenant: str | None) -> int:
        result = connection.execute(
            sa.delete(GRANTS).where(
                GRANTS.c.subject == subject, GRANTS.c.tenant == (tenant or ""), GRANTS.c.source == "manual"
            )
        )
        return int(result.rowcount)

    @staticmethod
    def _person(connection: sa.Connection, row: sa.Row[tuple[object, ...]]) -> Person:
        grants = connection.execute(sa.select(GRANTS).where(GRANTS.c.subject == row.subject)).all()
        accounts = connection.execute(
            sa.select(ACCOUNTS).where(ACCOUNTS.c.subject == row.subject).order_by(ACCOUNTS.c.service)
        ).all()
        return Person(
            subject=row.subject,
            name=row.name,
            grants=_highest(Grant(Role(one.role), one.tenant or None) for one in grants),
            accounts=tuple((one.service, one.account) for one in accounts),
            created_at_ms=row.created_at_ms,
            seen_at_ms=row.seen_at_ms,
            disabled=row.disabled_at_ms is not None,
        )


def checked_subject(subject: str) -> str:
    """Return a person's subject. Raises ConfigError when it is none, or one that programs have."""
    if not _SUBJECT.fullmatch(subject) or subject.startswith(RESERVED) or subject in RESERVED_NAMES:
        raise ConfigError(f"{subject[:100]!r} cannot be the name of a person here")
    return subject


def _highest(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """Return one grant a tenant: the highest."""
    best: dict[str | None, Role] = {}
    for grant in grants:
        if grant.tenant not in best or grant.role.rank > best[grant.tenant].rank:
            best[grant.tenant] = grant.role
    return tuple(Grant(role, tenant) for tenant, role in sorted(best.items(), key=lambda one: one[0] or ""))
