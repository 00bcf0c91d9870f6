"""What the incident engine reads and writes: everything of one batch in one guarded transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from flightwatch.core.incident import AlertReason
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.incident_rows import OPEN_STATES, Silence, projection_row, silence_of
from flightwatch.pipeline.control.incident_writes import locked
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.control.projections import project_many
from flightwatch.pipeline.control.schema_incidents import (
    ALERT_NEEDS,
    ENGINE_POSITIONS,
    EVIDENCE_PINS,
    INCIDENT_FINDINGS,
    INCIDENT_HISTORY,
    INCIDENTS,
    SILENCES,
)

ENGINE = "engine"
#: Entries of the history that are read again: PostgreSQL may show a lower number after a higher one.
_OVERLAP = 500
_CHUNK = 500


class EngineWrites:
    """The engine's door to the control database. Raises TransientError when it is away."""

    def __init__(self, control: Control) -> None:
        self._control = control

    @contextmanager
    def transaction(self, lease: Lease) -> Iterator[EngineTransaction]:
        """Open the transaction of one batch; nothing of it is written when the lease is over (StaleGeneration)."""
        with self._control.leases.guarded(lease) as connection:
            made = EngineTransaction(self._control, connection)
            yield made
            made.finish()

    def positions(self) -> dict[tuple[str, int], tuple[str, int]]:
        """Return (topic, partition) to (incarnation of the log, next offset)."""
        with self._control.reading() as connection:
            rows = connection.execute(sa.select(ENGINE_POSITIONS)).all()
        return {(row.topic, row.partition): (row.incarnation, row.offset) for row in rows}

    def held(self, closed_since_ms: int, limit: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
        """Return what an engine that starts must know.

        Returns
        -------
        Incidents that are open or closed since a time; their findings, at most `limit`, causes and the newest first;
        the newest number of the history.
        """
        wanted = sa.or_(INCIDENTS.c.state.in_(OPEN_STATES), INCIDENTS.c.closed_at_ms >= closed_since_ms)
        # What holds incidents together and names them comes first: causes, first findings, what people put together.
        holding = sa.or_(
            INCIDENT_FINDINGS.c.parent.is_(None), INCIDENT_FINDINGS.c.opens == INCIDENT_FINDINGS.c.incident,
            INCIDENT_FINDINGS.c.pin.is_not(None),
        )  # fmt: skip
        # Information that no incident holds: how far a job is observed.
        loose = sa.and_(INCIDENT_FINDINGS.c.incident == "", INCIDENT_FINDINGS.c.cleared_at_ms.is_(None))
        with self._control.reading() as connection:
            last = int(connection.execute(sa.select(sa.func.max(INCIDENT_HISTORY.c.sequence))).scalar() or 0)
            incidents = [
                dict(row._mapping)
                for row in connection.execute(sa.select(INCIDENTS).where(wanted, INCIDENTS.c.merged_into.is_(None)))
            ]
            chosen = (
                sa.select(*(column for column in INCIDENT_FINDINGS.c if column.name != "evidence"))
                .outerjoin(INCIDENTS, INCIDENTS.c.id == INCIDENT_FINDINGS.c.incident)
                .where(sa.or_(sa.and_(wanted, INCIDENTS.c.merged_into.is_(None)), loose))
                .order_by(sa.case((holding, 0), else_=1), INCIDENT_FINDINGS.c.stated_at_ms.desc())
                .limit(limit)
            )
            findings = [dict(row._mapping) for row in connection.execute(chosen)]
        return incidents, findings, last

    def forget(self, closed_before_ms: int, handled_before_ms: int) -> None:
        """Delete findings of incidents closed before a time (the store has them), and old handled needs."""
        closed = sa.select(INCIDENTS.c.id).where(INCIDENTS.c.closed_at_ms < closed_before_ms)
        with self._control.transaction() as connection:
            connection.execute(
                sa.delete(INCIDENT_FINDINGS).where(
                    INCIDENT_FINDINGS.c.incident.in_(closed), INCIDENT_FINDINGS.c.finding.not_in(_roots_of(closed))
                )
            )
            connection.execute(
                sa.delete(INCIDENT_FINDINGS).where(
                    INCIDENT_FINDINGS.c.incident == "", INCIDENT_FINDINGS.c.stated_at_ms < handled_before_ms
                )
            )
            connection.execute(sa.delete(ALERT_NEEDS).where(ALERT_NEEDS.c.handled_at_ms < handled_before_ms))
            connection.execute(sa.delete(EVIDENCE_PINS).where(EVIDENCE_PINS.c.done_at_ms < handled_before_ms))


class EngineTransaction:
    """One open transaction of the engine. What it writes goes out together at its end."""

    def __init__(self, control: Control, connection: sa.Connection) -> None:
        self._control, self._connection = control, connection
        self.now_ms = control.now_ms(connection)
        self._new: dict[str, dict[str, Any]] = {}
        self._changed: dict[str, dict[str, Any]] = {}
        self._history: list[dict[str, Any]] = []
        self._needs: list[dict[str, Any]] = []
        self._pins: list[dict[str, Any]] = []
        self._projected: set[str] = set()
        #: Messages that became due in this transaction.
        self.needs_written = 0

    def advance(self, positions: Mapping[tuple[str, int], tuple[str, int]]) -> None:
        """Store how far the bus was read, with what was made of it."""
        rows = [
            {"topic": topic, "partition": partition, "incarnation": incarnation, "offset": offset}
            for (topic, partition), (incarnation, offset) in positions.items()
        ]
        self._upsert(ENGINE_POSITIONS, rows, ("topic", "partition"))

    def incidents(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return rows by id, locked, with what this transaction changed; unknown ids are left out."""
        mine = self._new | self._changed
        return locked(self._connection, [id_ for id_ in ids if id_ not in mine]) | {
            id_: dict(mine[id_]) for id_ in ids if id_ in mine
        }

    def people_since(self, sequence: int) -> list[tuple[int, str, str]]:
        """Return (number, incident, event) of what people did since a number in the history."""
        chosen = (
            sa.select(INCIDENT_HISTORY.c.sequence, INCIDENT_HISTORY.c.incident, INCIDENT_HISTORY.c.event)
            .where(INCIDENT_HISTORY.c.sequence > sequence - _OVERLAP, INCIDENT_HISTORY.c.actor != ENGINE)
            .order_by(INCIDENT_HISTORY.c.sequence)
        )
        return [(row.sequence, row.incident, row.event) for row in self._connection.execute(chosen)]

    def findings(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return stored findings by id."""
        return self._findings(INCIDENT_FINDINGS.c.finding, ids)

    def findings_of(self, incident: str) -> dict[str, dict[str, Any]]:
        """Return the stored findings of an incident by id."""
        return self._findings(INCIDENT_FINDINGS.c.incident, [incident])

    def write_findings(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert findings or replace their newest statement."""
        self._upsert(INCIDENT_FINDINGS, rows, ("finding",))

    def place_findings(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Set incident, parent and why of findings: keys `of`, `incident`, `parent`, `why`."""
        if rows:
            placed = sa.update(INCIDENT_FINDINGS).where(INCIDENT_FINDINGS.c.finding == sa.bindparam("of"))
            values: dict[str, Any] = {name: sa.bindparam(name) for name in ("incident", "parent", "why")}
            self._connection.execute(placed.values(values), list(rows))

    def move_findings(self, old: str, new: str) -> None:
        """Move the stored findings of one incident into another one."""
        moved = sa.update(INCIDENT_FINDINGS).where(INCIDENT_FINDINGS.c.incident == old)
        self._connection.execute(moved.values(incident=new))

    def open(self, row: Mapping[str, Any], detail: Mapping[str, Any], event: str = "opened") -> dict[str, Any]:
        """Add a new incident; return its row."""
        self._new[row["id"]] = new = dict(row) | {"projected_at_ms": self.now_ms}
        self._record(new, event, detail)
        return new

    def change(
        self, row: dict[str, Any], values: Mapping[str, Any], event: str, detail: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Change what people see: a new revision; return the new row."""
        ours = {"revision": row["revision"] + 1, "updated_at_ms": self.now_ms, "projected_at_ms": self.now_ms}
        new = self._keep(row | dict(values) | ours)
        self._record(new, event, detail or {})
        return new

    def touch(self, row: dict[str, Any], values: Mapping[str, Any], *, project: bool) -> dict[str, Any]:
        """Change figures that make no new revision (counts, losses); return the new row."""
        new = row | dict(values)
        if project:
            new |= {"updated_at_ms": self.now_ms, "projected_at_ms": self.now_ms}
            self._projected.add(new["id"])
        return self._keep(new)

    def need(self, row: Mapping[str, Any], reason: AlertReason, detail: Mapping[str, Any] | None = None) -> None:
        """Note that people must hear of a change."""
        self._needs.append(
            {"incident": row["id"], "revision": row["revision"], "reason": reason.value,
             "detail": encoded(detail or {}), "at_ms": self.now_ms}
        )  # fmt: skip
        self.needs_written += 1

    def rename_needs(self, old: str, new: str) -> None:
        """Let messages that are due for an id be due for the one that replaces it."""
        waiting = sa.and_(ALERT_NEEDS.c.incident == old, ALERT_NEEDS.c.handled_at_ms.is_(None))
        self._connection.execute(sa.update(ALERT_NEEDS).where(waiting).values(incident=new))
        for one in self._needs:
            if one["incident"] == old:
                one["incident"] = new

    def drop_needs(self, id_: str) -> bool:
        """Drop the messages that are due for an incident; say whether its first one was among them."""
        waiting = sa.and_(ALERT_NEEDS.c.incident == id_, ALERT_NEEDS.c.handled_at_ms.is_(None))
        dropped = (
            sa.update(ALERT_NEEDS).where(waiting).values(handled_at_ms=self.now_ms).returning(ALERT_NEEDS.c.reason)
        )
        reasons = list(self._connection.execute(dropped).scalars())
        reasons += [one["reason"] for one in self._needs if one["incident"] == id_]
        self._needs = [one for one in self._needs if one["incident"] != id_]
        return AlertReason.OPENED.value in reasons

    def finish(self) -> None:
        """Write everything that was kept back: rows, history, messages, projections, pins."""
        connection = self._connection
        if self._new:
            connection.execute(sa.insert(INCIDENTS), list(self._new.values()))
        if self._changed:
            columns = [name for name in next(iter(self._changed.values())) if name != "id"]
            changed = sa.update(INCIDENTS).where(INCIDENTS.c.id == sa.bindparam("of"))
            changed = changed.values({name: sa.bindparam(f"new_{name}") for name in columns})
            connection.execute(
                changed,
                [{"of": row["id"]} | {f"new_{name}": row[name] for name in columns} for row in self._changed.values()],
            )
        if self._history:
            connection.execute(sa.insert(INCIDENT_HISTORY), self._history)
        if self._needs:
            connection.execute(sa.insert(ALERT_NEEDS), self._needs)
        self._upsert(EVIDENCE_PINS, self._pins, ("incident", "moment", "part"), replace=False)
        self._project()

    def _keep(self, row: dict[str, Any]) -> dict[str, Any]:
        (self._new if row["id"] in self._new else self._changed)[row["id"]] = row
        return row

    def _record(self, row: Mapping[str, Any], event: str, detail: Mapping[str, Any]) -> None:
        self._history.append(
            {"incident": row["id"], "revision": row["revision"], "at_ms": self.now_ms, "actor": ENGINE, "event": event,
             "detail": encoded(detail)}
        )  # fmt: skip
        self._projected.add(row["id"])

    def _project(self) -> None:
        ids = sorted(self._projected)
        members: dict[str, list[str]] = {id_: [] for id_ in ids}
        for start in range(0, len(ids), _CHUNK):
            chosen = sa.select(INCIDENT_FINDINGS.c.incident, INCIDENT_FINDINGS.c.finding).where(
                INCIDENT_FINDINGS.c.incident.in_(ids[start : start + _CHUNK])
            )
            for row in self._connection.execute(chosen.order_by(INCIDENT_FINDINGS.c.detected_at_ms)):
                members[row.incident].append(row.finding)
        rows = self._new | self._changed
        entries = [(id_, projection_row(rows[id_], members[id_])) for id_ in ids]
        project_many(self._control, self._connection, "incidents", entries)

    def waiting_for_message(self, ids: Sequence[str]) -> set[str]:
        """Return which incidents have a message that is due and not handled yet."""
        found: set[str] = set()
        for start in range(0, len(ids), _CHUNK):
            chosen = sa.select(ALERT_NEEDS.c.incident).where(
                ALERT_NEEDS.c.handled_at_ms.is_(None), ALERT_NEEDS.c.incident.in_(list(ids[start : start + _CHUNK]))
            )
            found.update(self._connection.execute(chosen).scalars())
        return found

    def silences(self) -> list[Silence]:
        """Return the silences and maintenance windows that hold now."""
        chosen = sa.select(SILENCES).where(
            SILENCES.c.ended_at_ms.is_(None), SILENCES.c.starts_at_ms <= self.now_ms,
            SILENCES.c.expires_at_ms > self.now_ms,
        )  # fmt: skip
        return [silence_of(row) for row in self._connection.execute(chosen.order_by(SILENCES.c.id))]

    def pin_evidence(self, incident: str, moment: str, at_ms: int, parts: Sequence[int]) -> None:
        """Ask for evidence around a time: part i is due `parts[i]` ms after it. A repeat changes nothing."""
        self._pins += [
            {"incident": incident, "moment": moment, "part": number, "at_ms": at_ms, "due_ms": at_ms + after}
            for number, after in enumerate(parts)
        ]

    def _findings(self, column: sa.ColumnElement[Any], values: Sequence[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(values), _CHUNK):
            chosen = sa.select(INCIDENT_FINDINGS).where(column.in_(list(values[start : start + _CHUNK])))
            found |= {row.finding: dict(row._mapping) for row in self._connection.execute(chosen)}
        return found

    def _upsert(
        self, table: sa.Table, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], *, replace: bool = True
    ) -> None:
        if not rows:
            return
        if self._connection.dialect.name == "postgresql":
            from sqlalchemy.dialects.postgresql import insert
        else:
            from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]
        added = insert(table)
        if replace:
            changed = {name: added.excluded[name] for name in rows[0] if name not in keys}
            statement = added.on_conflict_do_update(index_elements=list(keys), set_=changed)
        else:
            statement = added.on_conflict_do_nothing(index_elements=list(keys))
        self._connection.execute(statement, [dict(row) for row in rows])


def encoded(value: object) -> str:
    """Return a list or mapping as the tables hold it."""
    return json.dumps(value, ensure_ascii=False)


def _roots_of(closed: sa.Select[Any]) -> sa.Select[Any]:
    """Return the findings that stay: they lead from an old id to its incident."""
    return sa.select(INCIDENTS.c.root_finding).where(INCIDENTS.c.id.in_(closed), INCIDENTS.c.root_finding.is_not(None))
