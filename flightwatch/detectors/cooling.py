"""Cooling: a rack, zone or the hall that warms together, told apart from single hot devices.

A domain warms when most of its devices are hotter than expected and it differs from the rest (one-sided
Mann-Whitney). The largest domain that explains it is named once; the devices in it say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import BoolArray, FloatArray, sorted_median
from flightwatch.detectors.series import A_MOMENT, Grid, Spell, grid_of, spells
from flightwatch.detectors.statement import About, state_findings
from flightwatch.detectors.thermal import Thermal, ThermalThresholds, hot_cells, thermal_of

SCOPES = {"rack": FindingScope.RACK, "cooling_zone": FindingScope.COOLING_ZONE}


@dataclass(frozen=True)
class Warming:
    """A domain that warmed."""

    kind: str
    name: str
    members: list[int]
    spell: Spell


class CoolingDetector:
    """Finds kind `cooling` for racks, cooling zones and the facility.

    Does not see: a domain with fewer than two nodes, or in a cluster with a single domain (then the facility's
    own readings or the device's headroom must speak).
    """

    name = "cooling"
    version = "1"
    needs = Needs(
        {
            "device_samples": ("ts", "node", "device", "model", "temp_c", "power_w", "fan_pct", "temp_headroom_c"),
            "node_samples": ("ts", "node", "inlet_c", "coolant_c"),
            "inventory": ("node", "rack", "cooling_zone"),
        },
        seconds=3600,
    )

    def __init__(self, thresholds: ThermalThresholds | None = None) -> None:
        self.thresholds = thresholds or ThermalThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        thermal = thermal_of(frames, self.thresholds)
        if thermal is None:
            return []
        inlet = grid_of(frames, "node_samples", ("node",))
        found: list[Finding] = []
        for warming in warm_domains(thermal, self.thresholds):
            found += self._say(thermal, warming, inlet)
        return found + self._facility(thermal)

    def _say(self, thermal: Thermal, warming: Warming, inlet: Grid | None) -> list[Finding]:
        nodes = sorted({str(thermal.grid.keys_D[d][0]) for d in warming.members})
        at = thermal.residual_TD[warming.spell.said, warming.members]
        median = float(np.nanmedian(at))
        about = About(
            kind=FindingKind.COOLING,
            scope=SCOPES[warming.kind],
            summary=f"{_word(warming.kind)} {warming.name} warms: its {len(nodes)} nodes are {median:.1f} K hotter "
            "than their power and peers explain.",
            score=median / thermal.sigma,
            threshold=self.thresholds.domain_k / thermal.sigma,
            severity=Severity.P2 if len(nodes) >= 8 else Severity.P3,
            targets=(warming.name,),
            confidence=0.9,
            evidence={
                "residual_k": round(median, 2),
                "nodes": nodes[:64],
                "share_hot": round(float(np.nanmean(at > self.thresholds.domain_k)), 3),
                "inlet_rise_k": _inlet_rise(thermal, warming, inlet),
                "kelvin_per_watt": round(float(np.median(thermal.kelvin_per_watt_D[warming.members])), 4),
            },
        )
        return state_findings(self.name, self.version, thermal.grid, warming.spell, about)

    def _facility(self, thermal: Thermal) -> list[Finding]:
        """All devices together: the hall; day cycles are a few kelvin, so twice the device limit is asked for."""
        if len(thermal.grid.keys_D) < 8:
            return []
        level = sorted_median(thermal.hall_TD)
        on, off = hot_cells(self.thresholds, thermal.grid)
        hot = np.nan_to_num(level) > 2 * self.thresholds.residual_k
        found: list[Finding] = []
        for spell in spells(hot[:, None], on, off):
            rise = float(level[spell.said])
            about = About(
                kind=FindingKind.COOLING, scope=FindingScope.FACILITY, score=rise, targets=("facility",),
                summary=f"The whole hall warms: the median device is {rise:.1f} K hotter at equal power.",
                severity=Severity.P2, confidence=0.8, evidence={"rise_k": round(rise, 2)},
            )  # fmt: skip
            found += state_findings(self.name, self.version, thermal.grid, spell, about)
        return found


def warm_domains(thermal: Thermal, limits: ThermalThresholds) -> list[Warming]:
    """Return the largest domains that warmed; a rack inside a warming zone is part of the zone."""
    on, off = hot_cells(limits, thermal.grid)
    found: list[Warming] = []
    nodes = len({key[0] for key in thermal.grid.keys_D})
    for kind in ("cooling_zone", "rack"):
        domains = _members(thermal.domain_D.get(kind, ()))
        for name, members in sorted(domains.items()):
            if any(set(members) <= set(one.members) for one in found):
                continue
            warm = _is_warm(thermal, members, nodes, limits)
            for spell in spells(warm[:, None], on, off):
                if _differs(thermal, members, spell, limits) and _is_whole(thermal, kind, members, spell, limits):
                    found.append(Warming(kind, name, members, spell))
    return found


def _members(names_D: Sequence[str | None]) -> dict[str, list[int]]:
    """Return the devices of each domain."""
    found: dict[str, list[int]] = {}
    for device, name in enumerate(names_D):
        if name is not None:
            found.setdefault(name, []).append(device)
    return found


def _is_warm(thermal: Thermal, members: list[int], nodes: int, limits: ThermalThresholds) -> BoolArray:
    """Say when a domain is warm; `nodes` is how many there are in all."""
    held = len({thermal.grid.keys_D[d][0] for d in members})
    if held < 2 or held == nodes:
        return np.zeros(len(thermal.residual_TD), dtype=bool)
    values = _trusted(thermal, members, limits)
    with np.errstate(invalid="ignore"):
        share = (values > limits.domain_k).mean(axis=1)
    return np.asarray((share >= limits.domain_share) & (np.nan_to_num(sorted_median(values)) > limits.domain_k))


def _trusted(thermal: Thermal, members: list[int], limits: ThermalThresholds) -> FloatArray:
    """Return residuals of members; unknown while what is expected of one is known no better than what is looked for,
    unless it is hotter than that beyond its own doubt.
    """
    sigma, residual = thermal.sigma_TD[:, members], thermal.residual_TD[:, members]
    with np.errstate(invalid="ignore"):
        sure = (sigma <= limits.domain_k / 2 + thermal.sigma) | (residual > limits.domain_k + limits.z * sigma)
    return np.where(sure, residual, np.nan)


def _differs(thermal: Thermal, members: list[int], spell: Spell, limits: ThermalThresholds) -> bool:
    row = thermal.residual_TD[spell.said]
    inside = row[members]
    outside = np.delete(row, members)
    inside, outside = inside[np.isfinite(inside)], outside[np.isfinite(outside)]
    if len(inside) < 4 or len(outside) < 4:
        return False
    return bool(stats.mannwhitneyu(inside, outside, alternative="greater").pvalue < limits.domain_p)


def _is_whole(thermal: Thermal, kind: str, members: list[int], spell: Spell, limits: ThermalThresholds) -> bool:
    """Say whether every rack of a zone warms; where only one does, the rack is the better name."""
    racks = thermal.domain_D.get("rack")
    if kind == "rack" or racks is None:
        return True
    row = thermal.residual_TD[spell.said]
    warm = []
    for rack in {racks[d] for d in members}:
        inside = row[[d for d in members if racks[d] == rack]]
        warm.append(bool(np.nanmedian(inside) > limits.domain_k))
    return len(warm) < 2 or float(np.mean(warm)) >= limits.domain_share


def _inlet_rise(thermal: Thermal, warming: Warming, inlet: Grid | None) -> float | None:
    values = inlet.column("inlet_c", forward_cells=A_MOMENT) if inlet is not None else None
    if inlet is None or values is None:
        return None
    nodes = {str(thermal.grid.keys_D[d][0]) for d in warming.members}
    inside = [d for d, key in enumerate(inlet.keys_D) if str(key[0]) in nodes]
    if not inside:
        return None
    begin = int(np.searchsorted(inlet.times_T, thermal.grid.times_T[warming.spell.begin]))
    said = min(int(np.searchsorted(inlet.times_T, thermal.grid.times_T[warming.spell.said])), len(values) - 1)
    before = sorted_median(values[:, inside])[: max(1, begin)]
    return round(float(sorted_median(values[said : said + 1, inside])[0] - np.nanmedian(before)), 2)


def _word(kind: str) -> str:
    return {"rack": "Rack", "cooling_zone": "Cooling zone"}[kind]
