"""Faults and what they do to each rank's times; telemetry faults name what they do to sensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flightwatch.simulator.cluster import Cluster, IntArray, Job

FloatArray = np.ndarray[Any, np.dtype[np.floating]]

#: Timing faults: kind to the class a detector should say.
TIMING_KINDS = {
    "slow_gpu": "compute",
    "memory_bandwidth": "compute",
    "thermal_gpu": "compute",
    "intermittent": "compute",
    "gradual": "compute",
    "power_cap": "host",
    "slow_host": "host",
    "cpu_bound_host": "host",
    "slow_nic": "link",
    "slow_link": "link",
    "congested_switch": "link",
    "slow_storage": "storage",
    "thermal_rack": "rack",
}
#: Telemetry faults: kind to the finding kind a detector should say.
TELEMETRY_KINDS = {
    "fan_failure": "overheat",
    "paste_failure": "overheat",
    "cooling_zone": "cooling",
    "ecc_ramp": "ecc",
    "row_remap": "ecc",
    "link_flap": "link_flap",
    "packet_loss": "rdma",
    "stuck_sensor": "sensor",
    "missing_sensor": "sensor",
    "noisy_sensor": "sensor",
    "implausible_sensor": "sensor",
    "voltage_droop": "power",
    "dead_node": "dead_node",
    "clock_skew": "clock_skew",
    "storage_latency": "storage",
    "counter_reset": "sensor",
    "counter_saturation": "sensor",
}


@dataclass(frozen=True)
class Fault:
    """One injected fault.

    Attributes
    ----------
    kind: a key of TIMING_KINDS or TELEMETRY_KINDS.
    node: node number (the first one of a rack, zone or switch fault). device: device on it, None for all.
    other_node: the far end of a slow link.
    start_step, end_step: when it holds, end exclusive; None: until the end.
    severity: slowdown as a ratio (0.1 = 10 % longer; transfers: times 1 + 10 x severity).
    duty: share of the time an intermittent fault is on.
    """

    kind: str
    node: int
    device: int | None = None
    other_node: int | None = None
    start_step: int = 100
    end_step: int | None = None
    severity: float = 0.1
    duty: float = 0.1
    burst_steps: int = 5


def level(fault: Fault, steps_S: IntArray) -> FloatArray:
    """Return the strength of a fault at each step, 0..1."""
    end = fault.end_step if fault.end_step is not None else np.iinfo(np.int64).max
    on = ((steps_S >= fault.start_step) & (steps_S < end)).astype(np.float64)
    since = steps_S - fault.start_step
    if fault.kind == "gradual":
        return np.asarray(on * np.clip(since / 200.0, 0, 1))
    if fault.kind == "intermittent":
        period = max(2, round(fault.burst_steps / fault.duty))
        # The phase wanders, as a loose cable or a marginal regulator does.
        wander = (since // period * 7919) % max(1, period - fault.burst_steps)
        return np.asarray(on * ((since % period >= wander) & (since % period < wander + fault.burst_steps)))
    if fault.kind in ("thermal_gpu", "thermal_rack"):
        return np.asarray(on * np.clip(since / 20.0, 0, 1))
    return on


def compute_ranks(fault: Fault, cluster: Cluster, job: Job) -> IntArray:
    """Return the ranks whose compute, launch gap or data time the fault lengthens."""
    node, device = job.place(cluster)
    if fault.kind == "thermal_rack":
        here = cluster.rack_of(node) == cluster.rack_of(np.array([fault.node]))[0]
    elif fault.device is not None:
        here = (node == fault.node) & (device == fault.device)
    else:
        here = node == fault.node
    return np.nonzero(here)[0]


def link_factor_nodes(fault: Fault, cluster: Cluster) -> IntArray:
    """Return the nodes whose adapter or uplink the fault slows."""
    if fault.kind == "congested_switch":
        nodes = np.arange(cluster.nodes)
        return np.asarray(nodes[cluster.leaf_of(nodes) == cluster.leaf_of(np.array([fault.node]))[0]])
    return np.array([fault.node])
