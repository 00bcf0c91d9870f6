"""Clocks held down by temperature or power, power limits below the peers', and voltage droop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flightwatch.core.throttle import THERMAL, ThrottleReason
from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import FloatArray
from flightwatch.detectors.series import (
    A_MOMENT,
    Grid,
    Spell,
    cells,
    first_median,
    grid_of,
    peer_median,
    robust_sigma,
    spells,
)
from flightwatch.detectors.statement import About, place, state_findings

THERMAL_BITS = int(THERMAL)
#: Hardware slowdown and power brake: the board or the rack asked for it.
BRAKE_BITS = int(ThrottleReason.HW_SLOWDOWN | ThrottleReason.HW_POWER_BRAKE)


@dataclass(frozen=True)
class ThrottleThresholds:
    """Defaults.

    Attributes
    ----------
    duty: share of time held down by temperature. power_duty, clock_share: share of time held down by power beyond the
    peers', with clocks this much below them. limit_share: a power limit this much below the peers'. droop_mv, z:
    voltage below what peers have at equal clocks. hold_s, clear_s: for how long.
    """

    duty: float = 0.05
    power_duty: float = 0.3
    clock_share: float = 0.04
    limit_share: float = 0.03
    droop_mv: float = 25.0
    z: float = 6.0
    hold_s: float = 120.0
    clear_s: float = 300.0


class ThrottleDetector:
    """Finds kinds `throttle` and `power` (scope device, or node where all its devices are alike).

    Cumulative counters are read as differences: a software power cap is non-zero on healthy idle devices and is
    compared with peers. Does not see: a whole cluster capped alike (a policy, not a fault).
    """

    name = "throttle"
    version = "1"
    needs = Needs(
        {"device_samples": ("ts", "node", "device", "model", "throttle_reasons", "throttle_thermal_us_total",
                            "throttle_power_us_total", "sm_clock_mhz", "power_limit_w", "voltage_mv", "util_pct",
                            "temp_c", "power_w")},
        seconds=3600,
    )  # fmt: skip

    def __init__(self, thresholds: ThrottleThresholds | None = None) -> None:
        self.thresholds = thresholds or ThrottleThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        grid = grid_of(frames, "device_samples", ("node", "device"))
        if grid is None or grid.shape[0] < 3:
            return []
        models = grid.models()
        return [
            *self._thermal(grid),
            *self._limits(grid, models),
            *self._power(grid, models),
            *self._droop(grid, models),
        ]

    def _thermal(self, grid: Grid) -> Iterable[Finding]:
        reasons = grid.column("throttle_reasons", forward_cells=A_MOMENT)
        grown = grid.deltas("throttle_thermal_us_total")
        duty = np.zeros(grid.shape)
        if reasons is not None:
            bits = np.nan_to_num(reasons).astype(np.int64)
            duty = ((bits & THERMAL_BITS) > 0).astype(float)
        if grown is not None:
            duty = np.maximum(duty, np.nan_to_num(grown) / (grid.interval_s * 1e6))
        width = cells(60.0, grid.interval_s, 2)
        mean = _mean(duty, width)
        hot = mean > self.thresholds.duty
        text = "holds its clocks down because it is hot"
        yield from self._spells(grid, hot, mean, FindingKind.THROTTLE, text, "thermal")
        if reasons is not None:
            brake = ((np.nan_to_num(reasons).astype(np.int64) & BRAKE_BITS) > 0).astype(float)
            brake = _mean(brake, width) * (mean <= self.thresholds.duty)
            text = "is slowed down by its board or supply (hardware slowdown or power brake)"
            yield from self._spells(grid, brake > 0.2, brake, FindingKind.POWER, text, "brake")

    def _limits(self, grid: Grid, models: list[object]) -> Iterable[Finding]:
        limit = grid.column("power_limit_w", forward_cells=5)
        if limit is None or grid.shape[1] < 4:
            return
        usual = peer_median(limit, models)
        with np.errstate(invalid="ignore"):
            share = np.nan_to_num(1 - limit / usual)
        # A minority: where many differ, it is a policy.
        on = (share > self.thresholds.limit_share) & ((share > self.thresholds.limit_share).mean(axis=1) < 0.25)[
            :, None
        ]
        text = "has a lower power limit than its peers"
        yield from self._spells(grid, on, share, FindingKind.POWER, text, "limit")

    def _power(self, grid: Grid, models: list[object]) -> Iterable[Finding]:
        clock = grid.column("sm_clock_mhz", forward_cells=A_MOMENT)
        util = grid.column("util_pct", forward_cells=A_MOMENT)
        grown = grid.deltas("throttle_power_us_total")
        if clock is None or util is None or grid.shape[1] < 4:
            return
        busy = np.nan_to_num(util) > 50
        labels = models
        low = 1 - _mean(np.where(busy, clock, np.nan), 3) / peer_median(np.where(busy, clock, np.nan), labels)
        own = low - first_median(low, 30)
        duty = np.zeros(grid.shape) if grown is None else np.nan_to_num(grown) / (grid.interval_s * 1e6)
        beyond = duty - np.nan_to_num(peer_median(duty, labels))
        reasons = grid.column("throttle_reasons", forward_cells=A_MOMENT)
        hot = np.zeros(grid.shape, dtype=bool)
        if reasons is not None:
            hot = (np.nan_to_num(reasons).astype(np.int64) & THERMAL_BITS) > 0
        limits = self.thresholds
        with np.errstate(invalid="ignore"):
            capped = busy & ~hot & (np.nan_to_num(low) > limits.clock_share)
            on = capped & ((beyond > limits.power_duty) | (np.nan_to_num(own) > limits.clock_share))
        text = "runs at lower clocks than its peers under the same load, and not because it is hot"
        yield from self._spells(grid, on, np.nan_to_num(low), FindingKind.POWER, text, "clock")

    def _droop(self, grid: Grid, models: list[object]) -> Iterable[Finding]:
        voltage = grid.column("voltage_mv", forward_cells=A_MOMENT)
        clock = grid.column("sm_clock_mhz", forward_cells=A_MOMENT)
        if voltage is None or grid.shape[1] < 4:
            return
        voltage = np.where((voltage > 300) & (voltage < 2000), voltage, np.nan)
        util = grid.column("util_pct", forward_cells=A_MOMENT)
        if util is not None:
            # Idle and loaded devices are no peers.
            voltage = np.where(np.nan_to_num(util) > 50, voltage, np.nan)
        own = voltage - peer_median(voltage, models)
        own = own - first_median(own, 30)
        held = np.ones(grid.shape, dtype=bool)
        if clock is not None:
            # Voltage follows the clock: only a fall at an unchanged clock is a droop.
            usual = first_median(np.where(np.isfinite(voltage), clock, np.nan), 30)
            with np.errstate(invalid="ignore", divide="ignore"):
                held = np.abs(clock / usual - 1) < 0.03
        sigma = robust_sigma(own, 3.0)
        mean = _mean(own, cells(60.0, grid.interval_s, 3))
        with np.errstate(invalid="ignore"):
            on = held & (mean < -self.thresholds.droop_mv) & (mean < -self.thresholds.z * sigma)
        text = "has a lower core voltage than its peers at equal clocks"
        yield from self._spells(grid, on, np.abs(np.nan_to_num(mean)), FindingKind.POWER, text, "voltage")

    def _spells(
        self, grid: Grid, on: np.ndarray, size: FloatArray, kind: FindingKind, text: str, aspect: str
    ) -> Iterable[Finding]:
        hold = cells(self.thresholds.hold_s, grid.interval_s, 3)
        every = list(spells(on, hold, cells(self.thresholds.clear_s, grid.interval_s, 3)))
        done: set[int] = set()
        for index, spell in enumerate(sorted(every, key=lambda one: (one.said, one.target))):
            if index in done or spell.target in done:
                continue
            node = grid.keys_D[spell.target][0]
            together = [
                one for one in every if grid.keys_D[one.target][0] == node and abs(one.said - spell.said) <= 2 * hold
            ]
            devices = grid.devices_of[node]
            whole = devices > 1 and len(together) >= 0.75 * devices
            if whole:
                done |= {one.target for one in together}
            yield from self._say(grid, spell, kind, text, aspect, float(size[spell.said, spell.target]), whole)

    def _say(
        self, grid: Grid, spell: Spell, kind: FindingKind, text: str, aspect: str, size: float, whole: bool
    ) -> list[Finding]:
        node, device = grid.keys_D[spell.target]
        where = str(node) if whole else place(node, device)
        about = About(
            kind=kind,
            scope=FindingScope.NODE if whole else FindingScope.DEVICE,
            node=str(node),
            device=None if whole else device,
            targets=(where,),
            summary=f"{where} {text}.",
            score=size,
            severity=Severity.P4 if aspect == "voltage" else Severity.P3,
            evidence={"what": aspect, "size": round(size, 4)},
            aspect=aspect,
        )
        return state_findings(self.name, self.version, grid, spell, about)


def _mean(values_TD: FloatArray, width: int) -> FloatArray:
    known = np.isfinite(values_TD)
    total, count = np.cumsum(np.where(known, values_TD, 0.0), axis=0), np.cumsum(known, axis=0).astype(float)
    if width < len(total):
        total[width:], count[width:] = total[width:] - total[:-width], count[width:] - count[:-width]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / count)
