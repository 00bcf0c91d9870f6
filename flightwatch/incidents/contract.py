"""Words shared by the engine, the alerts and the actions: what an incident is, what a channel and an actuator do.

Times are milliseconds since the epoch (UTC), None where unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from flightwatch.core.incident import AlertReason, Incident, IncidentState, Progress
from flightwatch.core.vocabulary import Severity

__all__ = [
    "ActionRequest",
    "Actuator",
    "Alert",
    "AlertReason",
    "Delivery",
    "Disclosure",
    "Incident",
    "IncidentState",
    "Notifier",
    "Outcome",
    "Progress",
]


class Disclosure(str, Enum):
    """How much a channel may learn: MINIMAL names no job, node or cause; STANDARD leaves out loss values, stacks and
    module names; FULL says everything."""

    MINIMAL = "minimal"
    STANDARD = "standard"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Alert:
    """One message about one incident (or about several of one cause), rendered for one channel.

    Attributes
    ----------
    key: the same for every message about this incident (deduplication key of services that have one).
    idempotency_key: the same for every attempt of this message.
    title: one line. lead: the part a tired person reads first (<= 600 characters). body: lead and details, Markdown.
    facts: label and value pairs of the details, in order. link: page of the incident, "" when the console has no URL.
    picture: PNG of the evidence, None when there is none. language: "en" or "zh".
    buttons: label and value (`incidents.buttons`) of what people may press, where the service has buttons.
    """

    key: str
    idempotency_key: str
    reason: AlertReason
    severity: Severity
    title: str
    lead: str
    body: str
    facts: Sequence[tuple[str, str]]
    link: str
    at_ms: int
    opened_at_ms: int
    cluster: str
    incident: Incident | None = None
    picture: bytes | None = None
    language: str = "en"
    buttons: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a channel answered to one attempt.

    Attributes
    ----------
    ok: the service took the message. retry: worth trying again. retry_after_seconds: when the service said so.
    reference: what is needed to update or answer in the thread of this message (JSON-ready).
    unknown: no answer came, so the service may have taken the message all the same.
    """

    ok: bool
    http_status: int | None = None
    error: str | None = None
    retry: bool = True
    retry_after_seconds: float | None = None
    reference: Mapping[str, Any] = field(default_factory=dict)
    latency_ms: float | None = None
    unknown: bool = False


@runtime_checkable
class Notifier(Protocol):
    """One channel to people.

    Attributes
    ----------
    name: of the channel, from the settings. service: "slack", "feishu", ...
    idempotent: the service drops a repeat with the same key, so an attempt of unknown outcome is repeated silently.
    updates: a message that was sent can be changed, so small changes may be told.
    pages: it wakes people by rules of its own; such channels get P1 and P2 only unless a route says otherwise.
    per_minute: messages that the service takes a minute. takes_pictures: it shows a picture of the evidence.
    """

    name: str
    service: str
    idempotent: bool
    updates: bool
    pages: bool
    per_minute: float
    takes_pictures: bool

    def send(self, alert: Alert, reference: Mapping[str, Any] | None) -> Delivery:
        """Send a message, or update the message of `reference`. Never raises for what a service can do."""


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """Something to be done to a node or a live job.

    Attributes
    ----------
    id: deterministic by incident, kind and target. kind: "drain", "return", "drop_replica", "replace_rank".
    reason: one sentence that the scheduler keeps and other operators read.
    """

    id: str
    kind: str
    node: str
    reason: str
    actor: str
    incident: str | None = None
    job: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an actuator did.

    Attributes
    ----------
    ok: it is done (or was already so). changed: this call changed something. message: one sentence with the answer.
    undo: how to take it back, None when there is nothing to take back.
    """

    ok: bool
    changed: bool
    message: str
    undo: str | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a scheduler says of one node.

    Attributes
    ----------
    usable: up and taking work. out: taking no new work, whoever wanted that. ours: out with Flightwatch's mark.
    why: the scheduler's reason, "" when it gives none.
    """

    usable: bool
    out: bool
    ours: bool = False
    why: str = ""


@runtime_checkable
class Actuator(Protocol):
    """One way to take a node out of work and to bring it back, or to change a live job.

    Attributes
    ----------
    name: for outcomes. kinds: of the actions it can do.
    """

    name: str
    kinds: Sequence[str]

    def apply(self, request: ActionRequest) -> Outcome:
        """Do it, or find that it is done already; never raises for what the scheduler can do."""

    def nodes(self) -> Mapping[str, NodeView] | None:
        """Return what the scheduler says of every node; None when it does not say, or does not answer."""
