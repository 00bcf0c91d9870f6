"""Telemetry coupled to load: power, temperature with thermal inertia, clocks, counters, ports, storage.

One grid of times x devices at a time; a fault acts on the physical quantity and its consequences follow
(a failed fan raises temperature, temperature lowers clocks, lower clocks raise throttle counters).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault, FloatArray, level
from flightwatch.simulator.words import coded, constant

#: Degrees per watt of the simulated devices, and the temperature at which they lower their clocks.
KELVIN_PER_WATT, SLOWDOWN_C = 0.055, 87.0
THERMAL_BIT, POWER_BIT = 0x40, 0x04
#: Ticks of waiting of a healthy port per sample, and the ceiling of an adapter that counts them in 32 bits.
WAIT_TICKS, CEILING = 2000.0, 2.0**32 - 1
#: A saturating counter reaches its ceiling so many samples after its fault begins.
SATURATES_AFTER = 6


@dataclass(frozen=True)
class TelemetrySpec:
    """How telemetry is drawn.

    Attributes
    ----------
    interval_s, samples: grid of times. step_s: seconds per training step, which places faults given in steps.
    day_cycle_c: amplitude of the hall's temperature over a day. idle_nodes: nodes without a job are idle.
    """

    interval_s: float = 10.0
    samples: int = 360
    step_s: float = 5.0
    day_cycle_c: float = 1.5


class TelemetryModel:
    """Draws telemetry frames of a cluster.

    Parameters
    ----------
    jobs: devices of a job are loaded, the others idle.
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: Sequence[Job],
        faults: Sequence[Fault],
        seed: int,
        start_ms: int,
        spec: TelemetrySpec | None = None,
    ) -> None:
        self.cluster, self.jobs, self.faults = cluster, tuple(jobs), tuple(faults)
        self.spec = spec or TelemetrySpec()
        self.start_ms = start_ms
        self._rng = np.random.default_rng([seed, 11])
        # What lasts is drawn apart: frames of a later stretch of time show the same slots and inlets.
        lasting = np.random.default_rng([seed, 12])
        self._slot_D = lasting.normal(0, 2.0, cluster.nodes * cluster.devices_per_node)
        self._inlet_N = lasting.normal(0, 0.5, cluster.nodes)
        self._temp_D: FloatArray | None = None
        self._stuck: dict[Fault, tuple[FloatArray, FloatArray]] = {}
        self.node_D = np.repeat(np.arange(cluster.nodes), cluster.devices_per_node)
        self.device_D = np.tile(np.arange(cluster.devices_per_node), cluster.nodes)
        self.seconds_T = np.arange(self.spec.samples) * self.spec.interval_s

    def frames(self) -> dict[str, pd.DataFrame]:
        """Return device, node, port and storage samples, inventory and placements."""
        devices, nodes = self._devices(), self._nodes()
        frames = {
            "device_samples": devices,
            "node_samples": nodes,
            "port_samples": self.ports(),
            "storage_samples": self._storage(),
            "inventory": self.cluster.inventory(self.start_ms),
        }
        if self.jobs:
            placed = [job.placements(self.cluster, self.start_ms) for job in self.jobs]
            frames["placements"] = pd.concat(placed, ignore_index=True)
        dead = [fault for fault in self.faults if fault.kind == "dead_node"]
        for fault in dead:
            begin = self.start_ms + fault.start_step * self.spec.step_s * 1000
            name = self.cluster.node_name(fault.node)
            for table in ("device_samples", "node_samples", "port_samples", "storage_samples"):
                rows = frames[table]
                frames[table] = rows[(rows["node"] != name) | (rows["ts"] < begin)].reset_index(drop=True)
        return frames

    def active(self, fault: Fault) -> FloatArray:
        """Return a fault's strength over time, 0..1, rising over five minutes where physics is slow."""
        step = self.seconds_T / self.spec.step_s
        end = fault.end_step if fault.end_step is not None else np.inf
        on = ((step >= fault.start_step) & (step < end)).astype(float)
        if fault.kind in ("thermal_rack", "thermal_gpu"):
            return level(fault, np.asarray(step))
        if fault.kind in ("fan_failure", "paste_failure", "cooling_zone"):
            on = on * np.clip((step - fault.start_step) * self.spec.step_s / 300.0, 0, 1)
        return np.asarray(on)

    def _members(self, fault: Fault) -> np.ndarray:
        """Say which devices a fault touches."""
        if fault.kind == "cooling_zone":
            zone = self.cluster.zone_of(self.node_D)
            return np.asarray(zone == self.cluster.zone_of(np.array([fault.node]))[0])
        if fault.kind == "thermal_rack":
            rack = self.cluster.rack_of(self.node_D)
            return np.asarray(rack == self.cluster.rack_of(np.array([fault.node]))[0])
        here = self.node_D == fault.node
        return np.asarray(here if fault.device is None else here & (self.device_D == fault.device))

    def _load(self) -> FloatArray:
        """Utilisation per time and device, 0..1."""
        busy = np.zeros(len(self.node_D))
        for job in self.jobs:
            node, device = job.place(self.cluster)
            busy[node * self.cluster.devices_per_node + device] = 0.92
        wobble = self._rng.normal(0, 0.03, (len(self.seconds_T), len(busy)))
        common = 0.03 * np.sin(self.seconds_T / 240.0)[:, None]
        return np.asarray(np.clip(busy * (1 + common + wobble), 0.0, 1.0))

    def _devices(self) -> pd.DataFrame:
        rng, shape = self._rng, (len(self.seconds_T), len(self.node_D))
        load = self._load()
        extra_c, r_scale, clock_scale = np.zeros(shape), np.ones(shape), np.ones(shape)
        fan = 35 + 40 * load
        voltage_drop = np.zeros(shape)
        for fault in self.faults:
            on, here = self.active(fault)[:, None], self._members(fault)[None, :]
            if fault.kind == "fan_failure":
                fan = np.where(here & (on > 0), fan * (1 - 0.7 * on), fan)
                extra_c = extra_c + 14 * on * here
            elif fault.kind == "paste_failure":
                r_scale = r_scale + 0.45 * on * here
            elif fault.kind == "cooling_zone":
                extra_c = extra_c + 8 * on * here
            elif fault.kind in ("thermal_gpu", "thermal_rack"):
                extra_c = extra_c + 22 * on * here
                clock_scale = clock_scale / (1 + fault.severity * on * here)
            elif fault.kind == "power_cap":
                clock_scale = clock_scale / (1 + fault.severity * on * here)
            elif fault.kind == "voltage_droop":
                voltage_drop = voltage_drop + 90 * on * here
        power = 80 + 560 * load * clock_scale**2 + rng.normal(0, 6, shape)
        hall = self.spec.day_cycle_c * np.sin(2 * np.pi * self.seconds_T / 86400)[:, None]
        slot = self._slot_D[None, :] + 0.6 * self.device_D[None, :]
        target = 24 + hall + slot + extra_c + KELVIN_PER_WATT * r_scale * power
        body = _inertia(target, self.spec.interval_s / 45.0, self._temp_D)
        self._temp_D = body[-1]
        temp = body + rng.normal(0, 0.4, shape)
        clock = np.where(load > 0.1, 1750.0, 345.0) * clock_scale * np.where(temp > SLOWDOWN_C, 0.85, 1.0)
        clock = clock + rng.normal(0, 4, shape)
        thermal = (temp > SLOWDOWN_C) | ((clock_scale < 0.995) & (extra_c > 10))
        voltage = 700 + 0.16 * clock + rng.normal(0, 2, shape) - voltage_drop
        values = {
            "temp_c": np.round(temp), "temp_headroom_c": np.round(SLOWDOWN_C - temp), "power_w": np.round(power, 2),
            "power_limit_w": np.full(shape, self.cluster.power_limit_w), "sm_clock_mhz": np.round(clock),
            "voltage_mv": np.round(voltage, 1), "util_pct": np.round(100 * load), "fan_pct": np.round(fan),
        }  # fmt: skip
        values |= self._device_counters(shape, thermal)
        self._break_sensors(values)
        frame = self._frame(values, self.node_D)
        frame["device"] = np.tile(self.device_D, shape[0]).astype(float)
        frame["vendor"] = constant("nvidia", len(frame))
        frame["model"] = constant(self.cluster.model, len(frame))
        return frame

    def _device_counters(self, shape: tuple[int, int], thermal: np.ndarray) -> dict[str, FloatArray]:
        rng, step_us = self._rng, self.spec.interval_s * 1e6
        corrected = rng.poisson(2e-5, shape).astype(float)
        uncorrected, remap, remapped = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for fault in self.faults:
            on, here = self.active(fault)[:, None], self._members(fault)[None, :]
            if fault.kind == "ecc_ramp":
                corrected = corrected + rng.poisson(2.0, shape) * (on * here)
            elif fault.kind == "row_remap":
                remap = np.maximum(remap, on * here)
                remapped = np.maximum(remapped, on * here)
                uncorrected = uncorrected + np.diff(on, axis=0, prepend=0) * here
        counters = {
            "ecc_corrected_total": np.cumsum(corrected, axis=0),
            "ecc_uncorrected_total": np.cumsum(uncorrected, axis=0),
            "remap_pending": remap,
            "remap_failure": np.zeros(shape),
            "remapped_rows_total": remapped,
            "throttle_reasons": np.where(thermal, THERMAL_BIT, 0.0),
            "throttle_thermal_us_total": np.cumsum(thermal * step_us * 0.8, axis=0),
            "throttle_power_us_total": np.cumsum(np.full(shape, 0.02 * step_us), axis=0),
        }
        for fault in self.faults:
            if fault.kind == "counter_reset":
                _start_again(counters, self.active(fault), self._members(fault))
        return counters

    def _break_sensors(self, values: dict[str, FloatArray]) -> None:
        for fault in self.faults:
            on = np.nonzero(self.active(fault) > 0)[0]
            here = np.nonzero(self._members(fault))[0]
            if not len(on) or fault.kind not in (
                "stuck_sensor",
                "missing_sensor",
                "noisy_sensor",
                "implausible_sensor",
            ):
                continue
            at = np.ix_(on, here)
            if fault.kind == "stuck_sensor":
                held = (values["temp_c"][on[0], here], values["power_w"][on[0], here])
                values["temp_c"][at], values["power_w"][at] = self._stuck.setdefault(fault, held)
            elif fault.kind == "missing_sensor":
                values["temp_c"][at] = np.nan
            elif fault.kind == "noisy_sensor":
                values["temp_c"][at] += np.round(self._rng.normal(0, 12, (len(on), len(here))))
            else:
                values["temp_c"][at] = 255.0

    def _frame(self, values: Mapping[str, FloatArray], node: np.ndarray) -> pd.DataFrame:
        count = len(node)
        frame = pd.DataFrame({"ts": np.repeat(self.start_ms + self.seconds_T * 1000.0, count)})
        for name, value in values.items():
            frame[name] = value.reshape(-1)
        names = [self.cluster.node_name(i) for i in range(self.cluster.nodes)]
        frame["node"] = coded(np.tile(node, len(self.seconds_T)), names)
        frame["cluster"] = constant(self.cluster.name, len(frame))
        return frame

    def _nodes(self) -> pd.DataFrame:
        rng, shape = self._rng, (len(self.seconds_T), self.cluster.nodes)
        node = np.arange(self.cluster.nodes)
        hall = self.spec.day_cycle_c * np.sin(2 * np.pi * self.seconds_T / 86400)[:, None]
        inlet = 22 + hall + self._inlet_N[None, :] + rng.normal(0, 0.2, shape)
        offset = rng.normal(0, 80, shape)
        for fault in self.faults:
            on = self.active(fault)[:, None]
            if fault.kind == "cooling_zone":
                zone = self.cluster.zone_of(node)
                inlet = inlet + 8 * on * (zone == self.cluster.zone_of(np.array([fault.node]))[0])
            elif fault.kind == "clock_skew":
                offset = offset + 2_000_000 * on * (node == fault.node)
        values = {
            "inlet_c": np.round(inlet, 1),
            "cpu_pct": np.clip(20 + rng.normal(0, 4, shape), 0, 100),
            "edac_corrected_total": np.zeros(shape),
            "edac_uncorrected_total": np.zeros(shape),
            "clock_offset_us": np.round(offset),
        }
        return self._frame(values, node)

    def ports(self) -> pd.DataFrame:
        """Return `port_samples`: one RDMA port a node.

        What slows transfers shows here as well: a slow adapter has errors, a lower rate or waits to send (which of
        them depends on where and when), a congested switch marks the traffic of every node below it.
        """
        rng, node = self._rng, np.arange(self.cluster.nodes)
        shape = (len(self.seconds_T), self.cluster.nodes)
        traffic = rng.lognormal(np.log(2e10 * self.spec.interval_s), 0.1, shape)
        retransmits, cnp = rng.poisson(0.02, shape).astype(float), rng.poisson(20.0, shape).astype(float)
        downs, waits = np.zeros(shape), rng.poisson(WAIT_TICKS, shape).astype(float)
        rate = np.full(shape, 400.0)
        state = np.full(shape, "ACTIVE", dtype=object)
        for fault in self.faults:
            on, here = self.active(fault)[:, None] > 0, (node == fault.node)[None, :]
            sign = (fault.node + fault.start_step) % 3
            if fault.kind == "packet_loss":
                retransmits = retransmits + rng.poisson(400.0, shape) * on * here
                cnp = cnp + rng.poisson(8000.0, shape) * on * here
            elif fault.kind == "slow_link":
                both = here | (node == fault.other_node)[None, :]
                retransmits = retransmits + rng.poisson(60.0, shape) * on * both
            elif fault.kind == "congested_switch":
                below = self.cluster.leaf_of(node) == self.cluster.leaf_of(np.array([fault.node]))[0]
                cnp = cnp + rng.poisson(8000.0, shape) * on * below[None, :]
            elif fault.kind == "slow_nic" and sign == 0:
                retransmits = retransmits + rng.poisson(60.0, shape) * on * here
            elif fault.kind == "slow_nic" and sign == 1:
                rate = np.where(on & here, 100.0, rate)
            elif fault.kind == "slow_nic":
                waits = waits + rng.poisson(4e6, shape) * on * here
            elif fault.kind == "counter_saturation" and self.seconds_T[0] == 0:
                # It had counted for long: what it has left is what it counts until the fault begins.
                left = WAIT_TICKS * (fault.start_step * self.spec.step_s / self.spec.interval_s + SATURATES_AFTER)
                waits[0] += (CEILING - left) * (node == fault.node)
            elif fault.kind == "link_flap":
                flap = (rng.random(shape[0]) < 0.15)[:, None] & on & here
                downs = downs + flap
                state[flap] = "DOWN"
        values = {
            "port": np.ones(shape), "rate_gbps": rate,
            "rx_bytes_total": np.cumsum(traffic, axis=0), "tx_bytes_total": np.cumsum(traffic, axis=0),
            "retransmits_total": np.cumsum(retransmits, axis=0), "cnp_handled_total": np.cumsum(cnp, axis=0),
            "xmit_wait_total": np.cumsum(waits, axis=0),
            "link_downed_total": np.cumsum(downs, axis=0), "symbol_errors_total": np.zeros(shape),
        }  # fmt: skip
        frame = self._frame(values, node)
        self.saturate(frame)
        frame["hca"], frame["link_layer"] = "mlx5_0", "InfiniBand"
        frame["state"] = state.reshape(-1)
        return frame

    def saturate(self, ports: pd.DataFrame) -> None:
        """Stop counters of ports at the ceiling of their width where a fault says so; in place."""
        for fault in self.faults:
            if fault.kind == "counter_saturation":
                here = (ports["node"] == self.cluster.node_name(fault.node)).to_numpy()
                ports.loc[here, "xmit_wait_total"] = np.minimum(ports.loc[here, "xmit_wait_total"], CEILING)

    def _storage(self) -> pd.DataFrame:
        rng, node = self._rng, np.arange(self.cluster.nodes)
        shape = (len(self.seconds_T), self.cluster.nodes)
        read = rng.lognormal(np.log(4.0), 0.25, shape)
        ops = rng.poisson(500 * self.spec.interval_s / 10, shape).astype(float)
        for fault in self.faults:
            if fault.kind == "storage_latency":
                on = self.active(fault)[:, None]
                here = (node == fault.node)[None, :] if fault.device is not None else np.ones((1, len(node)))
                read = read * (1 + 12 * on * here)
        values = {
            "read_ms": np.round(read, 3),
            "write_ms": np.round(rng.lognormal(np.log(6.0), 0.25, shape), 3),
            "read_ops_total": np.cumsum(ops, axis=0),
            "write_ops_total": np.cumsum(ops / 5, axis=0),
        }
        frame = self._frame(values, node)
        frame["target"], frame["kind"] = "/data", "lustre"
        return frame


def _start_again(counters: dict[str, FloatArray], on_T: FloatArray, here_D: np.ndarray) -> None:
    """Let the cumulative counters of some devices begin at zero where a fault begins, as a driver reload does."""
    begin = np.nonzero(on_T > 0)[0]
    if len(begin):
        for name, values in counters.items():
            if name.endswith("us_total") or name.startswith("ecc_"):
                values[begin[0] :, here_D] -= values[begin[0], here_D]


def _inertia(target_TD: FloatArray, rate: float, before_D: FloatArray | None) -> FloatArray:
    """First-order lag: what a body does whose surroundings change; `before_D` is how it was, None in balance."""
    share = 1 - np.exp(-rate)
    result = np.empty_like(target_TD)
    result[0] = target_TD[0] if before_D is None else before_D + share * (target_TD[0] - before_D)
    for t in range(1, len(target_TD)):
        result[t] = result[t - 1] + share * (target_TD[t] - result[t - 1])
    return result
