"""Waits of groups that span nodes: the rank that waits least gives the transfer, on whatever node it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from flightwatch.detectors.rank_matrix import RunSteps, runs_of

#: Four nodes of one rank each, data parallel; rank 2 is slow and so waits least.
DP_US = {0: 900.0, 1: 880.0, 2: 100.0, 3: 910.0}


def run_of(**changes: Any) -> RunSteps:
    steps = pd.DataFrame(
        {"ts": 1000.0 * step, "job": "j", "run": "0", "step": float(step), "rank": float(rank), "node": f"n{rank}",
         "comm_us": us + 50, "comm_by_axis_us.dp": us, "comm_by_axis_us.pp": 50.0, "step_us": 5000.0}
        for step in range(3) for rank, us in DP_US.items()
    )  # fmt: skip
    placements = pd.DataFrame(
        {"ts": 0.0, "job": "j", "run": "0", "rank": float(rank), "node": f"n{rank}", "tp": 0.0, "pp": 0.0,
         "dp": float(rank)} for rank in DP_US
    )  # fmt: skip
    frames = {"rank_steps": steps.assign(**changes), "placements": placements}
    (found,) = runs_of(frames)
    return found


def test_the_split_holds_across_nodes() -> None:
    run = run_of()
    wait, transfer = run.channel("wait_us"), run.channel("transfer_us")
    assert wait is not None
    assert transfer is not None
    np.testing.assert_allclose(transfer, np.full((3, 4), 100.0))
    # The pipeline's 50 us hold the bubble and count as waiting.
    np.testing.assert_allclose(wait[0], [850.0, 830.0, 50.0, 860.0])


def test_what_an_agent_knew_stays() -> None:
    known = [7.0 if rank == 0 else float("nan") for _ in range(3) for rank in DP_US]
    wait = run_of(wait_us=known).channel("wait_us")
    assert wait is not None
    np.testing.assert_allclose(wait[:, 0], 7.0)
    np.testing.assert_allclose(wait[:, 2], 50.0)


def test_nothing_is_made_up() -> None:
    assert run_of(comm_us=float("nan")).channel("wait_us") is None
    rows = run_of()
    rows.layout = type(rows.layout)(**{name: getattr(rows.layout, name) for name in (
        "ranks_R", "node_R", "device_R", "model_R", "axis_R", "module_R", "domain")}, known=False)  # fmt: skip
    assert rows.channel("wait_us") is None
    silent = [float("nan") if rank == 3 else us for _ in range(3) for rank, us in DP_US.items()]
    wait = run_of(**{"comm_by_axis_us.dp": silent, "comm_by_axis_us.pp": float("nan")}).channel("wait_us")
    assert wait is not None
    assert np.isnan(wait[:, 3]).all()
