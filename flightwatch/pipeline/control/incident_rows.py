"""Rows of the incident tables as the rest of the program sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from flightwatch.core.errors import ConfigError
from flightwatch.core.incident import AlertReason, Incident, IncidentState, Progress
from flightwatch.core.vocabulary import Severity

T = TypeVar("T")
#: Columns of an incident that are attributes of `Incident`.
_PLAIN = tuple(field.name for field in fields(Incident) if field.name not in ("state", "severity", "progress"))
OPEN_STATES = (IncidentState.OPEN.value, IncidentState.ACKNOWLEDGED.value)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list.

    Attributes
    ----------
    next_cursor: what to ask for to go on, None at the end.
    """

    items: Sequence[T]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Which incidents to list; an empty or None field lets all pass.

    Attributes
    ----------
    tenants: None: all; a set: only incidents of these tenants (those without a tenant are nobody's).
    text: part of title, summary, node, job or id, in any case.
    since_ms, until_ms: opened in this time. quiet: silenced or inhibited ones only (True) or the others (False).
    merged: also rows that another incident took over.
    """

    states: Sequence[str] = ()
    severities: Sequence[str] = ()
    kinds: Sequence[str] = ()
    clusters: Sequence[str] = ()
    nodes: Sequence[str] = ()
    jobs: Sequence[str] = ()
    tenants: Sequence[str] | None = None
    assignees: Sequence[str] = ()
    text: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    quiet: bool | None = None
    merged: bool = False


@dataclass(frozen=True, slots=True)
class IncidentFinding:
    """One finding of an incident, by its newest statement.

    Attributes
    ----------
    parent: the finding that explains this one, None for a root. why: the words of the rule.
    detected_at_ms: first statement. stated_at_ms: newest statement. evidence: parsed; {} when it was too long to keep.
    """

    finding: str
    incident: str
    detector: str
    detector_version: str
    kind: str
    class_: str | None
    scope: str
    cluster: str
    node: str | None
    device: int | None
    rank: int | None
    hca: str | None
    port: int | None
    job: str | None
    run: str | None
    targets: Sequence[str]
    state: str
    severity: str
    score: float
    threshold: float | None
    blames_hardware: bool
    confidence: float | None
    expected_gain: float | None
    summary: str
    evidence: Mapping[str, Any]
    first_seen_at_ms: int | None
    detected_at_ms: int
    stated_at_ms: int
    cleared_at_ms: int | None
    parent: str | None
    why: str


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change of an incident. `sequence` grows over all incidents."""

    sequence: int
    incident: str
    revision: int
    at_ms: int
    actor: str
    event: str
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class IncidentNote:
    """One note on an incident."""

    sequence: int
    incident: str
    at_ms: int
    author: str
    text: str


@dataclass(frozen=True, slots=True)
class Silence:
    """Keeps matching incidents quiet for a time.

    Attributes
    ----------
    kind: "silence", or "maintenance" (nothing is done to its nodes either).
    matchers: field to value, all must match; `*` stands for any characters.
    ended_at_ms: when a person ended it early.
    """

    id: str
    kind: str
    matchers: Mapping[str, str]
    author: str
    reason: str
    created_at_ms: int
    starts_at_ms: int
    expires_at_ms: int
    ended_at_ms: int | None
    ended_by: str | None

    def active(self, now_ms: int) -> bool:
        """Say whether it holds at a time."""
        return self.ended_at_ms is None and self.starts_at_ms <= now_ms < self.expires_at_ms


@dataclass(frozen=True, slots=True)
class AlertNeed:
    """A message that is due.

    Attributes
    ----------
    incident: as it is now; an incident that was merged into another is given itself, closed.
    detail: what the change was ("severity": [old, new], ...).
    """

    sequence: int
    incident: Incident
    revision: int
    reason: AlertReason
    at_ms: int
    detail: Mapping[str, Any]


def incident_of(row: sa.Row[Any]) -> Incident:
    """Return the incident of a row of the table `incidents`."""
    cells = row._mapping
    values = {name: cells[name] for name in _PLAIN}
    values["targets"] = tuple(json.loads(values["targets"]))
    return Incident(
        state=IncidentState(cells["state"]), severity=Severity(cells["severity"]), progress=Progress(cells["progress"]),
        **values,
    )  # fmt: skip


def finding_of(row: sa.Row[Any]) -> IncidentFinding:
    """Return the finding of a row of `incident_findings`."""
    cells = {name: row._mapping[name] for name in IncidentFinding.__slots__}
    cells["targets"] = tuple(json.loads(cells["targets"]))
    cells["evidence"] = json.loads(cells["evidence"])
    return IncidentFinding(**cells)


def silence_of(row: sa.Row[Any]) -> Silence:
    """Return the silence of a row of `silences`."""
    return Silence(**(dict(row._mapping) | {"matchers": json.loads(row.matchers)}))


def cursor_of(opened_at_ms: int, id_: str) -> str:
    """Return the cursor after an incident in a list by opening, newest first."""
    return f"{opened_at_ms}.{id_}"


def parse_cursor(text: str) -> tuple[int, str]:
    """Undo `cursor_of`. Raises ConfigError for anything else."""
    opened, dot, id_ = text.partition(".")
    if not dot or not (opened.isascii() and opened.isdigit()) or len(opened) > 15 or not id_:
        raise ConfigError("the cursor is not one that a list of incidents gave")
    return int(opened), id_


def projection_row(row: Mapping[str, Any], findings: Sequence[str]) -> dict[str, Any]:
    """Return an incident as a row of the store's table `incidents`, without version.

    One that another took over keeps no loss of its own: the other one counts it.
    """
    return {
        "ts": row["updated_at_ms"], "cluster": row["cluster"], "id": row["id"], "state": row["state"],
        "severity": row["severity"], "kind": row["kind"], "title": row["title"], "node": row["node"],
        "device": row["device"], "job": row["job"], "tenant": row["tenant"], "opened_at": row["opened_at_ms"],
        "updated_at": row["updated_at_ms"], "closed_at": row["closed_at_ms"], "root_finding": row["root_finding"],
        "findings": list(findings), "gpus_affected": row["gpus_affected"],
        "lost_gpu_hours": None if row["merged_into"] else row["lost_gpu_hours"], "assignee": row["assignee"],
    }  # fmt: skip
