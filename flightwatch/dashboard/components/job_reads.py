"""What the pages about one job read, shared: its attempt, the steps shown, one channel of all ranks, roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from flightwatch.core.clock import SystemClock
from flightwatch.dashboard.components import rank_view
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.scope import check_job
from flightwatch.dashboard.components.view import View, Window
from flightwatch.pipeline.store import jobs_reads, step_reads
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.step_reads import Attempt, FloatArray, IntArray, Roles, StepMatrix

#: Steps that a page shows at most: columns of heat maps and densities.
STEPS = 120
#: Values (ranks times steps) that one page reads at most, and steps that it shows at least.
MOST_VALUES, FEWEST_STEPS = 250_000, 40
#: After so long nothing more is expected of a step; how long reads of such steps and of roles stand.
REST_MS, OLD_SECONDS, ROLES_SECONDS = 30_000, 60.0, 30.0
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
    return _READ.get(("attempts", id(store), job), lambda: step_reads.attempts(store, job))


def seen_of(store: Store, job: str, attempt: Attempt) -> dict[int, int]:
    """Return when steps of an attempt began, as far as it was found: a dictionary to be filled."""
    return _SEEN.get((id(store), attempt.cluster, job, attempt.run), dict[int, int])


def steps_of(store: Store, job: str, attempt: Attempt, window: Window, most: int) -> list[int]:
    """Return at most `most` steps of an attempt in a stretch of time. Not checked as `attempts_of`."""
    seen = seen_of(store, job, attempt)
    return _READ.get(
        ("steps", id(store), job, attempt.run, window.start_ms // 5000, window.end_ms // 5000, most),
        lambda: step_reads.chosen_steps(store, job, attempt, window.start_ms, window.end_ms, most, seen),
    )


def channel_view(store: Store, shown: JobView, channel: str) -> ChannelView:
    """Return one channel of all ranks; step time where the job does not tell exclusive compute."""
    roles = _READ.get(
        ("roles", id(store), shown.job, shown.attempt.run),
        lambda: step_reads.roles(store, shown.job, shown.attempt),
        ROLES_SECONDS,
    )
    parts = [_part(store, shown, roles, channel, *some) for some in _by_rest(store, shown)]
    used = channel
    if channel == "compute_us" and all(np.isnan(part.found.values_RS).all() for part in parts):
        used = "step_us"
        parts = [_part(store, shown, roles, used, *some) for some in _by_rest(store, shown)]
    ranks = reduce(np.union1d, (part.found.ranks for part in parts))
    found = StepMatrix(
        np.concatenate([part.found.steps for part in parts]),
        np.concatenate([part.found.starts_ms for part in parts]),
        ranks,
        beside([(part.found.ranks, part.found.values_RS) for part in parts], ranks),
    )
    ratios_RS = beside([(part.found.ranks, part.ratios_RS) for part in parts], ranks)
    return ChannelView(used, found, roles, roles.cohort(ranks), ratios_RS)


def step_rows(store: Store, shown: JobView) -> list[dict[str, Any]]:
    """Return the steps of a page as `jobs_reads.step_summary` does."""
    which = ("rows", id(store), shown.job, shown.attempt.run)
    rows: list[dict[str, Any]] = []
    for steps, seconds in _by_rest(store, shown):
        read = partial(jobs_reads.step_summary, store, shown.job, shown.attempt, steps)
        rows += _READ.get((*which, tuple(steps)), read, seconds)
    return rows


@dataclass(frozen=True)
class _Part:
    """Some of the steps of a channel of all ranks, and each value over its cohort's median, [R, S]."""

    found: StepMatrix
    ratios_RS: FloatArray


def _part(
    store: Store, shown: JobView, roles: Roles, channel: str, steps: Sequence[int], seconds: float | None
) -> _Part:
    def read() -> _Part:
        found = step_reads.matrix(store, shown.job, shown.attempt, steps, channel)
        return _Part(found, rank_view.ratio_to_cohort(found, roles.cohort(found.ranks)))

    return _READ.get(("part", id(store), shown.job, shown.attempt.run, channel, tuple(steps)), read, seconds)


def _by_rest(store: Store, shown: JobView) -> list[tuple[list[int], float | None]]:
    """Return the steps that all ranks have told about for a while, and the newest; and how long a read of each stands.

    Rows of a step come within seconds of each other, so what is older changes no more, but for a bus that catches up.
    """
    seen = seen_of(store, shown.job, shown.attempt)
    first, first_ms = min(seen.items(), default=(shown.attempt.newest_step, shown.attempt.newest_ms))
    took_ms = (shown.attempt.newest_ms - first_ms) / max(1, shown.attempt.newest_step - first)
    moving = shown.attempt.newest_step - REST_MS / max(1.0, took_ms)
    old = [step for step in shown.steps if step < moving]
    new = shown.steps[len(old) :]
    return [some for some in ((old, OLD_SECONDS), (new, None)) if some[0]]


def beside(parts: Sequence[tuple[IntArray, FloatArray]], ranks: IntArray) -> FloatArray:
    """Return the columns of matrices of different ranks beside each other, with a row for each of `ranks`."""
    if all(len(own) == len(ranks) for own, _ in parts):
        return np.concatenate([values for _, values in parts], axis=1)
    whole = [np.full((len(ranks), values.shape[1]), np.nan, dtype=np.float32) for _, values in parts]
    for filled, (own, values) in zip(whole, parts, strict=True):
        filled[np.searchsorted(ranks, own)] = values
    return np.concatenate(whole, axis=1)
