"""Expected temperature of devices: what is hotter than its power, place and peers explain.

`T = a + b x P_ema(60 s) + slot effect + what all peers of the model share`; see `thermal_model` for how level and
slope of each device are learned. The usual `b` is fitted on differences between devices and kept between 0.02 and
0.12 K/W.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flightwatch.detectors.contract import Frames
from flightwatch.detectors.grouped import FloatArray
from flightwatch.detectors.layout import domain_of_nodes
from flightwatch.detectors.series import A_MOMENT, Grid, cells, grid_of, peer_median, robust_sigma
from flightwatch.detectors.shared import once
from flightwatch.detectors.thermal_model import ema, explain_heat

DEFAULT_KELVIN_PER_WATT = 0.055
#: How far devices differ from the usual slope: one that was fitted, and the default (models differ more than devices).
FITTED_SHARE, DEFAULT_SHARE = 0.12, 0.35
DOMAINS = ("rack", "cooling_zone")


@dataclass(frozen=True)
class ThermalThresholds:
    """Defaults.

    Attributes
    ----------
    residual_k, z: how much hotter than expected, in kelvin and in sigmas. hold_s, clear_s: for how long.
    headroom_k: so close to the slowdown temperature speaks at once (two samples).
    minimum_samples: no statement before so many.
    domain_k, domain_share, domain_p: members of a rack or zone hotter than this, their share, Mann-Whitney p.
    floor_k: smallest believable scatter. implausible_c: readings outside are a sensor's problem.
    """

    residual_k: float = 5.0
    z: float = 4.0
    hold_s: float = 180.0
    clear_s: float = 300.0
    headroom_k: float = 2.0
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
    residual_TD: kelvin above expectation. sigma: scatter of residuals. sigma_TD: the same with the doubt about the
    expectation. hall_TD: what all devices of a model share. domain_D: domain type to the name per device.
    """

    grid: Grid
    residual_TD: FloatArray
    sigma: float
    sigma_TD: FloatArray
    hall_TD: FloatArray
    power_TD: FloatArray | None
    fan_TD: FloatArray | None
    headroom_TD: FloatArray | None
    domain_D: dict[str, list[str | None]]
    kelvin_per_watt_D: FloatArray


def thermal_of(frames: Frames, limits: ThermalThresholds) -> Thermal | None:
    """Build residuals from `device_samples`; None when there are no temperatures or too few samples."""
    return once(frames, ("thermal", limits), lambda: _thermal_of(frames, limits))


def _thermal_of(frames: Frames, limits: ThermalThresholds) -> Thermal | None:
    grid = grid_of(frames, "device_samples", ("node", "device"))
    if grid is None or grid.shape[0] < limits.minimum_samples:
        return None
    temp = _temperatures(grid, limits)
    if temp is None:
        return None
    models = grid.models()
    power = grid.column("power_w", forward_cells=A_MOMENT)
    slope: FloatArray = np.zeros(grid.shape[1])
    share: FloatArray = np.zeros(grid.shape[1])
    watts = np.full(grid.shape, np.nan)
    if power is not None:
        smooth = ema(power, 60.0 / grid.interval_s)
        slope, share = _kelvin_per_watt(temp, smooth, models)
        # A device whose power is unknown is compared at its peers' power.
        watts = np.where(np.isfinite(smooth), power, peer_median(power, models))
    domains = {kind: domain_of_nodes(frames, kind) for kind in DOMAINS}
    placed = {kind: [of_node.get(str(key[0])) for key in grid.keys_D] for kind, of_node in domains.items() if of_node}
    told = explain_heat(temp, watts, _compared(models, placed), slope, share, grid.interval_s, limits.floor_k)
    residual = told.residual_TD
    residual[: limits.minimum_samples] = np.nan
    sigma = robust_sigma(residual, limits.floor_k)
    return Thermal(
        grid,
        residual,
        sigma,
        np.hypot(sigma, told.doubt_TD),
        told.hall_TD,
        power,
        grid.column("fan_pct", forward_cells=A_MOMENT),
        grid.column("temp_headroom_c"),
        placed,
        slope,
    )


def _compared(models: list[object], placed: dict[str, list[str | None]]) -> list[object]:
    """Return whose hall a device shares: its model's, or everybody's where a single zone or two racks hold the model.

    There, a warm place could not be told from a warm hall.
    """
    labels = list(models)
    for kind, fewest in (("cooling_zone", 2), ("rack", 3)):
        names = placed.get(kind)
        if names is None or len(set(names)) < fewest:
            continue
        for model in dict.fromkeys(models):
            held = {name for name, other in zip(names, models, strict=True) if other == model}
            if len(held) < fewest:
                labels = [None if other == model else label for label, other in zip(labels, models, strict=True)]
    return labels


def _temperatures(grid: Grid, limits: ThermalThresholds) -> FloatArray | None:
    """Return the core's temperatures, the hottest point's for devices that tell only that."""
    low, high = limits.implausible_c
    known: FloatArray | None = None
    for name in ("temp_c", "hotspot_c"):
        values = grid.column(name, forward_cells=A_MOMENT)
        if values is None:
            continue
        values = np.where((values > low) & (values < high), values, np.nan)
        known = values if known is None else np.where(np.isfinite(known).any(axis=0), known, values)
    return known


def _kelvin_per_watt(temp_TD: FloatArray, power_TD: FloatArray, models: list[object]) -> tuple[FloatArray, FloatArray]:
    """Return per device the usual slope and how far devices differ from it, fitted on differences between devices.

    Those of one model, in the first third of the window.
    """
    part = slice(0, max(20, len(temp_TD) // 3))
    watts = power_TD[part] - peer_median(power_TD[part], models)
    kelvin = temp_TD[part] - peer_median(temp_TD[part], models)
    far = np.isfinite(watts) & np.isfinite(kelvin) & (np.abs(watts) > 100)
    slope = np.full(len(models), DEFAULT_KELVIN_PER_WATT)
    share = np.full(len(models), DEFAULT_SHARE)
    for model in dict.fromkeys(models):
        here = np.array([other == model for other in models])
        seen = far & here
        if seen.sum() >= 50:
            slope[here] = np.clip(np.median(kelvin[seen] / watts[seen]), 0.02, 0.12)
            share[here] = FITTED_SHARE
    return slope, share


def hot_cells(limits: ThermalThresholds, grid: Grid) -> tuple[int, int]:
    """Return cells a statement needs and cells until it is over."""
    return cells(limits.hold_s, grid.interval_s, 3), cells(limits.clear_s, grid.interval_s, 3)
