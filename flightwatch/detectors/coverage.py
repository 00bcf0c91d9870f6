"""Coverage: what cannot be judged, said aloud, so that silence never reads as health."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.layout import MINIMUM_PEERS
from flightwatch.detectors.rank_matrix import RunSteps, runs_of
from flightwatch.detectors.slow_channels import compute_times


@dataclass(frozen=True)
class CoverageThresholds:
    """Defaults: share of ranks (of those placed) that must report; share of rank-steps; unexplained share of the step
    above which timing verdicts are not trusted; steps read before speaking."""

    ranks: float = 0.9
    rank_steps: float = 0.9
    unattributed: float = 0.2
    steps: int = 20


class CoverageDetector:
    """Finds kind `coverage` (scope job): too few ranks or steps, roles unknown, too few peers, no compute times."""

    name = "coverage"
    version = "1"
    needs = Needs(
        {
            "rank_steps": ("ts", "job", "run", "step", "rank", "step_us", "compute_us", "unattributed_us"),
            "placements": ("job", "run", "rank"),
        },
        steps=20,
    )

    def __init__(self, thresholds: CoverageThresholds | None = None) -> None:
        self.thresholds = thresholds or CoverageThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        for run in runs_of(frames):
            reasons = self._reasons(run, frames)
            if reasons:
                found.append(self._finding(run, reasons))
        return found

    def _reasons(self, run: RunSteps, frames: Frames) -> dict[str, str]:
        limits, reasons = self.thresholds, dict[str, str]()
        compute, step = compute_times(run), run.channel("step_us")
        seen = compute if compute is not None else step
        if seen is not None:
            share = float(np.isfinite(seen[: limits.steps]).mean())
            if share < limits.rank_steps:
                reasons["rank_steps"] = f"only {100 * share:.0f} % of its rank-steps arrived"
        placed = _placed_ranks(run, frames)
        if placed and len(run.layout.ranks_R) < limits.ranks * placed:
            reasons["ranks"] = f"only {len(run.layout.ranks_R)} of {placed} ranks report"
        if compute is None:
            reasons["compute"] = "no compute times are known, so no rank can be told from its victims"
        if not run.layout.known:
            reasons["roles"] = "its placements are unknown, so ranks are only compared with their own past"
        elif run.shape[1] < MINIMUM_PEERS or run.layout.role_groups().size_G.min() < MINIMUM_PEERS:
            smallest = int(run.layout.role_groups().size_G.min())
            reasons["peers"] = f"a role has {smallest} ranks, too few to compare; only changes are judged"
        rest = run.channel("unattributed_us")
        if rest is not None and step is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                share = float(np.nanmedian(rest[: limits.steps] / step[: limits.steps]))
            if share > limits.unattributed:
                reasons["unattributed"] = f"{100 * share:.0f} % of the step is neither compute nor communication"
        return reasons

    def _finding(self, run: RunSteps, reasons: dict[str, str]) -> Finding:
        last = min(self.thresholds.steps, run.shape[0]) - 1
        at = run.end_ms_S[last]
        return Finding(
            detector=self.name,
            detector_version=self.version,
            kind=FindingKind.COVERAGE,
            scope=FindingScope.JOB,
            summary=f"Insufficient coverage of {run.job or 'the job'}: {'; '.join(reasons.values())}.",
            score=float(len(reasons)),
            severity=Severity.INFO,
            detected_at=int(at) if np.isfinite(at) else None,
            cluster=run.cluster,
            job=run.job,
            run=run.run,
            targets=(run.job or "job",),
            first_step=int(run.steps_S[0]),
            detected_step=int(run.steps_S[last]),
            confidence=1.0,
            evidence={"reasons": sorted(reasons), "ranks_reporting": len(run.layout.ranks_R)},
        )


def _placed_ranks(run: RunSteps, frames: Frames) -> int:
    placements = frames.get("placements")
    if placements is None or placements.empty or "rank" not in placements:
        return 0
    rows = placements
    for column, wanted in (("job", run.job), ("run", run.run)):
        if column in rows and wanted is not None:
            rows = rows[(rows[column] == wanted) | rows[column].isna()]
    return int(rows["rank"].nunique())
