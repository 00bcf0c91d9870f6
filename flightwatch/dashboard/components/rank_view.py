"""From one channel of all ranks to what pages draw: ratio to the cohort, bins, density, the worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flightwatch.dashboard.components.canvas import packed
from flightwatch.pipeline.store.step_reads import FloatArray, IntArray, Roles, StepMatrix

#: Share of the newest steps by which the worst ranks are chosen.
RECENT_SHARE = 0.25
DENSITY_BINS = 80
#: Quantiles that only scale colours and axes are taken from about so many values.
MOST_FOR_QUANTILE = 40_000
#: The scale of a heat map of ratios reaches this far from 1 at least and at most.
NARROWEST, WIDEST = 0.2, 0.9


def ratio_to_cohort(found: StepMatrix, cohort_of: IntArray) -> FloatArray:
    """Return each value over the median of its cohort in the same step: [R, S]; NaN where there is no value."""
    ratios = np.full_like(found.values_RS, np.nan)
    for cohort in np.unique(cohort_of):
        here = cohort_of == cohort
        middle_S = _median(found.values_RS[here])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios[here] = found.values_RS[here] / middle_S
    ratios[~np.isfinite(ratios)] = np.nan
    return ratios


def _median(values_RS: FloatArray) -> FloatArray:
    if not np.isnan(values_RS).any():
        return np.asarray(np.median(values_RS, axis=0))
    filled = np.sort(values_RS, axis=0)  # NaN sort last
    count_S = (~np.isnan(values_RS)).sum(axis=0)
    columns = np.arange(values_RS.shape[1])
    low, high = np.maximum(count_S - 1, 0) // 2, count_S // 2
    middle = (filled[low, columns] + filled[np.minimum(high, len(filled) - 1), columns]) / 2
    return np.asarray(np.where(count_S > 0, middle, np.nan), dtype=np.float32)


def worst(ratios_RS: FloatArray, count: int) -> IntArray:
    """Return the rows whose mean ratio over the newest quarter of the steps is highest, the worst first."""
    steps = max(1, round(ratios_RS.shape[1] * RECENT_SHARE)) if ratios_RS.shape[1] else 0
    recent = ratios_RS[:, -steps:] if steps else ratios_RS
    told = ~np.isnan(recent)
    mean_R = np.where(told.any(axis=1), np.nansum(recent, axis=1) / np.maximum(told.sum(axis=1), 1), -np.inf)
    order = np.argsort(-mean_R, kind="stable")
    return order[mean_R[order] > -np.inf][:count]


@dataclass(frozen=True)
class Density:
    """How many ranks fall into each bin of value, step by step: edges [B], counts [B][S]."""

    edges: list[float]
    counts: list[list[int]]


def density(found: StepMatrix, scale: float) -> Density:
    """Return the distribution of a channel over ranks, step by step; `scale` turns values into the unit shown."""
    values = found.values_RS * scale
    known = values[~np.isnan(values)]
    if not len(known):
        return Density([], [])
    low, near = (float(value) for value in np.quantile(_some(known), (0.001, 0.995)))
    high = float(known.max())
    # One pause of one rank must not squeeze all others into a line.
    high = min(high, near + 1.5 * max(near - low, near * 0.05))
    width = max((high - low) / DENSITY_BINS, 1e-6)
    there = ~np.isnan(values)
    column = np.broadcast_to(np.arange(values.shape[1]), values.shape)[there]
    bin_of = np.clip(((values[there] - low) / width).astype(np.int64), 0, DENSITY_BINS - 1)
    flat = np.bincount(bin_of * values.shape[1] + column, minlength=DENSITY_BINS * values.shape[1])
    counts = flat.reshape(DENSITY_BINS, values.shape[1])
    return Density([low + width * (i + 0.5) for i in range(DENSITY_BINS)], counts.tolist())


def heat_rows(ratios_RS: FloatArray, most_rows: int) -> tuple[FloatArray, list[int]]:
    """Return at most `most_rows` rows, each the worst of neighbouring ranks, and the first row of each."""
    rows = len(ratios_RS)
    size = max(1, -(-rows // most_rows))
    firsts = list(range(0, rows, size))
    if size == 1:
        return ratios_RS, firsts
    filled = np.where(np.isnan(ratios_RS), -np.inf, ratios_RS)
    highest = np.maximum.reduceat(filled, firsts, axis=0)
    return np.where(np.isinf(highest), np.nan, highest).astype(np.float32), firsts


def half_scale(ratios_RS: FloatArray) -> float:
    """Return how far from 1 the colours of a heat map reach: wider where ordinary ranks scatter widely."""
    known = _some(ratios_RS[~np.isnan(ratios_RS)])
    if not len(known):
        return NARROWEST
    usual = float(np.quantile(np.abs(known - 1), 0.75))
    return round(min(WIDEST, max(NARROWEST, 3 * usual)), 1)


def _some(values: FloatArray) -> FloatArray:
    """Return values evenly taken so that a quantile of them is quick; all, where they are few."""
    return values[:: max(1, len(values) // MOST_FOR_QUANTILE)]


def heat_payload(
    values: FloatArray,
    row_labels: Sequence[str],
    row_keys: Sequence[str],
    column_labels: Sequence[str],
    column_titles: Sequence[str],
    label: str,
    *,
    row_px: int = 0,
    half: float = NARROWEST,
) -> dict[str, Any]:
    """Return the property `data` of a RankHeat of ratios; its colours reach from 1 - `half` to 1 + `half`."""
    return {
        "rows": int(values.shape[0]),
        "columns": int(values.shape[1]),
        "v": packed(values, "<f4"),
        "low": 1 - half,
        "high": 1 + half,
        "ramp": "around",
        "unit": "×",
        "label": label,
        "row_labels": list(row_labels),
        "row_first": list(row_keys),
        "column_labels": list(column_labels),
        "column_titles": list(column_titles),
        "row_px": row_px,
    }


def stage_medians(found: StepMatrix, roles: Roles) -> tuple[list[int], list[float]]:
    """Return the stages of a pipeline and the median of a channel over the ranks and steps of each."""
    stage_of = dict(zip(roles.ranks.tolist(), roles.axes["pp"].tolist(), strict=True))
    stages = np.array([stage_of.get(int(rank), -1) for rank in found.ranks], dtype=np.int64)
    named = sorted({int(stage) for stage in stages if stage >= 0})
    medians = []
    for stage in named:
        values = found.values_RS[stages == stage]
        known = values[~np.isnan(values)]
        medians.append(float(np.median(known)) if len(known) else float("nan"))
    return named, medians
