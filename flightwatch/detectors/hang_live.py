"""Hang: who stopped a job, from the evidence that agents collect when its steps stop.

Evidence is collected by the agents of the job when no step was made for max(10 s, five steps), at once and again
5 s later (and 10 s after that). The verdict of `hang.judge` is stated when a second sign agrees: the same operation
is unfinished in two captures of a waiting rank, or the job's RDMA ports carried nothing meanwhile. Ranks whose
evidence has not come count as behind only after `settle_s`: one node's rows may be late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from flightwatch.core.hang_evidence import QUIET_PHASE_SECONDS
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import DAY_MS, Finding, Frames, Needs
from flightwatch.detectors.hang_rows import Episode, episodes_of, verdict_of
from flightwatch.detectors.hang_verdict import HangVerdict

#: Ranks listed in the evidence of a finding.
_LISTED = 64
_SQL = (
    "SELECT rank, process_group, seq, op, created_at FROM flightwatch.collectives"
    " WHERE job = '{job}' AND NOT retired AND ts BETWEEN '{first}' AND '{last}' ORDER BY rank, record_id"
)


@dataclass(frozen=True)
class HangThresholds:
    """Defaults.

    Attributes
    ----------
    settle_s: seconds after the first capture from which ranks without evidence count as behind.
    least_confidence: verdicts below are told as "nobody is named".
    checkpoint_s: how long a rank may stand in a checkpoint while others wait for it.
    """

    settle_s: float = 12.0
    least_confidence: float = 0.4
    checkpoint_s: float = 1800.0


class HangDetector:
    """Finds kind `hang` (scope rank where one is named, node where all named ranks share one, else job).

    Does not see: jobs without an agent on their nodes; a job that never made a step and declares no phase; who hangs
    where neither flight recorder nor stacks could be read.
    """

    name = "hang"
    version = "1"
    needs = Needs(
        {
            "dumps": ("ts", "cluster", "node", "capture_id", "job", "run", "rank", "status"),
            "collectives": ("ts", "capture_id", "job", "run", "rank", "process_group", "seq", "op", "is_p2p", "peer",
                            "bytes", "dtype", "state", "retired", "record_id", "created_at"),
            "process_groups": ("job", "run", "process_group", "members"),
            "events": ("ts", "job", "run", "rank", "code", "message", "attrs"),
            "placements": ("ts", "node", "job", "run", "rank", "device", "valid_until"),
            "rank_steps": ("ts", "job", "run", "step", "rank"),
            "runs": ("ts", "job", "run", "phase", "started_at", "ended_at"),
            "port_samples": ("ts", "node", "hca", "port", "rx_bytes_total", "tx_bytes_total"),
        },
        seconds=3600,
    )  # fmt: skip

    def __init__(self, thresholds: HangThresholds | None = None) -> None:
        self.thresholds = thresholds or HangThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        for episode in episodes_of(frames):
            finding = self._of_episode(episode, frames, found)
            if finding is not None:
                found.append(finding)
                over = _first_step_after(frames, episode)
                if over is not None:
                    found.append(
                        replace(finding, state=FindingState.CLEARED, detected_at=over,
                                summary=f"Job {episode.job} makes steps again.")
                    )  # fmt: skip
        return sorted(found, key=lambda one: (one.detected_at or 0, one.id, one.state.value))

    def _of_episode(self, episode: Episode, frames: Frames, earlier: Sequence[Finding]) -> Finding | None:
        if not self._is_complete(episode, frames):
            return None
        verdict = verdict_of(episode)
        if verdict.verdict == "not_hung" or (verdict.verdict == "undetermined" and not episode.still):
            return None
        waiting = set(verdict.waiting or episode.asked)
        second = "two captures" if waiting & episode.still else None
        if second is None and _ports_stand(frames, episode):
            second = "no RDMA traffic"
        if second is None or self._in_checkpoint(episode, verdict) or _in_quiet_phase(frames, episode):
            return None
        if verdict.confidence < self.thresholds.least_confidence and verdict.verdict != "undetermined":
            verdict.root_ranks = []
        return self._finding(episode, verdict, second, _placed(frames, episode), earlier)

    def _is_complete(self, episode: Episode, frames: Frames) -> bool:
        """Say whether all ranks of the job were looked at, or the rest is late enough to count."""
        known = set(_placed(frames, episode))
        for dump in episode.evidence.dumps.values():
            for members in dump.members.values():
                known.update(members)
        newest = max((_newest(frames, table) for table in ("dumps", "events", "rank_steps")), default=0.0)
        return known <= episode.asked or newest - episode.first_ms >= self.thresholds.settle_s * 1000

    def _in_checkpoint(self, episode: Episode, verdict: HangVerdict) -> bool:
        roots = set(verdict.root_ranks)
        saves = {stack.rank for stack in episode.evidence.stacks if stack.waits_for == "checkpoint"}
        if not roots or not roots <= saves:
            return False
        since = verdict.since_ms if verdict.since_ms is not None else episode.first_ms
        return episode.last_ms - since < self.thresholds.checkpoint_s * 1000

    def _finding(
        self,
        episode: Episode,
        verdict: HangVerdict,
        second: str,
        placed: dict[int, tuple[str | None, int | None]],
        earlier: Sequence[Finding],
    ) -> Finding:
        roots = verdict.root_ranks
        nodes = {episode.nodes.get(rank) or placed.get(rank, (None, None))[0] for rank in roots}
        node = next(iter(nodes)) if len(nodes) == 1 else None
        scope = FindingScope.RANK if len(roots) == 1 else (FindingScope.NODE if node else FindingScope.JOB)
        again = node is not None and any(
            one.node == node and one.state is FindingState.RAISED and (one.detected_at or 0) > episode.first_ms - DAY_MS
            for one in earlier
        )
        summary = f"Job {episode.job} stands still. {verdict.sentence}"
        if again:
            summary += f" It is the second hang on {node} within a day."
        return Finding(
            detector=self.name,
            detector_version=self.version,
            kind=FindingKind.HANG,
            class_=verdict.verdict,
            scope=scope,
            summary=summary,
            score=round(max(verdict.confidence, 0.3), 3),
            threshold=self.thresholds.least_confidence,
            severity=Severity.P2 if verdict.verdict in ("undetermined", "input_stall") else Severity.P1,
            detected_at=int(episode.last_ms),
            first_seen_at=int(min(episode.first_ms, verdict.since_ms or episode.first_ms)),
            cluster=episode.cluster,
            node=node,
            job=episode.job,
            run=episode.run,
            rank=roots[0] if len(roots) == 1 else None,
            device=placed.get(roots[0], (None, None))[1] if len(roots) == 1 else None,
            targets=tuple(f"rank {rank}" for rank in roots[:_LISTED]) or (episode.job,),
            blames_hardware=verdict.verdict == "device_error" or again,
            confidence=round(verdict.confidence, 2),
            evidence=_evidence(episode, verdict, second),
        )


def _evidence(episode: Episode, verdict: HangVerdict, second: str) -> dict[str, Any]:
    document = verdict.as_dict()
    for name in ("root_ranks", "waiting", "no_log"):
        document[f"{name}_count"] = len(document[name])
        document[name] = document[name][:_LISTED]
    first, last = (pd.Timestamp(ms, unit="ms").isoformat(sep=" ") for ms in (episode.first_ms - 1, episode.last_ms + 1))
    job = episode.job.replace("'", "''")
    return document | {
        "second_sign": second,
        "captures": sorted(episode.captures)[:_LISTED],
        "ranks_seen": len(episode.asked),
        "sql": _SQL.format(job=job, first=first, last=last),
    }


def _newest(frames: Frames, table: str) -> float:
    frame = frames.get(table)
    if frame is None or "ts" not in frame or frame.empty:
        return 0.0
    newest = float(frame["ts"].max())
    return newest if newest == newest else 0.0


def _of_run(frames: Frames, table: str, episode: Episode) -> pd.DataFrame:
    frame = frames.get(table)
    if frame is None or frame.empty or not {"ts", "job", "run"} <= set(frame.columns):
        return pd.DataFrame()
    return frame[(frame["job"].astype(object) == episode.job) & (frame["run"].astype(object) == episode.run)]


def _in_quiet_phase(frames: Frames, episode: Episode) -> bool:
    """Say whether the run told that it evaluates, saves or the like, and has done so for less than that may take."""
    rows = _of_run(frames, "runs", episode)
    if not {"phase", "started_at", "ended_at"} <= set(rows.columns):
        return False
    phases = rows.dropna(subset=["phase", "started_at"]).to_dict("records")
    for row in phases:
        limit_s = QUIET_PHASE_SECONDS.get(str(row["phase"]))
        since = row["started_at"]
        over = any(
            other["phase"] == row["phase"] and other["ended_at"] == other["ended_at"] and other["ended_at"] is not None
            and other["ended_at"] >= since for other in phases
        )  # fmt: skip
        if limit_s is not None and not over and 0 <= episode.last_ms - since < limit_s * 1000:
            return True
    return False


def _placed(frames: Frames, episode: Episode) -> dict[int, tuple[str | None, int | None]]:
    """Return rank to node and device of the episode's run."""
    rows = _of_run(frames, "placements", episode)
    if not {"rank"} <= set(rows.columns):
        return {}
    found: dict[int, tuple[str | None, int | None]] = {}
    for row in rows.dropna(subset=["rank"]).sort_values("ts").to_dict("records"):
        node, device = row.get("node"), row.get("device")
        index = int(device) if isinstance(device, (int, float)) and device == device else None
        found[int(row["rank"])] = (node if isinstance(node, str) else None, index)
    return found


