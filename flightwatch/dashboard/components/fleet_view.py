"""From reads of the fleet to what the map draws: order of blocks, one value a device, scale, outliers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flightwatch.dashboard.components.canvas import packed
from flightwatch.pipeline.store.fleet_reads import HOST, DeviceValues, FloatArray, Roster

#: A device whose newest row is older is drawn as old.
STALE_SECONDS = 60.0
#: Robust z beyond which a device stands out of its cohort, and fewest peers that say anything.
OUTLIER_Z, FEWEST_PEERS = 6.0, 8
SEVERITY_LEVEL = {"P1": 4.0, "P2": 3.0, "P3": 2.0, "P4": 1.0, "info": 0.0}


@dataclass(frozen=True, slots=True)
class MapMetric:
    """How one metric is shown.

    Attributes
    ----------
    unit: of the value. ramp: colour scale of assets/draw.js. low, high: ends of the scale, None: from the data.
    spread: a smaller scatter between devices than this is none (floor of the robust z); 0: outliers are not marked.
    """

    unit: str
    ramp: str
    low: float | None
    high: float | None
    spread: float


METRICS: Mapping[str, MapMetric] = {
    "temp_c": MapMetric("°C", "heat", 35, 95, 1.5),
    "power_w": MapMetric("W", "load", 0, None, 15),
    "util_pct": MapMetric("%", "load", 0, 100, 8),
    "sm_clock_mhz": MapMetric("MHz", "load", None, None, 20),
    "slowness": MapMetric("×", "around", 0.75, 1.25, 0.02),
    "findings": MapMetric("", "severity", 0, 4, 0),
    "ecc_per_h": MapMetric("/h", "heat", 0, None, 2),
    "throttle_pct": MapMetric("%", "heat", 0, 100, 2),
    "link_errors_per_h": MapMetric("/h", "heat", 0, None, 2),
    "mem_used_pct": MapMetric("%", "load", 0, 100, 8),
    "hotspot_c": MapMetric("°C", "heat", 40, 105, 1.5),
    "mem_temp_c": MapMetric("°C", "heat", 35, 105, 1.5),
    "voltage_mv": MapMetric("mV", "load", None, None, 8),
    "fan_pct": MapMetric("%", "load", 0, 100, 6),
    "age_s": MapMetric("s", "heat", 0, 120, 0),
    "cpu_pct": MapMetric("%", "load", 0, 100, 0),
}


@dataclass(frozen=True)
class Arrangement:
    """The fleet in the order in which the map draws it, and what the map needs to know once.

    Attributes
    ----------
    roster: what is arranged; kept, because a newer one may have other devices in other places.
    order: index into the roster of each drawn device.
    payload: property `layout` of the map.
    cohort_of: number of each drawn device's cohort.
    """

    roster: Roster
    order: np.ndarray[Any, np.dtype[np.int64]]
    payload: Mapping[str, Any]
    cohort_of: np.ndarray[Any, np.dtype[np.int64]]


def arrange(roster: Roster, place: str, unknown: str) -> Arrangement:
    """Return the fleet in blocks.

    Parameters
    ----------
    place: a key of `Roster.places`.
    unknown: name of the block of devices whose place is not known.
    """
    groups = np.array([name or unknown for name in roster.places[place]], dtype=object)
    nodes = np.array(roster.nodes, dtype=object)
    names, group_of = (
        np.unique(groups.astype(str), return_inverse=True) if len(groups) else (np.array([]), np.array([], int))
    )
    # What is unknown stands last.
    rank = np.argsort(
        np.argsort(np.array([(name == unknown, _natural(name)) for name in names], dtype=[("u", bool), ("n", "U200")]))
    )
    # The roster is sorted by node and device, so a stable sort by block keeps that.
    order = np.argsort(rank[group_of], kind="stable") if len(groups) else np.array([], dtype=np.int64)
    sorted_nodes, sorted_groups = nodes[order], rank[group_of][order] if len(groups) else np.array([], int)
    edges = np.flatnonzero((sorted_nodes[1:] != sorted_nodes[:-1]) | (sorted_groups[1:] != sorted_groups[:-1])) + 1
    starts = np.concatenate([[0], edges]) if len(order) else np.array([], dtype=np.int64)
    counts = np.diff(np.concatenate([starts, [len(order)]])) if len(order) else np.array([], dtype=np.int64)
    block_of_node = sorted_groups[starts] if len(order) else np.array([], dtype=np.int64)
    sizes = np.bincount(block_of_node, minlength=len(names)) if len(names) else np.array([], dtype=np.int64)
    by_rank = names[np.argsort(rank)] if len(names) else names
    key = hashlib.sha1(roster.keys.tobytes() + place.encode() + "|".join(by_rank).encode(), usedforsecurity=False)
    payload = {
        "key": key.hexdigest()[:16],
        "groups": [str(name) for name in by_rank],
        "group_sizes": packed(sizes, "<u4"),
        "nodes": [str(name) for name in sorted_nodes[starts]],
        "counts": packed(counts, "<u2"),
        "devices": packed(roster.devices[order], "<u2"),
    }
    cohorts, cohort_of = np.unique(np.array(roster.cohort, dtype=str), return_inverse=True)
    return Arrangement(roster, order, payload, cohort_of[order] if len(cohorts) else np.array([], dtype=np.int64))


def _natural(name: str) -> str:
    """Return a key by which r9 stands before r10."""
    return re.sub(r"\d+", lambda number: number[0].zfill(9), name)


@dataclass(frozen=True)
class Drawn:
    """Values as the map draws them, and what its panel says about them.

    Attributes
    ----------
    devices: those of whom the figure is expected; unknown: of these, those without one.
    """

    payload: Mapping[str, Any]
    outliers: int
    stale: int
    unknown: int
    devices: int
    oldest_of_fresh_s: float | None


def drawn(
    arrangement: Arrangement,
    metric: str,
    label: str,
    found: DeviceValues,
    severities: Mapping[tuple[str, int | None], float],
) -> Drawn:
    """Return one value a device for a metric.

    Parameters
    ----------
    found: what was read. For the metrics "age_s" and "findings" its ages and keys alone matter.
    severities: worst open finding by node and device (None: of the node as a whole).
    """
    roster = arrangement.roster
    values, ages = align(roster, found)
    if metric == "age_s":
        values = ages.copy()
    elif metric == "findings":
        values = _severity_values(roster, severities)
    spec = METRICS[metric]
    values, ages = values[arrangement.order], ages[arrangement.order]
    flags = np.zeros(len(values), dtype=np.uint8)
    if spec.spread:
        flags |= outliers(values, arrangement.cohort_of, spec.spread).astype(np.uint8)
    stale = ~(ages <= STALE_SECONDS)
    flags |= (stale & ~np.isnan(ages)).astype(np.uint8) << 1
    low, high = scale(values, spec)
    payload = {
        "key": arrangement.payload["key"],
        "metric": metric,
        "label": label,
        "unit": spec.unit,
        "ramp": spec.ramp,
        "low": low,
        "high": high,
        "v": packed(values, "<f4"),
        "flags": packed(flags, "u1"),
    }
    fresh = ages[~np.isnan(ages)]
    # A host without accelerators has no temperature by nature: of a figure of accelerators nobody misses its own.
    expected = (roster.devices[arrangement.order] != HOST) | ~np.isnan(values)
    return Drawn(
        payload,
        outliers=int((flags & 1).sum()),
        stale=int((flags & 2 > 0).sum()),
        unknown=int((np.isnan(values) & expected).sum()),
        devices=int(expected.sum()),
        oldest_of_fresh_s=float(fresh.min()) if len(fresh) else None,
    )


def align(roster: Roster, found: DeviceValues) -> tuple[FloatArray, FloatArray]:
    """Return values and ages in the roster's order; NaN where a device has none."""
    values = np.full(len(roster.keys), np.nan, dtype=np.float32)
    ages = values.copy()
    if len(found.keys) and len(roster.keys):
        order = np.argsort(roster.keys)
        at = np.minimum(np.searchsorted(roster.keys[order], found.keys), len(order) - 1)
        place = order[at]
        known = roster.keys[place] == found.keys
        values[place[known]], ages[place[known]] = found.values[known], found.ages_s[known]
    return values, ages


