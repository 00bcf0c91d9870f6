"""Silences and maintenance windows in the control database."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping

import sqlalchemy as sa

from flightwatch.core.errors import ConfigError, NotFound, Refused
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.incident_rows import Silence, silence_of
from flightwatch.pipeline.control.incident_writes import record
from flightwatch.pipeline.control.projections import project
from flightwatch.pipeline.control.schema_incidents import SILENCES

#: Fields of an incident that a matcher may name; `target` is any of its targets, the last four are of its nodes.
FIELDS = ("id", "cluster", "severity", "kind", "class", "scope", "node", "device", "rank", "job", "tenant", "title",
          "target", "rack", "cooling_zone", "power_zone", "leaf_switch")  # fmt: skip
_MOST_MATCHERS = 16
_LONGEST = 500
_LONGEST_SECONDS = 366 * 86_400


class Silences:
    """Each call is one transaction; raises TransientError when the database is away."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def list(self, active_only: bool = True) -> list[Silence]:
        """Return silences, those that end first in front: the active ones, or the 1000 that end last."""
        with self._control.reading() as connection:
            now_ms = self._control.now_ms(connection)
            chosen = sa.select(SILENCES)
            if active_only:
                chosen = chosen.where(
                    SILENCES.c.ended_at_ms.is_(None), SILENCES.c.starts_at_ms <= now_ms,
                    SILENCES.c.expires_at_ms > now_ms,
                )  # fmt: skip
            newest = connection.execute(chosen.order_by(SILENCES.c.expires_at_ms.desc()).limit(1000)).all()
        return [silence_of(row) for row in reversed(newest)]

    def create(
        self,
        matchers: Mapping[str, str],
        actor: str,
        reason: str,
        *,
        expires_at_ms: int,
        starts_at_ms: int | None = None,
        maintenance: bool = False,
    ) -> Silence:
        """Keep incidents quiet that match.

        Parameters
        ----------
        matchers: field to value; all must match; `*` in a value stands for any characters.
        starts_at_ms: for a maintenance window announced before; None: now.
        maintenance: nothing is done to matching nodes either.

        Raises
        ------
        ConfigError: no matcher, an unknown field, matchers that match everything, no reason, no proper time.
        """
        checked = _checked(matchers)
        reason = reason.strip()
        if not reason or len(reason) > _LONGEST:
            raise ConfigError(f"a silence needs a reason of 1 to {_LONGEST} characters")
        with self._control.transaction() as connection:
            now_ms = self._control.now_ms(connection)
            starts = now_ms if starts_at_ms is None else starts_at_ms
            if expires_at_ms <= max(now_ms, starts):
                raise ConfigError("a silence must end after it starts, and in the future")
            if expires_at_ms - now_ms > _LONGEST_SECONDS * 1000:
                raise ConfigError("a silence ends within a year")
            silence = Silence(
                f"s{secrets.token_hex(5)}", "maintenance" if maintenance else "silence", checked, actor, reason, now_ms,
                starts, expires_at_ms, None, None,
            )  # fmt: skip
            values = {name: getattr(silence, name) for name in Silence.__slots__}
            connection.execute(sa.insert(SILENCES).values(values | {"matchers": json.dumps(checked)}))
            self._note(connection, silence, actor, "silence_created", now_ms)
        return silence

    def expire(self, id_: str, actor: str) -> Silence:
        """End a silence now. Raises NotFound, or Refused when it has ended already."""
        with self._control.transaction() as connection:
            row = connection.execute(sa.select(SILENCES).where(SILENCES.c.id == id_).with_for_update()).one_or_none()
            if row is None:
                raise NotFound(f"there is no silence {id_}")
            now_ms = self._control.now_ms(connection)
            if row.ended_at_ms is not None or row.expires_at_ms <= now_ms:
                raise Refused(f"silence {id_} has ended already")
            connection.execute(
                sa.update(SILENCES).where(SILENCES.c.id == id_).values(ended_at_ms=now_ms, ended_by=actor)
            )
            silence = silence_of(connection.execute(sa.select(SILENCES).where(SILENCES.c.id == id_)).one())
            self._note(connection, silence, actor, "silence_ended", now_ms)
        return silence

    def _note(self, connection: sa.Connection, silence: Silence, actor: str, event: str, now_ms: int) -> None:
        """Let followers of the history see it, and queue its projection."""
        record(connection, {"id": silence.id, "revision": 0}, actor, event, {"reason": silence.reason}, now_ms)
        row = {
            "ts": now_ms, "id": silence.id, "matchers": dict(silence.matchers), "author": silence.author,
            "reason": silence.reason, "expires_at": silence.ended_at_ms or silence.expires_at_ms,
        }  # fmt: skip
        project(self._control, connection, "silences", silence.id, row)


def _checked(matchers: Mapping[str, str]) -> dict[str, str]:
    if not matchers or len(matchers) > _MOST_MATCHERS:
        raise ConfigError(f"a silence needs 1 to {_MOST_MATCHERS} matchers")
    for name, value in matchers.items():
        if name not in FIELDS:
            raise ConfigError(f"a silence cannot match {name!r}; known: {', '.join(FIELDS)}")
        if not isinstance(value, str) or not value or len(value) > _LONGEST:
            raise ConfigError(f"the matcher {name} needs a text of 1 to {_LONGEST} characters")
    if all(set(value) == {"*"} for value in matchers.values()):
        raise ConfigError("a silence must not match everything")
    return dict(matchers)
