"""Faults of training itself: a rank that makes NaN, a loss spike, a silent gradient error, a rank that hangs."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pandas as pd

from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.scenarios import START_MS, Scenario, build, guilty_nodes

#: Kind to the finding kind a detector should say; a loss spike has no place, so it names nobody.
TRAINING_KINDS = {
    "nan_rank": "nonfinite",
    "loss_spike": "loss_spike",
    "silent_gradient": "grad_norm",
    "hang_rank": "hang",
}
STEPS = 160


def training_scenario(kind: str, seed: int) -> Scenario:
    """Draw one synchronous job with one such fault ("clean": none)."""
    rng = np.random.default_rng([seed, 80])
    job = Job(tp=int(rng.choice([1, 2, 4])), dp=8, pp=int(rng.choice([1, 2])), step_ms=float(rng.uniform(500, 4000)))
    cluster = Cluster(nodes=max(2, -(-job.ranks // 4)), devices_per_node=4)
    node, device = job.place(cluster)
    rank, at = int(rng.integers(job.ranks)), int(rng.integers(60, 120))
    drawn = build(kind, cluster, job, [], seed, STEPS)
    rows = drawn.frames["rank_steps"]
    step = rows["step"].to_numpy()
    mine = rows["rank"].to_numpy() == rank
    curve = 2.0 + 7.0 / (1 + np.arange(STEPS) / 30.0)
    loss = curve * np.exp(rng.normal(0, 0.006, STEPS))
    if kind == "loss_spike":
        loss[at:] *= 1 + 1.5 * np.exp(-np.arange(STEPS - at) / 8.0)
    rows["loss"] = loss[step.astype(int)]
    # Norms before the reduction: each rank has its own data.
    rows["grad_norm"] = 1.2 * np.exp(rng.normal(0, 0.08, len(rows)))
    rows["nonfinite_count"] = 0.0
    if kind == "nan_rank":
        rows.loc[mine & (step == at), "nonfinite_count"] = 4.0
        rows.loc[step > at, "nonfinite_count"] = 16.0
        rows.loc[step > at, ["loss", "grad_norm"]] = np.nan
    elif kind == "silent_gradient":
        rows.loc[mine & (step >= at), "grad_norm"] *= float(rng.uniform(3.0, 8.0))
    if kind == "hang_rank":
        drawn.frames["rank_steps"] = rows[step < at]
        drawn.frames.update(_hang(cluster, job, rank, float(rows["ts"][step < at].max()) + 15_000.0, at))
    if kind in ("clean", "loss_spike"):
        # What has no place is graded by its kind alone.
        named = () if kind == "clean" else (frozenset({job.name}),)
        return replace(drawn, guilty=named, faults=_fault(kind, 0, None, at))
    faults = _fault(kind, int(node[rank]), int(device[rank]), at)
    return replace(drawn, faults=faults, guilty=(guilty_nodes(faults[0], cluster),))


def _fault(kind: str, node: int, device: int | None, at: int) -> tuple[Fault, ...]:
    return () if kind == "clean" else (Fault(kind, node, device, start_step=at),)


def _hang(cluster: Cluster, job: Job, hung: int, begin_ms: float, seq: int) -> dict[str, pd.DataFrame]:
    """Return what agents collect twice, six seconds apart: all ranks but one wait in one all-reduce."""
    node, _ = job.place(cluster)
    ranks = np.arange(job.ranks)
    group = "default:" + hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:12]
    same = {"cluster": cluster.name, "job": job.name, "run": job.run}
    dumps, entries = [], []
    for number, capture in enumerate(("hang-1", "hang-1.2")):
        for rank in ranks.tolist():
            name = f"{capture.split('.')[0]}-{cluster.node_name(int(node[rank]))}{capture[6:]}"
            place = {**same, "ts": begin_ms + 6000.0 * number, "node": cluster.node_name(int(node[rank])),
                     "capture_id": name, "rank": float(rank)}  # fmt: skip
            dumps.append({**place, "status": "ok", "entries": 2.0})
            for offset, done in ((seq - 1, True), (seq, False)):
                if not done and rank == hung:
                    continue
                entries.append(
                    {**place, "process_group": group, "seq": float(offset), "op": "all_reduce", "is_p2p": 0.0,
                     "peer": np.nan, "bytes": 4e8, "dtype": "bfloat16", "retired": float(done),
                     "state": "completed" if done else "started", "record_id": float(offset),
                     "created_at": begin_ms - 15_000.0}
                )  # fmt: skip
    members = {**same, "ts": START_MS, "process_group": group, "backend": "nccl", "desc": "default"}
    groups = pd.DataFrame([{**members, "members": tuple(ranks.tolist())}])
    return {"dumps": pd.DataFrame(dumps), "collectives": pd.DataFrame(entries), "process_groups": groups}
