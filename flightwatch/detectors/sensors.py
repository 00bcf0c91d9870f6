"""Sensor health: a reading that cannot be trusted is a finding of its own and blames no device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import BoolArray, FloatArray, sorted_median
from flightwatch.detectors.ports import CONGESTION, ERRORS
from flightwatch.detectors.saturation import saturated_counters
from flightwatch.detectors.series import A_MOMENT, ALWAYS, Grid, Spell, carried, cells, grid_of, spells
from flightwatch.detectors.statement import About, place, state_findings

#: Readings watched, with what is possible at all and the smallest step that counts as movement.
RANGES: dict[str, tuple[float, float, float]] = {
    "temp_c": (-10.0, 125.0, 0.5),
    "mem_temp_c": (-10.0, 125.0, 0.5),
    "hotspot_c": (-10.0, 135.0, 0.5),
    "power_w": (0.0, 3000.0, 0.5),
    "voltage_mv": (300.0, 2000.0, 0.5),
    "fan_pct": (0.0, 200.0, 0.5),
    "util_pct": (0.0, 100.5, 0.5),
    "inlet_c": (-10.0, 70.0, 0.05),
    "outlet_c": (-10.0, 90.0, 0.05),
    "coolant_c": (-5.0, 90.0, 0.05),
}
#: Readings of hosts; the others are of devices.
HOST_READINGS = ("inlet_c", "outlet_c", "coolant_c")
DEVICE_READINGS = tuple(name for name in RANGES if name not in HOST_READINGS)
#: Readings that are load itself or a controller's setting: constant or jumping values are normal there.
LOAD = ("util_pct", "fan_pct", "power_w")
#: Samples that noise is judged by at least, and the share of them that must be known at unchanged load.
NOISE_SAMPLES, NOISE_KNOWN = 20, 0.3
#: So long is a reading that is not told thought to stand still.
CARRIED_S = 60.0
#: Samples that show how much a load changes by itself.
FIRST_SAMPLES = 90
#: From so many targets on, counters that start again on most of them at once are told of none.
FLEET_TARGETS = 16
#: Counters whose fall to a lower value is a reset.
COUNTERS = ("energy_j_total", "ecc_corrected_total", "pcie_replay_total", "throttle_power_us_total",
            "throttle_thermal_us_total", "link_errors_total")  # fmt: skip
#: Counters of ports that may stand at the ceiling of their width.
PORT_COUNTERS = (*ERRORS, *CONGESTION, "link_downed_total", "rx_bytes_total", "tx_bytes_total")


@dataclass(frozen=True)
class SensorThresholds:
    """Defaults.

    Attributes
    ----------
    stuck_s, stuck_moves: no movement for so long, and until peers have moved so often. missing_s: unknown for so long
    after having been known, while peers are known. noisy_times, noisy_step: typical step between samples against
    its peers', and at least so many units. hold_s, clear_s: for how long readings are noisy or
    impossible. saturated_s: how long a counter stands at the ceiling of its width.
    """

    stuck_s: float = 600.0
    stuck_moves: float = 12.0
    missing_s: float = 180.0
    noisy_times: float = 6.0
    noisy_step: float = 4.0
    noisy_s: float = 300.0
    hold_s: float = 20.0
    saturated_s: float = 60.0
    clear_s: float = 300.0


class SensorDetector:
    """Finds kind `sensor`, class stuck (a saturated counter, too), missing, implausible, noisy or reset.

    Never blames hardware.

    Does not see: a sensor that is wrong by a constant, one without peers that is stuck.
    """

    name = "sensors"
    version = "1"
    needs = Needs(
        {
            "device_samples": ("ts", "node", "device", "model", "quality", *DEVICE_READINGS, *COUNTERS),
            "node_samples": ("ts", "node", *HOST_READINGS),
            "port_samples": ("ts", "node", "hca", "port", *PORT_COUNTERS),
        },
        seconds=3600,
    )

    def __init__(self, thresholds: SensorThresholds | None = None) -> None:
        self.thresholds = thresholds or SensorThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        devices = grid_of(frames, "device_samples", ("node", "device"))
        nodes = grid_of(frames, "node_samples", ("node",))
        for grid in (devices, nodes):
            if grid is None or grid.shape[0] < 3:
                continue
            moved = _load_moved(grid)
            for column, (low, high, move) in RANGES.items():
                values = grid.column(column)
                if values is not None:
                    found += self._of_column(grid, column, values, (low, high), move, moved)
            found += self._resets(grid)
        ports = grid_of(frames, "port_samples", ("node", "hca", "port"))
        hold, clear = self.thresholds.saturated_s, self.thresholds.clear_s
        for grid, counters in ((devices, COUNTERS), (ports, PORT_COUNTERS)):
            if grid is not None:
                found += saturated_counters(grid, counters, self.name, self.version, hold, clear)
        return found

    def _of_column(
        self, grid: Grid, column: str, values: FloatArray, possible: tuple[float, float], move: float, moved: BoolArray
    ) -> Iterable[Finding]:
        limits = self.thresholds
        low, high = possible
        clear = cells(limits.clear_s, grid.interval_s, 2)
        with np.errstate(invalid="ignore"):
            wrong = (values < low) | (values > high)
        for spell in spells(wrong, cells(limits.hold_s, grid.interval_s, 2), clear):
            value = float(values[spell.said, spell.target])
            yield from self._say(grid, spell, column, "implausible", f"reads {value:g}, which cannot be", value)
        yield from self._missing(grid, column, values, clear)
        if grid.shape[1] < 3:
            return
        if column not in ("util_pct", "fan_pct"):
            yield from self._stuck(grid, column, np.where(wrong, np.nan, values), move, clear)
        if column not in LOAD:
            yield from self._noisy(grid, column, values, moved, clear)

    def _missing(self, grid: Grid, column: str, values: FloatArray, clear: int) -> Iterable[Finding]:
        known = np.isfinite(values)
        present = grid.present()
        before = np.zeros_like(known)
        before[1:] = (np.cumsum(known, axis=0) >= 5)[:-1]
        others = known.sum(axis=1, keepdims=True) - known >= np.maximum(
            1, 0.5 * (present.sum(axis=1, keepdims=True) - 1)
        )
        if grid.shape[1] == 1:
            others = np.ones_like(known)
        gone = ~known & present & before & others
        # A row without the reading between rows with it is a gap, not a lost sensor; cells without rows say nothing.
        gone = _carry(gone, present)
        for spell in spells(gone, cells(self.thresholds.missing_s, grid.interval_s, 3), clear):
            yield from self._say(grid, spell, column, "missing", "is no longer reported, its peers' is", 1.0)

    def _stuck(self, grid: Grid, column: str, values: FloatArray, move: float, clear: int) -> Iterable[Finding]:
        """Evidence grows while a reading stands still: how often its peers have moved since it last did."""
        limits = self.thresholds
        least = cells(limits.stuck_s, grid.interval_s, 10)
        if len(values) <= least:
            return
        steady = carried(values, cells(CARRIED_S, grid.interval_s, 2))
        steps = np.zeros(values.shape)
        steps[1:] = np.abs(np.diff(steady, axis=0)) >= move
        rate = self._usual_rate(grid, steps, max(least, 30))
        # What peers did, summed since the own last movement or the last time nothing was known.
        index = np.arange(len(values))[:, None]
        since = np.maximum.accumulate(np.where((steps > 0) | np.isnan(steady), index, 0), axis=0)
        total = np.cumsum(rate, axis=0)
        expected = total - np.take_along_axis(total, since, axis=0)
        moved_before = np.cumsum(steps, axis=0) >= 0.3 * limits.stuck_moves
        on = (index - since >= least) & (expected >= limits.stuck_moves) & moved_before
        for spell in spells(on, 1, clear):
            minutes = float(spell.said - since[spell.said, spell.target]) * grid.interval_s / 60
            moves = float(expected[spell.said, spell.target])
            text = f"has not moved for {minutes:.0f} min while its peers moved {moves:.0f} times"
            yield from self._say(grid, spell, column, "stuck", text, moves)

    def _usual_rate(self, grid: Grid, steps: FloatArray, width: int) -> FloatArray:
        """Movements per cell of peers of the model under a like load; the quietest fifth."""
        rates = _trailing(steps, width) / width
        rates[:width] = np.nan
        util = grid.column("util_pct", forward_cells=A_MOMENT)
        busy = np.zeros(grid.shape, dtype=bool) if util is None else _trailing(np.nan_to_num(util), width) / width > 30
        usual = np.zeros(rates.shape)
        models = np.array([str(model) for model in grid.models()])
        for side in [(busy == load) & (models == model) for load in (True, False) for model in dict.fromkeys(models)]:
            counted = (side.sum(axis=1) >= 3) & (np.arange(len(rates)) >= width)
            if counted.any():
                low = np.nanquantile(np.where(side, rates, np.nan)[counted], 0.2, axis=1)
                usual[counted] = np.where(side[counted], low[:, None], usual[counted])
        return usual

    def _noisy(self, grid: Grid, column: str, values: FloatArray, moved: BoolArray, clear: int) -> Iterable[Finding]:
        width = cells(self.thresholds.noisy_s, grid.interval_s, NOISE_SAMPLES)
        if len(values) <= width:
            return
        jumps = _jumps(values, moved)
        typical = np.full(values.shape, np.nan)
        stride = max(1, width // 4)
        for t in range(width, len(values), stride):
            part = jumps[t - width : t].T
            middle = sorted_median(part)
            middle[np.isfinite(part).sum(axis=1) < NOISE_KNOWN * width] = np.nan
            typical[t : t + stride] = middle
        peers = sorted_median(typical)[:, None]
        own = np.fmin.accumulate(np.nan_to_num(typical, nan=np.inf), axis=0)
        limits = self.thresholds
        unit = 30.0 if column == "voltage_mv" else limits.noisy_step
        with np.errstate(invalid="ignore"):
            on = (typical > limits.noisy_times * np.maximum(peers, 1e-9)) & (typical > unit)
            on &= (typical > limits.noisy_times * own) | (np.arange(len(values)) < 2 * width)[:, None]
        for spell in spells(on, stride + 1, clear):
            ratio = float(typical[spell.said, spell.target] / max(float(peers[spell.said, 0]), 1e-9))
            text = f"jumps {float(typical[spell.said, spell.target]):.1f} from sample to sample, its peers "
            text += f"{float(peers[spell.said, 0]):.1f}"
            yield from self._say(grid, spell, column, "noisy", text, min(ratio, 1e6))

    def _resets(self, grid: Grid) -> Iterable[Finding]:
        fell = np.zeros(grid.shape, dtype=bool)
        for column in COUNTERS:
            values = grid.column(column, forward_cells=ALWAYS)
            if values is None:
                continue
            with np.errstate(invalid="ignore"):
                fell[1:] |= np.diff(values, axis=0) < 0
        if fell.shape[1] >= FLEET_TARGETS:
            # Most of a cluster at once: its drivers were exchanged, or it was started again; no device is special.
            fell[fell.mean(axis=1) > 0.5] = False
        for spell in spells(fell, 1, 1):
            text = "counters started again (driver reload or reset): differences across it are unknown"
            yield from self._say(grid, spell, "", "reset", text, 1.0)

    def _say(self, grid: Grid, spell: Spell, column: str, class_: str, text: str, score: float) -> list[Finding]:
        key = grid.keys_D[spell.target]
        node, device = key[0], key[1] if len(key) > 1 else None
        where = place(node, device)
        reading = f"{where}: {column} {text}." if column else f"{where}: {text}."
        about = About(
            kind=FindingKind.SENSOR,
            class_=class_,
            scope=FindingScope.NODE if device is None else FindingScope.DEVICE,
            node=str(node),
            device=device,
            targets=(where,),
            summary=reading,
            score=abs(score),
            severity=Severity.INFO if class_ == "reset" else Severity.P4,
            blames_hardware=False,
            evidence={"column": column} if column else {},
            aspect=f"{class_}:{column}",
        )
        return state_findings(self.name, self.version, grid, spell, about)


def _load_moved(grid: Grid) -> BoolArray:
    """Say where a target's load is another than in the cell before, [T, D]."""
    moved = np.zeros(grid.shape, dtype=bool)
    for name, share in (("power_w", 0.1), ("util_pct", 0.2)):
        load = grid.column(name, forward_cells=A_MOMENT)
        if load is None:
            continue
        change = np.abs(np.diff(load, axis=0))
        usual = np.nan_to_num(sorted_median(change[:FIRST_SAMPLES].T))
        with np.errstate(invalid="ignore"):
            moved[1:] |= change > np.fmax(share * np.fmax(load[1:], load[:-1]), 4 * usual)
    return moved


def _jumps(values: FloatArray, moved: BoolArray) -> FloatArray:
    """Second differences of a reading, [T, D]: a ramp is no noise, nor is what follows a change of load.

    A target is asked at its own times: an empty cell between two samples is not unknown, it is the last sample.
    """
    steady = carried(values, 1)
    jumps = np.full(values.shape, np.nan)
    jumps[2:] = np.abs(steady[2:] - 2 * steady[1:-1] + steady[:-2])
    for later in (0, 1, 2):
        jumps[later:][moved[: len(moved) - later]] = np.nan
    return jumps


def _trailing(values_TD: FloatArray, width: int) -> FloatArray:
    total = np.cumsum(values_TD, axis=0)
    if width < len(total):
        total[width:] = total[width:] - total[:-width]
    return np.asarray(total)


def _carry(active: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Keep the last cell's answer where a cell has no row."""
    result = active.copy()
    for t in range(1, len(result)):
        result[t] = np.where(present[t], active[t], result[t - 1])
    return result
