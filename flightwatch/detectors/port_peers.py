"""What is usual for a port: ports that carry as much, and whether a switch or a job holds those that are not usual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import maximum_filter1d

from flightwatch.detectors.grouped import FloatArray, sorted_median
from flightwatch.detectors.series import Key, Spell, first_median, robust_sigma

#: Peers are compared with while at least this share of those heard in the cells before is heard.
HEARD_SHARE, HEARD_CELLS = 0.5, 60
#: Fewer ports of like traffic are no crowd; the share of a switch's ports that makes it the switch.
FEWEST, SWITCH_SHARE = 4, 0.6
#: How far (as a logarithm) a port may differ from its peers by nature, and the samples that show it.
OWN_NATURE, OWN_SAMPLES = float(np.log(3)), 30


def usual_of(values_TD: FloatArray, traffic_TD: FloatArray | None) -> FloatArray:
    """Return per cell the median of the ports that carry about as much as this one or more, [T, D].

    As much: not more than two decades less. A paused port carries nothing and is compared with all others; a port of a
    job is not compared with idle ones. NaN where fewer than four such ports are heard.
    """
    if traffic_TD is None:
        return np.broadcast_to(sorted_median(values_TD)[:, None], values_TD.shape)
    decade = np.floor(np.log10(np.maximum(np.nan_to_num(traffic_TD), 1.0)))
    usual = np.full(values_TD.shape, np.nan)
    for level in np.unique(decade).tolist():
        here = decade == level
        alike = np.where(decade >= level - 1, values_TD, np.nan)
        enough = np.isfinite(alike).sum(axis=1) >= FEWEST
        middle = np.where(enough, sorted_median(alike), np.nan)
        usual = np.where(here, middle[:, None], usual)
    return usual


def against_peers(counts_TD: FloatArray, traffic_TD: FloatArray | None) -> FloatArray:
    """Return robust z of log rates (per traffic where that is known) against ports of like traffic at the same time."""
    rate = counts_TD
    if traffic_TD is not None:
        usual = np.maximum(np.nan_to_num(sorted_median(np.where(traffic_TD > 0, traffic_TD, np.nan))), 1.0)[:, None]
        # A port with little traffic is not forgiven more than tenfold: a broken one carries little.
        rate = rate / np.clip(traffic_TD / usual, 0.1, 10.0)
    value = np.log1p(rate)
    if value.shape[1] < FEWEST:
        first = np.nan_to_num(sorted_median(value[: max(3, len(value) // 10)].T))
        return np.asarray(np.nan_to_num((value - first) / robust_sigma(value - first, 0.3)))
    centred = value - usual_of(value, traffic_TD)
    # While the rows of most ports are on their way, those that came first are no crowd to compare with.
    heard = np.isfinite(value).sum(axis=1)
    lately = maximum_filter1d(heard, HEARD_CELLS, origin=(HEARD_CELLS - 1) // 2, mode="nearest")
    centred[heard < HEARD_SHARE * lately] = np.nan
    # Ports differ by nature; one that was always far worse than that is not excused.
    centred = centred - np.clip(np.nan_to_num(first_median(centred, OWN_SAMPLES)), -OWN_NATURE, OWN_NATURE)
    return np.asarray(np.nan_to_num(centred / robust_sigma(centred, 0.3)))


@dataclass(frozen=True)
class Crowd:
    """Spells of several nodes that began together. switch: the leaf switch that explains them, None for a pattern."""

    spells: list[Spell]
    switch: str | None


def crowds(
    every: Sequence[Spell], keys_D: Sequence[Key], switch_of: dict[str, str], together_cells: int, fewest_nodes: int
) -> tuple[list[Spell], list[Crowd]]:
    """Split spells into those of single ports and those of crowds.

    Parameters
    ----------
    switch_of: node to its leaf switch, empty where unknown. fewest_nodes: nodes that make a crowd.
    """
    alone: list[Spell] = []
    found: list[Crowd] = []
    rest = sorted(every, key=lambda spell: (spell.said, spell.target))
    while rest:
        part = [spell for spell in rest if spell.said <= rest[0].said + together_cells]
        rest = rest[len(part) :]
        nodes = {str(keys_D[spell.target][0]) for spell in part}
        if len(nodes) < fewest_nodes:
            alone += part
            continue
        found.append(Crowd(part, _switch(nodes, switch_of)))
    return alone, found


def _switch(nodes: set[str], switch_of: dict[str, str]) -> str | None:
    names = [switch_of.get(node) for node in sorted(nodes)]
    most = max(set(names), key=names.count)
    below = [node for node, name in switch_of.items() if name == most]
    if most is None or names.count(most) < 0.8 * len(names) or names.count(most) < SWITCH_SHARE * len(below):
        return None
    return most if len(below) < len(switch_of) else None
