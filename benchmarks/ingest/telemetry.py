"""A seeded stream of wide device rows: 30 measured values a device, shaped like a training cluster's.

Temperatures are whole degrees and slow; power has 0.1 W of noise; clocks stand still but for rare steps of 15 MHz;
error counters hardly move; byte counters grow with 5 to 10 % of jitter; utilisation dips at checkpoints (every 30 min)
and at restarts. Values have the resolution of the sensor, so that "lossless" has a meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

Array = npt.NDArray[np.float64]
GPUS = 8
START_MS = 1_760_000_000_000


@dataclass(frozen=True)
class Shape:
    """Size of a stream: `nodes` of 8 devices, `steps` scrapes `interval_seconds` apart."""

    nodes: int
    steps: int
    interval_seconds: float
    seed: int = 2

    @property
    def samples(self) -> int:
        """Measured values in the stream."""
        return self.nodes * GPUS * self.steps * len(METRICS)


METRICS = (
    "temp_c", "mem_temp_c", "hotspot_c", "temp_headroom_c", "power_w", "power_instant_w", "energy_j_total",
    "voltage_mv", "sm_clock_mhz", "mem_clock_mhz", "util_pct", "mem_util_pct", "sm_active_ratio",
    "tensor_active_ratio", "dram_active_ratio", "mem_used_bytes", "fan_pct", "ecc_corrected_total",
    "ecc_uncorrected_total", "retired_pages_total", "remapped_rows_total", "throttle_reasons",
    "throttle_thermal_us_total", "throttle_power_us_total", "pcie_replay_total", "pcie_rx_bytes_total",
    "pcie_tx_bytes_total", "link_rx_bytes_total", "link_tx_bytes_total", "link_errors_total",
)  # fmt: skip
COUNTERS_U64 = frozenset(
    name for name in METRICS if name.endswith("_total") and name != "energy_j_total"
) | {"mem_used_bytes", "throttle_reasons"}  # fmt: skip


def generate(shape: Shape) -> dict[str, Array]:
    """Return one array (steps x devices) for each metric; equal shapes give equal arrays."""
    rng = np.random.default_rng(shape.seed)
    size = (shape.steps, shape.nodes * GPUS)
    seconds = np.arange(shape.steps) * shape.interval_seconds
    busy = np.where(seconds % 1800 < 25, 0.25, 1.0)
    for restart in rng.choice(shape.steps, max(1, shape.steps // 4320), replace=False):
        busy[restart : restart + max(1, int(180 / shape.interval_seconds))] = 0.02
    load = busy[:, None]
    node_offset = np.repeat(rng.normal(0, 2.0, shape.nodes), GPUS)
    device_offset = rng.normal(0, 1.5, size[1])

    def drift(rho: float, deviation: float) -> Array:
        return np.asarray(lfilter([1.0], [1.0, -rho], rng.normal(0, deviation, size), axis=0))

    def counter(rate: float, jitter: float) -> Array:
        grown = np.cumsum(load * rate * shape.interval_seconds * (1 + rng.normal(0, jitter, size)).clip(0), axis=0)
        counted: Array = np.round(rng.integers(10**10, 10**13, size[1])[None] + grown)
        return counted

    def rare(probability: float) -> Array:
        return np.cumsum(rng.random(size) < probability, axis=0).astype(np.float64)

    start = np.array([[0.94 * busy[0]]])
    heat = lfilter([0.06], [1, -0.94], load, axis=0, zi=start)[0]
    core = 38 + node_offset + device_offset + 30 * heat + drift(0.97, 0.12)
    power = 110 + 560 * load + rng.normal(0, 9, size) + device_offset * 2
    dropped = rng.random(size) < 0.02
    clock = np.where(dropped, 1755.0 - 15 * rng.integers(1, 6, size), 1755.0)
    clock[busy < 0.1] = 1980
    step_us = shape.interval_seconds * 1e6
    data = {
        "temp_c": np.rint(core),
        "mem_temp_c": np.rint(core + 9 + drift(0.95, 0.1)),
        "hotspot_c": np.rint(core + 12 + drift(0.9, 0.2)),
        "temp_headroom_c": 90 - np.rint(core),
        "power_w": np.round(power, 1),
        "power_instant_w": np.round(power + rng.normal(0, 15, size), 1),
        "energy_j_total": np.round(1e8 + np.cumsum(power * shape.interval_seconds, axis=0)),
        "voltage_mv": np.rint(870 + device_offset * 4 + 45 * load + rng.normal(0, 2.5, size)),
        "sm_clock_mhz": clock,
        "mem_clock_mhz": np.full(size, 2619.0),
        "util_pct": np.clip(np.rint(load * 99 + rng.normal(0, 1.2, size)), 0, 100),
        "mem_util_pct": np.clip(np.rint(load * 62 + rng.normal(0, 3, size)), 0, 100),
        "sm_active_ratio": np.round(np.clip(load * 0.88 + rng.normal(0, 0.02, size), 0, 1), 3),
        "tensor_active_ratio": np.round(np.clip(load * 0.46 + rng.normal(0, 0.02, size), 0, 1), 4),
        "dram_active_ratio": np.round(np.clip(load * 0.35 + rng.normal(0, 0.02, size), 0, 1), 3),
        "mem_used_bytes": (71_000 + rng.integers(0, 500, size[1])[None] + (rng.random(size) < 0.01) * 64.0) * 2**20,
        "fan_pct": np.repeat(np.rint(40 + 25 * heat + rng.normal(0, 0.6, (shape.steps, shape.nodes))), GPUS, axis=1),
        "ecc_corrected_total": rare(2e-5),
        "ecc_uncorrected_total": np.zeros(size),
        "retired_pages_total": np.zeros(size) + rng.integers(0, 3, size[1]),
        "remapped_rows_total": np.zeros(size) + rng.integers(0, 2, size[1]),
        "throttle_reasons": np.where(dropped, 4.0, 0.0),
        "throttle_thermal_us_total": np.zeros(size),
        "throttle_power_us_total": np.round(np.cumsum(dropped * step_us * rng.random(size), axis=0)),
        "pcie_replay_total": rare(1e-5),
        "pcie_rx_bytes_total": counter(3e9, 0.1),
        "pcie_tx_bytes_total": counter(2e9, 0.1),
        "link_rx_bytes_total": counter(9e10, 0.05),
        "link_tx_bytes_total": counter(9e10, 0.05),
        "link_errors_total": rare(1e-5),
    }
    return {name: np.ascontiguousarray(data[name], dtype=np.float64) for name in METRICS}


def node_name(node: int) -> str:
    """Name of a node."""
    return f"n{node:04d}"


def time_ms(shape: Shape, step: int, start_ms: int = START_MS) -> int:
    """Time of a scrape, milliseconds."""
    return start_ms + round(step * shape.interval_seconds * 1000)
