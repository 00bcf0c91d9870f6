"""How much a cluster of a given size sends, stores and costs, from measured figures.

The bytes per row come from `python -m benchmarks.sizing` (rows of realistic noise, one message a node and scrape,
rollups included), the CPU figure from `make bench-ingest`; docs/sizing.md names the machine. Everything else is
multiplication: the point is that volume is designed, not hoped for.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Rows that one CPU-second of ingest stores, rollups included, when it merges many nodes' messages into one insert.
ROWS_PER_CPU_SECOND = 70_000
#: Replicas of bus and store on a cluster.
REPLICAS = 2


@dataclass(frozen=True, slots=True)
class RowCost:
    """Measured cost of one row of a table.

    Attributes
    ----------
    wire_bytes: compressed, inside a message of one node's scrape.
    disk_bytes: merged, with rollups, indices and source columns.
    ttl_days: default retention.
    """

    wire_bytes: float
    disk_bytes: float
    ttl_days: int


COSTS = {
    "device_samples": RowCost(66.8, 27.1, 14),
    "node_samples": RowCost(161.6, 46.6, 14),
    "port_samples": RowCost(42.4, 20.4, 14),
    "sensor_samples": RowCost(8.1, 0.7, 14),
    "rank_steps": RowCost(76.0, 44.8, 30),
    "op_timings": RowCost(15.5, 10.4, 3),
}


@dataclass(frozen=True, slots=True)
class Load:
    """A cluster and its intervals.

    Attributes
    ----------
    gpus, gpus_per_node, ports_per_node, sensors_per_node: how many there are.
    step_seconds: duration of a training step; every GPU is one rank.
    device_interval_seconds, host_interval_seconds: intervals of the collectors.
    op_rows: op summaries per rank and 60 s or 20 steps, whichever is longer.
    """

    gpus: int
    step_seconds: float
    gpus_per_node: int = 8
    ports_per_node: int = 8
    sensors_per_node: int = 50
    device_interval_seconds: float = 1.0
    host_interval_seconds: float = 5.0
    op_rows: int = 10

    @property
    def nodes(self) -> int:
        """Nodes, rounded up."""
        return -(-self.gpus // self.gpus_per_node)


@dataclass(frozen=True, slots=True)
class TableSize:
    """What one table takes: rows a second, bus bytes a second, disk bytes a day, disk bytes kept."""

    table: str
    rows_per_second: float
    wire_bytes_per_second: float
    disk_bytes_per_day: float
    disk_bytes_kept: float


def sizes(load: Load) -> list[TableSize]:
    """Return the busy tables of a cluster, one copy of the data."""
    summary_seconds = max(60.0, 20 * load.step_seconds)
    rates = {
        "device_samples": load.gpus / load.device_interval_seconds,
        "node_samples": load.nodes / load.host_interval_seconds,
        "port_samples": load.nodes * load.ports_per_node / load.host_interval_seconds,
        "sensor_samples": load.nodes * load.sensors_per_node / load.host_interval_seconds,
        "rank_steps": load.gpus / load.step_seconds,
        "op_timings": load.gpus * load.op_rows / summary_seconds,
    }
    found = []
    for table, rate in rates.items():
        cost = COSTS[table]
        per_day = rate * cost.disk_bytes * 86_400
        found.append(TableSize(table, rate, rate * cost.wire_bytes, per_day, per_day * cost.ttl_days))
    return found


def ingest_cores(load: Load) -> float:
    """Return CPU cores that ingest needs on average."""
    return sum(size.rows_per_second for size in sizes(load)) / ROWS_PER_CPU_SECOND
