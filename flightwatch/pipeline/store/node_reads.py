"""Reads of one node: what it is, its series over time, what runs on it, what happened to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.columns import Columns, FloatColumn, WholeColumn, floats, wholes
from flightwatch.pipeline.store.inventory_reads import inventory_sql

#: Up to this length of time raw rows are read, beyond it the one-minute rollup.
RAW_SECONDS = 3 * 3600
#: Gauges and counters of a device that pages draw; the rollup has them all.
DEVICE_GAUGES = ("temp_c", "hotspot_c", "power_w", "sm_clock_mhz", "util_pct")
DEVICE_COUNTERS = ("ecc_corrected_total", "ecc_uncorrected_total", "throttle_thermal_us_total",
                   "throttle_power_us_total", "link_errors_total")  # fmt: skip
NODE_GAUGES = ("cpu_pct", "load1", "mem_used_bytes", "inlet_c", "io_read_ms", "io_write_ms", "fs_read_ms",
               "fs_write_ms")  # fmt: skip
PORT_COUNTERS = ("rx_bytes_total", "tx_bytes_total", "cnp_handled_total", "out_of_sequence_total",
                 "symbol_errors_total", "link_downed_total")  # fmt: skip
_SPAN = "ts >= fromUnixTimestamp64Milli({start:Int64}) AND ts <= fromUnixTimestamp64Milli({end:Int64})"
_SPAN_M = "m >= toDateTime(intDiv({start:Int64}, 60000) * 60) AND m <= toDateTime(intDiv({end:Int64}, 1000))"


def newest_node(store: Store) -> str | None:
    """Return a node that was heard last."""
    rows = store.rows("SELECT node FROM flightwatch.node_latest ORDER BY ts DESC LIMIT 1")
    return str(rows[0]["node"]) if rows else None


def neighbours(store: Store, node: str, limit: int = 6) -> list[str]:
    """Return other nodes whose name is next in order."""
    rows = store.rows(
        """
        SELECT DISTINCT node FROM flightwatch.node_latest WHERE node > {node:String} ORDER BY node LIMIT {limit:UInt8}
        """,
        {"node": node, "limit": limit},
    )
    return [row["node"] for row in rows]


def devices(store: Store, node: str) -> list[dict[str, Any]]:
    """Return the newest row of each of a node's accelerators: identity, gauges, job and rank, age_s."""
    # The view of newest rows picks them of the whole fleet before it looks at the node.
    rows = store.rows(
        """
        SELECT device, vendor, model, serial, job, rank, temp_c, power_w, power_limit_w, sm_clock_mhz, util_pct,
            mem_used_bytes, mem_total_bytes, ecc_corrected_total, ecc_uncorrected_total, throttle_reasons,
            remap_pending, quality, dateDiff('millisecond', ts, now64(3)) / 1000 AS age_s
        FROM flightwatch.device_latest WHERE node = {node:String}
        ORDER BY version DESC LIMIT 1 BY cluster, node, device
        """,
        {"node": node},
    )
    return sorted(rows, key=lambda row: int(row["device"]))


def facts(store: Store, node: str, now_ms: int) -> dict[str, Any]:
    """Return what the inventory knows about a node: cluster, rack, zones, switch, model, serial; None unknown."""
    rows = store.rows(
        f"""
        SELECT anyIf(rack, isNotNull(rack)) AS rack, anyIf(cooling_zone, isNotNull(cooling_zone)) AS cooling_zone,
            anyIf(power_zone, isNotNull(power_zone)) AS power_zone,
            anyIf(leaf_switch, isNotNull(leaf_switch)) AS leaf_switch,
            anyIf(serial, isNull(device) AND isNull(hca) AND isNotNull(serial)) AS serial, count() AS parts
        FROM ({inventory_sql(now_ms)}) WHERE node = {{node:String}}
        """,
        {"node": node},
    )
    return rows[0]


