from __future__ import annotations

import numpy as np
import pandas as pd

from flightwatch.detectors.derive_steps import steps_from_ops


def op(rank: int, kind: str, name: str, dur: float, **more: object) -> dict[str, object]:
    return {
        "job": "j",
        "run": "1",
        "step": 4,
        "rank": rank,
        "kind": kind,
        "op": name,
        "dur_us": dur,
        "ts": 1e12 + rank,
        **more,
    }


def test_parts_are_sorted_by_kind_and_unknown_parts_stay_unknown() -> None:
    rows = [
        op(0, "compute", "forward", 10.0), op(0, "compute", "backward", 20.0), op(0, "compute", "optimizer-step", 3.0),
        op(0, "comm", "all_reduce", 7.0, axis="dp"), op(0, "comm", "send", 2.0, axis="pp"),
        op(0, "idle", "bubble", 5.0),
        op(0, "io", "data_next", 1.0), op(1, "compute", "forward", 11.0),
    ]  # fmt: skip
    steps = steps_from_ops(pd.DataFrame(rows)).set_index("rank")
    first = steps.loc[0]
    assert (first["compute_us"], first["forward_us"], first["optimizer_us"]) == (30.0, 10.0, 3.0)
    assert (first["comm_us"], first["comm_by_axis_us.dp"], first["comm_by_axis_us.pp"]) == (9.0, 7.0, 2.0)
    assert (first["wait_us"], first["data_us"]) == (5.0, 1.0)
    assert np.isnan(first[["step_us", "checkpoint_us", "transfer_us"]].astype(float)).all()
    assert np.isnan(steps.loc[1, ["comm_us", "wait_us", "optimizer_us", "data_us"]].astype(float)).all()


def test_only_phases_count_and_several_steps_are_averaged() -> None:
    rows = [op(0, "compute", "fwd", 40.0, level="phase", steps=4), op(0, "compute", "gemm", 99.0, level="op", steps=4)]
    assert steps_from_ops(pd.DataFrame(rows))["compute_us"].tolist() == [10.0]


def test_the_last_to_join_a_collective_does_not_wait() -> None:
    rows = [op(rank, "comm", "all_reduce", dur, process_group="dp:1") for rank, dur in enumerate((2.0, 9.0, 5.0))]
    steps = steps_from_ops(pd.DataFrame(rows)).set_index("rank")
    assert steps["transfer_us"].tolist() == [2.0, 2.0, 2.0]
    assert steps["wait_us"].tolist() == [0.0, 7.0, 3.0]


def test_reported_waiting_is_used() -> None:
    rows = [op(0, "comm", "all_reduce", 9.0, wait_us=6.0), op(0, "comm", "all_gather", 1.0, wait_us=0.0)]
    steps = steps_from_ops(pd.DataFrame(rows))
    assert (steps["wait_us"][0], steps["transfer_us"][0]) == (6.0, 4.0)


def test_nothing_usable_gives_nothing() -> None:
    assert steps_from_ops(pd.DataFrame()).empty
    assert steps_from_ops(pd.DataFrame([op(0, "compute", "x", np.nan)])).empty


def test_rows_that_came_twice_count_once_and_equal_calls_count_twice() -> None:
    rows = [op(rank, "compute", "forward", 100.0, step=step) for rank in range(2) for step in range(4)]
    calls = [op(rank, "comm", "all_reduce", 20.0, step=step) for rank in range(2) for step in range(4)] * 2
    again = [rows[1], rows[6], calls[2]]
    steps = steps_from_ops(pd.DataFrame(rows + calls + again))
    assert set(steps["compute_us"]) == {100.0}
    assert set(steps["comm_us"]) == {40.0}
