"""A second opinion on a slow rank: density clustering of what all channels show at that time.

The tests of `drift` read one channel against its own history. Here the ranks around a suspect are points,
one coordinate per channel (compute, transfer, launch gap, data): how much each changed against before,
less the median of the others, in robust sigmas. DBSCAN (Ester et al. 1996) groups them; a suspect that is
noise, or in another cluster than most healthy peers, is confirmed. On raw ranks clustering alone lost to
the layout-aware tests, so it only moves confidence. It runs where a finding is about to be said, never else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import DBSCAN

from flightwatch.detectors.drift import BLOCK
from flightwatch.detectors.episodes import LEVEL, RECURRENCE, Episode
from flightwatch.detectors.grouped import MAD_TO_SIGMA, FloatArray, sorted_median
from flightwatch.detectors.slow_channels import Channel

#: Distance, in robust sigmas, within which two ranks are neighbours.
NEIGHBOUR_SIGMAS = 3.0
#: Fewest ranks worth clustering, and most: more peers change nothing but the cost.
FEWEST_RANKS, MOST_RANKS = 6, 128
#: Smallest believable scatter of a change (log ratio or share of the step), and largest distance told.
FLOOR, FARTHEST = 0.003, 50.0
#: Steps before the onset that a change is measured against, and fewest.
STEPS_BEFORE, FEWEST_BEFORE = 60, 10
#: What an opinion does to confidence.
AGREES, DISAGREES = 0.02, -0.15


@dataclass(frozen=True)
class Opinion:
    """What clustering says of a suspect.

    Attributes
    ----------
    verdict: agrees, disagrees, or undecided (bursts, too few ranks, nothing before the onset).
    ranks: ranks clustered. channels: coordinates. like_suspect: share of the other ranks in the suspect's cluster.
    """

    verdict: str
    ranks: int = 0
    channels: tuple[str, ...] = ()
    like_suspect: float | None = None

    @property
    def confidence_change(self) -> float:
        """How the verdict moves a finding's confidence."""
        return {"agrees": AGREES, "disagrees": DISAGREES}.get(self.verdict, 0.0)

    def as_evidence(self) -> dict[str, Any]:
        """Return the opinion as part of a finding's evidence."""
        return {
            "second_opinion": self.verdict,
            "clustered_ranks": self.ranks,
            "clustered_channels": list(self.channels),
            "share_like_suspect": self.like_suspect,
        }


def second_opinion(channels: dict[str, Channel], episode: Episode, positions: list[int], measured: slice) -> Opinion:
    """Cluster the suspect and its peers by what changed.

    Parameters
    ----------
    positions: ranks the finding is about: they are no peers. measured: steps on which the episode is measured.
    """
    main = channels[episode.channel]
    ranks = _chosen(main, episode, positions)
    if episode.path == RECURRENCE or len(ranks) < FEWEST_RANKS:
        return Opinion("undecided", len(ranks))
    others = ~np.isin(ranks, positions)
    points, names = [], []
    for name, channel in sorted(channels.items()):
        coordinate = _changes(channel.values_SR[:, ranks], others, episode, measured)
        if coordinate is not None:
            points.append(coordinate)
            names.append(name)
    if episode.channel not in names:
        return Opinion("undecided", len(ranks))
    labels = DBSCAN(eps=NEIGHBOUR_SIGMAS, min_samples=max(3, len(ranks) // 16)).fit_predict(np.stack(points, axis=1))
    suspect = int(labels[ranks.tolist().index(episode.rank)])
    like = float((labels[others] == suspect).mean()) if suspect >= 0 and others.any() else 0.0
    verdict = "undecided" if not others.any() else "agrees" if like < 0.5 else "disagrees"
    return Opinion(verdict, len(ranks), tuple(names), round(like, 3))


def _chosen(channel: Channel, episode: Episode, positions: list[int]) -> np.ndarray:
    """Return the suspect, what the finding is about, and an even sample of the group it is compared with."""
    # A level needs equal work, a change only equal change.
    group = (channel.role if episode.path == LEVEL else channel.compared).of_rank_R
    peers = np.setdiff1d(np.nonzero(group == group[episode.rank])[0], positions)
    half = MOST_RANKS // 2
    peers = peers[:: max(1, -(-len(peers) // half))]
    return np.unique(np.concatenate([[episode.rank], positions[: half - 1], peers]).astype(int))


def _changes(values_SR: FloatArray, others_R: np.ndarray, episode: Episode, measured: slice) -> FloatArray | None:
    """Return each rank's change in robust sigmas of the other ranks' changes; None when the channel says nothing.

    Of the others only: where half of a group is one slow host, all ranks together have neither centre nor scatter.
    """
    change = sorted_median(values_SR[measured].T)
    if episode.path != LEVEL:
        onset = episode.begin * BLOCK
        before = values_SR[max(0, onset - STEPS_BEFORE) : onset]
        if len(before) < FEWEST_BEFORE:
            return None
        change = change - sorted_median(before.T)
    if np.isfinite(change).mean() < 0.9 or not np.isfinite(change[others_R]).any():
        return None
    change = change - np.nanmedian(change[others_R])
    scatter = max(FLOOR, MAD_TO_SIGMA * float(np.nanmedian(np.abs(change[others_R]))))
    return np.asarray(np.clip(np.nan_to_num(change / scatter), -FARTHEST, FARTHEST))
