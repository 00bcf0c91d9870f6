"""Fail-slow: the job's own step time changed and stays changed.

Windows of 5, 10, 20 and 40 steps are compared with up to 60 steps before them: shift of medians at least
3 %, and at least six standard errors of a difference of medians; the five steps after confirm it. Then
the change is attributed: all ranks compute longer alike = `job_slow`, not hardware; a few ranks do, or
nobody computes longer = `fail_slow`, naming the rank where exactly one node carries it.

Tried and rejected: Bayesian online change points (blind below 10 %), a two-window z of 4 (7 false alarms
in 20 clean runs).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import MAD_TO_SIGMA, FloatArray, sorted_median
from flightwatch.detectors.rank_matrix import RunSteps, runs_of
from flightwatch.detectors.slow_channels import compute_times


@dataclass(frozen=True)
class FailSlowThresholds:
    """Defaults.

    Attributes
    ----------
    windows: steps compared with the reference. reference_steps, minimum_reference: steps before them.
    shift: smallest relative change. strength: standard errors. confirm_steps: fresh steps that must agree.
    floor: smallest believable scatter of step times (ratio).
    alike_share: all ranks compute longer by this share of the shift: the job, not a rank; alike_part: if that much
    of the time that steps have gained is compute.
    serious_ranks: from here on a lasting slowdown of 5 % is P2.
    """

    windows: tuple[int, ...] = (5, 10, 20, 40)
    reference_steps: int = 60
    minimum_reference: int = 20
    shift: float = 0.03
    strength: float = 6.0
    confirm_steps: int = 5
    floor: float = 0.005
    alike_share: float = 0.5
    alike_part: float = 0.15
    serious_ranks: int = 1000


class FailSlowDetector:
    """Finds kinds `fail_slow` and `job_slow` (scope job).

    Does not see: what was slow from the start (see `slow`, `job_regression`), changes below 3 %.
    """

    name = "fail_slow"
    version = "1"
    needs = Needs(
        {
            "rank_steps": (
                "ts",
                "job",
                "run",
                "step",
                "rank",
                "step_us",
                "compute_us",
                "checkpoint_us",
                "data_us",
                "transfer_us",
                "tokens",
            )
        },
        steps=200,
    )

    def __init__(self, thresholds: FailSlowThresholds | None = None) -> None:
        self.thresholds = thresholds or FailSlowThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        for run in runs_of(frames, minimum_steps=self.thresholds.minimum_reference + 10):
            if not run.is_async():
                found += self._of_run(run)
        return found

    def _of_run(self, run: RunSteps) -> list[Finding]:
        step = run.channel("step_us")
        if step is None:
            return []
        with np.errstate(divide="ignore", invalid="ignore"):
            series_S = np.log(sorted_median(step))
        series_S = without_pauses(run, series_S)
        found: list[Finding] = []
        open_: Finding | None = None
        level = 0.0
        start = 0
        for t in range(self.thresholds.minimum_reference + 5, len(series_S) - self.thresholds.confirm_steps + 1):
            if open_ is None:
                hit = self._shift_at(series_S, start, t)
                if hit is not None:
                    width, shift, strength, before = hit
                    open_ = self._say(run, t, width, shift, strength)
                    found.append(open_)
                    level = before
            elif t % 5 == 0:
                recent = np.nanmedian(series_S[t - 9 : t + 1])
                if recent - level < 0.35 * float(open_.evidence["shift"]):
                    found.append(_cleared(open_, run, t))
                    open_, start = None, t - 5
        return found

    def _shift_at(self, series_S: FloatArray, start: int, t: int) -> tuple[int, float, float, float] | None:
        """Test whether the `width` steps before `t` left the level before them, confirmed by those after."""
        limits = self.thresholds
        for width in limits.windows:
            lowest = t - width - limits.reference_steps
            reference = series_S[max(start, lowest) : max(0, t - width)]
            reference = reference[np.isfinite(reference)]
            window = series_S[t - width : t]
            window = window[np.isfinite(window)]
            if len(reference) < limits.minimum_reference or len(window) < 0.6 * width:
                continue
            before = float(np.median(reference))
            shift = float(np.median(window)) - before
            if shift < np.log1p(limits.shift):
                continue
            # The upper side counts too: where every third step has a pause, a few in a row are no change.
            upper = (float(np.quantile(reference, 0.9)) - before) / 1.28
            scatter = max(limits.floor, upper, MAD_TO_SIGMA * float(np.median(np.abs(reference - before))))
            error = scatter * 1.2533 * np.sqrt(1 / len(window) + 1 / len(reference))
            after = series_S[t : t + limits.confirm_steps]
            # All but one of the fresh steps: a short burst is not a change.
            after = np.sort(after[np.isfinite(after)])
            confirmed = len(after) > 2 and after[1] - before > 0.5 * shift
            if shift / error >= limits.strength and confirmed:
                return width, shift, shift / error, before
        return None

    def _say(self, run: RunSteps, t: int, width: int, shift: float, strength: float) -> Finding:
        begin, said = t - width, t + self.thresholds.confirm_steps - 1
        alike, carriers, seen = self._attribute(run, begin, said, shift)
        percent = 100 * (np.exp(shift) - 1)
        layout = run.layout
        nodes = {layout.node_R[i] for i in carriers}
        named = bool(carriers) and len(nodes) == 1 and None not in nodes
        position = carriers[0] if named and len(carriers) == 1 else None
        node = layout.node_R[carriers[0]] if named else None
        since = f"Steps of {run.job or 'the job'} take {percent:.1f} % longer since step {int(run.steps_S[begin])}"
        if alike:
            text = f"Every rank of {run.job or 'the job'} computes longer alike: steps take {percent:.1f} % more; "
            text += "the load changed, not hardware."
        elif named:
            text = f"{since}; {node} carries the change."
        else:
            carried = self._carried_by(run, begin, said, shift)
            seen |= {"carried_by": carried}
            text = f"{since}; no single node computes longer"
            text += f": all wait longer for {carried}." if carried else "."
        serious = percent >= 5 and run.shape[1] >= self.thresholds.serious_ranks and not alike
        device = None if position is None else int(layout.device_R[position])
        return Finding(
            detector=self.name,
            detector_version=self.version,
            kind=FindingKind.JOB_SLOW if alike else FindingKind.FAIL_SLOW,
            scope=FindingScope.JOB,
            summary=text,
            score=round(strength, 3),
            threshold=self.thresholds.strength,
            severity=Severity.INFO if alike else Severity.P2 if serious else Severity.P3,
            detected_at=_at(run, said),
            cluster=run.cluster,
            node=node,
            device=device if device is not None and device >= 0 else None,
            rank=None if position is None else int(layout.ranks_R[position]),
            job=run.job,
            run=run.run,
            targets=(run.job or "job",),
            first_seen_at=_at(run, max(0, begin - 1)),
            first_step=int(run.steps_S[begin]),
            detected_step=int(run.steps_S[said]),
            blames_hardware=named and not alike,
            confidence=0.8 if alike or named else 0.6,
            expected_gain=None if alike else round(float(1 - np.exp(-shift)), 4),
            evidence={"shift": round(shift, 4), "window_steps": width} | seen,
            id="",
        )

    def _attribute(
        self, run: RunSteps, begin: int, said: int, shift: float
    ) -> tuple[bool, list[int], dict[str, object]]:
        """Ask who computes longer: everybody alike, or which ranks."""
        compute = compute_times(run)
        if compute is None or compute.shape[1] < 2:
            return False, [], {"compute": "unknown"}
        with np.errstate(divide="ignore", invalid="ignore"):
            log_time = np.log(compute)
        first = max(0, begin - self.thresholds.reference_steps)
        before = sorted_median(log_time[first:begin].T)
        after = sorted_median(log_time[begin : said + 1].T)
        change = after - before
        usual = float(np.nanquantile(change, 0.25)) if np.isfinite(change).any() else 0.0
        excess = np.nan_to_num(change - usual)
        seen: dict[str, object] = {"compute_change_of_median_rank": round(usual, 4)}
        # Where compute is a small part of the step, it cannot be what has lengthened the step.
        part = _part_of_step(run, compute, slice(first, begin))
        if usual > self.thresholds.alike_share * shift and usual * part > self.thresholds.alike_part * shift:
            return True, [], seen
        scatter = MAD_TO_SIGMA * float(np.median(np.abs(excess - np.median(excess))))
        least = max(0.5 * float(excess.max()), 0.6 * shift, 6 * scatter)
        carriers = [int(i) for i in np.nonzero(excess > least)[0]]
        if len(carriers) > max(16, run.shape[1] // 4):
            carriers = []
        seen["ranks_computing_longer"] = [int(run.layout.ranks_R[i]) for i in carriers[:16]]
        return False, carriers, seen

    def _carried_by(self, run: RunSteps, begin: int, said: int, shift: float) -> str | None:
        """Say whether data or transfers, rather than compute, take the time that steps have gained."""
        step = run.channel("step_us")
        first = max(0, begin - self.thresholds.reference_steps)
        for name, column in (("data", "data_us"), ("transfers", "transfer_us")):
            values = run.channel(column)
            if values is None or step is None:
                continue
            # Not every rank loads data or is in the slow group: those that do say most.
            grown = sorted_median(values[begin : said + 1].T) - sorted_median(values[first:begin].T)
            gained = float(np.nanmedian(step[first:begin])) * float(np.expm1(shift))
            known = grown[np.isfinite(grown)]
            if len(known) and float(np.quantile(known, 0.95)) > self.thresholds.alike_share * gained:
                return name
        return None


def _part_of_step(run: RunSteps, compute_SR: FloatArray, steps: slice) -> float:
    """Return which part of a step the ranks compute, 1 where that is unknown."""
    step = run.channel("step_us")
    if step is None or not (np.isfinite(step[steps]).any() and np.isfinite(compute_SR[steps]).any()):
        return 1.0
    return float(np.nanmedian(compute_SR[steps]) / np.nanmedian(step[steps]))


def without_pauses(run: RunSteps, series_S: FloatArray) -> FloatArray:
    """Leave out steps with a checkpoint, unless they are the rule."""
    checkpoint = run.channel("checkpoint_us")
    step = run.channel("step_us")
    if checkpoint is None or step is None:
        return series_S
    busy = (np.nan_to_num(checkpoint) > 0.05 * np.nanmedian(step[:50])).any(axis=1)
    return np.where(busy, np.nan, series_S) if busy.mean() < 0.3 else series_S


def _at(run: RunSteps, step: int) -> int | None:
    value = run.end_ms_S[min(step, len(run.end_ms_S) - 1)]
    return int(value) if np.isfinite(value) else None


def _cleared(finding: Finding, run: RunSteps, t: int) -> Finding:
    return replace(
        finding,
        state=FindingState.CLEARED,
        detected_at=_at(run, t),
        detected_step=int(run.steps_S[t]),
        summary="Step time is back at its level before: over.",
    )
