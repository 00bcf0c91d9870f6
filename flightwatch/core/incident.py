"""What an incident is: shared by the control database, which holds incidents, and by those who act on them.

Times are milliseconds since the epoch (UTC), None where unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from flightwatch.core.vocabulary import Severity


class IncidentState(str, Enum):
    """Life of an incident. The last two are closed."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"
    FALSE_POSITIVE = "false_positive"


class Progress(str, Enum):
    """Whether the job of an incident gets on. UNKNOWN where nobody measured it."""

    PROGRESSING = "progressing"
    SLOWED = "slowed"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Incident:
    """Findings with one cause, as the control database holds them.

    Attributes
    ----------
    id: deterministic: the same findings give the same id, whoever computes it.
    revision: grows with every change of this incident; an approval is bound to it.
    kind, class_, scope: of the root finding. targets: all places it names.
    summary: the root finding's sentence.
    evidence_at_ms: when evidence for it was last seen; auto-resolve and flap hold count from here.
    loss_gpu_hours_per_hour, lost_gpu_hours: None where the impact is unknown.
    silenced_by, inhibited_by: id of the silence or maintenance window, or of the incident, that keeps it quiet.
    stale: it rests on data older than the age at which incidents may page or act.
    findings_count: findings in it.
    merged_into: the incident that took this one over; such a row is closed and only history.
    thread: id under which people first heard of it, the key of all its messages; "" before the first one.
    """

    id: str
    revision: int
    cluster: str
    state: IncidentState
    severity: Severity
    kind: str
    scope: str
    title: str
    summary: str
    opened_at_ms: int
    updated_at_ms: int
    evidence_at_ms: int
    class_: str | None = None
    node: str | None = None
    device: int | None = None
    rank: int | None = None
    job: str | None = None
    run: str | None = None
    tenant: str | None = None
    targets: Sequence[str] = ()
    closed_at_ms: int | None = None
    root_finding: str | None = None
    confidence: float | None = None
    runner_up: str | None = None
    blames_hardware: bool = False
    progress: Progress = Progress.UNKNOWN
    gpus_affected: int | None = None
    loss_gpu_hours_per_hour: float | None = None
    lost_gpu_hours: float | None = None
    assignee: str | None = None
    acknowledged_by: str | None = None
    acknowledged_at_ms: int | None = None
    silenced_by: str | None = None
    inhibited_by: str | None = None
    reopened: int = 0
    stale: bool = False
    findings_count: int = 0
    merged_into: str | None = None
    thread: str = ""

    @property
    def closed(self) -> bool:
        """Say whether it is over."""
        return self.state in (IncidentState.RESOLVED, IncidentState.FALSE_POSITIVE)


class AlertReason(str, Enum):
    """Why a message is due."""

    OPENED = "opened"
    WORSENED = "worsened"
    CHANGED = "changed"
    ACKNOWLEDGED = "acknowledged"
    REOPENED = "reopened"
    REMINDER = "reminder"
    RESOLVED = "resolved"
    TEST = "test"
    PLATFORM = "platform"
