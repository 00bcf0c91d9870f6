"""Actions on nodes and live jobs: proposed, approved, done, undone, each change with its projection and audit."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from flightwatch.core.errors import NotFound, Refused
from flightwatch.pipeline.control.action_model import (
    APPROVAL_MS,
    STOP_SWITCH,
    WAITING,
    Action,
    Proposal,
    Switch,
    action_of,
    digest,
    problem_of,
    target_of,
)
from flightwatch.pipeline.control.audit import AuditLog
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.control.schema_actions import ACTIONS, APPROVALS, DRAINS, SWITCHES

PROJECTION = "projection:actions"
_LONGEST = 2_000


class ActionRecords:
    """Reads and changes actions; each call is one transaction. Raises TransientError when the database is away."""

    def __init__(self, control: Control, cluster: str) -> None:
        self._control = control
        self._cluster = cluster
        self._audit = AuditLog(control)

    # Reads --------------------------------------------------------------------------------------------------------

    def get(self, id_: str) -> Action:
        """Return an action. Raises NotFound."""
        with self._control.reading() as connection:
            return self._read(connection, id_)

    def page(
        self,
        *,
        states: Sequence[str] = (),
        node: str | None = None,
        incident: str | None = None,
        tenants: Sequence[str] | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 100,
    ) -> list[Action]:
        """Return actions, the newest first.

        Parameters
        ----------
        tenants: only actions on jobs of these; None: all. before: (created_at_ms, id) of the last one seen.
        """
        chosen = sa.select(ACTIONS).order_by(ACTIONS.c.created_at_ms.desc(), ACTIONS.c.id.desc()).limit(limit)
        if states:
            chosen = chosen.where(ACTIONS.c.state.in_(states))
        if node is not None:
            chosen = chosen.where(ACTIONS.c.node == node)
        if incident is not None:
            chosen = chosen.where(ACTIONS.c.incident == incident)
        if tenants is not None:
            chosen = chosen.where(ACTIONS.c.tenant.in_(tenants))
        if before is not None:
            at_ms, id_ = before
            earlier = sa.and_(ACTIONS.c.created_at_ms == at_ms, ACTIONS.c.id < id_)
            chosen = chosen.where(sa.or_(ACTIONS.c.created_at_ms < at_ms, earlier))
        with self._control.reading() as connection:
            return [action_of(row) for row in connection.execute(chosen)]

    def drained_since(self, since_ms: int) -> list[Action]:
        """Return drains applied since a time, undone ones too: what a circuit breaker counts."""
        chosen = sa.select(ACTIONS).where(
            ACTIONS.c.kind == "drain", ACTIONS.c.applied_at_ms >= since_ms, ACTIONS.c.mode != "dry_run",
            ACTIONS.c.state.in_(("running", "done", "undone")),
        )  # fmt: skip
        with self._control.reading() as connection:
            return [action_of(row) for row in connection.execute(chosen)]

    def drains(self) -> dict[str, str]:
        """Return nodes that are out because of us, each with the action that took it out."""
        with self._control.reading() as connection:
            return {row.node: row.action for row in connection.execute(sa.select(DRAINS))}

    def stop_switch(self) -> Switch:
        """Return whether all actions are stopped."""
        with self._control.reading() as connection:
            row = connection.execute(sa.select(SWITCHES).where(SWITCHES.c.name == STOP_SWITCH)).one_or_none()
        return Switch(False, "", "", 0) if row is None else Switch(row.is_on, row.actor, row.reason, row.at_ms)

    # What people do -----------------------------------------------------------------------------------------------

    def set_stop_switch(self, is_on: bool, actor: str, reason: str, address: str | None = None) -> None:
        """Stop all actions, or allow them again."""
        with self._control.transaction() as connection:
            values = {
                "is_on": is_on,
                "actor": actor,
                "reason": reason[:_LONGEST],
                "at_ms": self._control.now_ms(connection),
            }
            changed = connection.execute(sa.update(SWITCHES).where(SWITCHES.c.name == STOP_SWITCH).values(values))
            if not changed.rowcount:
                connection.execute(sa.insert(SWITCHES).values(name=STOP_SWITCH, **values))
            what = "action.stop_all" if is_on else "action.allow_again"
            self._audit.record(connection, actor, what, "all nodes", True, reason, address=address)

    def new_approval(self, id_: str, subject: str, incident_revision: int | None) -> str:
        """Return a secret with which `subject` may approve the action once, within 15 minutes.

        Parameters
        ----------
        incident_revision: of the incident as the person sees it, None when the action has none.

        Raises
        ------
        NotFound: no such action. Refused: it does not wait for an approval.
        """
        with self._control.transaction() as connection:
            action = self._read(connection, id_)
            if action.state != "proposed":
                raise Refused(f"the action {id_} is {action.state}: there is nothing to approve")
            secret = secrets.token_urlsafe(24)
            connection.execute(
                sa.insert(APPROVALS).values(
                    digest=digest(secret), action=id_, revision=incident_revision or 0, target=target_of(action),
                    subject=subject, expires_at_ms=self._control.now_ms(connection) + APPROVAL_MS,
                )
            )  # fmt: skip
            return secret

    def approve(
        self, id_: str, secret: str, subject: str, incident_revision: int | None, address: str | None = None
    ) -> Action:
        """Approve an action with the secret of `new_approval`; it is carried out by the engine.

        Parameters
        ----------
        incident_revision: present revision of the action's incident, None when it has none.

        Raises
        ------
        NotFound: no such action. Refused: the secret is wrong, used, expired or another person's, or the incident or
            the action has changed since; the refusal is in the audit log.
        """
        problem, action = "", None
        with self._control.transaction() as connection:
            action = self._read(connection, id_, lock=True)
            found = connection.execute(
                sa.select(APPROVALS).where(APPROVALS.c.digest == digest(secret)).with_for_update()
            ).one_or_none()
            now_ms = self._control.now_ms(connection)
            problem = problem_of(action, found, subject, incident_revision, now_ms)
            if not problem:
                connection.execute(
                    sa.update(APPROVALS).where(APPROVALS.c.digest == digest(secret)).values(used_at_ms=now_ms)
                )
                action = self._change(connection, action, state="approved", actor=subject)
            self._audit.record(
                connection, subject, "action.approve", f"{id_} {action.node}", not problem, problem or action.reason,
                address=address,
            )  # fmt: skip
        if problem:
            raise Refused(problem)
        return action

    def reject(self, id_: str, actor: str, reason: str, address: str | None = None) -> Action:
        """Say no to a proposed or approved action. Raises NotFound, Refused (it runs or has ended)."""
        with self._control.transaction() as connection:
            action = self._read(connection, id_, lock=True)
            if action.state not in ("proposed", "approved"):
                raise Refused(f"the action {id_} is {action.state}: it can no longer be rejected")
            self._audit.record(
                connection, actor, "action.reject", f"{id_} {action.node}", True, reason, address=address
            )
            return self._change(
                connection, action, state="rejected", outcome=f"rejected by {actor}: {reason}"[:_LONGEST]
            )

    def request(self, proposal: Proposal, address: str | None = None) -> Action:
        """Take a person's own wish (a drain or a return by hand); it waits for its approval.

        Raises
        ------
        Refused: the same action waits or runs already.
        """
        with self._control.transaction() as connection:
            known = connection.execute(sa.select(ACTIONS).where(ACTIONS.c.id == proposal.id)).one_or_none()
            if known is not None and known.state in WAITING:
                raise Refused(f"the action {proposal.id} is {known.state} already")
            self._audit.record(
                connection, proposal.actor, "action.request", f"{proposal.kind} {proposal.node}", True,
                proposal.reason, address=address,
            )  # fmt: skip
            return self._put(connection, proposal, known is not None)

    # What the engine does -----------------------------------------------------------------------------------------

    def propose(self, lease: Lease, proposal: Proposal, state: str = "proposed") -> Action | None:
        """Store what a rule wants; None when it was proposed before (an ended one is not proposed again).

        Raises
        ------
        StaleGeneration: another process is the engine now.
        """
        with self._control.leases.guarded(lease) as connection:
            if connection.execute(sa.select(ACTIONS.c.id).where(ACTIONS.c.id == proposal.id)).one_or_none():
                return None
            self._audit.record(
                connection, proposal.actor, f"action.{state}", f"{proposal.kind} {proposal.node}", True, proposal.reason
            )
            return self._put(connection, proposal, False, state)

    def begin(self, lease: Lease, id_: str) -> Action | None:
        """Mark an approved action as running, before anything is done; None when it is not approved any more.

        What a process that died left running is taken up again by the next: actuators do nothing twice.
        """
        with self._control.leases.guarded(lease) as connection:
            action = self._read(connection, id_, lock=True)
            if action.state not in ("approved", "running"):
                return None
            return self._change(connection, action, state="running", applied_at_ms=self._control.now_ms(connection))

    def wait(self, lease: Lease, id_: str, reason: str | None) -> None:
        """Note what an approved action waits for, None: for nothing any more."""
        with self._control.leases.guarded(lease) as connection:
            action = self._read(connection, id_, lock=True)
            if action.waits_for != reason:
                self._change(connection, action, waits_for=reason)

    def finish(
        self, lease: Lease, id_: str, *, ok: bool, actuator: str, outcome: str, undo: str | None, changed: bool
    ) -> Action:
        """Store what an actuator did; a drain it `changed` is ours from now on, a return that is done ends it."""
        with self._control.leases.guarded(lease) as connection:
            action = self._read(connection, id_, lock=True)
            values: dict[str, Any] = {"state": "done" if ok else "failed", "actuator": actuator, "undo": undo}
            if ok and action.mode != "dry_run" and (changed or action.kind == "return"):
                self._note_drain(connection, action, actuator)
            self._audit.record(connection, action.actor, f"action.{action.kind}", action.node, ok, outcome)
            return self._change(connection, action, outcome=outcome[:_LONGEST], waits_for=None, **values)

    def expire(self, lease: Lease, id_: str, reason: str) -> None:
        """Close a proposal nobody wants any more (its incident ended, its age)."""
        with self._control.leases.guarded(lease) as connection:
            action = self._read(connection, id_, lock=True)
            if action.state in ("proposed", "approved"):
                self._change(connection, action, state="expired", outcome=reason[:_LONGEST])

    def forget_drain(self, lease: Lease, node: str) -> None:
        """Note that a node is no longer out by us: somebody else brought it back."""
        with self._control.leases.guarded(lease) as connection:
            connection.execute(sa.delete(DRAINS).where(DRAINS.c.node == node))

    # Parts --------------------------------------------------------------------------------------------------------

    def _note_drain(self, connection: sa.Connection, action: Action, actuator: str) -> None:
        if action.kind not in ("drain", "return"):
            return
        row = connection.execute(
            sa.delete(DRAINS).where(DRAINS.c.node == action.node).returning(DRAINS.c.action)
        ).first()
        if action.kind == "drain":
            connection.execute(
                sa.insert(DRAINS).values(
                    node=action.node, actuator=actuator, action=action.id, placed_at_ms=self._control.now_ms(connection)
                )
            )
        elif row is not None:
            drained = connection.execute(sa.select(ACTIONS).where(ACTIONS.c.id == row.action)).one_or_none()
            if drained is not None and drained.state == "done":
                self._change(connection, action_of(drained), state="undone")

    def _put(self, connection: sa.Connection, proposal: Proposal, again: bool, state: str = "proposed") -> Action:
        now_ms = self._control.now_ms(connection)
        values = {
            "incident": proposal.incident, "revision": proposal.revision, "kind": proposal.kind, "node": proposal.node,
            "job": proposal.job, "rank": proposal.rank, "tenant": proposal.tenant, "mode": proposal.mode,
            "state": state, "actor": proposal.actor, "reason": proposal.reason[:_LONGEST],
            "cost": json.dumps(dict(proposal.cost)), "waits_for": proposal.waits_for, "actuator": None, "outcome": None,
            "undo": None, "created_at_ms": now_ms, "updated_at_ms": now_ms, "applied_at_ms": None,
        }  # fmt: skip
        if again:
            connection.execute(sa.update(ACTIONS).where(ACTIONS.c.id == proposal.id).values(values))
        else:
            connection.execute(sa.insert(ACTIONS).values(id=proposal.id, **values))
        action = self._read(connection, proposal.id)
        self._project(connection, action)
        return action

    def _change(self, connection: sa.Connection, action: Action, **values: Any) -> Action:
        values["updated_at_ms"] = self._control.now_ms(connection)
        connection.execute(sa.update(ACTIONS).where(ACTIONS.c.id == action.id).values(values))
        changed = self._read(connection, action.id)
        self._project(connection, changed)
        return changed

    def _project(self, connection: sa.Connection, action: Action) -> None:
        row = {
            "ts": action.updated_at_ms, "cluster": self._cluster, "id": action.id, "incident": action.incident,
            "node": action.node, "kind": action.kind, "mode": action.mode, "state": action.state,
            "actor": action.actor, "outcome": action.outcome or action.waits_for,
        }  # fmt: skip
        self._control.outbox.append(connection, PROJECTION, action.id, row)

    def _read(self, connection: sa.Connection, id_: str, *, lock: bool = False) -> Action:
        chosen = sa.select(ACTIONS).where(ACTIONS.c.id == id_)
        row = connection.execute(chosen.with_for_update() if lock else chosen).one_or_none()
        if row is None:
            raise NotFound(f"there is no action {id_[:80]}")
        return action_of(row)
