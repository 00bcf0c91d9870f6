"""What the pages about one job read, shared: its attempt, the steps shown, one channel of all ranks, roles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flightwatch.core.clock import SystemClock
from flightwatch.dashboard.components import rank_view
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.scope import check_job
from flightwatch.dashboard.components.view import View, Window
from flightwatch.pipeline.store import reads_steps
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.reads_steps import Attempt, FloatArray, IntArray, Roles, StepMatrix

#: Steps that a page shows at most: columns of heat maps and densities.
STEPS = 120
#: Values (ranks times steps) that one page reads at most, and steps that it shows at least.
MOST_VALUES, FEWEST_STEPS = 400_000, 40
_READ = Remembered(2.0)
#: When steps began, by attempt: that does not change any more.
_SEEN = Remembered(3600.0)


@dataclass(frozen=True)
class JobView:
    """An attempt of a job and the steps of it that a page shows."""

    job: str
    attempt: Attempt
    attempts: list[Attempt]
    window: Window
    steps: list[int]


@dataclass(frozen=True)
class ChannelView:
    """One channel of all ranks: values, roles, ratio of each value to its cohort's median, [R, S]."""

    channel: str
    found: StepMatrix
    roles: Roles
    cohort_of: IntArray
    ratios_RS: FloatArray


def job_view(store: Store, view: View, job: str, most_steps: int = STEPS) -> JobView | None:
    """Return what the address asks for; None when the job has no steps.

    Raises
    ------
    Refused: whoever asks may not see the job.
    """
    check_job(store, job)
    attempts = attempts_of(store, job)
    attempt = next((one for one in attempts if one.run == view.get("run")), attempts[0] if attempts else None)
    if attempt is None:
        return None
    now_ms = SystemClock().now_ms()
    window = view.window(now_ms)
    if window.live and attempt.newest_ms < window.start_ms:
        # The job has ended: its last hour is worth more than an empty page.
        window = Window(attempt.newest_ms - round(window.seconds * 1000), attempt.newest_ms, live=False)
    most = min(most_steps, max(FEWEST_STEPS, MOST_VALUES // max(1, attempt.ranks)))
    return JobView(job, attempt, attempts, window, steps_of(store, job, attempt, window, most))


def attempts_of(store: Store, job: str) -> list[Attempt]:
    """Return the attempts of a job, the newest first. Whether whoever asks may see the job is not checked here."""
    return _READ.get(("attempts", id(store), job), lambda: reads_steps.attempts(store, job))


def steps_of(store: Store, job: str, attempt: Attempt, window: Window, most: int) -> list[int]:
    """Return at most `most` steps of an attempt in a stretch of time. Not checked as `attempts_of`."""
    seen = _SEEN.get((id(store), attempt.cluster, job, attempt.run), dict[int, int])
    return _READ.get(
        ("steps", id(store), job, attempt.run, window.start_ms // 5000, window.end_ms // 5000, most),
        lambda: reads_steps.chosen_steps(store, job, attempt, window.start_ms, window.end_ms, most, seen),
    )


def channel_view(store: Store, shown: JobView, channel: str) -> ChannelView:
    """Return one channel of all ranks; step time where the job does not tell exclusive compute."""
    key = (
        id(store),
        shown.job,
        shown.attempt.run,
        tuple(shown.steps[:1] + shown.steps[-1:]),
        len(shown.steps),
        channel,
    )

    def read() -> ChannelView:
        used = channel
        found = reads_steps.matrix(store, shown.job, shown.attempt, shown.steps, used)
        if channel == "compute_us" and len(found.ranks) and np.isnan(found.values_RS).all():
            used = "step_us"
            found = reads_steps.matrix(store, shown.job, shown.attempt, shown.steps, used)
        roles = _READ.get(
            ("roles", id(store), shown.job, shown.attempt.run),
            lambda: reads_steps.roles(store, shown.job, shown.attempt),
            30.0,
        )
        cohort_of = roles.cohort(found.ranks)
        return ChannelView(used, found, roles, cohort_of, rank_view.ratio_to_cohort(found, cohort_of))

    return _READ.get(key, read)
