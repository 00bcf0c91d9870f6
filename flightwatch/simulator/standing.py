"""What a simulated cluster says once: inventory, placements, runs, configuration, and events of its faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flightwatch.core.protocols import Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource, RunPhase
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.live_rows import rows_of
from flightwatch.simulator.plan import TimedFault

#: What each node is configured with.
FACTS = {"driver": "580.65.06", "kernel": "6.8.0-60-generic", "comm_library": "nccl 2.27.3", "ecc_mode": "enabled",
         "mtu": "4092", "governor": "performance"}  # fmt: skip
#: What the kernel log says when a row of memory must be remapped.
REMAP_LINES = (
    ("xid:94", "Contained: SM (0x1). RST: No, D-RST: No"),
    ("xid:63", "Row Remapper: New row marked for remapping, reset gpu to activate."),
)


def standing_rows(cluster: Cluster, jobs: Sequence[Job], ts_ms: int) -> list[Row]:
    """Return inventory of nodes, devices and ports, configuration, placements and the begin of each run."""
    devices = cluster.inventory(ts_ms)
    rows = [*rows_of("inventory", devices)]
    nodes = devices.drop_duplicates("node").drop(columns=["device", "model", "serial", "slot"])
    rows += rows_of("inventory", nodes.assign(model="SIM-node", serial=[f"{name}-board" for name in nodes["node"]]))
    rows += rows_of("inventory", nodes.assign(hca="mlx5_0", port=1.0, rail="0"))
    for node in nodes["node"].tolist():
        place: dict[str, Value] = {"ts": ts_ms, "cluster": cluster.name, "node": node}
        rows += [Row("config_facts", {**place, "name": name, "value": value}) for name, value in FACTS.items()]
    for job in jobs:
        rows += rows_of("placements", job.placements(cluster, ts_ms))
        rows.append(_run(cluster, job, ts_ms, None))
    return rows


def ended_rows(cluster: Cluster, jobs: Sequence[Job], start_ms: int, now_ms: int) -> list[Row]:
    """Return the rows that end placements and runs."""
    rows: list[Row] = []
    for job in jobs:
        for row in rows_of("placements", job.placements(cluster, start_ms)):
            row.values["valid_until"] = now_ms
            rows.append(row)
        rows.append(_run(cluster, job, start_ms, now_ms))
    return rows


def _run(cluster: Cluster, job: Job, start_ms: int, end_ms: int | None) -> Row:
    attrs = {"tenant": "simulated", "owner": "flightwatch simulate", "world_size": str(job.ranks)}
    return Row(
        "runs",
        {
            "ts": start_ms, "cluster": cluster.name, "node": cluster.node_name(int(job.place(cluster)[0][0])),
            "job": job.name, "run": job.run, "phase": RunPhase.TRAIN.value, "started_at": start_ms, "ended_at": end_ms,
            "attrs": attrs,
        },
    )  # fmt: skip


def fault_events(cluster: Cluster, faults: Sequence[tuple[TimedFault, int]]) -> list[Row]:
    """Return the kernel log lines that come with faults, each with the time its fault begins."""
    return [row for fault, begin_ms in faults for row in _events_of(cluster, fault, begin_ms)]


def _events_of(cluster: Cluster, fault: TimedFault, begin_ms: int) -> Iterator[Row]:
    if fault.fault.kind != "row_remap":
        return
    device = fault.fault.device or 0
    bus = f"0000:{0x1B + 16 * device:02x}:00"
    for code, text in REMAP_LINES:
        number = code.partition(":")[2]
        yield Row(
            "events",
            {
                "ts": begin_ms, "cluster": cluster.name, "node": cluster.node_name(fault.fault.node), "device": device,
                "source": EventSource.KERNEL.value, "code": code, "severity": EventSeverity.ERROR.value,
                "message": f"NVRM: Xid (PCI:{bus}): {number}, {text}",
                "attrs": {"pci_bus_id": f"{bus}.0"},
            },
        )  # fmt: skip
