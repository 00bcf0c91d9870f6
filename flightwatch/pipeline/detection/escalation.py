"""A slow finding asks for more: the op detail in the rings of the suspect and two role peers, and a paired profile.

Only a finding that was just raised asks, once, and no more often than the limits allow over all processes.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from flightwatch.core.errors import FlightwatchError
from flightwatch.core.vocabulary import FindingKind, FindingState
from flightwatch.detectors.contract import Finding, Frames
from flightwatch.detectors.dense_steps import ranks_seen
from flightwatch.detectors.layout import build_layout
from flightwatch.pipeline.control.detection import DetectorRequests, RequestLimits
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.profiles.records import Profiles, Wanted

log = logging.getLogger(__name__)

#: Ranks of a suspect host that are looked at, and role peers beside them.
SUSPECTS, PEERS = 2, 2
#: Detail from so long before the first sign is asked for, at most an hour in all.
BEFORE_MS, LONGEST_MS = 60_000, 3_600_000
PROFILE_SECONDS, PROFILE_BYTES = 120, 2_000_000_000


class Evidence(Protocol):
    """Sends signed requests to agents: `evidence_requests.EvidenceRequester`."""

    def request(
        self, *, job: str, run: str, ranks_by_node: Mapping[str, Sequence[int]], since_ms: int, until_ms: int,
        actor: str, what: Sequence[str] = ("ring",),
    ) -> list[str]:  # fmt: skip
        """Ask the nodes for evidence of their ranks; return the ids of the commands."""


@dataclass(frozen=True)
class Pairing:
    """Whom to look at.

    Attributes
    ----------
    suspects, peers: global ranks. node_of: where each of them runs.
    """

    suspects: tuple[int, ...]
    peers: tuple[int, ...]
    node_of: Mapping[int, str]

    @property
    def ranks(self) -> list[int]:
        """All ranks, suspects first."""
        return [*self.suspects, *self.peers]

    def by_node(self) -> dict[str, list[int]]:
        """Return the ranks of each node."""
        found: dict[str, list[int]] = defaultdict(list)
        for rank in self.ranks:
            found[self.node_of[rank]].append(rank)
        return dict(found)


def pairing(finding: Finding, frames: Frames) -> Pairing | None:
    """Return the suspect ranks of a slow finding and two role peers on other nodes; None when no rank is known.

    Peers are of the same stage, where possible of the same tensor rank, and not on a node the finding names.
    """
    if finding.job is None:
        return None
    mine = ranks_seen(frames, finding.job, finding.run)
    ranks_R = np.unique(mine["rank"].to_numpy().astype(np.int64))
    if not len(ranks_R):
        return None
    layout = build_layout(frames, finding.job, finding.run, ranks_R, mine)
    node_R = np.array([node or "" for node in layout.node_R])
    accused = {finding.node, *finding.targets} - {None}
    on_it = ranks_R == finding.rank if finding.rank is not None else np.isin(node_R, [str(one) for one in accused])
    suspects = np.flatnonzero(on_it & (node_R != ""))[:SUSPECTS]
    if not len(suspects):
        return None
    first = suspects[0]
    role = np.array([pp == layout.axis_R["pp"][first] for pp in layout.axis_R["pp"].tolist()])
    fair = role & (node_R != "") & ~np.isin(node_R, node_R[suspects]) & ~np.isin(node_R, [str(one) for one in accused])
    if not fair.any():
        fair = role & (node_R != "") & ~on_it
    alike = layout.axis_R["tp"] == layout.axis_R["tp"][first]
    # Of the same tensor rank first, then the nearest in rank: neighbours share most of what is not the fault.
    order = np.lexsort((np.abs(ranks_R - ranks_R[first]), ~alike))
    peers = [int(at) for at in order if fair[at]][:PEERS]
    chosen = [*suspects.tolist(), *peers]
    return Pairing(
        tuple(int(ranks_R[at]) for at in suspects),
        tuple(int(ranks_R[at]) for at in peers),
        {int(ranks_R[at]): str(node_R[at]) for at in chosen},
    )


class Escalation:
    """Acts on findings that the loop has published.

    Parameters
    ----------
    requests: counts, so that limits hold over all processes. evidence, profiles: what carries requests out.
    """

    def __init__(
        self, requests: DetectorRequests, evidence: Evidence, profiles: Profiles, settings: DetectSettings, cluster: str
    ) -> None:
        self._requests, self._evidence, self._profiles = requests, evidence, profiles
        self._settings, self._cluster = settings, cluster

    def __call__(self, findings: Sequence[Finding], frames: Mapping[str, pd.DataFrame]) -> None:
        """Ask for more about every slow finding raised just now; never fails: what cannot be asked for is logged."""
        for finding in findings:
            if finding.kind != FindingKind.SLOW or finding.state != FindingState.RAISED or finding.job is None:
                continue
            if not (self._settings.evidence or self._settings.profile):
                continue
            pair = pairing(finding, frames)
            if pair is None:
                continue
            if self._settings.evidence:
                self._try("evidence", finding, lambda pair=pair, one=finding: self._ask(one, pair))  # type: ignore[misc]
            if self._settings.profile:
                self._try("profile", finding, lambda pair=pair, one=finding: self._profile(one, pair))  # type: ignore[misc]

    def _try(self, kind: str, finding: Finding, do: Callable[[], str]) -> None:
        settings = self._settings
        limits = {
            "evidence": RequestLimits(settings.evidence_job_seconds, settings.evidence_per_hour),
            "profile": RequestLimits(settings.profile_job_seconds, settings.profiles_per_hour),
        }[kind]
        cluster = finding.cluster or self._cluster
        try:
            refused = self._requests.take(kind, cluster, finding.job or "", finding.id, limits)
            if refused is None:
                log.info("%s: %s", finding.summary.rstrip("."), do())
            else:
                log.info("No %s of job %s: %s.", kind, finding.job, refused)
        except FlightwatchError as error:
            log.warning("No %s of job %s: %s", kind, finding.job, error)

    def _ask(self, finding: Finding, pair: Pairing) -> str:
        until_ms = finding.detected_at or 0
        since_ms = max((finding.first_seen_at or until_ms) - BEFORE_MS, until_ms - LONGEST_MS)
        sent = self._evidence.request(
            job=finding.job or "", run=finding.run or "", ranks_by_node=pair.by_node(), since_ms=since_ms,
            until_ms=until_ms, actor=f"detector:{finding.detector}",
        )  # fmt: skip
        return f"op detail of ranks {_listed(pair.ranks)} asked for ({len(sent)} commands)"

    def _profile(self, finding: Finding, pair: Pairing) -> str:
        name = self._profiles.create(
            Wanted(
                job=finding.job or "",
                run=finding.run or "",
                ranks=pair.ranks,
                steps=self._settings.profile_steps,
                options={},
                max_bytes=PROFILE_BYTES,
                max_seconds=PROFILE_SECONDS,
                requested_by=f"detector:{finding.detector}",
                reason=finding.summary,
            )
        )
        return f"profile {name} of ranks {_listed(pair.ranks)} asked for"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
