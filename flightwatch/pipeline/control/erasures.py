"""Traces of simulations that somebody wants removed: asked for here, done by the process that owns the store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from flightwatch.core.errors import ConfigError
from flightwatch.pipeline.control import schema_actions as _actions
from flightwatch.pipeline.control import schema_incidents as _incidents
from flightwatch.pipeline.control.schema import METADATA
from flightwatch.pipeline.control.schema_detection import ERASURES

if TYPE_CHECKING:
    from flightwatch.pipeline.control.database import Control

#: Only what is marked as simulated can be erased.
MARKED = re.compile(r"sim[a-z0-9-]{0,60}")
#: Imported so that all of their tables are known here.
_SCHEMAS = (_actions, _incidents)


@dataclass(frozen=True, slots=True)
class Erasure:
    """One wish.

    Attributes
    ----------
    column: "cluster" or "job": which rows. value: the name, which begins with sim.
    done_at_ms: when it was done, None while it waits. rows: rows removed from the store.
    """

    column: str
    value: str
    done_at_ms: int | None = None
    rows: int | None = None


class Erasures:
    """Each call is one transaction; raises TransientError when the database is away."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def ask(self, column: str, value: str) -> None:
        """Ask for the removal of everything marked so; asking again has it done again.

        Raises
        ------
        ConfigError: the name is not one of a simulation.
        """
        if column not in ("cluster", "job") or not MARKED.fullmatch(value):
            raise ConfigError(f"{column} {value!r}: only what is marked as simulated (sim...) can be erased")
        with self._control.transaction() as connection:
            here = sa.and_(ERASURES.c.column == column, ERASURES.c.value == value)
            connection.execute(sa.delete(ERASURES).where(here))
            now_ms = self._control.now_ms(connection)
            connection.execute(sa.insert(ERASURES).values(column=column, value=value, requested_at_ms=now_ms))

    def get(self, column: str, value: str) -> Erasure | None:
        """Return how far a wish is, None when nobody asked."""
        with self._control.reading() as connection:
            chosen = sa.select(ERASURES).where(ERASURES.c.column == column, ERASURES.c.value == value)
            row = connection.execute(chosen).one_or_none()
        return None if row is None else Erasure(row.column, row.value, row.done_at_ms, row.rows)

    def waiting(self) -> list[Erasure]:
        """Return the wishes that are not done."""
        with self._control.reading() as connection:
            chosen = sa.select(ERASURES).where(ERASURES.c.done_at_ms.is_(None)).order_by(ERASURES.c.requested_at_ms)
            return [Erasure(row.column, row.value) for row in connection.execute(chosen)]

    def finish(self, erasure: Erasure, rows: int) -> None:
        """Remove the incidents of a wish, with everything that belongs to them, and note that it is done."""
        incidents = METADATA.tables["incidents"]
        with self._control.transaction() as connection:
            mine = sa.select(incidents.c.id).where(incidents.c[erasure.column] == erasure.value)
            ids = [row.id for row in connection.execute(mine)]
            for table in METADATA.sorted_tables[::-1]:
                if table is not incidents and "incident" in table.c:
                    for first in range(0, len(ids), 500):
                        chosen = table.c.incident.in_(ids[first : first + 500])
                        connection.execute(sa.delete(table).where(chosen))
            connection.execute(sa.delete(incidents).where(incidents.c[erasure.column] == erasure.value))
            connection.execute(
                sa.update(ERASURES)
                .where(ERASURES.c.column == erasure.column, ERASURES.c.value == erasure.value)
                .values(done_at_ms=self._control.now_ms(connection), rows=rows)
            )
