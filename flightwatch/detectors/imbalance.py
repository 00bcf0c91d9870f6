"""Imbalance: unequal work, said as such so that nobody drains a healthy node. Never blames hardware.

- stage: one pipeline stage computes longer than the others, all its ranks alike, for the whole run;
- data: ranks of one role differ a lot from step to step and the slowest one keeps changing, because their work does.

A machine that is merely noisy looks like unequal data. Unequal data makes forward and backward of a rank long
together, and on all ranks that share the batch (tensor and context parallel); noise does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import BoolArray, FloatArray, Groups, IntArray, sorted_median
from flightwatch.detectors.layout import MINIMUM_PEERS
from flightwatch.detectors.rank_matrix import RunSteps, runs_of
from flightwatch.detectors.slow_channels import compute_times


@dataclass(frozen=True)
class ImbalanceThresholds:
    """Defaults.

    Attributes
    ----------
    steps: steps read before speaking of a stage. stage_excess: a stage's excess over the median stage.
    stage_alike: the quarter of a stage's ranks that is quickest exceeds the others by this share of the excess.
    data_steps, warm_up_steps: two windows of so many steps, after the first ones, must both show unequal data.
    data_spread: spread of peers per step. data_movers: share of peers that were the slowest at least once.
    together: correlation, forward with backward or of ranks that share a batch, from which it is the work.
    together_equal_work: the same where the counters of work say that it is equal.
    work_differs: spread of the counters of work from which they differ.
    """

    steps: int = 30
    stage_excess: float = 0.10
    stage_alike: float = 0.6
    data_steps: int = 20
    warm_up_steps: int = 3
    data_spread: float = 0.08
    data_movers: float = 0.5
    together: float = 0.6
    together_equal_work: float = 0.85
    work_differs: float = 0.01


class ImbalanceDetector:
    """Finds kind `imbalance`, classes stage and data; information, once per run.

    Does not see: expert imbalance (told by the slow detector's witness), imbalance that balances out in a step.
    """

    name = "imbalance"
    version = "2"
    needs = Needs(
        {
            "rank_steps": (
                "ts",
                "job",
                "run",
                "step",
                "rank",
                "compute_us",
                "forward_us",
                "backward_us",
                "tokens",
                "work",
            ),
            "placements": ("job", "run", "rank", "tp", "cp", "pp", "dp", "module"),
        },
        steps=60,
    )

    def __init__(self, thresholds: ImbalanceThresholds | None = None) -> None:
        self.thresholds = thresholds or ImbalanceThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        for run in runs_of(frames, minimum_steps=min(10, self.thresholds.steps)):
            compute = compute_times(run)
            if compute is None or not run.layout.known:
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                log_time = np.log(compute[: self._longest()])
            found += [*self._stages(run, log_time[: self.thresholds.steps]), *self._data(run, log_time)]
        return found

    def _longest(self) -> int:
        limits = self.thresholds
        return max(limits.steps, limits.warm_up_steps + 2 * limits.data_steps)

    def _stages(self, run: RunSteps, log_SR: FloatArray) -> list[Finding]:
        role = run.layout.groups_by("pp", "module")
        if len(role.size_G) < 2:
            return []
        level_G = sorted_median(role.medians(log_SR).T)
        # Where half of a stage is one slow host, its median is high too; its quicker ranks are not.
        quick_G = role.quantiles(sorted_median(log_SR.T), 0.25)
        found: list[Finding] = []
        for group in range(len(level_G)):
            others = float(np.nanmedian(np.delete(level_G, group)))
            excess = float(level_G[group]) - others
            if excess < np.log1p(self.thresholds.stage_excess):
                continue
            if float(quick_G[group]) - others < self.thresholds.stage_alike * excess:
                continue
            stage = int(run.layout.axis_R["pp"][role.members_GN[group][0]])
            text = f"Stage {stage} of {run.job or 'the job'} computes {100 * (np.exp(excess) - 1):.0f} % longer than "
            text += "the median stage, all its ranks alike: its share of the model, not hardware."
            found.append(self._finding(run, len(log_SR), "stage", FindingScope.STAGE, f"stage {stage}", text, excess))
        return found

    def _data(self, run: RunSteps, log_SR: FloatArray) -> list[Finding]:
        limits, role = self.thresholds, run.layout.role_groups()
        large = role.size_G >= MINIMUM_PEERS
        if not large.any():
            return []
        begin = limits.warm_up_steps
        windows = [slice(begin + i * limits.data_steps, begin + (i + 1) * limits.data_steps) for i in range(2)]
        if len(log_SR) < windows[-1].stop:
            return []
        spreads = [self._moving_spread(role, large, log_SR[window]) for window in windows]
        both = slice(begin, windows[-1].stop)
        if any(spread is None for spread in spreads) or not self._is_work(
            run, role, both, _centred(role, log_SR[both])
        ):
            return []
        spread = min(spread for spread in spreads if spread is not None)
        text = (
            f"Ranks of {run.job or 'the job'} with one role differ by {100 * spread:.0f} % from step to step and the "
        )
        text += "slowest one keeps changing: unequal data, not hardware."
        return [self._finding(run, both.stop, "data", FindingScope.JOB, run.job or "job", text, spread)]

    def _moving_spread(self, role: Groups, large_G: BoolArray, log_SR: FloatArray) -> float | None:
        """Return how far peers differ from step to step; None where they do not, or one rank always leads."""
        deviation = log_SR - role.to_ranks(role.medians(log_SR))
        moving = deviation - sorted_median(deviation.T)
        spread = float(np.nanmedian(np.abs(moving[:, role.members_of(large_G)]))) * 1.4826
        if not spread > self.thresholds.data_spread:
            return None
        slowest = role.spread_out(np.nan_to_num(deviation, nan=-np.inf))[:, large_G].copy()
        slowest[np.isnan(slowest)] = -np.inf
        who = slowest.argmax(axis=-1)
        chances = np.minimum(len(who), role.size_G[large_G])
        movers = float(np.mean([len(np.unique(who[:, g])) / n for g, n in enumerate(chances)]))
        return spread if movers >= self.thresholds.data_movers else None

    def _is_work(self, run: RunSteps, role: Groups, steps: slice, moving_SR: FloatArray) -> bool:
        """Say whether what moves is work: counters explain it, or it shows wherever the same batch is computed."""
        work = [_log_of(run, name, steps, role) for name in ("tokens", *run.columns("work"))]
        known = [one for one in work if one is not None]
        differs = [one for one in known if float(np.nanstd(one)) > self.thresholds.work_differs]
        if any(_correlation(one, moving_SR) > self.thresholds.together for one in differs):
            return True
        limit = self.thresholds.together_equal_work if known and not differs else self.thresholds.together
        forward, backward = (_log_of(run, name, steps, role) for name in ("forward_us", "backward_us"))
        if forward is not None and backward is not None:
            return _correlation(forward, backward) > limit
        shared = Groups.from_labels([*zip(role.of_rank_R.tolist(), run.layout.axis_R["dp"].tolist(), strict=True)])
        if (run.layout.axis_R["dp"] >= 0).all() and shared.size_G.max(initial=0) > 1:
            first, second = _mates(shared)
            return _correlation(moving_SR[:, first], moving_SR[:, second]) > limit
        # Nothing to tell work from noise by: counters that say equal are believed.
        return not known or bool(differs)

    def _finding(
        self, run: RunSteps, steps: int, class_: str, scope: FindingScope, target: str, text: str, size: float
    ) -> Finding:
        at = run.end_ms_S[steps - 1]
        return Finding(
            detector=self.name,
            detector_version=self.version,
            kind=FindingKind.IMBALANCE,
            class_=class_,
            scope=scope,
            summary=text,
            score=round(size, 4),
            severity=Severity.INFO,
            detected_at=int(at) if np.isfinite(at) else None,
            cluster=run.cluster,
            job=run.job,
            run=run.run,
            targets=(target,),
            first_step=int(run.steps_S[0]),
            detected_step=int(run.steps_S[steps - 1]),
            confidence=0.8,
            evidence={"size": round(size, 4), "steps": steps},
        )


def _centred(role: Groups, log_SR: FloatArray) -> FloatArray:
    """Return what differs from peers and from the rank's own level."""
    deviation = log_SR - role.to_ranks(role.medians(log_SR))
    return np.asarray(deviation - sorted_median(deviation.T))


def _log_of(run: RunSteps, name: str, steps: slice, role: Groups) -> FloatArray | None:
    values = run.channel(name)
    if values is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        log_SR = np.log(np.where(values[steps] > 0, values[steps], np.nan))
    return _centred(role, log_SR) if np.isfinite(log_SR).any() else None


def _correlation(a_SR: FloatArray, b_SR: FloatArray) -> float:
    """Return Pearson's correlation of what both know, extremes clipped; 0 where one does not vary."""
    known = np.isfinite(a_SR) & np.isfinite(b_SR)
    if known.sum() < 8:
        return 0.0
    a, b = (np.clip(one[known].astype(float), *np.quantile(one[known], (0.02, 0.98))) for one in (a_SR, b_SR))
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0


def _mates(shared: Groups) -> tuple[IntArray, IntArray]:
    """Return pairs of ranks that compute the same batch: the first two of every group of more than one."""
    pairs = shared.members_GN[shared.size_G > 1][:, :2]
    return pairs[:, 0], pairs[:, 1]
