"""From slow ranks to the thing a person should look at: a device, a host, a rack, or no hardware at all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.drift import BLOCK
from flightwatch.detectors.episodes import LEVEL, RECURRENCE, WINDOW, Episode
from flightwatch.detectors.grouped import sorted_median
from flightwatch.detectors.layout import MINIMUM_PEERS
from flightwatch.detectors.rank_matrix import RunSteps
from flightwatch.detectors.second_opinion import second_opinion
from flightwatch.detectors.slow_channels import Channel, step_scale
from flightwatch.detectors.slow_words import (
    end_of_block,
    evidence_of,
    known_mean,
    later_end,
    measured_steps,
    target_names,
)

#: So many of a replica's ranks are slow, and so many of all others are not, when its data is longer.
REPLICA_SHARE = 0.9
CHANNEL_CLASS = {"compute": "compute", "data": "storage", "launch": "host", "transfer": "link"}


@dataclass(frozen=True)
class TargetLimits:
    """Defaults of attribution.

    Attributes
    ----------
    host_share, rack_share: share of a host's ranks, of a rack's ranks, that must be slow together.
    support_effect: a rank supports a statement when its deviation is at least this share of the suspect's.
    witness_share: the optimizer step (equal work on all ranks) must have slowed by at least this share of
        the effect where experts make work unequal.
    expert_share: so many of the ranks with the suspect's experts are slow when an expert is busy.
    victim_wait: a suspect that waits longer than its peers, by this share of its effect, is a victim.
    serious_gain, serious_ranks: from here on a slow node is P2. chronic_gain: a lasting difference between
        chips below this is node history, not a finding. crowd_share, crowd_change: where so large a part of the
        group slowed together, the ranks must have slowed by this share of the effect against their own past.
    """

    host_share: float = 0.75
    rack_share: float = 0.6
    support_effect: float = 0.4
    witness_share: float = 0.3
    victim_wait: float = 0.5
    expert_share: float = 0.5
    serious_gain: float = 0.05
    serious_ranks: int = 1000
    chronic_gain: float = 0.02
    crowd_share: float = 0.4
    crowd_change: float = 0.3


@dataclass
class Statement:
    """An open statement about a group of ranks; `findings` are the rows already said about it."""

    episode: Episode
    positions: list[int]
    last: Finding
    over: int | None
    findings: list[Finding] = field(default_factory=list)


class TargetScan:
    """Walks the episodes of one run in order of detection and says what they are about.

    Parameters
    ----------
    detector, version: written into findings. channels: scored channels by name.
    """

    def __init__(
        self, detector: str, version: str, run: RunSteps, channels: dict[str, Channel], limits: TargetLimits
    ) -> None:
        self.detector, self.version, self.run, self.limits = detector, version, run, limits
        self.channels = channels
        self.node_ranks = run.layout.positions_by(run.layout.node_R)
        self.rack_ranks = run.layout.positions_by(run.layout.domain.get("rack", ()))
        self.scale_S = step_scale(run)

    def findings(self) -> list[Finding]:
        """Return findings about ranks, hosts and racks in the compute, data and launch channels."""
        statements: list[Statement] = []
        for name in ("compute", "launch", "data"):
            if name in self.channels:
                for episode in self.channels[name].episodes:
                    self._take(name, episode, statements)
        result: list[Finding] = []
        for statement in statements:
            result += statement.findings
            if statement.over is not None:
                result.append(self._cleared(statement))
        return result

    def _take(self, name: str, episode: Episode, statements: list[Statement]) -> None:
        channel = self.channels[name]
        for statement in statements:
            covers = statement.over is None or statement.over >= episode.said
            if not covers or statement.episode.channel not in (name, "compute"):
                continue
            if episode.rank in statement.positions:
                statement.over = later_end(statement.over, episode.over)
                return
        if self._is_victim(name, episode) or self._is_chronic(name, episode) or self._others_sped_up(name, episode):
            return
        class_, scope, positions = self._extent(channel, episode)
        finding = self._say(channel, episode, class_, scope, positions)
        for statement in statements:
            overlapping = statement.episode.channel == name and set(statement.positions) <= set(positions)
            if overlapping and (statement.over is None or statement.over >= episode.said):
                changed = replace(finding, id=statement.last.id, state=FindingState.CHANGED)
                statement.findings.append(changed)
                statement.positions, statement.last = positions, changed
                statement.over = later_end(statement.over, episode.over)
                return
        statements.append(Statement(episode, positions, finding, episode.over, [finding]))

    # --- what it is about

    def _extent(self, channel: Channel, episode: Episode) -> tuple[str, FindingScope, list[int]]:
        supporting = self._supporting(channel, episode)
        class_ = CHANNEL_CLASS[channel.name]
        node = self.run.layout.node_R[episode.rank]
        rack = self.run.layout.domain["rack"][episode.rank] if "rack" in self.run.layout.domain else None
        if rack is not None and channel.name == "compute":
            members = self.rack_ranks[rack]
            nodes = {self.run.layout.node_R[i] for i in members}
            slow_nodes = {self.run.layout.node_R[i] for i in members if supporting[i]}
            enough = supporting[members].mean() >= self.limits.rack_share
            if len(nodes) >= 2 and len(slow_nodes) >= 2 and enough:
                return "rack", FindingScope.RACK, list(members)
        mates = self.node_ranks.get(node, [episode.rank]) if node is not None else [episode.rank]
        if channel.name == "data":
            mates = [i for i in mates if self._loads(channel, i)]
            if episode.rank not in mates:
                mates.append(episode.rank)
        if len(mates) >= 2 and supporting[mates].mean() >= self.limits.host_share:
            return ("host" if class_ == "compute" else class_), FindingScope.NODE, list(mates)
        if class_ == "compute":
            return class_, FindingScope.RANK, [episode.rank]
        # A launch gap or a loader is the host's business even where one rank shows it.
        return class_, FindingScope.NODE if node is not None else FindingScope.RANK, [episode.rank]

    def _loads(self, channel: Channel, position: int) -> bool:
        return bool(np.nanmedian(channel.values_SR[:, position]) > 0.001)

    def _supporting(self, channel: Channel, episode: Episode) -> np.ndarray:
        """Say which ranks deviate like the suspect at the time of detection, at a lower limit."""
        values = channel.dev.level_TR if episode.path == LEVEL else channel.dev.own_TR
        begin = max(0, min(episode.begin, episode.said - 1)) if episode.path != LEVEL else max(0, episode.said - 4)
        recent = values[max(begin, episode.said - 8) : episode.said + 1]
        mean = np.nanmean(np.where(np.isfinite(recent), recent, 0.0), axis=0)
        if episode.path == LEVEL:
            # The median of two hosts lies between them; the quicker quarter is where the slow ones should be.
            mean = mean - channel.role.to_ranks(channel.role.quantiles(mean, 0.25))
        if episode.path == RECURRENCE:
            mean = channel.found.effect_TR[: episode.said + 1].max(axis=0)
        sigma = channel.dev.sigma_TR[episode.said] / np.sqrt(len(recent))
        supporting = (mean > self.limits.support_effect * episode.effect) & (mean > 2 * sigma)
        supporting[episode.rank] = True
        return np.asarray(supporting)

    # --- what it is not

    def _is_victim(self, name: str, episode: Episode) -> bool:
        """Say whether the suspect waits longer than its peers: then its long time hides waiting."""
        wait = self.run.channel("wait_us")
        if wait is None or self.scale_S is None or name != "compute" or episode.path == LEVEL:
            return False
        after = slice(episode.begin * BLOCK, (episode.said + 1) * BLOCK)
        before = slice(max(0, (episode.begin - 12) * BLOCK), episode.begin * BLOCK)
        share = wait / self.scale_S
        grown = np.nanmean(share[after, episode.rank]) - known_mean(share[before, episode.rank])
        group = self.channels[name].role.of_rank_R == self.channels[name].role.of_rank_R[episode.rank]
        peers = sorted_median(share[:, group])
        usual = np.nanmean(peers[after]) - known_mean(peers[before])
        return bool(grown - usual > self.limits.victim_wait * episode.effect)

    def _others_sped_up(self, name: str, episode: Episode) -> bool:
        """Say whether the suspect did not change at all while many of its peers became quicker.

        Asked only where a large part of the group "slowed" together; a repaired host looks so from the other one.
        """
        if episode.path == LEVEL:
            return False
        channel = self.channels[name]
        group = channel.compared.of_rank_R == channel.compared.of_rank_R[episode.rank]
        if self._supporting(channel, episode)[group].mean() < self.limits.crowd_share:
            return False
        dev = channel.dev
        absolute = dev.own_TR + channel.compared.to_ranks(dev.common_TG) + dev.shared_TR
        recent = absolute[max(episode.begin, episode.said - 7) : episode.said + 1, episode.rank]
        return bool(np.nanmean(recent) < self.limits.crowd_change * episode.effect)

    def _is_chronic(self, name: str, episode: Episode) -> bool:
        return episode.path == LEVEL and self._gain(name, episode, [episode.rank]) < self.limits.chronic_gain

    def _witness(self, episode: Episode, positions: list[int]) -> tuple[bool, dict[str, Any]]:
        """Ask whether equal work slowed too: False when experts explain the time better than hardware."""
        layout = self.run.layout
        expert = layout.axis_R["ep"]
        if len(np.unique(expert[expert >= 0])) < 2:
            return True, {}
        alike, seen = self._same_expert(episode, expert)
        optimizer = self.run.channel("optimizer_us")
        if optimizer is None:
            return not alike, seen
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log(optimizer)
        role = self.channels["compute"].role
        values = values - role.to_ranks(role.medians(values))
        first = slice(0, max(BLOCK, min(12, episode.begin) * BLOCK))
        grown = float(np.nanmedian(values[measured_steps(episode)][:, positions]))
        if episode.path != LEVEL:
            grown -= float(np.nanmedian(values[first][:, positions]))
        seen["optimizer_log_change"] = round(grown, 4)
        # An expert is busy on all ranks that hold it: one rank slow among them is no expert's doing.
        alone = seen["expert_ranks"] >= MINIMUM_PEERS and not alike
        return grown > self.limits.witness_share * episode.effect or alone, seen

    def _same_expert(self, episode: Episode, expert_R: np.ndarray) -> tuple[bool, dict[str, Any]]:
        """Say whether the ranks that hold the suspect's experts are slow together."""
        role = self.channels["compute"].role.of_rank_R
        same = (expert_R == expert_R[episode.rank]) & (role == role[episode.rank])
        supporting = self._supporting(self.channels["compute"], episode)[same]
        seen = {"expert_ranks": int(same.sum()), "expert_ranks_slow": int(supporting.sum())}
        return len(supporting) >= 2 and bool(supporting.mean() >= self.limits.expert_share), seen

    def _one_replica(self, episode: Episode) -> bool:
        """Say whether exactly the ranks of one data-parallel replica are slow, in several stages on several nodes.

        Stages of a replica share nothing but their batch: longer data slows all of them alike, hardware does not.
        """
        layout = self.run.layout
        dp, pp = layout.axis_R["dp"], layout.axis_R["pp"]
        if dp[episode.rank] < 0 or len(np.unique(dp)) < 3:
            return False
        mine = dp == dp[episode.rank]
        if mine.sum() < MINIMUM_PEERS or len(np.unique(pp[mine])) < 2:
            return False
        if len({layout.node_R[i] for i in np.nonzero(mine)[0]}) < 2:
            return False
        supporting = self._supporting(self.channels["compute"], episode)
        return bool(supporting[mine].mean() >= REPLICA_SHARE and supporting[~mine].mean() <= 1 - REPLICA_SHARE)

    # --- words

    def _say(
        self, channel: Channel, episode: Episode, class_: str, scope: FindingScope, positions: list[int]
    ) -> Finding:
        layout, run = self.run.layout, self.run
        hardware, witness = True, dict[str, Any]()
        if channel.name == "compute":
            hardware, witness = self._witness(episode, positions)
        kind = FindingKind.SLOW
        replica = channel.name == "compute" and hardware and scope != FindingScope.RACK and self._one_replica(episode)
        if replica or not hardware:
            kind, class_, scope = FindingKind.IMBALANCE, "data" if replica else "expert", FindingScope.JOB
            hardware = False
            positions = np.nonzero(self._supporting(channel, episode))[0].tolist()
        unproven = not layout.known and episode.path == LEVEL
        gain = self._gain(channel.name, episode, positions)
        node, rank = layout.node_R[episode.rank], int(layout.ranks_R[episode.rank])
        device = int(layout.device_R[episode.rank]) if layout.device_R[episode.rank] >= 0 else None
        targets = target_names(run, scope, positions)
        single = scope in (FindingScope.RANK, FindingScope.DEVICE)
        opinion = second_opinion(self.channels, episode, positions, measured_steps(episode))
        seen = evidence_of(self.run, channel, episode, positions) | witness | opinion.as_evidence()
        return Finding(
            detector=self.detector,
            detector_version=self.version,
            kind=kind,
            class_=class_,
            scope=scope,
            summary=self._sentence(kind, class_, scope, episode, targets, gain),
            score=round(episode.score, 3),
            threshold=None,
            severity=Severity.INFO if not hardware else self._severity(gain, episode),
            detected_at=end_of_block(run, episode.said),
            cluster=run.cluster,
            node=None if scope in (FindingScope.RACK, FindingScope.JOB) else node,
            job=run.job,
            run=run.run,
            device=device if single else None,
            rank=rank if single else None,
            targets=targets,
            first_seen_at=end_of_block(run, max(0, episode.begin - 1)),
            first_step=int(run.steps_S[min(episode.begin * BLOCK, len(run.steps_S) - 1)]),
            detected_step=int(run.steps_S[(episode.said + 1) * BLOCK - 1]),
            blames_hardware=hardware and not unproven,
            confidence=round(self._confidence(episode, hardware) + opinion.confidence_change, 2),
            expected_gain=round(gain, 4),
            evidence=seen,
        )

    def _severity(self, gain: float, episode: Episode) -> Severity:
        if gain >= self.limits.serious_gain and self.run.shape[1] >= self.limits.serious_ranks:
            return Severity.P2
        return Severity.P3 if episode.effect >= 0.03 else Severity.P4

    def _confidence(self, episode: Episode, hardware: bool) -> float:
        base = 0.95 if episode.path & WINDOW else 0.85
        if episode.path == LEVEL:
            base = 0.75
        if not self.run.layout.known:
            base -= 0.25
        return round(base if hardware else base - 0.1, 2)

    def _gain(self, name: str, episode: Episode, positions: list[int]) -> float:
        """Share of the step won if the target ran like the median of its peers."""
        channel = self.channels[name]
        if self.scale_S is None:
            return float(np.clip(episode.effect, 0, 1))
        last = measured_steps(episode)
        role = channel.role.of_rank_R
        own = float(np.nanmedian(channel.raw_SR[last][:, positions]))
        group = np.nonzero(role == role[episode.rank])[0]
        rest = np.setdiff1d(group, positions)
        if not len(rest):
            rest = group
        peers = float(np.nanmedian(channel.raw_SR[last][:, rest]))
        scale = float(np.nanmedian(self.scale_S[last]))
        if episode.path == RECURRENCE:
            return float(np.clip(episode.effect * peers / scale * 0.1, 0, 1))
        # A chip slower than its peers all its life wins nothing new: count the change where there is one.
        excess = own - peers if episode.path == LEVEL else min(own - peers, own * (1 - np.exp(-episode.effect)))
        if name != "compute":
            excess = episode.effect * scale
        return float(np.clip(excess / scale, 0.0, 1.0)) if np.isfinite(excess) else 0.0

    def _sentence(
        self,
        kind: FindingKind,
        class_: str,
        scope: FindingScope,
        episode: Episode,
        targets: tuple[str, ...],
        gain: float,
    ) -> str:
        name = targets[0] if targets else f"rank {int(self.run.layout.ranks_R[episode.rank])}"
        percent = 100 * (np.exp(episode.effect) - 1 if episode.channel == "compute" else episode.effect)
        what = {
            "compute": f"computes {percent:.1f} % longer than its role peers",
            "launch": f"leaves its devices idle {percent:.1f} % of the step longer than its peers (launch gap)",
            "data": f"waits {percent:.1f} % of the step longer for data than its peers",
            "transfer": f"moves data {percent:.1f} % of the step longer",
        }[episode.channel]
        if kind == FindingKind.IMBALANCE and class_ == "data":
            return f"{name} and all other ranks of its replica {what}, in every stage: longer data, not hardware."
        if kind == FindingKind.IMBALANCE:
            return f"{name} {what}, but equal work is not slower there: a busy expert, not hardware."
        tail = "" if self.run.layout.known else " Roles are unknown, so this rests on its own history."
        return f"{name} {what}; the job would gain {100 * gain:.1f} % of its step without it.{tail}"

    def _cleared(self, statement: Statement) -> Finding:
        block = statement.over or 0
        return replace(
            statement.last,
            state=FindingState.CLEARED,
            detected_at=end_of_block(self.run, block),
            detected_step=int(self.run.steps_S[(block + 1) * BLOCK - 1]),
            summary=statement.last.summary.split(";")[0].rstrip(".") + ": over.",
        )
