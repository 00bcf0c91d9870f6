"""Imbalance: unequal work, said as such so that nobody drains a healthy node. Never blames hardware.

- stage: one pipeline stage computes longer than the others, all its ranks alike, for the whole run;
- data: ranks of one role differ a lot from step to step and the slowest one keeps changing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import FloatArray, sorted_median
from flightwatch.detectors.layout import MINIMUM_PEERS
from flightwatch.detectors.rank_matrix import RunSteps, runs_of
from flightwatch.detectors.slow_channels import compute_times


@dataclass(frozen=True)
class ImbalanceThresholds:
    """Defaults: steps read before speaking; a stage's excess over the median stage; spread of peers per step; how many
    peers must have been the slowest at least once (share)."""

    steps: int = 30
    stage_excess: float = 0.10
    data_spread: float = 0.08
    data_movers: float = 0.5


class ImbalanceDetector:
    """Finds kind `imbalance`, classes stage and data; information, once per run.

    Does not see: expert imbalance (told by the slow detector's witness), imbalance that balances out in a step.
    """

    name = "imbalance"
    version = "1"
    needs = Needs(
        {
            "rank_steps": ("ts", "job", "run", "step", "rank", "compute_us", "tokens"),
            "placements": ("job", "run", "rank", "pp", "module"),
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
                log_time = np.log(compute[: self.thresholds.steps])
            found += [*self._stages(run, log_time), *self._data(run, log_time)]
        return found

    def _stages(self, run: RunSteps, log_SR: FloatArray) -> list[Finding]:
        role = run.layout.groups_by("pp", "module")
        if len(role.size_G) < 2:
            return []
        level_G = sorted_median(role.medians(log_SR).T)
        found: list[Finding] = []
        for group in range(len(level_G)):
            excess = float(level_G[group] - np.nanmedian(np.delete(level_G, group)))
            if excess < np.log1p(self.thresholds.stage_excess):
                continue
            stage = int(run.layout.axis_R["pp"][role.members_GN[group][0]])
            text = f"Stage {stage} of {run.job or 'the job'} computes {100 * (np.exp(excess) - 1):.0f} % longer than "
            text += "the median stage, all its ranks alike: its share of the model, not hardware."
            found.append(self._finding(run, len(log_SR), "stage", FindingScope.STAGE, f"stage {stage}", text, excess))
        return found

    def _data(self, run: RunSteps, log_SR: FloatArray) -> list[Finding]:
        role = run.layout.role_groups()
        large = role.size_G >= MINIMUM_PEERS
        if not large.any():
            return []
        deviation = log_SR - role.to_ranks(role.medians(log_SR))
        own = sorted_median(deviation.T)
        moving = deviation - own
        spread = float(np.nanmedian(np.abs(moving[:, role.members_of(large)]))) * 1.4826
        if not spread > self.thresholds.data_spread:
            return []
        slowest = role.spread_out(np.nan_to_num(deviation, nan=-np.inf))[:, large].copy()
        slowest[np.isnan(slowest)] = -np.inf
        who = slowest.argmax(axis=-1)
        chances = np.minimum(len(who), role.size_G[large])
        movers = float(np.mean([len(np.unique(who[:, g])) / n for g, n in enumerate(chances)]))
        if movers < self.thresholds.data_movers:
            return []
        text = (
            f"Ranks of {run.job or 'the job'} with one role differ by {100 * spread:.0f} % from step to step and the "
        )
        text += "slowest one keeps changing: unequal data, not hardware."
        return [self._finding(run, len(log_SR), "data", FindingScope.JOB, run.job or "job", text, spread)]

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