def outliers(
    values: FloatArray, cohort_of: np.ndarray[Any, np.dtype[np.int64]], spread: float
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Say which devices stand out of their cohort: robust z (median, MAD with a floor) beyond OUTLIER_Z."""
    marked = np.zeros(len(values), dtype=bool)
    for cohort in np.unique(cohort_of):
        here = (cohort_of == cohort) & ~np.isnan(values)
        if here.sum() < FEWEST_PEERS:
            continue
        middle = np.median(values[here])
        scatter = max(spread, float(1.4826 * np.median(np.abs(values[here] - middle))))
        marked[here] = np.abs(values[here] - middle) > OUTLIER_Z * scatter
    return marked


def scale(values: FloatArray, spec: MapMetric) -> tuple[float, float]:
    """Return the ends of the colour scale: fixed where the metric has natural ones, else from most of the values."""
    known = values[np.isfinite(values)]
    low = spec.low if spec.low is not None else (float(np.quantile(known, 0.005)) if len(known) else 0.0)
    high = spec.high if spec.high is not None else (float(np.quantile(known, 0.995)) if len(known) else 1.0)
    if spec.high is None and spec.low == 0:
        high = max(high, float(known.max()) if len(known) and spec.ramp == "heat" else high, 10.0)
    if high - low < 1e-6 + abs(high) * 0.01:
        low, high = low - max(1.0, abs(low) * 0.05), high + max(1.0, abs(high) * 0.05)
    return low, high


def _severity_values(roster: Roster, severities: Mapping[tuple[str, int | None], float]) -> FloatArray:
    return np.array(
        [
            max(severities.get((node, int(device)), 0.0), severities.get((node, None), 0.0))
            for node, device in zip(roster.nodes, roster.devices, strict=True)
        ],
        dtype=np.float32,
    )


def worst_by_target(findings: list[dict[str, Any]]) -> dict[tuple[str, int | None], float]:
    """Return the worst severity of open findings by node and device."""
    worst: dict[tuple[str, int | None], float] = {}
    for finding in findings:
        if not finding["node"]:
            continue
        key = (finding["node"], finding["device"])
        worst[key] = max(worst.get(key, 0.0), SEVERITY_LEVEL.get(finding["severity"], 0.0))
    return worst
