"""Incidents: lists, one with its evidence, and what people do with them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field

from flightwatch.core.errors import NotFound
from flightwatch.core.incident import Incident, IncidentState
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.api.documents import details_model, document_of, model_of, page_model, page_of
from flightwatch.dashboard.api.inputs import Cursor, Id, Limit, Moment, Note, Word, Words, moment_ms
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes, check_tenant
from flightwatch.pipeline.control.incident_rows import HistoryEntry, IncidentFilter, IncidentFinding, IncidentNote
from flightwatch.pipeline.control.roles import Role

IncidentModel = model_of(Incident)
IncidentPage = page_model(IncidentModel, "IncidentPage")
NoteModel = model_of(IncidentNote)
IncidentDetail = details_model(
    "IncidentDetail",
    "An incident with its findings (the root first), its notes and its history (the oldest first).",
    {"incident": IncidentModel},
    {"findings": model_of(IncidentFinding), "notes": NoteModel, "history": model_of(HistoryEntry)},
)


class Counts(BaseModel):
    """Incidents by state, and open ones by severity."""

    by_state: dict[str, int]
    open_by_severity: dict[str, int]


class Change(BaseModel):
    """A change of an incident. `revision`: what you saw; another present one refuses the change."""

    note: Note | None = None
    revision: int | None = Field(None, ge=0, le=2**53)


class Resolution(Change):
    """How an incident is closed."""

    state: Literal["resolved", "false_positive"] = "resolved"


class Assignment(BaseModel):
    """To whom an incident is given; null: to nobody."""

    assignee: Word | None
    revision: int | None = Field(None, ge=0, le=2**53)


class NewNote(BaseModel):
    """A note on an incident."""

    text: Note


class Merge(BaseModel):
    """Incidents that are put into another one for good."""

    ids: list[Word] = Field(min_length=1, max_length=100)


def seen(parts: Parts, viewer: Viewer, id_: str) -> Incident:
    """Return an incident that a viewer may see. Raises NotFound."""
    found = parts.incidents.get(id_)
    if not viewer.sees_tenant(found.tenant):
        raise NotFound(f"there is no incident {id_}")
    return found


def _to_change(parts: Parts, viewer: Viewer, id_: str) -> Incident:
    found = seen(parts, viewer, id_)
    check_tenant(viewer, Role.OPERATOR, found.tenant)
    return found


def routes(parts: Parts) -> Routes:
    """Build the routes below `/incidents`."""
    api = Routes("incidents")
    _reads(api, parts)
    _writes(api, parts)
    return api


def _reads(api: Routes, parts: Parts) -> None:
    @api.get("/incidents", Role.VIEWER, response_model=IncidentPage)
    def list_incidents(
        viewer: Asker,
        state: Annotated[list[IncidentState], Query(max_length=4)] = [],  # noqa: B006 - FastAPI copies it
        severity: Annotated[list[Literal["P1", "P2", "P3", "P4", "info"]], Query(max_length=5)] = [],  # noqa: B006
        kind: Words = [],  # noqa: B006
        cluster: Words = [],  # noqa: B006
        node: Words = [],  # noqa: B006
        job: Words = [],  # noqa: B006
        assignee: Words = [],  # noqa: B006
        text: Annotated[Word | None, Query(description="part of title, summary, node, job or id")] = None,
        since: Moment | None = None,
        until: Moment | None = None,
        quiet: Annotated[bool | None, Query(description="silenced or inhibited ones only, or the others")] = None,
        cursor: Cursor | None = None,
        limit: Limit = 50,
    ) -> dict[str, Any]:
        """List incidents, the newest first."""
        wanted = IncidentFilter(
            states=[one.value for one in state], severities=severity, kinds=kind, clusters=cluster, nodes=node,
            jobs=job, assignees=assignee, tenants=None if viewer.tenants is None else sorted(viewer.tenants),
            text=text or "", since_ms=moment_ms(since, "since"), until_ms=moment_ms(until, "until"), quiet=quiet,
        )  # fmt: skip
        page = parts.incidents.page(wanted, cursor, limit)
        return page_of(map(document_of, page.items), page.next_cursor)

    @api.get("/incidents/counts", Role.VIEWER, response_model=Counts)
    def count_incidents(viewer: Asker) -> dict[str, Any]:
        """Count incidents by state, and open ones by severity."""
        counts = parts.incidents.counts(None if viewer.tenants is None else sorted(viewer.tenants))
        states = [state.value for state in IncidentState]
        return {
            "by_state": {name: number for name, number in counts.items() if name in states},
            "open_by_severity": {name: number for name, number in counts.items() if name not in states},
        }

    @api.get("/incidents/{id}", Role.VIEWER, response_model=IncidentDetail)
    def get_incident(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """Return an incident with its findings, notes and history."""
        found = seen(parts, viewer, id)
        return {
            "incident": document_of(found),
            "findings": [document_of(one) for one in parts.incidents.findings(found.id)],
            "notes": [document_of(one) for one in parts.incidents.notes(found.id)],
            "history": [document_of(one) for one in parts.incidents.history(found.id)],
        }


def _writes(api: Routes, parts: Parts) -> None:
    @api.post("/incidents/{id}/acknowledge", Role.OPERATOR, response_model=IncidentModel)
    def acknowledge(viewer: Asker, id: Id, change: Change) -> dict[str, Any]:  # noqa: A002
        """Say that you work on it."""
        found = _to_change(parts, viewer, id)
        new = parts.incidents.acknowledge(found.id, viewer.subject, change.note, change.revision)
        parts.done(viewer, "incident.acknowledge", found.id, change.note or "")
        return document_of(new)

    @api.post("/incidents/{id}/assign", Role.OPERATOR, response_model=IncidentModel)
    def assign(viewer: Asker, id: Id, change: Assignment) -> dict[str, Any]:  # noqa: A002
        """Give it to somebody."""
        found = _to_change(parts, viewer, id)
        new = parts.incidents.assign(found.id, viewer.subject, change.assignee, change.revision)
        parts.done(viewer, "incident.assign", found.id, change.assignee or "nobody")
        return document_of(new)

    @api.post("/incidents/{id}/resolve", Role.OPERATOR, response_model=IncidentModel)
    def resolve(viewer: Asker, id: Id, change: Resolution) -> dict[str, Any]:  # noqa: A002
        """Close it, as resolved or as a false positive."""
        found = _to_change(parts, viewer, id)
        state = IncidentState(change.state)
        new = parts.incidents.resolve(found.id, viewer.subject, state, change.note, change.revision)
        parts.done(viewer, "incident.resolve", found.id, " ".join(filter(None, (change.state, change.note))))
        return document_of(new)

    @api.post("/incidents/{id}/reopen", Role.OPERATOR, response_model=IncidentModel)
    def reopen(viewer: Asker, id: Id, change: Change) -> dict[str, Any]:  # noqa: A002
        """Open a closed one again."""
        found = _to_change(parts, viewer, id)
        new = parts.incidents.reopen(found.id, viewer.subject, change.note, change.revision)
        parts.done(viewer, "incident.reopen", found.id, change.note or "")
        return document_of(new)

    @api.post("/incidents/{id}/notes", Role.OPERATOR, status_code=201, response_model=NoteModel)
    def add_note(viewer: Asker, id: Id, note: NewNote) -> dict[str, Any]:  # noqa: A002
        """Add a note."""
        found = _to_change(parts, viewer, id)
        new = parts.incidents.note(found.id, viewer.subject, note.text)
        parts.done(viewer, "incident.note", found.id, note.text)
        return document_of(new)

    @api.post("/incidents/{id}/merge", Role.OPERATOR, response_model=IncidentModel)
    def merge(viewer: Asker, id: Id, others: Merge) -> dict[str, Any]:  # noqa: A002
        """Put other incidents into this one for good."""
        found = _to_change(parts, viewer, id)
        ids = [_to_change(parts, viewer, one).id for one in others.ids]
        new = parts.incidents.merge(found.id, ids, viewer.subject)
        parts.done(viewer, "incident.merge", found.id, json.dumps(ids))
        return document_of(new)
