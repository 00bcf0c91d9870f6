"""Expected temperature of devices: what is hotter than its power, place and peers explain.

`T = a + b x P_ema(60 s) + slot effect + what all peers of the model share`. The shared part is the
median over the devices of one model (facility and day cycle move all alike); the slot effect is the
device's own residual at the start of the window; `b` is fitted on differences between devices and
kept between 0.02 and 0.12 K/W.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flightwatch.detectors.contract import Frames
from flightwatch.detectors.grouped import FloatArray
from flightwatch.detectors.layout import domain_of_nodes
from flightwatch.detectors.series import Grid, cells, first_median, grid_of, peer_median, robust_sigma

DEFAULT_KELVIN_PER_WATT = 0.055
DOMAINS = ("rack", "cooling_zone")


@dataclass(frozen=True)
class ThermalThresholds:
    """Defaults.

    Attributes
    ----------
    residual_k, z: how much hotter than expected, in kelvin and in sigmas. hold_s, clear_s: for how long.
    headroom_k: so close to the slowdown temperature speaks at once (two samples).
    baseline_samples, minimum_samples: samples that make a device's own level; no statement before the minimum.
    domain_k, domain_share, domain_p: members of a rack or zone hotter than this, their share, Mann-Whitney p.
    floor_k: smallest believable scatter. implausible_c: readings outside are a sensor's problem.
    """

    residual_k: float = 5.0
    z: float = 4.0
    hold_s: float = 180.0
    clear_s: float = 300.0
    headroom_k: float = 2.0
    baseline_samples: int = 30
    minimum_samples: int = 10
    domain_k: float = 3.0
    domain_share: float = 0.6
    domain_p: float = 1e-3
    floor_k: float = 0.8
    implausible_c: tuple[float, float] = (-20.0, 130.0)


@dataclass(frozen=True)
class Thermal:
    """Residual temperatures of all devices.

    Attributes
    ----------
    residual_TD: kelvin above expectation. sigma: scatter of residuals. domain_D: domain type to the name per device.
    """

    grid: Grid
    residual_TD: FloatArray
    sigma: float
    power_TD: FloatArray | None
    fan_TD: FloatArray | None
    headroom_TD: FloatArray | None
    domain_D: dict[str, list[str | None]]
    kelvin_per_watt: float


def thermal_of(frames: Frames, limits: ThermalThresholds) -> Thermal | None:
    """Build residuals from `device_samples`; None when there are no temperatures or too few samples."""
    grid = grid_of(frames, "device_samples", ("node", "device"))
    if grid is None or grid.shape[0] < limits.minimum_samples:
        return None
    temp = grid.column("temp_c", forward_cells=1)
    if temp is None:
        temp = grid.column("hotspot_c", forward_cells=1)
    if temp is None:
        return None
    low, high = limits.implausible_c
    temp = np.where((temp > low) & (temp < high), temp, np.nan)
    models = _models(grid)
    power = grid.column("power_w", forward_cells=1)
    slope = 0.0
    own = temp
    if power is not None:
        smooth = _ema(power, 60.0 / grid.interval_s)
        slope = _kelvin_per_watt(temp, smooth, models)
        # A device whose power is unknown is compared at its peers' power.
        own = temp - slope * np.where(np.isfinite(smooth), smooth, peer_median(smooth, models))
        own = np.where(np.isfinite(own), own, np.nan)
    shared = own - peer_median(own, models)
    residual = shared - first_median(shared, limits.baseline_samples)
    residual[: limits.minimum_samples] = np.nan
    domains = {kind: domain_of_nodes(frames, kind) for kind in DOMAINS}
    return Thermal(
        grid,
        residual,
        robust_sigma(residual, limits.floor_k),
        power,
        grid.column("fan_pct", forward_cells=1),
        grid.column("temp_headroom_c"),
        {kind: [of_node.get(str(key[0])) for key in grid.keys_D] for kind, of_node in domains.items() if of_node},
        slope,
    )


def _models(grid: Grid) -> list[object]:
    words = grid.words("model")
    if words is None:
        return ["all"] * grid.shape[1]
    return [next((word for word in words[:, d] if isinstance(word, str)), "unknown") for d in range(grid.shape[1])]


def _ema(values_TD: FloatArray, width: float) -> FloatArray:
    share = 1 - np.exp(-1 / max(width, 1e-6))
    result = values_TD.copy()
    for t in range(1, len(result)):
        before = np.where(np.isfinite(result[t - 1]), result[t - 1], values_TD[t])
        result[t] = np.where(np.isfinite(values_TD[t]), before + share * (values_TD[t] - before), before)
    return result


def _kelvin_per_watt(temp_TD: FloatArray, power_TD: FloatArray, models: list[object]) -> float:
    """Fit the slope on differences between devices of one model in the first third of the window."""
    part = slice(0, max(20, len(temp_TD) // 3))
    watts = power_TD[part] - peer_median(power_TD[part], models)
    kelvin = temp_TD[part] - peer_median(temp_TD[part], models)
    far = np.isfinite(watts) & np.isfinite(kelvin) & (np.abs(watts) > 100)
    if far.sum() < 50:
        return DEFAULT_KELVIN_PER_WATT
    return float(np.clip(np.median(kelvin[far] / watts[far]), 0.02, 0.12))


def hot_cells(limits: ThermalThresholds, grid: Grid) -> tuple[int, int]:
    """Return cells a statement needs and cells until it is over."""
    return cells(limits.hold_s, grid.interval_s, 3), cells(limits.clear_s, grid.interval_s, 3)
