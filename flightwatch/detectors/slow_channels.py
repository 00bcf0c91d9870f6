"""The four channels a slow rank can show in, and what explains compute without blaming hardware."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flightwatch.detectors.drift import (
    COMPUTE,
    SHARE,
    TRANSFER,
    Alarms,
    Deviations,
    DriftThresholds,
    alarms,
    deviations,
)
from flightwatch.detectors.episodes import Episode, episodes_of
from flightwatch.detectors.grouped import FloatArray, Groups, sorted_median
from flightwatch.detectors.layout import MINIMUM_PEERS, Layout
from flightwatch.detectors.rank_matrix import RunSteps

#: Steps with this much more than the usual step time (checkpoint, evaluation, restart) say nothing about ranks.
CHECKPOINT_SHARE = 0.05


@dataclass(frozen=True)
class Channel:
    """One channel of one run, scored.

    Attributes
    ----------
    name: compute, transfer, data or launch. values_SR: log time or share of step.
    role: groups whose level is compared. dev, found, episodes: see `drift` and `episodes`.
    """

    name: str
    values_SR: FloatArray
    raw_SR: FloatArray
    role: Groups
    compared: Groups
    dev: Deviations
    found: Alarms
    episodes: list[Episode]


@dataclass(frozen=True)
class ChannelLimits:
    """Thresholds of each channel."""

    compute: DriftThresholds = COMPUTE
    transfer: DriftThresholds = TRANSFER
    data: DriftThresholds = SHARE
    launch: DriftThresholds = SHARE


def compute_times(run: RunSteps) -> FloatArray | None:
    """Return exclusive compute per rank and step, the best that is known; None when nothing is.

    Without `compute_us`: the step less communication, data and checkpoint; in an asynchronous run (and
    where ranks report nothing but step times that differ) the step time itself.
    """
    compute = run.channel("compute_us")
    if compute is not None:
        return compute
    step, comm = run.channel("step_us"), run.channel("comm_us")
    if step is None:
        return None
    if comm is not None:
        rest = step - comm
        for name in ("data_us", "checkpoint_us", "launch_gap_us"):
            part = run.channel(name)
            if part is not None:
                rest = rest - np.nan_to_num(part)
        return np.where(rest > 0, rest, np.nan).astype(np.float32)
    return step if run.is_async() else None


def transfer_times(run: RunSteps) -> FloatArray | None:
    """Return the time in which data moved, per rank and step, the best that is known; None when nothing is.

    Without `transfer_us`: communication less waiting. Without waiting: per axis the shortest member of each group
    in each step (ends of a barrier-like collective coincide, so the last to join waits least); the pipeline
    axis is left out, its times hold the bubble.
    """
    transfer = run.channel("transfer_us")
    if transfer is not None:
        return transfer
    comm, wait = run.channel("comm_us"), run.channel("wait_us")
    if comm is not None and wait is not None:
        return np.maximum(comm - wait, 0)
    if not run.layout.known:
        return None
    total: FloatArray | None = None
    for name in run.columns("comm_by_axis_us"):
        axis, values = name.split(".", 1)[1], run.channel(name)
        if axis not in ("tp", "cp", "dp", "ep") or values is None:
            continue
        groups = run.layout.communication_groups(axis)
        shortest = groups.to_ranks(groups.quantiles(values, 0.0))
        total = shortest if total is None else total + np.nan_to_num(shortest)
    return total


def step_scale(run: RunSteps) -> FloatArray | None:
    """Return the job's step time per step, [S, 1]; the sum of what is known when step times are not."""
    step = run.channel("step_us")
    if step is None:
        parts = [part for name in ("compute_us", "comm_us", "data_us") if (part := run.channel(name)) is not None]
        if not parts:
            return None
        step = np.sum([np.nan_to_num(part) for part in parts], axis=0)
    return np.maximum(sorted_median(step), 1e-6)[:, None]


