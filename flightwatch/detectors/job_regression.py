"""Job regression: this run of a job is slower than its best earlier run, or than what a file says it should reach.

Every run of one job name is compared with the earlier runs of the same name and the same number of
ranks that the frames hold. Where tokens are known in both, what is compared is step time per token
(tokens per second the other way round), otherwise step time. A window of recent steps must lie above
the best earlier level by a share and by several standard errors of a difference of medians.

An expectation (`expectation.Expectation`) is judged beside that: step time, or tokens per second and the MFU they make.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.dense_steps import DenseFrames
from flightwatch.detectors.expectation import Expectation
from flightwatch.detectors.fail_slow import without_pauses
from flightwatch.detectors.grouped import MAD_TO_SIGMA, FloatArray, sorted_median
from flightwatch.detectors.rank_matrix import RunSteps, runs_of

#: An expectation does not scatter: as if over so many steps.
ENDLESS = 1_000_000


@dataclass(frozen=True)
class JobRegressionThresholds:
    """Defaults.

    Attributes
    ----------
    warm_up_steps: first steps of a run (compilation, allocation) that count for nothing. window: recent steps judged.
    minimum_past: steps an earlier run must have. slowdown: smallest relative change. strength: standard errors.
    floor: smallest believable scatter (ratio). clear_share: over when less than this share of `slowdown` is left.
    serious_ranks: from here on a regression is P2.
    """

    warm_up_steps: int = 10
    window: int = 20
    minimum_past: int = 30
    slowdown: float = 0.05
    strength: float = 6.0
    floor: float = 0.005
    clear_share: float = 0.5
    serious_ranks: int = 1000


@dataclass(frozen=True)
class _Cost:
    """What one run pays per step: logarithms of step time and, where known, of step time per token and rank."""

    run: RunSteps
    step_S: FloatArray
    token_S: FloatArray | None
    begin_ms: float


@dataclass(frozen=True)
class _Best:
    """The best earlier run, or an expectation: level and scatter of the logarithm.

    Attributes
    ----------
    slowdown: smallest relative change that counts. expected: where it comes from a file.
    """

    run: str | None
    level: float
    scatter: float
    steps: int
    per_token: bool
    slowdown: float
    expected: Expectation | None = None


class JobRegressionDetector:
    """Finds kind `job_regression` (scope job); never blames hardware.

    Parameters
    ----------
    expectations: what jobs should reach; the first that fits a job counts.

    Does not see: the first run of a job that no expectation fits, earlier runs beyond the window of frames, another
    number of ranks; another model or sequence length under the same job name looks like a regression. Asynchronous jobs
    are left out.
    """

    name = "job_regression"
    version = "2"
    needs = Needs(
        {"rank_steps": ("ts", "cluster", "job", "run", "step", "rank", "step_us", "checkpoint_us", "tokens", "mode")},
        steps=400,
    )

    def __init__(
        self, thresholds: JobRegressionThresholds | None = None, expectations: Sequence[Expectation] = ()
    ) -> None:
        self.thresholds = thresholds or JobRegressionThresholds()
        self.expectations = tuple(expectations)

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        by_job: dict[str, list[_Cost]] = defaultdict(list)
        for run in runs_of(frames if self.expectations else _repeated(frames), minimum_steps=self.thresholds.window):
            cost = None if run.job is None or run.is_async() else _cost(run)
            if cost is not None and run.job is not None:
                by_job[run.job].append(cost)
        found: list[Finding] = []
        for costs in by_job.values():
            costs.sort(key=lambda cost: (cost.begin_ms, cost.run.run or ""))
            for i, cost in enumerate(costs):
                for best in (self._best(cost, costs[:i]), self._expected(cost)):
                    found += self._of_run(cost, best)
        return sorted(found, key=lambda one: (one.detected_at or 0, one.id))

    def _of_run(self, cost: _Cost, best: _Best | None) -> Iterable[Finding]:
        if best is None:
            return
        limits = self.thresholds
        series_S = cost.token_S if best.per_token and cost.token_S is not None else cost.step_S
        open_: Finding | None = None
        for end in range(limits.warm_up_steps + limits.window, len(series_S) + 1):
            window = series_S[end - limits.window : end]
            window = window[np.isfinite(window)]
            if len(window) < 0.6 * limits.window:
                continue
            shift = float(np.median(window)) - best.level
            error = best.scatter * 1.2533 * np.sqrt(1 / len(window) + 1 / best.steps)
            if open_ is None and shift >= np.log1p(best.slowdown) and shift / error >= limits.strength:
                open_ = self._say(cost, end - 1, best, shift, shift / error)
                yield open_
            elif open_ is not None and shift < limits.clear_share * np.log1p(best.slowdown):
                yield _cleared(open_, cost.run, end - 1)
                open_ = None

    def _best(self, cost: _Cost, earlier: list[_Cost]) -> _Best | None:
        """Return the lowest level among earlier runs of equal size, by the steps they had finished by then."""
        found: list[_Best] = []
        for past in earlier:
            if past.run.shape[1] != cost.run.shape[1]:
                continue
            per_token = cost.token_S is not None and past.token_S is not None
            series_S = past.token_S if per_token and past.token_S is not None else past.step_S
            before = past.run.end_ms_S <= cost.begin_ms
            before[: self.thresholds.warm_up_steps] = False
            series = series_S[before]
            series = series[np.isfinite(series)]
            if len(series) >= self.thresholds.minimum_past:
                level = float(np.median(series))
                scatter = MAD_TO_SIGMA * float(np.median(np.abs(series - level)))
                scatter = max(self.thresholds.floor, scatter)
                slowdown = self.thresholds.slowdown
                found.append(_Best(past.run.run, level, scatter, len(series), per_token, slowdown))
        # Levels per token and levels per step cannot be compared: what knows tokens is asked first.
        return min(found, key=lambda best: (not best.per_token, best.level), default=None)

    def _expected(self, cost: _Cost) -> _Best | None:
        """Return what the file expects of a run, in the unit that both know."""
        run = cost.run
        ranks = run.shape[1]
        fitting = (one for one in self.expectations if run.job is not None and one.fits(run.job, ranks))
        expected = next(fitting, None)
        if expected is None:
            return None
        rate, floor = expected.rate(ranks), self.thresholds.floor
        if rate is not None and cost.token_S is not None:
            # Of one rank: `token_S` is the logarithm of microseconds per token of a mean rank.
            level = float(np.log(1e6 * _replicas(run) / rate))
            return _Best(None, level, floor, ENDLESS, True, expected.tolerance, expected)
        if expected.step_ms is None:
            return None
        return _Best(None, float(np.log(expected.step_ms * 1000)), floor, ENDLESS, False, expected.tolerance, expected)

    def _say(self, cost: _Cost, at: int, best: _Best, shift: float, strength: float) -> Finding:
        run = cost.run
        percent = 100 * (np.exp(shift) - 1)
        what = "takes {:.1f} % longer per token" if best.per_token else "takes {:.1f} % longer per step"
        first = max(0, at + 1 - self.thresholds.window)
        serious = run.shape[1] >= self.thresholds.serious_ranks
        past = f"its best earlier run ({best.run})" if best.run else "its best earlier run"
        look = "on as many ranks, so look at what changed since"
        if best.expected is not None:
            past, look = "expected", "the expectation or the configuration is not what runs"
        return Finding(
            detector=self.name,
            detector_version=self.version,
            kind=FindingKind.JOB_REGRESSION,
            scope=FindingScope.JOB,
            summary=f"{run.job} {what.format(percent)} than {past}; {look}.",
            score=round(strength, 3),
            threshold=self.thresholds.strength,
            severity=Severity.P2 if serious else Severity.P3,
            detected_at=_ms(run.end_ms_S[at]),
            first_seen_at=_ms(run.end_ms_S[first]),
            cluster=run.cluster,
            job=run.job,
            run=run.run,
            targets=(run.job or "job",),
            first_step=int(run.steps_S[first]),
            detected_step=int(run.steps_S[at]),
            blames_hardware=False,
            confidence=0.8 if best.per_token else 0.6,
            expected_gain=round(float(1 - np.exp(-shift)), 4),
            evidence={
                "measure": "step_us_per_token" if best.per_token else "step_us",
                "slowdown": round(float(np.exp(shift) - 1), 4),
                "best_run": best.run,
                "best_value": float(f"{np.exp(best.level):.6g}"),
                "best_run_steps": best.steps,
                "ranks": run.shape[1],
                **_reached(best, shift, run),
            },
            aspect="expectation" if best.expected is not None else "",
        )


def _replicas(run: RunSteps) -> int:
    """Return how many ranks have tokens of their own: tensor and pipeline ranks share those of their replica."""
    axes = run.layout.axis_R
    if not run.layout.known or (axes["dp"] < 0).all():
        return run.shape[1]
    return len(set(zip(axes["dp"].tolist(), axes["cp"].tolist(), strict=True)))


def _reached(best: _Best, shift: float, run: RunSteps) -> dict[str, object]:
    """Return what a run reached beside what was expected of it."""
    expected = best.expected
    if expected is None:
        return {}
    level = float(np.exp(best.level + shift))
    told: dict[str, object] = {"expected": True, "expected_step_ms": expected.step_ms}
    if not best.per_token:
        return told | {"step_ms": round(level / 1000, 3)}
    ranks = run.shape[1]
    rate, wanted = 1e6 * _replicas(run) / level, expected.rate(ranks)
    mfu = expected.mfu_of(rate, ranks)
    return told | {
        "tokens_per_second": round(rate, 1),
        "expected_tokens_per_second": None if wanted is None else round(wanted, 1),
        "mfu": None if mfu is None else round(mfu, 4),
        "expected_mfu": expected.mfu,
    }


def _repeated(frames: Frames) -> Frames:
    """Return only the jobs with more than one run: the others have nothing to be compared with."""
    dense = getattr(frames, "dense_runs", ())
    if dense:
        names = [one.job for one in dense]
        return DenseFrames({}, [one for one in dense if one.job is not None and names.count(one.job) > 1])
    rows = frames.get("rank_steps")
    if rows is None or rows.empty or not {"job", "run", "step_us"} <= set(rows.columns):
        return {}
    pairs = rows[["job", "run"]].drop_duplicates().dropna()
    count = pairs["job"].astype(object).value_counts()
    jobs = list(count.index[count > 1])
    return {"rank_steps": rows[rows["job"].isin(jobs)]} if jobs else {}


def _cost(run: RunSteps) -> _Cost | None:
    step = run.channel("step_us")
    known = np.isfinite(run.end_ms_S)
    if step is None or not known.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        step_S = without_pauses(run, np.log(sorted_median(step)).astype(float))
        tokens = run.channel("tokens")
        token_S = None
        if tokens is not None:
            # The mean over the ranks that say it: a lost row is no lost work.
            count = np.isfinite(tokens).sum(axis=1)
            mean = np.nansum(tokens, axis=1) / np.maximum(count, 1)
            token_S = step_S - np.log(np.where(mean > 0, mean, np.nan))
            token_S = token_S if np.isfinite(token_S).mean() > 0.5 else None
    return _Cost(run, step_S, token_S, float(run.end_ms_S[known].min()) - float(np.nanmedian(step)) / 1000)


def _cleared(finding: Finding, run: RunSteps, at: int) -> Finding:
    return replace(
        finding,
        state=FindingState.CLEARED,
        detected_at=_ms(run.end_ms_S[at]),
        detected_step=int(run.steps_S[at]),
        summary=f"{run.job} is as fast as its best earlier run again: over.",
    )


def _ms(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None
