"""Queries and views that people save, for themselves or for everybody."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from flightwatch.core.errors import NotFound, Refused
from flightwatch.pipeline.control.schema_access import SAVED

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control

KINDS = ("query", "view")
_MOST_OWNED = 500


@dataclass(frozen=True, slots=True)
class Saved:
    """One saved thing.

    Attributes
    ----------
    kind: query or view. owner: subject. shared: everybody sees it; only its owner changes it.
    body: what the console needs to show it again. revision: grows with every change.
    """

    id: str
    kind: str
    owner: str
    name: str
    body: Mapping[str, Any]
    shared: bool
    revision: int
    created_at_ms: int
    updated_at_ms: int


class SavedItems:
    """Reads and changes saved things; each call is one transaction."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def list(self, kind: str, subject: str) -> list[Saved]:
        """Return what a person saved and what others share, by name."""
        mine_or_shared = sa.or_(SAVED.c.owner == subject, SAVED.c.shared.is_(True))
        chosen = sa.select(SAVED).where(SAVED.c.kind == kind, mine_or_shared)
        with self._control.reading() as connection:
            return [_saved(row) for row in connection.execute(chosen.order_by(SAVED.c.name, SAVED.c.id).limit(2_000))]

    def get(self, id_: str, subject: str) -> Saved:
        """Return one thing that a person saved or others share. Raises NotFound."""
        with self._control.reading() as connection:
            row = connection.execute(sa.select(SAVED).where(SAVED.c.id == id_)).one_or_none()
        if row is None or (row.owner != subject and not row.shared):
            raise NotFound(f"nothing saved is called {id_}")
        return _saved(row)

    def create(self, kind: str, owner: str, name: str, body: Mapping[str, Any], shared: bool) -> Saved:
        """Save a thing. Raises Refused when the person has too many."""
        with self._control.transaction() as connection:
            count = sa.select(sa.func.count()).select_from(SAVED).where(SAVED.c.owner == owner)
            if connection.execute(count).scalar_one() >= _MOST_OWNED:
                raise Refused(f"{owner} has {_MOST_OWNED} saved things: delete some first")
            now_ms = self._control.now_ms(connection)
            row = connection.execute(
                sa.insert(SAVED)
                .values(
                    id=f"{kind[0]}{secrets.token_hex(6)}", kind=kind, owner=owner, name=name, body=json.dumps(body),
                    shared=shared, revision=1, created_at_ms=now_ms, updated_at_ms=now_ms,
                )
                .returning(*SAVED.c)
            ).one()  # fmt: skip
        return _saved(row)

    def replace(
        self, id_: str, subject: str, name: str, body: Mapping[str, Any], shared: bool, revision: int | None
    ) -> Saved:
        """Change a thing of one's own.

        Raises
        ------
        NotFound: there is none. Refused: it is another's, or changed since `revision`.
        """
        with self._control.transaction() as connection:
            found = self._own(connection, id_, subject)
            if revision is not None and found.revision != revision:
                raise Refused("it was changed meanwhile: load it again")
            row = connection.execute(
                sa.update(SAVED)
                .where(SAVED.c.id == id_)
                .values(
                    name=name, body=json.dumps(body), shared=shared, revision=found.revision + 1,
                    updated_at_ms=self._control.now_ms(connection),
                )
                .returning(*SAVED.c)
            ).one()  # fmt: skip
        return _saved(row)

    def delete(self, id_: str, subject: str) -> None:
        """Delete a thing of one's own. Raises NotFound, Refused (another's)."""
        with self._control.transaction() as connection:
            self._own(connection, id_, subject)
            connection.execute(sa.delete(SAVED).where(SAVED.c.id == id_))

    @staticmethod
    def _own(connection: sa.Connection, id_: str, subject: str) -> Saved:
        row = connection.execute(sa.select(SAVED).where(SAVED.c.id == id_).with_for_update()).one_or_none()
        if row is None or (row.owner != subject and not row.shared):
            raise NotFound(f"nothing saved is called {id_}")
        if row.owner != subject:
            raise Refused(f"it is {row.owner}'s: save a copy instead")
        return _saved(row)


def _saved(row: sa.Row[Any]) -> Saved:
    return Saved(**(dict(row._mapping) | {"body": json.loads(row.body)}))
