"""API tokens: 256 random bits, stored hashed, with roles, scopes and an end."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from flightwatch.core.errors import ConfigError, Refused
from flightwatch.pipeline.control.roles import Grant, grants_from, grants_text
from flightwatch.pipeline.control.schema_access import PEOPLE, TOKENS

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control

#: What a token may be used for, besides what its roles allow: read pages of the API, run SQL, change things,
#: administer, scrape figures, send alerts in.
SCOPES = ("read", "sql", "write", "admin", "metrics", "alerts")
_TOKEN = re.compile(r"fw_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_DAY_MS = 86_400_000
#: How exactly the last use is known.
_USED_EVERY_MS = 60_000


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret.

    Attributes
    ----------
    id: public part, shown and used to revoke. owner: subject of who made it.
    revoked_at_ms: None while it is not.
    """

    id: str
    name: str
    owner: str
    grants: Sequence[Grant]
    scopes: frozenset[str]
    created_at_ms: int
    expires_at_ms: int
    used_at_ms: int | None
    revoked_at_ms: int | None

    @property
    def subject(self) -> str:
        """How the audit log names its bearer."""
        return f"token:{self.name}"


class Tokens:
    """Makes, finds and revokes tokens; each call is one transaction."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def create(
        self, name: str, owner: str, grants: Iterable[Grant], scopes: Iterable[str], days: float
    ) -> tuple[Token, str]:
        """Make a token; return it and its text, which nobody can read again.

        Parameters
        ----------
        name: shown in lists and in the audit log; unique among tokens that are valid.
        owner: subject of who makes it; disabling that person disables the token.
        days: until it expires.

        Raises
        ------
        ConfigError: malformed name, unknown scope, no role, or no time. Refused: a valid token has this name.
        """
        chosen, held = frozenset(scopes), tuple(grants)
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name[:70]!r} is not a token's name: letters, digits, dots, dashes and underscores")
        if not chosen or not chosen <= set(SCOPES):
            raise ConfigError(f"scopes are some of {', '.join(SCOPES)}")
        if not held or days <= 0:
            raise ConfigError("a token needs a role and a time until it expires")
        identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            same = sa.select(TOKENS.c.id).where(
                TOKENS.c.name == name, TOKENS.c.revoked_at_ms.is_(None), TOKENS.c.expires_at_ms > now_ms
            )
            if connection.execute(same).first() is not None:
                raise Refused(f"a valid token is called {name} already")
            row = connection.execute(
                sa.insert(TOKENS)
                .values(
                    id=identity,
                    name=name,
                    secret_hash=_hash(secret),
                    owner=owner,
                    grants=grants_text(held),
                    scopes=" ".join(sorted(chosen)),
                    created_at_ms=now_ms,
                    expires_at_ms=now_ms + round(days * _DAY_MS),
                )
                .returning(*TOKENS.c)
            ).one()
        return _token(row), f"fw_{identity}_{secret}"

    def verify(self, text: str) -> Token | None:
        """Return the valid token of a text; None when it is unknown, expired, revoked, or its owner is kept out."""
        match = _TOKEN.fullmatch(text)
        if match is None:
            return None
        with self._control.reading() as connection:
            row = connection.execute(sa.select(TOKENS).where(TOKENS.c.id == match[1])).one_or_none()
            if row is None or not hmac.compare_digest(row.secret_hash, _hash(match[2])):
                return None
            return self._valid(connection, row)

    def valid(self, identity: str) -> Token | None:
        """Return a token that is still valid by its public id, None when it is not."""
        with self._control.reading() as connection:
            row = connection.execute(sa.select(TOKENS).where(TOKENS.c.id == identity)).one_or_none()
            return None if row is None else self._valid(connection, row)

    def used(self, token: Token) -> None:
        """Note that a token is in use, at most once a minute."""
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            if token.used_at_ms is None or now_ms - token.used_at_ms >= _USED_EVERY_MS:
                connection.execute(sa.update(TOKENS).where(TOKENS.c.id == token.id).values(used_at_ms=now_ms))

    def get(self, identity: str) -> Token | None:
        """Return a token, valid or not; None when there is none."""
        with self._control.reading() as connection:
            row = connection.execute(sa.select(TOKENS).where(TOKENS.c.id == identity)).one_or_none()
            return None if row is None else _token(row)

    def all(self, owner: str | None = None, limit: int = 1_000) -> list[Token]:
        """Return tokens, of one owner or of everybody, the newest first."""
        chosen = sa.select(TOKENS).order_by(TOKENS.c.created_at_ms.desc(), TOKENS.c.id).limit(limit)
        if owner is not None:
            chosen = chosen.where(TOKENS.c.owner == owner)
        with self._control.reading() as connection:
            return [_token(row) for row in connection.execute(chosen)]

    def revoke(self, identity: str) -> Token:
        """End a token now. Raises Refused when there is none, or it was revoked before."""
        with self._control.transaction() as connection:
            row = connection.execute(
                sa.update(TOKENS)
                .where(TOKENS.c.id == identity, TOKENS.c.revoked_at_ms.is_(None))
                .values(revoked_at_ms=self._control.now_ms(connection))
                .returning(*TOKENS.c)
            ).one_or_none()
        if row is None:
            raise Refused(f"there is no token {identity[:20]} to revoke")
        return _token(row)

    def _valid(self, connection: sa.Connection, row: sa.Row[tuple[object, ...]]) -> Token | None:
        if row.revoked_at_ms is not None or row.expires_at_ms <= self._control.now_ms(connection):
            return None
        owner = connection.execute(
            sa.select(PEOPLE.c.disabled_at_ms).where(PEOPLE.c.subject == row.owner)
        ).one_or_none()
        return None if owner is not None and owner.disabled_at_ms is not None else _token(row)


def _hash(secret: str) -> str:
    # The secret is random and long: a slow hash would add nothing.
    return hashlib.sha256(secret.encode()).hexdigest()


def _token(row: sa.Row[tuple[object, ...]]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        owner=row.owner,
        grants=grants_from(row.grants),
        scopes=frozenset(row.scopes.split()),
        created_at_ms=row.created_at_ms,
        expires_at_ms=row.expires_at_ms,
        used_at_ms=row.used_at_ms,
        revoked_at_ms=row.revoked_at_ms,
    )
