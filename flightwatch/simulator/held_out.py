"""Scenarios that no threshold was chosen on: other shapes, layouts, noise, step times, severities and damage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.damage import (
    Damage,
    another_job_beside,
    lost_rows,
    ragged_ends,
    ranks_come_and_go,
    repeated_and_shuffled,
    skewed_clocks,
    unknown_columns,
)
from flightwatch.simulator.faults import TIMING_KINDS
from flightwatch.simulator.scenarios import Layout, Scenario, build, place_fault

LAYOUTS: tuple[Layout, ...] = (
    (1, 1, 1, 24), (2, 1, 3, 8), (4, 1, 6, 4), (8, 1, 2, 12), (1, 1, 4, 32), (2, 2, 2, 12), (4, 1, 1, 40),
    (8, 1, 3, 8), (16, 1, 2, 4),
)  # fmt: skip
SEVERITIES = (0.05, 0.07, 0.12, 0.2, 0.35)
DAMAGED: tuple[Damage | None, ...] = (
    None, None, None, lost_rows, repeated_and_shuffled, skewed_clocks, ragged_ends, ranks_come_and_go, unknown_columns,
    another_job_beside,
)  # fmt: skip
#: What shows beside the steps.
_BESIDE = {"thermal_rack": "all"} | dict.fromkeys(("slow_nic", "slow_link", "congested_switch"), "ports")


def held_out_scenario(seed: int, kind: str | None = None) -> Scenario:
    """Draw one scenario of the held-out set.

    Parameters
    ----------
    kind: a timing fault or "clean"; None draws one.
    """
    rng = np.random.default_rng([seed, 4242])
    kinds = (*TIMING_KINDS, "clean", "clean", "clean")
    chosen = str(rng.choice(kinds)) if kind is None else kind
    layouts = [layout for layout in LAYOUTS if chosen != "slow_link" or layout[2] > 1]
    tp, cp, pp, dp = layouts[int(rng.integers(len(layouts)))]
    job = Job(
        tp=tp, cp=cp, pp=pp, dp=dp, step_ms=float(np.exp(rng.uniform(np.log(300), np.log(20_000)))),
        noise=float(rng.uniform(0.006, 0.025)), chip_spread=float(rng.uniform(0.01, 0.05)),
        stage_imbalance=float(rng.uniform(0, 0.5)), transfer_share=float(rng.uniform(0.06, 0.25)),
        microbatches=int(rng.choice([4, 8, 32, 64])), checkpoint_every=int(rng.choice([0, 0, 40, 150])),
        gc_rate=float(rng.choice([0.0, 0.0005, 0.001])), report_work=True,
        sequence_imbalance=float(rng.choice([0.0, 0.0, 0.03])), name=f"train-{seed}", run=f"attempt/{seed % 3}",
    )  # fmt: skip
    devices = int(rng.choice([2, 4, 6, 8, 16]))
    nodes = max(4, -(-job.ranks // devices))
    part = max(1, nodes // int(rng.integers(3, 6)))
    cluster = Cluster(nodes=nodes, devices_per_node=devices, nodes_per_rack=part, nodes_per_leaf=part)
    steps = int(rng.integers(300, 600))
    faults = []
    if chosen != "clean":
        severity = float(rng.choice(SEVERITIES))
        fault = place_fault(chosen, cluster, job, severity, steps, rng)
        start = int(rng.integers(70, steps // 2))
        end = start + int(rng.integers(140, 250)) if rng.random() < 0.3 else None
        faults = [replace(fault, start_step=start, end_step=end, burst_steps=int(rng.integers(3, 12)))]
    drawn = build(chosen, cluster, job, faults, 700_000 + seed, steps, _BESIDE.get(chosen, ""), lost=0.005)
    damage = DAMAGED[int(rng.integers(len(DAMAGED)))]
    return drawn if damage is None else replace(drawn, frames=damage(drawn.frames, rng))
