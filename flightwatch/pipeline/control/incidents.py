"""Incidents in the control database: what people read and change. The engine's own writes: `engine_writes`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from flightwatch.core.errors import ConfigError, Refused
from flightwatch.core.incident import AlertReason, Incident, IncidentState
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.incident_rows import (
    OPEN_STATES,
    HistoryEntry,
    IncidentFilter,
    IncidentFinding,
    IncidentNote,
    Page,
    Silence,
    cursor_of,
    finding_of,
    incident_of,
    parse_cursor,
)
from flightwatch.pipeline.control.incident_writes import change, locked, need, record, resolved_id, with_loss
from flightwatch.pipeline.control.projections import project
from flightwatch.pipeline.control.schema_incidents import (
    INCIDENT_FINDINGS,
    INCIDENT_HISTORY,
    INCIDENT_NOTES,
    INCIDENTS,
)
from flightwatch.pipeline.control.silences import Silences

_LONGEST_NOTE = 10_000


class IncidentRecords:
    """Reads and people's writes. Each write is one transaction: state, history, projection and the due message.

    Every id that an incident ever had is understood. Unknown ids raise NotFound, a write that makes no sense now
    raises Refused, a malformed argument ConfigError; a database that is away raises TransientError.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._silences = Silences(control)

    def get(self, id_: str) -> Incident:
        """Return the incident that an id stands for; of a merged one, the incident that took it over."""
        with self._control.reading() as connection:
            known = resolved_id(connection, id_)
            return incident_of(connection.execute(sa.select(INCIDENTS).where(INCIDENTS.c.id == known)).one())

    def page(self, wanted: IncidentFilter | None = None, cursor: str | None = None, limit: int = 50) -> Page[Incident]:
        """Return incidents, the newest first, from a cursor on; `limit` is cut to 1..1000."""
        limit = max(1, min(limit, 1000))
        chosen = sa.select(INCIDENTS).where(*_conditions(wanted or IncidentFilter()))
        if cursor is not None:
            opened, id_ = parse_cursor(cursor)
            before = sa.and_(INCIDENTS.c.opened_at_ms == opened, INCIDENTS.c.id < id_)
            chosen = chosen.where(sa.or_(INCIDENTS.c.opened_at_ms < opened, before))
        chosen = chosen.order_by(INCIDENTS.c.opened_at_ms.desc(), INCIDENTS.c.id.desc()).limit(limit + 1)
        with self._control.reading() as connection:
            items = [incident_of(row) for row in connection.execute(chosen)]
        following = cursor_of(items[limit - 1].opened_at_ms, items[limit - 1].id) if len(items) > limit else None
        return Page(items[:limit], following)

    def findings(self, id_: str, limit: int = 200) -> list[IncidentFinding]:
        """Return findings of an incident: the root, then the others by detection."""
        with self._control.reading() as connection:
            known = resolved_id(connection, id_)
            root = connection.execute(sa.select(INCIDENTS.c.root_finding).where(INCIDENTS.c.id == known)).scalar_one()
            chosen = (
                sa.select(INCIDENT_FINDINGS)
                .where(INCIDENT_FINDINGS.c.incident == known)
                .order_by(
                    sa.case((INCIDENT_FINDINGS.c.finding == root, 0), else_=1),
                    INCIDENT_FINDINGS.c.detected_at_ms,
                    INCIDENT_FINDINGS.c.finding,
                )
                .limit(limit)
            )
            return [finding_of(row) for row in connection.execute(chosen)]

    def history(self, id_: str) -> list[HistoryEntry]:
        """Return what happened to an incident and to those merged into it, the oldest first."""
        with self._control.reading() as connection:
            family = self._family(connection, id_)
            chosen = sa.select(INCIDENT_HISTORY).where(INCIDENT_HISTORY.c.incident.in_(family))
            rows = connection.execute(chosen.order_by(INCIDENT_HISTORY.c.sequence)).all()
        return [HistoryEntry(**(dict(row._mapping) | {"detail": json.loads(row.detail)})) for row in rows]

    def notes(self, id_: str) -> list[IncidentNote]:
        """Return the notes on an incident and on those merged into it, the oldest first."""
        with self._control.reading() as connection:
            family = self._family(connection, id_)
            chosen = sa.select(INCIDENT_NOTES).where(INCIDENT_NOTES.c.incident.in_(family))
            rows = connection.execute(chosen.order_by(INCIDENT_NOTES.c.sequence)).all()
        return [IncidentNote(**row._mapping) for row in rows]

    def earlier(self, node: str, before_ms: int, limit: int = 5) -> list[Incident]:
        """Return incidents of a node that opened before a time, the newest first; false positives are left out."""
        chosen = sa.select(INCIDENTS).where(
            INCIDENTS.c.node == node, INCIDENTS.c.opened_at_ms < before_ms, INCIDENTS.c.merged_into.is_(None),
            INCIDENTS.c.state != IncidentState.FALSE_POSITIVE.value,
        )  # fmt: skip
        with self._control.reading() as connection:
            rows = connection.execute(chosen.order_by(INCIDENTS.c.opened_at_ms.desc()).limit(limit)).all()
        return [incident_of(row) for row in rows]

    def counts(self, tenants: Sequence[str] | None = None) -> dict[str, int]:
        """Return how many incidents are in each state, and how many open ones have each severity."""
        conditions = _conditions(IncidentFilter(tenants=tenants))
        grouped = (
            sa.select(INCIDENTS.c.state, INCIDENTS.c.severity, sa.func.count())
            .where(*conditions)
            .group_by(INCIDENTS.c.state, INCIDENTS.c.severity)
        )
        counts = dict.fromkeys([*(state.value for state in IncidentState), "P1", "P2", "P3", "P4", "info"], 0)
        with self._control.reading() as connection:
            for state, severity, number in connection.execute(grouped):
                counts[state] += number
                if state in OPEN_STATES:
                    counts[severity] += number
        return counts

    def latest_sequence(self) -> int:
        """Return a number that grows with every change of any incident, note or silence."""
        with self._control.reading() as connection:
            return int(connection.execute(sa.select(sa.func.max(INCIDENT_HISTORY.c.sequence))).scalar() or 0)

    def silences(self, active_only: bool = True) -> list[Silence]:
        """Return silences and maintenance windows, those that end first in front."""
        return self._silences.list(active_only)

    def create_silence(
        self,
        matchers: Mapping[str, str],
        actor: str,
        reason: str,
        *,
        expires_at_ms: int,
        starts_at_ms: int | None = None,
        maintenance: bool = False,
    ) -> Silence:
        """Keep matching incidents quiet for a time; see `Silences.create`."""
        return self._silences.create(
            matchers, actor, reason, expires_at_ms=expires_at_ms, starts_at_ms=starts_at_ms, maintenance=maintenance
        )

    def expire_silence(self, id_: str, actor: str) -> Silence:
        """End a silence now."""
        return self._silences.expire(id_, actor)

    def acknowledge(self, id_: str, actor: str, note: str | None = None, revision: int | None = None) -> Incident:
        """Say that somebody works on it; a repeat by the same person changes nothing.

        Parameters
        ----------
        revision: what the person saw; Refused when the incident changed since. None: whatever it is now.
        """
        with self._control.transaction() as connection:
            row = self._row(connection, id_, revision)
            if row["state"] not in OPEN_STATES:
                raise Refused(f"incident {row['id']} is {row['state']}: reopen it first")
            if note:
                self._note(connection, row, actor, note)
            if row["acknowledged_by"] == actor and row["state"] == IncidentState.ACKNOWLEDGED.value:
                return _as_incident(connection, row)
            now_ms = self._control.now_ms(connection)
            values = {"state": IncidentState.ACKNOWLEDGED.value, "acknowledged_by": actor,
                      "acknowledged_at_ms": now_ms, "assignee": row["assignee"] or actor}  # fmt: skip
            new = change(self._control, connection, row, values, actor=actor, event="acknowledged")
            return self._told(connection, new, AlertReason.ACKNOWLEDGED, actor)

    def assign(self, id_: str, actor: str, assignee: str | None, revision: int | None = None) -> Incident:
        """Give it to somebody, or to nobody."""
        with self._control.transaction() as connection:
            row = self._row(connection, id_, revision)
            if row["assignee"] == assignee:
                return _as_incident(connection, row)
            detail = {"from": row["assignee"], "to": assignee}
            new = change(
                self._control, connection, row, {"assignee": assignee}, actor=actor, event="assigned", detail=detail
            )
            return _as_incident(connection, new)

    def resolve(
        self,
        id_: str,
        actor: str,
        state: IncidentState = IncidentState.RESOLVED,
        note: str | None = None,
        revision: int | None = None,
    ) -> Incident:
        """Close it as resolved or as false positive. It stays closed while nothing new is found."""
        if state not in (IncidentState.RESOLVED, IncidentState.FALSE_POSITIVE):
            raise ConfigError("an incident is closed as resolved or as false_positive")
        with self._control.transaction() as connection:
            row = self._row(connection, id_, revision)
            if row["state"] == state.value:
                return _as_incident(connection, row)
            if note:
                self._note(connection, row, actor, note)
            now_ms = self._control.now_ms(connection)
            counted = with_loss(row, now_ms) if row["closed_at_ms"] is None else {}
            values = {"state": state.value, "closed_at_ms": now_ms, "closed_by": actor} | counted
            new = change(self._control, connection, row, values, actor=actor, event=state.value)
            return self._told(connection, new, AlertReason.RESOLVED, actor)

    def reopen(self, id_: str, actor: str, note: str | None = None, revision: int | None = None) -> Incident:
        """Open a closed incident again."""
        with self._control.transaction() as connection:
            row = self._row(connection, id_, revision)
            if row["state"] in OPEN_STATES:
                return _as_incident(connection, row)
            if note:
                self._note(connection, row, actor, note)
            now_ms = self._control.now_ms(connection)
            values = {
                "state": IncidentState.OPEN.value, "closed_at_ms": None, "closed_by": None, "acknowledged_by": None,
                "acknowledged_at_ms": None, "reopened": row["reopened"] + 1, "evidence_at_ms": now_ms,
                "loss_counted_at_ms": now_ms,
            }  # fmt: skip
            new = change(self._control, connection, row, values, actor=actor, event="reopened")
            return self._told(connection, new, AlertReason.REOPENED, actor)

    def note(self, id_: str, actor: str, text: str) -> IncidentNote:
        """Add a note (<= 10,000 characters)."""
        with self._control.transaction() as connection:
            return self._note(connection, self._row(connection, id_, None), actor, text)

    def merge(self, into: str, ids: Sequence[str], actor: str) -> Incident:
        """Put incidents into another one for good: their findings, notes and history go along."""
        with self._control.transaction() as connection:
            target = resolved_id(connection, into)
            others = sorted({resolved_id(connection, id_) for id_ in ids} - {target})
            if not others:
                raise Refused(f"there is nothing to merge into incident {target} but itself")
            rows = locked(connection, [target, *others])
            now_ms = self._control.now_ms(connection)
            for id_ in others:
                self._take_over(connection, rows[target], rows[id_], actor, now_ms)
            count = sa.select(sa.func.count()).where(INCIDENT_FINDINGS.c.incident == target)
            values = {"findings_count": connection.execute(count).scalar_one()}
            new = change(
                self._control, connection, rows[target], values, actor=actor, event="merged", detail={"ids": others}
            )
            return self._told(connection, new, AlertReason.CHANGED, actor)

    def _take_over(
        self, connection: sa.Connection, target: Mapping[str, Any], row: dict[str, Any], actor: str, now_ms: int
    ) -> None:
        for id_ in (target["id"], row["id"]):
            mine = sa.select(INCIDENT_FINDINGS.c.finding).where(INCIDENT_FINDINGS.c.incident == id_)
            first = connection.execute(mine.order_by(INCIDENT_FINDINGS.c.detected_at_ms).limit(1)).scalar()
            pin = sa.update(INCIDENT_FINDINGS).where(INCIDENT_FINDINGS.c.finding == first)
            connection.execute(pin.values(pin=target["id"]))
        moved = sa.update(INCIDENT_FINDINGS).where(INCIDENT_FINDINGS.c.incident == row["id"])
        connection.execute(moved.values(incident=target["id"]))
        values = {"state": IncidentState.RESOLVED.value, "merged_into": target["id"], "closed_by": actor,
                  "closed_at_ms": row["closed_at_ms"] or now_ms} | with_loss(row, now_ms)  # fmt: skip
        new = change(
            self._control, connection, row, values, actor=actor, event="merged_into", detail={"into": target["id"]}
        )
        if new["thread"]:
            need(connection, new, AlertReason.RESOLVED, now_ms, {"merged_into": target["id"], "actor": actor})

    def _row(self, connection: sa.Connection, id_: str, revision: int | None) -> dict[str, Any]:
        known = resolved_id(connection, id_)
        row = locked(connection, [known])[known]
        if revision is not None and row["revision"] != revision:
            raise Refused(
                f"incident {known} changed meanwhile (revision {row['revision']}, not {revision}): look at it again"
            )
        return row

    def _note(self, connection: sa.Connection, row: dict[str, Any], author: str, text: str) -> IncidentNote:
        text = text.strip()
        if not text or len(text) > _LONGEST_NOTE:
            raise ConfigError(f"a note has 1 to {_LONGEST_NOTE} characters")
        now_ms = self._control.now_ms(connection)
        added = sa.insert(INCIDENT_NOTES).values(incident=row["id"], at_ms=now_ms, author=author, text=text)
        sequence = int(connection.execute(added.returning(INCIDENT_NOTES.c.sequence)).scalar_one())
        record(connection, row, author, "noted", {"note": sequence}, now_ms)
        project(
            self._control, connection, "incident_notes", row["id"],
            {"ts": now_ms, "cluster": row["cluster"], "incident": row["id"], "author": author, "text": text},
        )  # fmt: skip
        return IncidentNote(sequence, row["id"], now_ms, author, text)

    def _told(self, connection: sa.Connection, row: dict[str, Any], reason: AlertReason, actor: str) -> Incident:
        """Note a message where people have heard of the incident before."""
        if row["thread"]:
            need(connection, row, reason, row["updated_at_ms"], {"actor": actor})
        return _as_incident(connection, row)

    def _family(self, connection: sa.Connection, id_: str) -> list[str]:
        known = resolved_id(connection, id_)
        family, fresh = [known], [known]
        while fresh:
            fresh = list(
                connection.execute(sa.select(INCIDENTS.c.id).where(INCIDENTS.c.merged_into.in_(fresh))).scalars()
            )
            family += fresh
        return family


