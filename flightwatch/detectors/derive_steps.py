"""`rank_steps` from `op_timings`, for recordings that only have ops."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flightwatch.core.vocabulary import OpKind, OpLevel

KEYS = ["job", "run", "step", "rank"]


def steps_from_ops(ops: pd.DataFrame) -> pd.DataFrame:
    """Return `rank_steps` rows derived from `op_timings` rows of level phase (an absent level is phase).

    Compute is the sum of kind compute other than the optimizer; communication is summed by axis, else by
    process group; kind idle is waiting; kind io named data* is data loading. Where waiting inside
    communication is not reported but process groups are, the shortest member of a group and step is the
    transfer and the rest is waiting. What nothing says stays unknown. Rows that cover several steps give
    one row with their average.

    Does not use levels block and op: those are parts of phases and would be counted twice.
    """
    rows = _phases(ops)
    if rows.empty:
        return pd.DataFrame()
    keys = _keys(rows)
    code = pd.MultiIndex.from_frame(rows[keys]).factorize()
    index, labels = code[0], code[1]
    size = len(labels)
    result = pd.DataFrame(list(labels), columns=keys)
    kind, op = rows["kind"].astype(object), rows["op"].astype(object).fillna("").astype(str).str.lower()
    duration = rows["dur_us"] / rows["steps"]
    optimizer = (kind == OpKind.COMPUTE.value) & op.str.startswith("optim")
    compute = (kind == OpKind.COMPUTE.value) & ~optimizer
    comm = kind == OpKind.COMM.value
    data = (kind == OpKind.IO.value) & op.str.startswith("data")
    parts = {
        "step_us": kind == OpKind.STEP.value,
        "compute_us": compute,
        "forward_us": compute & op.str.contains("forward"),
        "backward_us": compute & op.str.contains("backward"),
        "optimizer_us": optimizer,
        "data_us": data,
        "checkpoint_us": kind == OpKind.CHECKPOINT.value,
        "comm_us": comm,
    }
    for name, where in parts.items():
        result[name] = _sum(index, size, duration, where)
    _waiting(result, rows, index, size, duration, comm)
    _by_axis(result, rows, index, size, duration, comm)
    if "ts" in rows:
        start = rows["ts"].groupby(index).min()
        result["ts"] = start.reindex(range(size)).to_numpy()
    for name in ("cluster", "node", "device"):
        if name in rows:
            result[name] = rows[name].astype(object).groupby(index).last().reindex(range(size)).to_numpy()
    return result


def _phases(ops: pd.DataFrame) -> pd.DataFrame:
    if ops.empty or not {"step", "rank", "kind", "dur_us"} <= set(ops.columns):
        return pd.DataFrame()
    rows = ops.dropna(subset=["step", "rank", "dur_us"])
    if "level" in rows:
        level = rows["level"].astype(object)
        rows = rows[level.isna() | (level == "") | (level == OpLevel.PHASE.value)]
    rows = _without_repeats(rows).copy()
    if "op" not in rows:
        rows["op"] = ""
    steps = rows["steps"].fillna(1) if "steps" in rows else pd.Series(1.0, index=rows.index)
    rows["steps"] = steps.where(steps > 0, 1.0)
    return rows.reset_index(drop=True)


def _without_repeats(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out rows that came twice: equal to another one in everything, in a step with more calls than usual.

    Calls of one step can be equal by chance; a step with its usual number of them holds no repeated row.
    """
    plain = [name for name in rows.columns if name not in ("received_at", "src_partition", "src_offset")]
    again = rows.duplicated(subset=plain)
    if not again.any():
        return rows
    call = [name for name in ("kind", "op", "process_group", "axis") if name in rows]
    step = [name for name in KEYS if name in rows] + call
    calls = rows.groupby(step, dropna=False, observed=True)["dur_us"].transform("size")
    usual = calls.groupby([rows[name] for name in call], dropna=False, observed=True).transform("median")
    too_many = (calls - usual)[again]
    number = rows[again].groupby(step, dropna=False, observed=True).cumcount()
    return rows.drop(index=number.index[number < too_many])


def _keys(rows: pd.DataFrame) -> list[str]:
    for name in ("job", "run"):
        if name in rows:
            rows[name] = rows[name].astype(object).where(rows[name].notna(), None)
    return [name for name in KEYS if name in rows]


def _sum(index: np.ndarray, size: int, values: pd.Series, where: pd.Series) -> np.ndarray:
    """Sum per row of the result; NaN where nothing was there."""
    at = index[where.to_numpy()]
    total = np.bincount(at, weights=values[where].to_numpy(dtype=float), minlength=size)
    present = np.bincount(at, minlength=size) > 0
    return np.where(present, total, np.nan)


def _waiting(
    result: pd.DataFrame, rows: pd.DataFrame, index: np.ndarray, size: int, duration: pd.Series, comm: pd.Series
) -> None:
    idle = _sum(index, size, duration, rows["kind"].astype(object) == OpKind.IDLE.value)
    waited = pd.Series(np.nan, index=rows.index)
    if "wait_us" in rows:
        waited = rows["wait_us"] / rows["steps"]
    elif "process_group" in rows:
        named = comm & rows["process_group"].notna()
        keys = [name for name in ("job", "run", "step", "op") if name in rows]
        grouped = duration[named].groupby([rows.loc[named, key] for key in (*keys, "process_group")], observed=True)
        members = grouped.transform("size")
        waited[named] = (duration[named] - grouped.transform("min")).where(members > 1)
    known = comm & waited.notna()
    inside = _sum(index, size, waited, known)
    complete = _sum(index, size, duration, known) >= result["comm_us"] * 0.999
    result["wait_us"] = np.where(np.isnan(inside), idle, inside + np.nan_to_num(idle))
    result["transfer_us"] = np.where(complete, result["comm_us"] - inside, np.nan)


def _by_axis(
    result: pd.DataFrame, rows: pd.DataFrame, index: np.ndarray, size: int, duration: pd.Series, comm: pd.Series
) -> None:
    name = pd.Series(None, index=rows.index, dtype=object)
    for column in ("axis", "process_group"):
        if column in rows:
            name = name.where(name.notna() & (name != ""), rows[column].astype(object))
    known = comm & name.notna() & (name != "")
    names = sorted(name[known].unique())
    # By process group there can be thousands: an axis is what detectors read, so more than a few say nothing.
    for axis in names if len(names) <= 64 else []:
        result[f"comm_by_axis_us.{axis}"] = _sum(index, size, duration, known & (name == axis))
