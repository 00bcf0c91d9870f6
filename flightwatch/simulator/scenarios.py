"""Random scenarios with known answers: one cluster, one job, at most two faults or one confounder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import TELEMETRY_KINDS, TIMING_KINDS, Fault
from flightwatch.simulator.telemetry import TelemetryModel, TelemetrySpec
from flightwatch.simulator.timing import TimingModel

START_MS = 1_760_000_000_000
#: Layouts of at least four role peers: tp, cp, pp, dp.
Layout = tuple[int, int, int, int]
LAYOUTS: tuple[Layout, ...] = (
    (1, 1, 1, 16), (4, 1, 2, 8), (8, 1, 4, 4), (2, 1, 4, 16), (8, 1, 1, 8), (4, 2, 2, 8), (8, 1, 8, 4),
)  # fmt: skip
SMALL_LAYOUTS: tuple[Layout, ...] = ((1, 1, 4, 2), (1, 1, 8, 3), (1, 1, 2, 3))
CONFOUNDERS = (
    "hot_expert", "packed_sequences", "stage_imbalance", "accumulation_change", "asynchronous", "replica_removed",
    "one_rank_logs", "one_rank_evaluates", "chip_spread", "checkpoints", "restart", "interleaved_schedule",
    "ranks_leave_and_join", "pipeline_outage", "neighbour_checkpoint", "garbage_collection",
)  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """One run to judge detectors by.

    Attributes
    ----------
    name: kind of fault, confounder or "clean". frames: tables. faults: what was injected. step_s: seconds a step.
    guilty: per fault the nodes any of which names it. hours: simulated node-hours. rank_steps: rows of rank_steps.
    first_step: number of the first step; faults count from it.
    """

    name: str
    frames: dict[str, pd.DataFrame]
    faults: tuple[Fault, ...]
    guilty: tuple[frozenset[str], ...]
    nodes: int
    hours: float
    rank_steps: int
    severity: float = 0.0
    first_step: int = 0


def _cluster_for(job: Job, devices: int) -> Cluster:
    return Cluster(nodes=max(2, -(-job.ranks // devices)), devices_per_node=devices)


def place_fault(kind: str, cluster: Cluster, job: Job, severity: float, steps: int, rng: np.random.Generator) -> Fault:
    """Place a fault of a kind where it can be seen and named."""
    node_R, device_R = job.place(cluster)
    rank = int(rng.integers(job.ranks))
    if kind == "slow_storage":
        rank = int(rng.choice(np.nonzero(job.axis("pp") == 0)[0]))
    other = None
    if kind == "slow_link":
        stride = job.tp * job.cp * job.dp
        rank = int(rng.integers(job.ranks - stride)) if job.pp > 1 else rank
        other = int(node_R[rank + stride]) if job.pp > 1 else None
    single = kind in ("slow_gpu", "memory_bandwidth", "thermal_gpu", "intermittent", "gradual")
    start = int(rng.integers(steps // 4, steps // 2))
    return Fault(kind, int(node_R[rank]), int(device_R[rank]) if single else None, other, start, None, severity)


def guilty_nodes(fault: Fault, cluster: Cluster) -> frozenset[str]:
    """Return the nodes that a right answer may name."""
    every = np.arange(cluster.nodes)
    if fault.kind == "thermal_rack":
        nodes = every[cluster.rack_of(every) == cluster.rack_of(np.array([fault.node]))[0]]
    elif fault.kind == "cooling_zone":
        nodes = every[cluster.zone_of(every) == cluster.zone_of(np.array([fault.node]))[0]]
    elif fault.kind == "congested_switch":
        nodes = every[cluster.leaf_of(every) == cluster.leaf_of(np.array([fault.node]))[0]]
    else:
        nodes = np.array([fault.node] + ([fault.other_node] if fault.other_node is not None else []))
    return frozenset(cluster.node_name(int(node)) for node in nodes)


def timing_scenario(
    kind: str, seed: int, *, severity: float = 0.1, noise: float = 0.015, steps: int = 400, small: bool = False,
    faults: int = 1, telemetry: bool = True,
) -> Scenario:  # fmt: skip
    """Draw one job with one fault kind ("clean": none), or two faults of one kind on different nodes.

    Parameters
    ----------
    small: two or three peers a role. telemetry: device or port samples beside the steps where causes show in both.
    """
    rng = np.random.default_rng([seed, 77])
    layouts = SMALL_LAYOUTS if small else LAYOUTS
    if kind == "slow_link":
        layouts = tuple(layout for layout in layouts if layout[2] > 1)
    tp, cp, pp, dp = layouts[int(rng.integers(len(layouts)))]
    devices = 1 if small else int(rng.choice([4, 8]))
    job = Job(
        tp=tp, cp=cp, pp=pp, dp=dp, step_ms=float(rng.uniform(800, 6000)), noise=noise,
        stage_imbalance=float(rng.choice([0.0, 0.15, 0.3])), checkpoint_every=int(rng.choice([0, 100])),
    )  # fmt: skip
    cluster = _cluster_for(job, devices)
    if kind in ("slow_nic", "slow_link", "congested_switch", "thermal_rack"):
        # At least two racks and two switches: a job inside one cannot tell it from the load.
        part = max(1, cluster.nodes // 4)
        cluster = replace(cluster, nodes_per_rack=part, nodes_per_leaf=part)
    drawn: list[Fault] = []
    while kind != "clean" and len(drawn) < faults:
        one = place_fault(kind, cluster, job, severity, steps, rng)
        if all(one.node != other.node for other in drawn):
            drawn.append(one)
    beside = {"thermal_rack": "all"} | dict.fromkeys(("slow_nic", "slow_link", "congested_switch"), "ports")
    return build(kind, cluster, job, drawn, seed, steps, telemetry=beside.get(kind, "") if telemetry else "")


def confounder_scenario(kind: str, seed: int, steps: int = 400) -> Scenario:
    """Draw a healthy job in which something other than hardware makes ranks differ."""
    rng = np.random.default_rng([seed, 78])
    job = Job(tp=4, pp=2, dp=8, step_ms=float(rng.uniform(800, 3000)))
    changes: dict[str, Job] = {
        "hot_expert": replace(job, ep=4, hot_expert=0.15),
        "packed_sequences": replace(job, sequence_imbalance=0.1, report_work=bool(rng.integers(2))),
        "stage_imbalance": replace(job, pp=4, dp=4, stage_imbalance=0.5),
        "accumulation_change": replace(job, load_change=(steps // 2, 1.5)),
        "asynchronous": replace(job, pp=1, tp=1, dp=32, asynchronous=True),
        "one_rank_evaluates": replace(job, log_every=50, log_share=2.5),
        "interleaved_schedule": replace(job, pp=4, dp=4, stage_imbalance=0.25, microbatches=32),
        "garbage_collection": replace(job, gc_rate=0.004),
        "one_rank_logs": replace(job, log_every=int(rng.choice([10, 20, 50])), log_share=0.3),
        "chip_spread": replace(job, chip_spread=0.05),
        "checkpoints": replace(job, checkpoint_every=25),
    }
    chosen = changes.get(kind, job)
    cluster = _cluster_for(chosen, 8)
    if kind in ("replica_removed", "restart"):
        return _two_runs(kind, cluster, job, seed, steps)
    drawn = build(kind, cluster, chosen, [], seed, steps)
    rows = drawn.frames["rank_steps"]
    if kind == "ranks_leave_and_join":
        away = (rows["rank"] >= chosen.ranks - 8) & rows["step"].between(steps // 3, 2 * steps // 3)
        drawn.frames["rank_steps"] = rows[~away].reset_index(drop=True)
    elif kind == "pipeline_outage":
        drawn.frames["rank_steps"] = _caught_up(rows, steps, rng)
    elif kind == "neighbour_checkpoint":
        # Shared storage is busy for a while: every rank that loads waits longer.
        busy = (rows["step"] // 20 % 4 == 3) & (rows["data_us"] > 0.005 * rows["step_us"])
        rows.loc[busy, "data_us"] += 0.08 * rows.loc[busy, "step_us"]
    elif kind == "interleaved_schedule":
        drawn.frames["placements"]["vpp"] = 2.0
    return drawn


def _caught_up(rows: pd.DataFrame, steps: int, rng: np.random.Generator) -> pd.DataFrame:
    """Lose some steps for good and replay others: late, repeated and in any order."""
    lost = rows["step"].between(steps // 2, steps // 2 + 15)
    again = rows[rows["step"].between(steps // 2 + 16, steps // 2 + 60)]
    shuffled = pd.concat([rows[~lost], again], ignore_index=True)
    return shuffled.iloc[rng.permutation(len(shuffled))].reset_index(drop=True)


def _two_runs(kind: str, cluster: Cluster, job: Job, seed: int, steps: int) -> Scenario:
    """A run that ends and a second one with fewer replicas, or with ranks renumbered by another start node."""
    half = steps // 2
    second = replace(job, run="run-2", dp=job.dp // 2) if kind == "replica_removed" else replace(job, run="run-2")
    first_model = TimingModel(cluster, job, (), seed, START_MS)
    first = first_model.frame(half)
    begin = int(first["ts"].max()) + 60_000
    later = TimingModel(cluster, second, (), seed + 1, begin).frame(half, first_step=half)
    steps_frame = pd.concat([first, later], ignore_index=True)
    placements = pd.concat([job.placements(cluster, START_MS), second.placements(cluster, begin)], ignore_index=True)
    frames = {"rank_steps": steps_frame, "placements": placements, "inventory": cluster.inventory(START_MS)}
    return Scenario(kind, frames, (), (), cluster.nodes, _hours(steps_frame, cluster), len(steps_frame))


def build(
    name: str, cluster: Cluster, job: Job, faults: Sequence[Fault], seed: int, steps: int, telemetry: str = "",
    lost: float = 0.01,
) -> Scenario:  # fmt: skip
    """Simulate one job with faults; a hundredth of the rows is lost on the way.

    Parameters
    ----------
    telemetry: what is drawn beside the steps: "" nothing, "ports" the RDMA ports, "all" every table.
    """
    rank_steps = TimingModel(cluster, job, faults, seed, START_MS).frame(steps, drop=lost)
    frames = {"rank_steps": rank_steps, "inventory": cluster.inventory(START_MS)}
    if job.report_placement:
        frames["placements"] = job.placements(cluster, START_MS)
    if telemetry:
        seconds = (float(rank_steps["ts"].max()) - START_MS) / 1000
        step_s = seconds / steps
        spec = TelemetrySpec(interval_s=10.0, samples=max(30, int(seconds / 10)), step_s=step_s)
        model = TelemetryModel(cluster, [job], faults, seed, START_MS, spec)
        frames |= model.frames() if telemetry == "all" else {"port_samples": model.ports()}
    guilty = tuple(guilty_nodes(fault, cluster) for fault in faults)
    severity = max((fault.severity for fault in faults), default=0.0)
    hours = _hours(rank_steps, cluster)
    return Scenario(name, frames, tuple(faults), guilty, cluster.nodes, hours, len(rank_steps), severity)


def telemetry_scenario(kind: str, seed: int, hours: float = 1.0) -> Scenario:
    """Draw an hour of telemetry of a partly idle cluster with one telemetry fault ("clean": none)."""
    rng = np.random.default_rng([seed, 79])
    cluster = Cluster(nodes=24)
    job = Job(tp=4, pp=2, dp=16, first_node=int(rng.integers(0, 4)))
    samples = int(hours * 360)
    faults: list[Fault] = []
    if kind != "clean":
        node = int(rng.integers(job.first_node, job.first_node + job.ranks // 8))
        single = TELEMETRY_KINDS[kind] in ("ecc", "sensor", "power") or kind in ("fan_failure", "paste_failure")
        device = int(rng.integers(8)) if single or (kind == "storage_latency" and rng.integers(2)) else None
        start = int(rng.integers(samples // 3, samples // 2) * 2)
        faults = [Fault(kind, node, device, start_step=start)]
    frames = TelemetryModel(cluster, [job], faults, seed, START_MS, TelemetrySpec(samples=samples)).frames()
    guilty = tuple(guilty_nodes(fault, cluster) for fault in faults)
    return Scenario(kind, frames, tuple(faults), guilty, cluster.nodes, cluster.nodes * hours, 0)


def _hours(rank_steps: pd.DataFrame, cluster: Cluster) -> float:
    return float(rank_steps["ts"].max() - rank_steps["ts"].min()) / 3_600_000 * cluster.nodes


def kinds() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return timing fault kinds, telemetry fault kinds and confounders."""
    return tuple(TIMING_KINDS), tuple(TELEMETRY_KINDS), CONFOUNDERS
