"""What recordings of other people look like: rows lost, repeated, late, columns absent, clocks wrong, other names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.timing import TimingModel

Frames = dict[str, pd.DataFrame]
Damage = Callable[[Frames, np.random.Generator], Frames]


def _steps(frames: Frames, rows: pd.DataFrame) -> Frames:
    return {**frames, "rank_steps": rows.reset_index(drop=True)}


def lost_rows(frames: Frames, rng: np.random.Generator) -> Frames:
    """Three per cent of the rows never arrive."""
    rows = frames["rank_steps"]
    return _steps(frames, rows[rng.random(len(rows)) >= 0.03])


def repeated_and_shuffled(frames: Frames, rng: np.random.Generator) -> Frames:
    """A twentieth of the rows comes twice, and rows come in any order."""
    rows = frames["rank_steps"]
    again = pd.concat([rows, rows[rng.random(len(rows)) < 0.05]])
    return _steps(frames, again.iloc[rng.permutation(len(again))])


def skewed_clocks(frames: Frames, rng: np.random.Generator) -> Frames:
    """Clocks of nodes differ by up to two seconds."""
    rows = frames["rank_steps"]
    nodes = sorted(map(str, rows["node"].unique()))
    offset = dict(zip(nodes, rng.uniform(-2000, 2000, len(nodes)), strict=True))
    return _steps(frames, rows.assign(ts=rows["ts"] + rows["node"].astype(object).map(offset).astype(float)))


def late_start(frames: Frames, rng: np.random.Generator) -> Frames:
    """Steps are counted on from a checkpoint."""
    rows = frames["rank_steps"]
    return _steps(frames, rows.assign(step=rows["step"] + float(rng.integers(10_000, 3_000_000))))


def ragged_ends(frames: Frames, rng: np.random.Generator) -> Frames:
    """Ranks begin and end up to ten steps apart."""
    rows = frames["rank_steps"]
    ranks = int(rows["rank"].max()) + 1
    begin, end = rng.integers(0, 10, ranks), rows["step"].max() - rng.integers(0, 10, ranks)
    of = rows["rank"].astype(int).to_numpy()
    return _steps(frames, rows[(rows["step"] >= begin[of]) & (rows["step"] <= end[of])])


def ranks_come_and_go(frames: Frames, rng: np.random.Generator) -> Frames:
    """An eighth of the ranks is away for some time."""
    rows = frames["rank_steps"]
    ranks = int(rows["rank"].max()) + 1
    away = rng.choice(ranks, max(1, ranks // 8), replace=False)
    first = int(rng.integers(20, 60))
    gone = rows["rank"].isin(away) & rows["step"].between(first, first + 30)
    return _steps(frames, rows[~gone])


def other_names(frames: Frames, rng: np.random.Generator) -> Frames:
    """Nodes, jobs and runs are named as people name them; `Cluster.node_name` is kept as the end of the name."""
    prefix = str(rng.choice(["gpu-", "Rechner ", "计算节点_", "a.b.c/"]))
    changed = {}
    for table, rows in frames.items():
        renamed = rows.copy()
        if "node" in renamed:
            renamed["node"] = prefix + renamed["node"].astype(str).astype(object)
        for name in ("job", "run"):
            if name in renamed:
                renamed[name] = "llm 7b: été#" + renamed[name].astype(str).astype(object)
        changed[table] = renamed
    return changed


def no_placements(frames: Frames, _: np.random.Generator) -> Frames:
    """Roles are unknown."""
    return {name: rows for name, rows in frames.items() if name != "placements"}


def no_inventory(frames: Frames, _: np.random.Generator) -> Frames:
    """Racks, switches and models are unknown."""
    return {name: rows for name, rows in frames.items() if name != "inventory"}


def step_and_compute(frames: Frames, _: np.random.Generator) -> Frames:
    """Only the step and its compute were measured."""
    kept = ["ts", "node", "job", "run", "step", "rank", "step_us", "compute_us"]
    return _steps(frames, frames["rank_steps"][kept])


def compute_only(frames: Frames, _: np.random.Generator) -> Frames:
    """Not even the step, nor its time, was measured."""
    return _steps(frames, frames["rank_steps"][["node", "job", "run", "step", "rank", "compute_us"]])


def step_and_communication(frames: Frames, _: np.random.Generator) -> Frames:
    """Compute is what is left of the step."""
    kept = ["ts", "node", "job", "run", "step", "rank", "step_us", "comm_us", "data_us"]
    return _steps(frames, frames["rank_steps"][kept])


def only_op_timings(frames: Frames, _: np.random.Generator) -> Frames:
    """Ops were recorded, steps were not; without the axis of communication."""
    rows = frames["rank_steps"]
    base = rows[["ts", "node", "device", "job", "run", "step", "rank"]].astype({"node": object})
    parts = (
        ("compute", "forward", "forward_us"), ("compute", "backward", "backward_us"),
        ("compute", "optimizer", "optimizer_us"), ("comm", "all_reduce", "comm_us"), ("io", "data_load", "data_us"),
        ("step", "step", "step_us"),
    )  # fmt: skip
    ops = [base.assign(kind=kind, op=op, dur_us=rows[column].astype(float)) for kind, op, column in parts]
    rest = {name: table for name, table in frames.items() if name != "rank_steps"}
    return {**rest, "op_timings": pd.concat(ops, ignore_index=True)}


def unknown_columns(frames: Frames, _: np.random.Generator) -> Frames:
    """Columns that nobody filled are there and empty."""
    empty = ("loss", "grad_norm", "tokens", "launch_gap_us", "unattributed_us", "checkpoint_us", "device")
    return _steps(frames, frames["rank_steps"].assign(**dict.fromkeys(empty, np.nan)))


def every_fifth_step(frames: Frames, _: np.random.Generator) -> Frames:
    """Steps are numbered in fives, as where only some are reported."""
    rows = frames["rank_steps"]
    return _steps(frames, rows.assign(step=rows["step"] * 5))


def another_job_beside(frames: Frames, rng: np.random.Generator) -> Frames:
    """A healthy job of another tenant runs on other nodes, with other step times and run names."""
    rows = frames["rank_steps"]
    job = Job(name="other", run="r", tp=2, dp=8, step_ms=700.0)
    cluster = Cluster(nodes=2, name="sim")
    begin = int(rows["ts"].min()) if "ts" in rows else 0
    other = TimingModel(cluster, job, (), int(rng.integers(1 << 30)), begin).frame(300)
    placed = job.placements(cluster, begin)
    for table in (other, placed):
        table["node"] = "x" + table["node"].astype(str).astype(object)
    result = _steps(frames, pd.concat([rows.astype({"node": object, "job": object, "run": object}), other]))
    if "placements" in frames:
        result["placements"] = pd.concat([frames["placements"], placed], ignore_index=True)
    return result


DAMAGES: tuple[Damage, ...] = (
    lost_rows, repeated_and_shuffled, skewed_clocks, late_start, ragged_ends, ranks_come_and_go, other_names,
    no_placements, no_inventory, step_and_compute, compute_only, step_and_communication, only_op_timings,
    unknown_columns, every_fifth_step, another_job_beside,
)  # fmt: skip
