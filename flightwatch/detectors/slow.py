"""Slow node: one rank, host, link or rack that holds a synchronous job back.

Channels (compute, transfer, data, launch gap) are scored apart against peers in the same role and
against each rank's own past (`drift`); here the episodes become statements about a target: a rank's
device, a host when most of its ranks are slow together, a rack when most of its nodes are.

Method: layout first, then robust residuals, then accumulation (design: FALCON 2024 and C4D 2024 compare
peers; the accumulation is Page's CUSUM). Does not see: what slows all ranks alike (see `fail_slow`), a
rank slow from the first step with fewer than four peers, overlapped communication.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from flightwatch.core.vocabulary import FindingKind, FindingScope
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.drift import BLOCK
from flightwatch.detectors.episodes import LEVEL
from flightwatch.detectors.host_level import host_episodes
from flightwatch.detectors.links import link_findings
from flightwatch.detectors.rank_matrix import RunSteps, runs_of
from flightwatch.detectors.slow_channels import ChannelLimits, score_channels
from flightwatch.detectors.slow_stage import stage_findings
from flightwatch.detectors.slow_targets import TargetLimits, TargetScan

NEEDED_COLUMNS = (
    "ts", "cluster", "node", "job", "run", "step", "rank", "device", "step_us", "compute_us", "optimizer_us",
    "data_us", "checkpoint_us", "launch_gap_us", "comm_us", "wait_us", "transfer_us", "comm_by_axis_us", "tokens",
    "work", "mode",
)  # fmt: skip


@dataclass(frozen=True)
class SlowThresholds:
    """All defaults of the slow-node detector."""

    channels: ChannelLimits = field(default_factory=ChannelLimits)
    targets: TargetLimits = field(default_factory=TargetLimits)


class SlowDetector:
    """Finds kind `slow` (compute, host, storage, link, rack) and, where work explains it, `imbalance` of an expert.

    Parameters
    ----------
    thresholds: one documented set; see `drift.DriftThresholds` and `slow_targets.TargetLimits`.
    """

    name = "slow"
    version = "1"
    needs = Needs(
        {
            "rank_steps": NEEDED_COLUMNS,
            "placements": ("ts", "node", "job", "run", "rank", "device", "tp", "cp", "pp", "dp", "ep", "module"),
            "inventory": ("node", "device", "model", "rack", "leaf_switch"),
            "device_samples": ("ts", "node", "device", "vendor", "model", "sm_clock_mhz", "temp_c", "util_pct"),
        },
        steps=400,
    )

    def __init__(self, thresholds: SlowThresholds | None = None) -> None:
        self.thresholds = thresholds or SlowThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        for run in runs_of(frames, minimum_steps=2 * BLOCK):
            found += self._of_run(run, frames)
        return sorted(found, key=lambda finding: (finding.detected_at or 0, finding.detected_step or 0, finding.id))

    def _of_run(self, run: RunSteps, frames: Frames) -> Iterable[Finding]:
        channels = score_channels(run, self.thresholds.channels)
        if "compute" in channels:
            compute = channels["compute"]
            told = {episode.rank for episode in compute.episodes if episode.path & LEVEL}
            hosts = [one for one in host_episodes(run, compute) if one.rank not in told]
            episodes = sorted([*compute.episodes, *hosts], key=lambda one: (one.said, one.rank))
            channels["compute"] = replace(compute, episodes=episodes)
        scan = TargetScan(self.name, self.version, run, channels, self.thresholds.targets)
        found = scan.findings()
        if "compute" in channels:
            found += stage_findings(self.name, self.version, run, channels["compute"], frames, self.thresholds.targets)
        if "transfer" in channels:
            found += link_findings(self.name, self.version, run, channels, frames, self.thresholds.targets)
        return found


#: What this detector can say, for the documentation and the registry's test.
KINDS = (FindingKind.SLOW, FindingKind.IMBALANCE)
SCOPES = (FindingScope.RANK, FindingScope.NODE, FindingScope.RACK, FindingScope.LINK, FindingScope.LEAF_SWITCH)
