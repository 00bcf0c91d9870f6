"""What an action is, as the control database holds it, and when an approval of one holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: How long an approval may be used.
APPROVAL_MS = 15 * 60_000
#: States from which nothing follows.
ENDED = ("done", "failed", "undone", "rejected", "expired")
#: States in which somebody or something is still expected.
WAITING = ("proposed", "approved", "running")
STOP_SWITCH = "actions_stopped"


@dataclass(frozen=True, slots=True)
class Action:
    """One action.

    Attributes
    ----------
    id: deterministic by incident, kind and node. kind: drain, return, drop_replica, replace_rank.
    revision: of the incident when it was proposed, 0 without one.
    mode: dry_run, approve, automatic. state: proposed, approved, running, done, failed, undone, rejected, expired.
    actor: person or rule that wants it. cost: figures behind it (JSON-ready).
    waits_for: what it waits for after approval ("the next durable checkpoint"), None when for nothing.
    outcome: the actuator's answer. undo: how to take it back.
    """

    id: str
    incident: str | None
    revision: int
    kind: str
    node: str
    mode: str
    state: str
    actor: str
    reason: str
    created_at_ms: int
    updated_at_ms: int
    job: str | None = None
    rank: int | None = None
    tenant: str | None = None
    cost: Mapping[str, Any] = field(default_factory=dict)
    waits_for: str | None = None
    actuator: str | None = None
    outcome: str | None = None
    undo: str | None = None
    applied_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a rule or a person wants done; see `Action` for the fields."""

    id: str
    kind: str
    node: str
    mode: str
    actor: str
    reason: str
    incident: str | None = None
    revision: int = 0
    job: str | None = None
    rank: int | None = None
    tenant: str | None = None
    cost: Mapping[str, Any] = field(default_factory=dict)
    waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch for everything: whether it is on, who set it, when and why."""

    is_on: bool
    actor: str
    reason: str
    at_ms: int


def action_of(row: Any) -> Action:
    """Return the action of a row of the table."""
    values = dict(row._mapping)
    values["cost"] = json.loads(values["cost"])
    return Action(**values)


def digest(secret: str) -> str:
    """Return what is kept of an approval's secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def target_of(action: Action) -> str:
    """Return what an approval of the action is bound to."""
    return f"{action.kind}:{action.node}:{action.job or ''}:{'' if action.rank is None else action.rank}"


def problem_of(action: Action, approval: Any, subject: str, incident_revision: int | None, now_ms: int) -> str:
    """Return why an approval (a row, or None) does not hold, "" when it does.

    Parameters
    ----------
    incident_revision: present one; the approval was given at another when the incident has changed since.
    """
    if approval is None or approval.action != action.id or approval.target != target_of(action):
        return "this approval is not for this action"
    if approval.subject != subject:
        return "this approval was given to somebody else"
    if approval.used_at_ms is not None:
        return "this approval was used already"
    if approval.expires_at_ms <= now_ms:
        return "this approval expired: ask again"
    if action.state != "proposed":
        return f"the action is {action.state}"
    if approval.revision != (incident_revision or 0):
        return "the incident changed since: look at it again"
    return ""
