"""A host that was slow from the first step, where it is so large a part of its group that no rank stands out.

The level test of `drift` compares ranks with the median of their group; where two or three hosts make a group, one
slow host is the median, or half of it. Chips differ one by one, hosts do not differ as wholes: here medians of hosts
are compared, in the scatter of the ranks of one host.

Does not see: hosts with fewer than three ranks in a group, groups of one host, what is below 8 %.
"""

from __future__ import annotations

import numpy as np

from flightwatch.detectors.episodes import LEVEL, Episode
from flightwatch.detectors.grouped import MAD_TO_SIGMA, FloatArray, IntArray, sorted_median
from flightwatch.detectors.rank_matrix import RunSteps
from flightwatch.detectors.slow_channels import Channel

#: Blocks read: the first one is warm-up; the last ones confirm.
FIRST_BLOCK, LAST_BLOCK, CONFIRM_BLOCKS = 1, 7, 2
#: Ranks a host needs in a group, and hosts a group may have: with more of them the rank test sees.
FEWEST_RANKS, MOST_HOSTS = 3, 3
#: How much longer a host computes (log ratio), in how many standard errors, and the smallest scatter of chips.
EFFECT, Z, FLOOR = 0.077, 8.0, 0.01


def host_episodes(run: RunSteps, channel: Channel) -> list[Episode]:
    """Return one episode for each slow host, about the first of its ranks in the group."""
    blocks = channel.dev.level_TR
    if not run.layout.known or len(blocks) < LAST_BLOCK + CONFIRM_BLOCKS:
        return []
    level = sorted_median(blocks[FIRST_BLOCK:LAST_BLOCK].T)
    after = sorted_median(blocks[LAST_BLOCK : LAST_BLOCK + CONFIRM_BLOCKS].T)
    said = LAST_BLOCK + CONFIRM_BLOCKS - 1
    found: list[Episode] = []
    for members in channel.role.members_GN:
        hosts = _hosts(run, members[members < len(level)])
        if hosts is None:
            continue
        centre = [float(np.nanmedian(level[ranks])) for ranks in hosts]
        quickest = int(np.argmin(centre))
        scatter = max(FLOOR, MAD_TO_SIGMA * float(np.nanmedian(_within(level, hosts, centre))))
        for ranks, mine in zip(hosts, centre, strict=True):
            excess = mine - centre[quickest]
            error = scatter * 1.2533 * np.sqrt(1 / len(ranks) + 1 / len(hosts[quickest]))
            held = float(np.nanmedian(after[ranks]) - np.nanmedian(after[hosts[quickest]]))
            apart = np.nanmin(level[ranks]) > np.nanmax(level[hosts[quickest]])
            if excess > EFFECT and excess > Z * error and held > 0.7 * excess and apart:
                found.append(Episode(channel.name, int(ranks[0]), 0, said, None, excess, excess / error, LEVEL))
    return found


def _hosts(run: RunSteps, members: IntArray) -> list[IntArray] | None:
    """Return the ranks of each host of a group; None where the rank test sees better, or too few are known."""
    by_host: dict[str, list[int]] = {}
    for position in members.tolist():
        node = run.layout.node_R[position]
        if node is None:
            return None
        by_host.setdefault(node, []).append(position)
    small = min((len(ranks) for ranks in by_host.values()), default=0) < FEWEST_RANKS
    if small or not 2 <= len(by_host) <= MOST_HOSTS:
        return None
    return [np.array(ranks) for ranks in by_host.values()]


def _within(level_R: FloatArray, hosts: list[IntArray], centre: list[float]) -> FloatArray:
    return np.concatenate([np.abs(level_R[ranks] - mine) for ranks, mine in zip(hosts, centre, strict=True)])