def ranks_on(store: Store, node: str) -> list[dict[str, Any]]:
    """Return ranks that stepped on a node within a day: job, run, rank, device, newest step, age, step, compute."""
    return store.rows(
        """
        SELECT * FROM (
            SELECT job, run, rank, argMax(tuple(device), version).1 AS device, max(step) AS step, max(ts) AS at,
                dateDiff('millisecond', max(ts), now64(3)) / 1000 AS age_seconds,
                argMax(tuple(step_us), version).1 AS step_us, argMax(tuple(compute_us), version).1 AS compute_us,
                argMax(node, version) AS here
            FROM flightwatch.rank_latest WHERE ts > now64(3) - INTERVAL 1 DAY
                AND (job, run, rank) IN (SELECT job, run, rank FROM flightwatch.rank_latest WHERE node = {node:String})
            GROUP BY job, run, rank
        ) WHERE here = {node:String} ORDER BY age_seconds < 120 DESC, job, rank LIMIT 256
        """,
        {"node": node},
    )


def device_series(store: Store, node: str, start_ms: int, end_ms: int, bucket_s: int) -> dict[int, Columns]:
    """Return, per device, `bucket` (begin, ms), means of DEVICE_GAUGES and last readings of DEVICE_COUNTERS.

    NaN is "not measured".
    """
    if (end_ms - start_ms) / 1000 <= RAW_SECONDS:
        picks = [f"avg({name}) AS {name}" for name in DEVICE_GAUGES] + [f"max({n}) AS {n}" for n in DEVICE_COUNTERS]
        source, span, time = "device_samples", _SPAN, "ts"
    else:
        picks = [f"sum({n}_sum) / nullIf(sum({n}_n), 0) AS {n}" for n in DEVICE_GAUGES]
        picks += [f"argMaxMerge({n}_last) AS {n}" for n in DEVICE_COUNTERS]
        source, span, time = "device_1m", _SPAN_M, "m"
        bucket_s = max(60, bucket_s)
    table = store.arrow(
        f"""
        SELECT device, {_bucket(time)}, {", ".join(picks)}
        FROM flightwatch.{source} WHERE node = {{node:String}} AND {span} GROUP BY device,
            bucket ORDER BY device, bucket
        """,
        {"node": node, "start": start_ms, "end": end_ms, "bucket": bucket_s},
    )
    device = wholes(table, "device")
    every: Columns = {"bucket": wholes(table, "bucket")} | {
        n: floats(table, n) for n in DEVICE_GAUGES + DEVICE_COUNTERS
    }
    found: dict[int, Columns] = {}
    for one in np.unique(device).tolist():
        first, end = np.searchsorted(device, one, "left"), np.searchsorted(device, one, "right")
        found[one] = {name: values[first:end] for name, values in every.items()}
    return found


def node_series(store: Store, node: str, start_ms: int, end_ms: int, bucket_s: int) -> Columns:
    """Return `bucket` (begin, ms) and the mean of each of NODE_GAUGES; NaN is "not measured"."""
    if (end_ms - start_ms) / 1000 <= RAW_SECONDS:
        picks, source, span, time = [f"avg({n}) AS {n}" for n in NODE_GAUGES], "node_samples", _SPAN, "ts"
    else:
        picks = [f"sum({n}_sum) / nullIf(sum({n}_n), 0) AS {n}" for n in NODE_GAUGES]
        source, span, time, bucket_s = "node_1m", _SPAN_M, "m", max(60, bucket_s)
    table = store.arrow(
        f"""
        SELECT {_bucket(time)}, {", ".join(picks)}
        FROM flightwatch.{source} WHERE node = {{node:String}} AND {span} GROUP BY bucket ORDER BY bucket
        """,
        {"node": node, "start": start_ms, "end": end_ms, "bucket": bucket_s},
    )
    return {"bucket": wholes(table, "bucket")} | {name: floats(table, name) for name in NODE_GAUGES}


