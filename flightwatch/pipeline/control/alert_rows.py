"""Rows of the alert tables as the rest of the program sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from flightwatch.core.incident import AlertReason
from flightwatch.core.vocabulary import Severity

WAITING, INTENT, SENT, FAILED, DROPPED, CARRIED = "waiting", "intent", "sent", "failed", "dropped", "carried"


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """A message to be sent.

    Attributes
    ----------
    id: deterministic, so that planning again changes nothing. thread: key of all messages about one incident.
    incident: "" for messages about the platform and for several incidents in one.
    loud: people must look again; the others change a message in place.
    detail: JSON-ready; what a platform message says.
    """

    id: str
    channel: str
    thread: str
    incident: str
    reason: AlertReason
    severity: Severity
    loud: bool = True
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredDelivery:
    """A message on its way, or past it.

    Attributes
    ----------
    may_repeat: an earlier attempt had an unknown outcome. epoch: of the lease under which the last attempt began.
    error: of the last failed attempt. latency_ms: time the service took.
    """

    sequence: int
    id: str
    channel: str
    thread: str
    incident: str
    reason: AlertReason
    severity: Severity
    state: str
    loud: bool
    detail: Mapping[str, Any]
    attempts: int
    may_repeat: bool
    epoch: int
    carried_by: str | None
    due_at_ms: int
    created_at_ms: int
    updated_at_ms: int
    http_status: int | None
    error: str | None
    latency_ms: float | None


@dataclass(frozen=True, slots=True)
class Thread:
    """What a channel was told about one incident.

    Attributes
    ----------
    reference: what the notifier needs to go on below the message. digest: thread of the message that told it together
    with others. reminders: sent since it opened or got worse.
    """

    channel: str
    thread: str
    incident: str
    severity: Severity
    reference: Mapping[str, Any]
    digest: str | None
    open: bool
    reminders: int
    first_at_ms: int
    last_at_ms: int


@dataclass(frozen=True, slots=True)
class ChannelState:
    """How a channel does. `reported_at_ms`: when the others were told that it takes no messages."""

    channel: str
    failures: int
    failing_since_ms: int | None
    last_error: str | None
    last_ok_at_ms: int | None
    reported_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Settled:
    """How one attempt ended.

    Attributes
    ----------
    state: sent, failed, dropped, or waiting (again at due_at_ms). closes: the thread is over.
    unknown: the service may have taken it.
    """

    state: str
    http_status: int | None = None
    error: str | None = None
    latency_ms: float | None = None
    reference: Mapping[str, Any] | None = None
    due_at_ms: int = 0
    unknown: bool = False
    closes: bool = False


def delivery_of(row: sa.Row[Any]) -> StoredDelivery:
    """Return the delivery of a row of `deliveries`."""
    cells = dict(row._mapping)
    cells |= {
        "reason": AlertReason(cells["reason"]),
        "severity": Severity(cells["severity"]),
        "detail": json.loads(cells["detail"]),
    }
    return StoredDelivery(**cells)


def thread_of(row: sa.Row[Any]) -> Thread:
    """Return the thread of a row of `alert_threads`."""
    cells = dict(row._mapping)
    return Thread(
        **(cells | {"severity": Severity(cells["severity"]), "reference": json.loads(cells["reference"])})
    )  # fmt: skip
