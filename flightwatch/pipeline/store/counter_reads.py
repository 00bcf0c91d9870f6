"""How much counters of accelerators grew in the last hour: newest rows against the rollup of an hour ago."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.columns import FloatColumn, floats
from flightwatch.pipeline.store.fleet_reads import KEY, DeviceValues, KeyArray

#: Counters whose growth in the last hour the map can show: rollup columns summed.
COUNTER_METRICS: Mapping[str, tuple[str, ...]] = {
    "ecc_per_h": ("ecc_corrected_total", "ecc_uncorrected_total"),
    "throttle_pct": ("throttle_thermal_us_total", "throttle_power_us_total"),
    "link_errors_per_h": ("link_errors_total",),
}
#: Minutes of the rollup in which the reading of an hour ago is looked for.
EDGE_MINUTES = 5


@dataclass(frozen=True)
class CounterReadings:
    """Readings of counters of devices: keys, when in seconds since the epoch, values by counter (NaN: none)."""

    keys: KeyArray
    at_s: FloatColumn
    values: Sequence[FloatColumn]


def counters_before(store: Store, metric: str) -> CounterReadings:
    """Return the readings of about an hour ago of the counters of a key of COUNTER_METRICS.

    They are in the rollup of those minutes. Where nobody was there yet, the first readings of the last minutes.
    """
    names = COUNTER_METRICS[metric]
    reads = ", ".join(f"argMinMerge({name}_first) AS {name}" for name in names)
    for edge in (f"m < now() - toIntervalMinute({60 - EDGE_MINUTES})", f"m > now() - toIntervalMinute({EDGE_MINUTES})"):
        table = store.arrow(
            f"""
            SELECT {KEY} AS key, toUnixTimestamp(min(m)) AS at, {reads} FROM flightwatch.device_1m
            WHERE m > now() - INTERVAL 1 HOUR AND {edge} GROUP BY cluster, node, device
            """
        )
        if table.num_rows:
            break
    keys = table["key"].to_numpy().astype(np.uint64)
    return CounterReadings(keys, floats(table, "at"), [floats(table, name) for name in names])


def counter_growth(store: Store, metric: str, before: CounterReadings | None = None) -> DeviceValues:
    """Return what a key of COUNTER_METRICS grew in the last hour: counts, or percent of the time for throttling.

    A counter that is lower now was reset: what it counted since is then a lower bound. NaN: the device was not there.

    Parameters
    ----------
    before: what `counters_before` returned up to a minute ago, where it is at hand.
    """
    names = COUNTER_METRICS[metric]
    table = store.arrow(
        f"""
        SELECT {KEY} AS key, toUnixTimestamp64Milli(ts) / 1000 AS at, {", ".join(names)},
            dateDiff('millisecond', ts, now64(3)) / 1000 AS age
        FROM flightwatch.device_latest WHERE ts > now64(3) - INTERVAL 1 HOUR
        ORDER BY version DESC LIMIT 1 BY cluster, node, device
        """
    )
    then = before or counters_before(store, metric)
    keys = table["key"].to_numpy().astype(np.uint64)
    order = np.argsort(then.keys)
    at = order[np.minimum(np.searchsorted(then.keys[order], keys), len(order) - 1)] if len(order) else None
    grown = np.full((len(names), len(keys)), np.nan)
    seconds = np.full(len(keys), np.nan)
    if at is not None:
        there = then.keys[at] == keys
        seconds[there] = (floats(table, "at") - then.at_s[at])[there]
        for index, name in enumerate(names):
            now, was = floats(table, name), then.values[index][at]
            grown[index] = np.where(
                there, np.where(now >= was, now - was, np.where(np.isnan(was), np.nan, now)), np.nan
            )
    told = ~np.isnan(grown).all(axis=0)
    total = np.where(told, np.nansum(grown, axis=0), np.nan)
    if metric == "throttle_pct":
        total = np.where(seconds > 0, total / np.maximum(seconds, 1) / 1e6 * 100, np.nan)
    return DeviceValues(keys, total.astype(np.float32), floats(table, "age").astype(np.float32))
