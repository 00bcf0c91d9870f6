"""Browser sessions, logins under way, and values that are accepted once."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from flightwatch.pipeline.control.claims import claimed
from flightwatch.pipeline.control.schema_access import LOGINS, SESSIONS, USED_ONCE

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control

#: A login must come back from the identity provider within this time.
LOGIN_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that logged in.

    Attributes
    ----------
    subject: who. token_id: token with which they logged in, None for an identity provider.
    csrf: what the browser must send back with every write.
    """

    subject: str
    token_id: str | None
    csrf: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A login that came back from the identity provider.

    Attributes
    ----------
    nonce: must stand in the id token. verifier: PKCE secret. next_path: page to show afterwards.
    """

    nonce: str
    verifier: str
    next_path: str


class Sessions:
    """Sessions and logins; each call is one transaction. Ids are stored hashed."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def open(self, subject: str, hours: float, address: str, token_id: str | None = None) -> tuple[str, Session]:
        """Start a session; return its id for the cookie, and the session. Sessions that ended are deleted."""
        identity, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(24)
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            connection.execute(sa.delete(SESSIONS).where(SESSIONS.c.expires_at_ms <= now_ms))
            session = Session(subject, token_id, csrf, now_ms + round(hours * 3_600_000))
            connection.execute(
                sa.insert(SESSIONS).values(
                    id_hash=hashed(identity), subject=subject, token_id=token_id, csrf=csrf, address=address,
                    created_at_ms=now_ms, seen_at_ms=now_ms, expires_at_ms=session.expires_at_ms,
                )
            )  # fmt: skip
        return identity, session

    def find(self, identity: str) -> Session | None:
        """Return the session of a cookie, None when there is none or it ended."""
        with self._control.reading() as connection:
            row = connection.execute(sa.select(SESSIONS).where(SESSIONS.c.id_hash == hashed(identity))).one_or_none()
            if row is None or row.expires_at_ms <= self._control.now_ms(connection):
                return None
            return Session(row.subject, row.token_id, row.csrf, row.expires_at_ms)

    def close(self, identity: str) -> None:
        """End a session."""
        with self._control.transaction() as connection:
            connection.execute(sa.delete(SESSIONS).where(SESSIONS.c.id_hash == hashed(identity)))

    def close_all(self, subject: str) -> int:
        """End all sessions of a person; return how many there were."""
        with self._control.transaction() as connection:
            return int(connection.execute(sa.delete(SESSIONS).where(SESSIONS.c.subject == subject)).rowcount)

    def begin_login(self, state: str, browser: str, login: PendingLogin) -> None:
        """Keep a login that goes to the identity provider.

        Parameters
        ----------
        state: comes back in the URL. browser: comes back in a cookie, so that another browser cannot finish it.
        """
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            connection.execute(sa.delete(LOGINS).where(LOGINS.c.expires_at_ms <= now_ms))
            connection.execute(
                sa.insert(LOGINS).values(
                    state_hash=hashed(state), browser_hash=hashed(browser), nonce=login.nonce,
                    verifier=login.verifier, next_path=login.next_path,
                    expires_at_ms=now_ms + LOGIN_SECONDS * 1000,
                )
            )  # fmt: skip

    def finish_login(self, state: str, browser: str) -> PendingLogin | None:
        """Take a login that came back, once; None when it is unknown, too old, or another browser's."""
        with self._control.transaction() as connection:
            row = connection.execute(
                sa.delete(LOGINS)
                .where(LOGINS.c.state_hash == hashed(state), LOGINS.c.browser_hash == hashed(browser))
                .returning(*LOGINS.c)
            ).one_or_none()
            if row is None or row.expires_at_ms <= self._control.now_ms(connection):
                return None
            return PendingLogin(row.nonce, row.verifier, row.next_path)

    def use_once(self, kind: str, value: str, seconds: float) -> bool:
        """Note a value that is accepted once; False when it was used before.

        Parameters
        ----------
        seconds: for so long a repeat is noticed; its sender's clock must refuse it afterwards.
        """
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            connection.execute(sa.delete(USED_ONCE).where(USED_ONCE.c.expires_at_ms <= now_ms))
            row = {"kind": kind, "value_hash": hashed(value), "expires_at_ms": now_ms + round(seconds * 1000)}
            return claimed(connection, USED_ONCE, row)


def hashed(value: str) -> str:
    """Return what the database keeps of a random value."""
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
