"""Actions on nodes and live jobs: what waits, approvals, refusals, the stop switch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field, StringConstraints

from flightwatch.core.clock import iso_utc
from flightwatch.core.errors import NotFound
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.api import incidents
from flightwatch.dashboard.api.documents import document_of, model_of, page_model, page_of
from flightwatch.dashboard.api.inputs import Cursor, Id, Limit, Sentence, Word, cursor_of, parse_cursor
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes, check_tenant
from flightwatch.incidents.actions import action_id
from flightwatch.pipeline.control.action_model import APPROVAL_MS, Action, Proposal, Switch
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.store.capacity_reads import known_nodes

ActionModel = model_of(Action)
ActionPage = page_model(ActionModel, "ActionPage")
SwitchModel = model_of(Switch, name="StopSwitch")
State = Literal["proposed", "approved", "running", "done", "failed", "undone", "rejected", "expired"]


class NewAction(BaseModel):
    """A person's own wish. It waits for its approval like any other action."""

    kind: Literal["drain", "return", "drop_replica", "replace_rank"]
    node: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")]
    reason: Sentence
    incident: Word | None = None
    job: Word | None = None
    rank: int | None = Field(None, ge=0, le=2**31 - 1)


class WantApproval(BaseModel):
    """Asks for an approval. `incident_revision`: of the incident as you see it."""

    incident_revision: int | None = Field(None, ge=0, le=2**53)


class Approval(BaseModel):
    """A right to approve one action once, by the one who asked for it, while its incident stays as it is."""

    approval: str
    expires_at: str


class Approve(BaseModel):
    """The approval that was given for this action."""

    approval: Word


class Reason(BaseModel):
    """Why."""

    reason: Sentence


class SetSwitch(Reason):
    """Stops all actions, or allows them again."""

    is_on: bool


def seen(parts: Parts, viewer: Viewer, id_: str) -> Action:
    """Return an action that a viewer may see. Raises NotFound."""
    found = parts.actions.get(id_)
    if not viewer.sees_tenant(found.tenant):
        raise NotFound(f"there is no action {id_}")
    return found


def _to_change(parts: Parts, viewer: Viewer, id_: str) -> Action:
    found = seen(parts, viewer, id_)
    check_tenant(viewer, Role.OPERATOR, found.tenant)
    return found


def routes(parts: Parts) -> Routes:
    """Build the routes below `/actions`."""
    api = Routes("actions")
    _switch(api, parts)
    _reads(api, parts)
    _requests(api, parts)
    _decisions(api, parts)
    return api


def _reads(api: Routes, parts: Parts) -> None:
    @api.get("/actions", Role.VIEWER, response_model=ActionPage)
    def list_actions(
        viewer: Asker,
        state: Annotated[list[State], Query(max_length=8)] = [],  # noqa: B006 - FastAPI copies it
        node: Annotated[Word | None, Query()] = None,
        incident: Annotated[Word | None, Query()] = None,
        cursor: Cursor | None = None,
        limit: Limit = 50,
    ) -> dict[str, Any]:
        """List actions, the newest first."""
        before = parse_cursor(cursor, int, str)
        found = parts.actions.page(
            states=state, node=node, incident=incident, limit=limit + 1,
            tenants=None if viewer.tenants is None else sorted(viewer.tenants),
            before=None if before is None else (before[0], before[1]),
        )  # fmt: skip
        last = found[limit - 1] if len(found) > limit else None
        return page_of(
            map(document_of, found[:limit]), None if last is None else cursor_of(last.created_at_ms, last.id)
        )

    @api.get("/actions/{id}", Role.VIEWER, response_model=ActionModel)
    def get_action(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """Return an action with the figures behind it."""
        return document_of(seen(parts, viewer, id))


def _requests(api: Routes, parts: Parts) -> None:
    @api.post("/actions", Role.OPERATOR, status_code=201, response_model=ActionModel)
    def request_action(viewer: Asker, new: NewAction) -> dict[str, Any]:
        """Ask for an action on a node that is known."""
        incident = incidents.seen(parts, viewer, new.incident) if new.incident else None
        tenant = incident.tenant if incident else None
        check_tenant(viewer, Role.OPERATOR, tenant)
        cluster = incident.cluster if incident else parts.cluster
        if new.node not in known_nodes(parts.services.store, cluster):
            raise NotFound(f"the inventory of cluster {cluster} knows no node {new.node}")
        proposal = Proposal(
            id=action_id(incident.id if incident else "", new.kind, new.node), kind=new.kind, node=new.node,
            mode="approve", actor=viewer.subject, reason=new.reason, incident=incident.id if incident else None,
            revision=incident.revision if incident else 0, job=new.job or (incident.job if incident else None),
            rank=new.rank, tenant=tenant,
        )  # fmt: skip
        return document_of(parts.actions.request(proposal, viewer.address))


def _decisions(api: Routes, parts: Parts) -> None:
    @api.post("/actions/{id}/approval", Role.OPERATOR, status_code=201, response_model=Approval)
    def ask_approval(viewer: Asker, id: Id, wanted: WantApproval) -> dict[str, Any]:  # noqa: A002
        """Get the right to approve this action: once, within 15 minutes, while its incident does not change."""
        found = _to_change(parts, viewer, id)
        secret = parts.actions.new_approval(found.id, viewer.subject, wanted.incident_revision)
        return {"approval": secret, "expires_at": iso_utc(parts.clock.now_ms() + APPROVAL_MS)}

    @api.post("/actions/{id}/approve", Role.OPERATOR, response_model=ActionModel)
    def approve_action(viewer: Asker, id: Id, given: Approve) -> dict[str, Any]:  # noqa: A002
        """Approve it; the engine carries it out."""
        found = _to_change(parts, viewer, id)
        revision = parts.incidents.get(found.incident).revision if found.incident else None
        return document_of(parts.actions.approve(found.id, given.approval, viewer.subject, revision, viewer.address))

    @api.post("/actions/{id}/reject", Role.OPERATOR, response_model=ActionModel)
    def reject_action(viewer: Asker, id: Id, why: Reason) -> dict[str, Any]:  # noqa: A002
        """Say no to it."""
        found = _to_change(parts, viewer, id)
        return document_of(parts.actions.reject(found.id, viewer.subject, why.reason, viewer.address))


def _switch(api: Routes, parts: Parts) -> None:
    @api.get("/actions/stop-switch", Role.VIEWER, response_model=SwitchModel)
    def get_stop_switch(viewer: Asker) -> dict[str, Any]:
        """Say whether all actions are stopped."""
        return document_of(parts.actions.stop_switch())

    @api.put("/actions/stop-switch", Role.OPERATOR, response_model=SwitchModel)
    def set_stop_switch(viewer: Asker, wanted: SetSwitch) -> dict[str, Any]:
        """Stop all actions (operators), or allow them again (administrators)."""
        check_tenant(viewer, Role.OPERATOR if wanted.is_on else Role.ADMIN, None)
        parts.actions.set_stop_switch(wanted.is_on, viewer.subject, wanted.reason, viewer.address)
        return document_of(parts.actions.stop_switch())