def _bucket(time: str) -> str:
    return f"toInt64(toUnixTimestamp(toStartOfInterval({time}, toIntervalSecond({{bucket:UInt32}})))) * 1000 AS bucket"


def port_series(store: Store, node: str, start_ms: int, end_ms: int, bucket_s: int) -> dict[str, Columns]:
    """Return, per port, `bucket` (begin, ms, at least a minute apart) and the last readings of PORT_COUNTERS."""
    picks = ", ".join(f"argMaxMerge({name}_last) AS {name}" for name in PORT_COUNTERS)
    table = store.arrow(
        f"""
        SELECT concat(hca, '/', toString(port)) AS port, {_bucket("m")}, {picks}
        FROM flightwatch.port_1m WHERE node = {{node:String}} AND {_SPAN_M} GROUP BY port, bucket ORDER BY port, bucket
        """,
        {"node": node, "start": start_ms, "end": end_ms, "bucket": max(60, bucket_s)},
    )
    ports = np.asarray(table["port"].to_pylist(), dtype=str)
    every: Columns = {"bucket": wholes(table, "bucket")} | {name: floats(table, name) for name in PORT_COUNTERS}
    return {
        str(port): {name: values[ports == port] for name, values in every.items()} for port in np.unique(ports).tolist()
    }


def increments(columns: Columns, names: Sequence[str], *, per_s: float) -> tuple[WholeColumn, FloatColumn]:
    """Return bucket times and the growth of the sum of counters between buckets, per `per_s` seconds.

    A decrease is a reset: the new reading counts. A bucket after a hole has the rate over the hole. The first bucket
    and buckets in which no counter was read are NaN.
    """
    times = np.asarray(columns["bucket"], dtype=np.int64)
    read_RS = ~np.isnan(np.stack([columns[name] for name in names]))
    at = np.flatnonzero(read_RS.any(axis=0))
    seconds = np.diff(times[at]) / 1000
    grown, told = np.zeros(len(seconds)), np.zeros(len(seconds), dtype=bool)
    for name, read_S in zip(names, read_RS, strict=True):
        here = np.flatnonzero(read_S)
        values = np.asarray(columns[name], dtype=np.float64)[here]
        growth = np.where(values[1:] >= values[:-1], values[1:] - values[:-1], values[1:])
        # Counted at the bucket where it was read again, over the time since any counter was read before.
        place = np.searchsorted(at, here[1:]) - 1
        grown[place] += growth
        told[place] = True
    rates = np.full(len(times), np.nan)
    rates[at[1:]] = np.where(told & (seconds > 0), grown / np.where(seconds > 0, seconds, 1.0) * per_s, np.nan)
    return times, rates


def history(store: Store, node: str, start_ms: int, end_ms: int, limit: int = 200) -> list[dict[str, Any]]:
    """Return what happened to a node in a stretch of time: events, findings, configuration, the newest first."""
    return store.rows(
        """
        SELECT * FROM (
            SELECT ts, 'event' AS source, toString(severity) AS severity, device, toString(code) AS kind,
                message AS summary
            FROM flightwatch.events WHERE node = {node:String} AND severity IN ('warning', 'error', 'critical')
            UNION ALL
            SELECT ts, concat('finding.', toString(state)), toString(severity), device, toString(kind), summary
            FROM flightwatch.findings WHERE node = {node:String}
            UNION ALL
            SELECT ts, 'config', '', device, toString(name),
                value FROM flightwatch.config_facts WHERE node = {node:String}
            UNION ALL
            SELECT ts, 'action', '', NULL, toString(kind), concat(toString(mode), ' ', toString(state))
            FROM flightwatch.actions WHERE node = {node:String}
        ) WHERE ts >= fromUnixTimestamp64Milli({start:Int64}) AND ts <= fromUnixTimestamp64Milli({end:Int64})
        ORDER BY ts DESC LIMIT {limit:UInt32}
        """,
        {"node": node, "start": start_ms, "end": end_ms, "limit": limit},
    )
