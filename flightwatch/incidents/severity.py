"""How grave an incident is: what it stops, what it costs, what is about to fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flightwatch.core.incident import Progress
from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.settings import IncidentSettings
from flightwatch.incidents.statements import GRAVITY, Known

#: Kinds that say that the job stands still.
STOPPING = (Kind.HANG, Kind.CRASH)
#: Kinds that say that results are wrong now.
DATA_AT_RISK = (Kind.REPLICA_DIGEST,)
#: Kinds that say that the job gets on more slowly; their severity follows from the loss where it is known.
SLOWING = (Kind.SLOW, Kind.FAIL_SLOW, Kind.JOB_SLOW, Kind.JOB_REGRESSION, Kind.IMBALANCE)
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class JobState:
    """What is known of a job. Times of steps in microseconds.

    Attributes
    ----------
    ranks: GPUs that it uses. newest_step_at: time of its newest step. step_us: its step time of late.
    """

    job: str
    ranks: int | None = None
    tenant: str | None = None
    run: str | None = None
    newest_step_at: int | None = None
    step_us: float | None = None


@dataclass(frozen=True, slots=True)
class Impact:
    """What an incident does.

    Attributes
    ----------
    loss_gpu_hours_per_hour: None where nothing can be said.
    """

    severity: Severity
    progress: Progress
    gpus_affected: int | None
    loss_gpu_hours_per_hour: float | None


def loss_rate(ranks: int | None, progress: Progress, slowdown: float | None) -> float | None:
    """Return GPU-hours lost in an hour: ranks x (1 - baseline_step / step), all ranks when the job is stopped.

    Parameters
    ----------
    slowdown: 1 - baseline_step / step, None when it is not known.
    """
    if ranks is None:
        return None
    if progress is Progress.STOPPED:
        return float(ranks)
    if progress is Progress.SLOWED and slowdown is not None:
        return ranks * min(1.0, max(0.0, slowdown))
    return None


def progress_of(members: Sequence[Known], job: JobState | None, now_ms: int) -> Progress:
    """Say whether the job gets on.

    A hang or crash finding counts as stopped until steps are seen that are newer than it. Without findings about
    timing, the newest step says it: within 10 step times (at least a minute) of now the job progresses.
    """
    stops = [one for one in members if one.active and one.kind in STOPPING]
    if stops:
        said = max(one.stated_at for one in stops)
        if job is None or job.newest_step_at is None or job.newest_step_at <= said:
            return Progress.STOPPED
    if any(one.active and one.kind in SLOWING and one.severe for one in members):
        return Progress.SLOWED
    if job is None or job.newest_step_at is None:
        return Progress.UNKNOWN
    patience_ms = max(60_000.0, 10 * (job.step_us or 0.0) / 1000)
    return Progress.PROGRESSING if now_ms - job.newest_step_at <= patience_ms else Progress.UNKNOWN


def judge(
    members: Sequence[Known],
    root: Known,
    job: JobState | None,
    slowdown: float | None,
    gpus: int | None,
    settings: IncidentSettings,
    now_ms: int,
) -> Impact:
    """Return severity, progress and loss.

    Parameters
    ----------
    members: all findings of the incident. root: the cause.
    slowdown: measured 1 - baseline_step / step of the job; None: what the root's detector expects to win.
    gpus: GPUs of the places affected, for incidents without a job.
    """
    stated = [one for one in members if one.active and one.severe] or [one for one in members if one.severe]
    progress = progress_of(members, job, now_ms)
    gain = max((one.expected_gain for one in stated if one.expected_gain is not None), default=None)
    lost = slowdown if slowdown is not None else gain
    ranks = job.ranks if job is not None else None
    rate = loss_rate(ranks, progress, lost)
    by_detector = max((one.severity for one in stated), key=GRAVITY.__getitem__, default=Severity.P4)
    worst = by_detector
    if rate is not None and root.kind in SLOWING and by_detector is not Severity.P1:
        # What it costs is measured: it counts, not what the detector supposed.
        worst = Severity.P3 if root.blames_hardware else Severity.P4
    severity = max(worst, _by_impact(progress, stated, ranks, rate, lost, settings), key=GRAVITY.__getitem__)
    return Impact(severity, progress, ranks if ranks is not None else gpus, rate)


def _by_impact(
    progress: Progress,
    stated: Sequence[Known],
    ranks: int | None,
    rate: float | None,
    lost: float | None,
    settings: IncidentSettings,
) -> Severity:
    if progress is Progress.STOPPED or any(one.active and one.kind in DATA_AT_RISK for one in stated):
        return Severity.P1
    if rate is not None and rate >= settings.p2_loss_gpu_hours_per_hour:
        return Severity.P2
    large = ranks is not None and ranks >= settings.p2_job_gpus
    if large and progress is Progress.SLOWED and lost is not None and lost >= settings.p2_job_share:
        return Severity.P2
    return Severity.P4
