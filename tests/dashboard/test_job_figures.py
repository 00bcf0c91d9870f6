"""Headline figures of a job, and why one of them is not known."""

from __future__ import annotations

from typing import Any

import pytest

from flightwatch.dashboard.components.job_figures import Figures, figures_of
from flightwatch.dashboard.components.job_reads import JobView
from flightwatch.dashboard.components.text import hours_text
from flightwatch.dashboard.components.view import Window
from flightwatch.dashboard.i18n import t
from flightwatch.detectors.expectation import Expectation
from flightwatch.pipeline.store.step_reads import Attempt

ATTEMPT = Attempt("sim", "r1", 8, 100, 0, 1.0)
SHOWN = JobView("llm-70b", ATTEMPT, [ATTEMPT], Window(0, 1000, live=True), [1, 2])
EXPECTED = Expectation(job="llm-*", mfu=0.4, flops_per_token=1e9, peak_tflops=1.0)


def figures(tokens: float | None, scalars: dict[str, float] | None = None, *expected: Expectation) -> Figures:
    row: dict[str, Any] = {"step_us": 1e6, "tokens": tokens}
    told = [{"name": name, "step": 1, "value": value} for name, value in (scalars or {}).items()]
    return figures_of(SHOWN, [row, row], told, expected)


def test_utilisation_is_made_of_tokens_and_the_expectation() -> None:
    found = figures(4000.0, None, Expectation(job="other", step_ms=1.0), EXPECTED)
    assert found.tokens_per_s == pytest.approx(4000.0)
    # 4000 tokens/s of 1 GFLOP each on 8 devices of 1 TFLOP/s.
    assert found.mfu == pytest.approx(0.5)
    assert found.mfu_why == "job.mfu_expected"


@pytest.mark.parametrize(("told", "share"), [(52.0, 0.52), (0.52, 0.52)])
def test_what_the_trainer_tells_comes_first(told: float, share: float) -> None:
    found = figures(4000.0, {"mfu_pct": told}, EXPECTED)
    assert found.mfu == pytest.approx(share)
    assert found.mfu_why == "job.mfu_told"


def test_the_trainers_tokens_stand_in_for_the_probes() -> None:
    found = figures(None, {"tokens_per_second": 1600.0}, EXPECTED)
    assert (found.tokens_per_s, found.tokens_why) == (1600.0, "job.tokens_told")
    assert found.mfu == pytest.approx(0.2)


def test_what_is_missing_is_said() -> None:
    assert figures(None).mfu_why == "job.mfu_how"
    assert figures(None, None, EXPECTED).mfu_why == "job.mfu_tokens"
    found = figures_of(SHOWN, [], [], [EXPECTED])
    assert (found.step_us, found.mfu) == (None, None)
    for found in (figures(None), figures(1.0, {"mfu_pct": 1.0}), figures(1.0, None, EXPECTED)):
        assert t(found.mfu_why)
        assert t(found.tokens_why)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0.0, "0"), (0.004, "< 0.01"), (0.0144, "0.01"), (2.869, "2.9"), (1234.5, "1,234")],
)
def test_gpu_hours_have_the_digits_that_matter(value: float | None, text: str) -> None:
    assert hours_text(value) == text