def _first_step_after(frames: Frames, episode: Episode) -> int | None:
    rows = _of_run(frames, "rank_steps", episode)
    later = rows[rows["ts"] > episode.last_ms] if "ts" in rows else rows
    return None if later.empty else int(later["ts"].min())


def _ports_stand(frames: Frames, episode: Episode) -> bool:
    """Say whether the RDMA ports of the job's nodes were seen twice since the standstill and moved nothing."""
    ports = frames.get("port_samples")
    needed = {"ts", "node", "hca", "port", "rx_bytes_total", "tx_bytes_total"}
    if ports is None or ports.empty or not needed <= set(ports.columns):
        return False
    nodes = set(episode.nodes.values())
    rows = ports[ports["node"].isin(nodes) & (ports["ts"] >= episode.first_ms)]
    rows = rows.dropna(subset=["rx_bytes_total", "tx_bytes_total"])
    if rows.empty:
        return False
    by_port = rows.groupby(["node", "hca", "port"], observed=True)[["ts", "rx_bytes_total", "tx_bytes_total"]]
    spans = by_port.max() - by_port.min()
    seen = spans["ts"] >= 1000
    still = (spans["rx_bytes_total"] == 0) & (spans["tx_bytes_total"] == 0)
    return bool(seen.any() and still[seen].all())