def score_channels(run: RunSteps, limits: ChannelLimits) -> dict[str, Channel]:
    """Score every channel the run's rows can fill."""
    role, everyone = run.layout.role_groups(), run.layout.everyone()
    found: dict[str, Channel] = {}
    usable = _usable_steps(run)
    compute = compute_times(run)
    if compute is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            log_time = np.log(np.where(compute > 0, compute, np.nan)).astype(np.float32)
        log_time = _mask(log_time, usable)
        log_time = without_work(run, log_time, role)
        pool = compared(run.layout, role)
        found["compute"] = _score("compute", log_time, compute, role, pool, limits.compute, run.layout.known)
    scale = step_scale(run)
    if scale is None:
        return found
    fine = run.layout.role_groups("tp")
    for name, column, limit in (
        ("transfer", "transfer_us", limits.transfer),
        ("data", "data_us", limits.data),
        ("launch", "launch_gap_us", limits.launch),
    ):
        raw = transfer_times(run) if name == "transfer" else run.channel(column)
        if raw is None:
            continue
        share = _mask((raw / scale).astype(np.float32), usable)
        pool = everyone if name == "transfer" else compared(run.layout, fine)
        found[name] = _score(name, share, raw, fine, pool, limit, run.layout.known)
    return found


def compared(layout: Layout, role: Groups) -> Groups:
    """Return the groups whose median change is common: role groups, or all ranks where those are too small.

    A difference of differences needs no equal work, only equal change, so ranks of all roles may stand in.
    """
    if role.size_G.size and role.size_G.min() >= MINIMUM_PEERS:
        return role
    return layout.everyone()


def _score(
    name: str,
    values: FloatArray,
    raw: FloatArray,
    role: Groups,
    pool: Groups,
    limit: DriftThresholds,
    known: bool,
) -> Channel:
    dev = deviations(values, role, pool, limit, centre_steps=name == "compute")
    found = alarms(dev, role, limit, with_level=known)
    return Channel(name, values, raw, role, pool, dev, found, episodes_of(name, dev, found))


def _usable_steps(run: RunSteps) -> np.ndarray:
    """Say per rank-step whether it trains: not while its rank checkpoints, unless that happens all the time."""
    checkpoint = run.channel("checkpoint_us")
    usable = np.ones(run.shape, dtype=bool)
    scale = step_scale(run)
    if checkpoint is not None and scale is not None:
        usual = np.nanmedian(scale[: max(20, len(scale) // 10)])
        busy = (np.nan_to_num(checkpoint) > CHECKPOINT_SHARE * usual).any(axis=1)
        if busy.mean() < 0.3:
            usable[busy] = False
    return usable


def _mask(values: FloatArray, usable: np.ndarray) -> FloatArray:
    return values if usable.all() else np.where(usable, values, np.nan).astype(values.dtype)


def without_work(run: RunSteps, log_SR: FloatArray, role: Groups) -> FloatArray:
    """Take off what unequal work explains: tokens and work counters, regressed inside role groups.

    Only where work differs between peers (more than 0.5 %) and explains at least a tenth of the spread.
    """
    columns: list[FloatArray] = []
    for name in ("tokens", *run.columns("work")):
        work = run.channel(name)
        if work is None:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            log_work = np.log(np.where(work > 0, work, np.nan)).astype(np.float32)
        centred = log_work - role.to_ranks(role.medians(log_work))
        if np.isfinite(centred).any() and np.nanstd(centred) > 0.005:
            columns.append(np.nan_to_num(centred))
    if not columns:
        return log_SR
    residual = log_SR - role.to_ranks(role.medians(log_SR))
    sample = np.isfinite(residual) & (np.abs(residual) < 1.0)
    if not sample.any():
        return log_SR
    design = np.stack([column[sample] for column in columns], axis=1).astype(np.float64)
    gram = design.T @ design + 1e-6 * np.eye(len(columns)) * len(design)
    slope = np.clip(np.linalg.solve(gram, design.T @ residual[sample].astype(np.float64)), 0.0, 2.0)
    explained = sum(weight * column for weight, column in zip(slope, columns, strict=True))
    before, after = np.nanvar(residual), np.nanvar(residual - explained)
    return (log_SR - explained).astype(np.float32) if after < 0.9 * before else log_SR
