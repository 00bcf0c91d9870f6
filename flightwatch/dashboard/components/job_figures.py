"""Headline figures of a job: step time, tokens, utilisation; and why one of them is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flightwatch.dashboard.components.job_reads import JobView
from flightwatch.detectors.expectation import Expectation

#: Newest steps over which figures are taken.
RECENT = 10


@dataclass(frozen=True)
class Figures:
    """Figures of the newest steps shown; None where unknown.

    Attributes
    ----------
    step_us: median.
    tokens_per_s: of all ranks. mfu: share of the peak that the model's FLOPs make.
    tokens_why, mfu_why: key of the words that say where a figure comes from, or why there is none.
    """

    step_us: float | None
    tokens_per_s: float | None
    tokens_why: str
    mfu: float | None
    mfu_why: str


def figures_of(
    shown: JobView,
    rows: Sequence[Mapping[str, Any]],
    scalars: Sequence[Mapping[str, Any]],
    expectations: Sequence[Expectation],
) -> Figures:
    """Return the figures.

    Parameters
    ----------
    rows: steps as `jobs_reads.step_summary` gives them. scalars: name, step and value, by step.
    expectations: the first that fits the job tells FLOPs per token and the peak.
    """
    recent = rows[-RECENT:]
    times = sorted(row["step_us"] for row in recent if row["step_us"] is not None)
    step_us = times[len(times) // 2] if times else None
    told = {row["name"]: float(row["value"]) for row in scalars if row["value"] is not None}
    rate, rate_why = _tokens(recent, step_us, told)
    mfu, mfu_why = _mfu(shown, rate, told, expectations)
    return Figures(step_us, rate, rate_why, mfu, mfu_why)


def _tokens(
    recent: Sequence[Mapping[str, Any]], step_us: float | None, told: Mapping[str, float]
) -> tuple[float | None, str]:
    tokens = [row["tokens"] for row in recent if row["tokens"] is not None]
    if tokens and step_us:
        return sum(tokens) / len(tokens) / step_us * 1e6, "job.tokens_note"
    if "tokens_per_second" in told:
        return told["tokens_per_second"], "job.tokens_told"
    return None, "job.no_tokens"


def _mfu(
    shown: JobView, rate: float | None, told: Mapping[str, float], expectations: Sequence[Expectation]
) -> tuple[float | None, str]:
    """Return what the trainer tells, else what its tokens make by the FLOPs and the peak of the expectation file."""
    if "mfu_pct" in told:
        value = told["mfu_pct"]
        # Some trainers write the share, some percent.
        return (value / 100 if value > 1 else value), "job.mfu_told"
    ranks = shown.attempt.ranks
    fitting = next((one for one in expectations if one.fits(shown.job, ranks)), None)
    if fitting is None or fitting.flops_per_token is None or fitting.peak_tflops is None:
        return None, "job.mfu_how"
    if rate is None:
        return None, "job.mfu_tokens"
    return fitting.mfu_of(rate, ranks), "job.mfu_expected"
