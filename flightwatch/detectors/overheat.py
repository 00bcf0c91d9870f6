"""Overheating of one device or node: its own fan, paste or pump, or too little headroom left."""

from __future__ import annotations

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.cooling import warm_domains
from flightwatch.detectors.grouped import sorted_median
from flightwatch.detectors.series import Spell, spells
from flightwatch.detectors.statement import About, place, state_findings
from flightwatch.detectors.thermal import Thermal, ThermalThresholds, hot_cells, thermal_of


class OverheatDetector:
    """Finds kind `overheat` (scope device, or node where most of its devices are hot).

    Does not see: a device that was hot from the first sample on (its own level is part of the expectation)
    unless its headroom is gone; idle devices that are warm like their peers are fine.
    """

    name = "overheat"
    version = "1"
    needs = Needs(
        {
            "device_samples": (
                "ts",
                "node",
                "device",
                "model",
                "temp_c",
                "hotspot_c",
                "power_w",
                "fan_pct",
                "temp_headroom_c",
            ),
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
        limits = self.thresholds
        residual = thermal.residual_TD.copy()
        for warming in warm_domains(thermal, limits):
            # What the domain explains is not the device's: only what it is hotter by than its domain remains.
            part = slice(warming.spell.begin, None if warming.spell.over is None else warming.spell.over + 1)
            shared = np.maximum(sorted_median(thermal.residual_TD[part, warming.members]), 0)
            residual[part, warming.members] -= np.nan_to_num(shared)[:, None]
        with np.errstate(invalid="ignore"):
            hot = (residual >= limits.residual_k) & (residual > limits.z * thermal.sigma_TD)
        on, off = hot_cells(limits, thermal.grid)
        found: list[Finding] = []
        said: set[tuple[object, int]] = set()
        every = sorted(spells(hot, on, off), key=lambda spell: (spell.said, spell.target))
        for spell in every:
            if (spell.target, spell.said) in said:
                continue
            mates = self._mates(thermal, every, spell, on)
            said |= {(one.target, one.said) for one in mates}
            found += self._say(thermal, residual, spell, mates)
        return found + self._headroom(thermal, hot)

    def _mates(self, thermal: Thermal, every: list[Spell], spell: Spell, on: int) -> list[Spell]:
        """Return the spells of the node's devices that began together, when they are most of its devices."""
        node = thermal.grid.keys_D[spell.target][0]
        devices = thermal.grid.devices_of[node]
        together = [
            one for one in every if thermal.grid.keys_D[one.target][0] == node and abs(one.said - spell.said) <= 3 * on
        ]
        return together if devices > 1 and len(together) >= 0.75 * devices else [spell]

    def _say(self, thermal: Thermal, residual: np.ndarray, spell: Spell, mates: list[Spell]) -> list[Finding]:
        node, device = thermal.grid.keys_D[spell.target]
        rise = float(np.nanmedian(residual[spell.begin : spell.said + 1, spell.target]))
        whole = len(mates) > 1
        cause = self._cause(thermal, spell)
        where = str(node) if whole else place(node, device)
        about = About(
            kind=FindingKind.OVERHEAT,
            scope=FindingScope.NODE if whole else FindingScope.DEVICE,
            node=None if node is None else str(node),
            device=None if whole else device,
            targets=(where,),
            summary=f"{where} is {rise:.1f} K hotter than its power, place and peers explain: {cause}.",
            score=rise / thermal.sigma,
            threshold=self.thresholds.z,
            severity=Severity.P3,
            evidence={
                "residual_k": round(rise, 2),
                "power_w": _at(thermal.power_TD, spell),
                "fan_pct": _at(thermal.fan_TD, spell),
                "headroom_c": _at(thermal.headroom_TD, spell),
                "kelvin_per_watt": round(float(thermal.kelvin_per_watt_D[spell.target]), 4),
                "devices": [thermal.grid.keys_D[one.target][1] for one in mates],
            },
        )
        return state_findings(self.name, self.version, thermal.grid, spell, about)

    def _cause(self, thermal: Thermal, spell: Spell) -> str:
        if thermal.fan_TD is not None:
            before = thermal.fan_TD[max(0, spell.begin - 30) : max(1, spell.begin - 3), spell.target]
            after = thermal.fan_TD[spell.begin : spell.said + 1, spell.target]
            if np.isfinite(before).any() and np.isfinite(after).any():
                if np.nanmedian(after) < 0.7 * np.nanmedian(before):
                    return "its fan slowed down"
                return "its fan runs, so look at paste, pump or airflow"
        return "its own cooling, not the rack's"

    def _headroom(self, thermal: Thermal, hot: np.ndarray) -> list[Finding]:
        """A device at its slowdown temperature, whatever is expected of it."""
        if thermal.headroom_TD is None:
            return []
        with np.errstate(invalid="ignore"):
            near = thermal.headroom_TD <= self.thresholds.headroom_k
        found: list[Finding] = []
        for spell in spells(near, 2, hot_cells(self.thresholds, thermal.grid)[1]):
            if hot[max(0, spell.begin - 60) : spell.said + 60, spell.target].any():
                continue
            node, device = thermal.grid.keys_D[spell.target]
            domain = self._crowd(near, spell)
            if domain:
                continue
            left = float(thermal.headroom_TD[spell.said, spell.target])
            about = About(
                kind=FindingKind.OVERHEAT, scope=FindingScope.DEVICE, node=str(node), device=device,
                targets=(place(node, device),), score=10.0 - left, threshold=10.0 - self.thresholds.headroom_k,
                summary=f"{place(node, device)} has {left:.0f} K left before it lowers its clocks.",
                evidence={"headroom_c": left},
            )  # fmt: skip
            found += state_findings(self.name, self.version, thermal.grid, spell, about)
        return found

    def _crowd(self, near: np.ndarray, spell: Spell) -> bool:
        """Say whether a fifth of all devices is as close: then it is the hall or the load, told elsewhere."""
        return bool(near[spell.said].mean() > 0.2)


def _at(values: np.ndarray | None, spell: Spell) -> float | None:
    if values is None or not np.isfinite(values[spell.said, spell.target]):
        return None
    return round(float(values[spell.said, spell.target]), 2)