def _as_incident(connection: sa.Connection, row: Mapping[str, Any]) -> Incident:
    return incident_of(connection.execute(sa.select(INCIDENTS).where(INCIDENTS.c.id == row["id"])).one())


def _conditions(wanted: IncidentFilter) -> list[sa.ColumnElement[bool]]:
    table = INCIDENTS.c
    conditions: list[sa.ColumnElement[bool]] = []
    for column, values in (
        (table.state, wanted.states), (table.severity, wanted.severities), (table.kind, wanted.kinds),
        (table.cluster, wanted.clusters), (table.node, wanted.nodes), (table.job, wanted.jobs),
        (table.assignee, wanted.assignees),
    ):  # fmt: skip
        if values:
            conditions.append(column.in_([getattr(value, "value", value) for value in values]))
    if wanted.tenants is not None:
        conditions.append(table.tenant.in_(list(wanted.tenants)))
    if wanted.since_ms is not None:
        conditions.append(table.opened_at_ms >= wanted.since_ms)
    if wanted.until_ms is not None:
        conditions.append(table.opened_at_ms < wanted.until_ms)
    if wanted.quiet is not None:
        quiet = sa.or_(table.silenced_by.is_not(None), table.inhibited_by.is_not(None))
        conditions.append(quiet if wanted.quiet else sa.not_(quiet))
    if not wanted.merged:
        conditions.append(table.merged_into.is_(None))
    if wanted.text:
        found = [sa.func.lower(column).contains(wanted.text.lower(), autoescape=True)
                 for column in (table.title, table.summary, table.node, table.job, table.id)]  # fmt: skip
        conditions.append(sa.or_(*found))
    return conditions
