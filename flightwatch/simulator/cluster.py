"""The simulated hardware and the jobs on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Cluster:
    """Nodes in racks, racks in cooling zones, nodes below leaf switches.

    Attributes
    ----------
    nodes, devices_per_node, nodes_per_rack, racks_per_zone, nodes_per_leaf: sizes.
    model, power_limit_w: the accelerators.
    prefix: before every name of a node, rack, zone, switch and serial number, so that a simulated cluster beside
    a real one shares no name with it.
    """

    nodes: int = 8
    devices_per_node: int = 8
    nodes_per_rack: int = 4
    racks_per_zone: int = 2
    nodes_per_leaf: int = 4
    model: str = "SIM-H100"
    power_limit_w: float = 700.0
    name: str = "sim"
    prefix: str = ""

    def node_name(self, node: int | np.integer[Any]) -> str:
        """Name of node number `node`."""
        return f"{self.prefix}n{node:04d}"

    def rack_of(self, node: IntArray) -> IntArray:
        """Rack number of nodes."""
        return node // self.nodes_per_rack

    def zone_of(self, node: IntArray) -> IntArray:
        """Cooling zone number of nodes."""
        return node // (self.nodes_per_rack * self.racks_per_zone)

    def leaf_of(self, node: IntArray) -> IntArray:
        """Leaf switch number of nodes."""
        return node // self.nodes_per_leaf

    def inventory(self, ts_ms: int) -> pd.DataFrame:
        """Return the `inventory` frame: one row per device and one per node's port."""
        node = np.repeat(np.arange(self.nodes), self.devices_per_node)
        device = np.tile(np.arange(self.devices_per_node), self.nodes)
        frame = pd.DataFrame(
            {
                "ts": float(ts_ms),
                "cluster": self.name,
                "node": [self.node_name(i) for i in node],
                "device": device.astype(float),
                "model": self.model,
                "serial": [f"{self.prefix}SN{i:04d}{d}" for i, d in zip(node, device, strict=True)],
                "rack": [f"{self.prefix}r{i:03d}" for i in self.rack_of(node)],
                "slot": [f"s{d}" for d in device],
                "cooling_zone": [f"{self.prefix}z{i:02d}" for i in self.zone_of(node)],
                "power_zone": [f"{self.prefix}p{i:02d}" for i in self.rack_of(node)],
                "leaf_switch": [f"{self.prefix}leaf{i:03d}" for i in self.leaf_of(node)],
            }
        )
        return frame.astype(dict.fromkeys(("cluster", "node", "model", "rack", "cooling_zone", "leaf_switch"), object))


@dataclass(frozen=True)
class Job:
    """One synchronous training job.

    Attributes
    ----------
    tp, cp, pp, dp, ep: parallel sizes; ranks are numbered tp fastest, then cp, dp, pp (Megatron order).
    first_node: where it starts; ranks fill devices in order.
    step_ms: compute of an average rank in one step. microbatches: sets the pipeline bubble.
    noise: step-to-step spread of one rank's compute (ratio). chip_spread: lasting spread between chips.
    sequence_imbalance: spread from unequal data, drawn anew each step. stage_imbalance: extra share of
    the last stage. transfer_share: transfer time as share of compute. report_work: rows carry tokens.
    hot_expert: extra share of the ranks of one expert, lasting (ep > 1). asynchronous: replicas do not wait.
    log_every, log_share: rank 0 alone spends that share of a step more every so many steps.
    checkpoint_every: steps between checkpoints, 0 none. load_change: (step, factor) for all ranks alike.
    gc_rate: chance per rank-step of a pause of half a step.
    """

    name: str = "job"
    run: str = "run-1"
    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 8
    ep: int = 1
    first_node: int = 0
    step_ms: float = 1000.0
    microbatches: int = 16
    noise: float = 0.015
    chip_spread: float = 0.015
    sequence_imbalance: float = 0.0
    stage_imbalance: float = 0.0
    transfer_share: float = 0.12
    report_work: bool = False
    hot_expert: float = 0.0
    asynchronous: bool = False
    log_every: int = 0
    log_share: float = 0.0
    checkpoint_every: int = 0
    load_change: tuple[int, float] | None = None
    gc_rate: float = 0.0005
    report_placement: bool = True

    @property
    def ranks(self) -> int:
        """World size."""
        return self.tp * self.cp * self.dp * self.pp

    def axis(self, name: str) -> IntArray:
        """Return the coordinate of every rank on tp, cp, dp, pp or ep."""
        rank = np.arange(self.ranks)
        if name == "tp":
            return rank % self.tp
        if name == "cp":
            return rank // self.tp % self.cp
        dp = rank // (self.tp * self.cp) % self.dp
        if name == "ep":
            return dp % self.ep
        return dp if name == "dp" else rank // (self.tp * self.cp * self.dp)

    def place(self, cluster: Cluster) -> tuple[IntArray, IntArray]:
        """Return node and device of every rank."""
        slot = np.arange(self.ranks) + self.first_node * cluster.devices_per_node
        return slot // cluster.devices_per_node, slot % cluster.devices_per_node

    def placements(self, cluster: Cluster, ts_ms: int) -> pd.DataFrame:
        """Return the `placements` frame."""
        node, device = self.place(cluster)
        frame = pd.DataFrame(
            {
                "ts": float(ts_ms),
                "cluster": cluster.name,
                "node": [cluster.node_name(i) for i in node],
                "job": self.name,
                "run": self.run,
                "rank": np.arange(self.ranks, dtype=float),
                "device": device.astype(float),
            }
        )
        for name, size in (("tp", self.tp), ("cp", self.cp), ("pp", self.pp), ("dp", self.dp), ("ep", self.ep)):
            frame[name] = self.axis(name).astype(float) if size > 1 or name == "dp" else -1.0
        return frame.astype(dict.fromkeys(("cluster", "node", "job", "run"), object))
