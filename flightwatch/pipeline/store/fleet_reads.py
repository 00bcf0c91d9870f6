"""Reads of the fleet page: who is there, one figure of every accelerator, what is wrong, what changed.

Everything comes from tables of newest rows and one-minute rollups: the cost grows with the fleet, not with its history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.inventory_reads import inventory_sql

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
KeyArray = np.ndarray[Any, np.dtype[np.uint64]]
#: Device index that stands for a host without accelerators.
HOST = 65_535
#: A target silent for so long has left the fleet.
GONE_SECONDS = 86_400
#: Expression over the newest row of a device, by metric; None is "not measured".
DEVICE_METRICS: Mapping[str, str] = {
    "temp_c": "temp_c",
    "hotspot_c": "hotspot_c",
    "mem_temp_c": "mem_temp_c",
    "power_w": "power_w",
    "util_pct": "util_pct",
    "sm_clock_mhz": "sm_clock_mhz",
    "mem_used_pct": "100 * mem_used_bytes / nullIf(mem_total_bytes, 0)",
    "voltage_mv": "voltage_mv",
    "fan_pct": "fan_pct",
}
#: Identity of a device for joining values.
KEY = "cityHash64(cluster, node, device)"


@dataclass(frozen=True)
class Roster:
    """Who belongs to the fleet, sorted by node and device; hosts without accelerators have device HOST.

    Attributes
    ----------
    keys: identity of each device for joining values.
    cohort: vendor, model, and whether a job has it; devices of one cohort are compared.
    places: column to one text a device: rack, cooling_zone, power_zone, leaf_switch, job, cluster ("" unknown).
    """

    nodes: list[str]
    devices: np.ndarray[Any, np.dtype[np.uint16]]
    keys: KeyArray
    cohort: list[str]
    places: Mapping[str, list[str]]


PLACES = ("rack", "cooling_zone", "power_zone", "leaf_switch", "job", "cluster")


def roster(store: Store, now_ms: int) -> Roster:
    """Return the fleet: devices that reported within a day or stand in the inventory, and hosts without any.

    Three plain reads joined here: as one statement with its joins it took twice the time.
    """
    known = store.arrow(
        f"""
        SELECT cluster, node, device, {KEY} AS key,
            concat(ifNull(toString(vendor), ''), ' ', ifNull(toString(model), '')) AS made,
            ifNull(toString(job), '') AS job
        FROM (
            SELECT cluster, node, device, vendor, model, job FROM flightwatch.device_latest
            WHERE ts > now64(3) - toIntervalSecond({{gone:UInt32}})
            ORDER BY version DESC LIMIT 1 BY cluster, node, device
            UNION ALL
            SELECT cluster, node, toUInt16({HOST}) AS device, '' AS vendor, NULL AS model, NULL AS job
            FROM flightwatch.node_latest WHERE ts > now64(3) - toIntervalSecond({{gone:UInt32}}) AND node NOT IN (
                SELECT node FROM flightwatch.device_latest WHERE ts > now64(3) - toIntervalSecond({{gone:UInt32}})
            ) GROUP BY cluster, node
        ) ORDER BY node, device
        """,
        {"gone": GONE_SECONDS},
    )
    nodes, devices, jobs = _texts(known, "node"), known["device"].to_numpy().astype(np.uint16), _texts(known, "job")
    placed = _placed(store)
    at = zip(nodes, devices.tolist(), strict=True)
    jobs = [job or placed.get(place, "") for job, place in zip(jobs, at, strict=True)]
    return Roster(
        nodes=nodes,
        devices=devices,
        keys=known["key"].to_numpy().astype(np.uint64),
        cohort=[f"{made} {'busy' if job else 'idle'}" for made, job in zip(_texts(known, "made"), jobs, strict=True)],
        places=_places(store, now_ms, nodes, devices.tolist()) | {"job": jobs, "cluster": _texts(known, "cluster")},
    )


def _placed(store: Store) -> dict[tuple[str, int], str]:
    """Return the job placed on each device, of jobs that stepped within a day."""
    table = store.arrow(
        """
        SELECT p.node AS node, assumeNotNull(p.device) AS device, toString(argMax(p.job, p.ts)) AS job
        FROM flightwatch.placements AS p
        WHERE isNotNull(p.device) AND (isNull(p.valid_until) OR p.valid_until > now64(3)) AND p.job IN (
            SELECT job FROM flightwatch.rank_latest WHERE ts > now64(3) - toIntervalSecond({gone:UInt32})
        ) GROUP BY node, device
        """,
        {"gone": GONE_SECONDS},
    )
    return dict(zip(zip(_texts(table, "node"), table["device"].to_pylist(), strict=True), _texts(table, "job"),
                    strict=True))  # fmt: skip


def _places(store: Store, now_ms: int, nodes: Sequence[str], devices: Sequence[int]) -> dict[str, list[str]]:
    """Return what the inventory says of each device's place, or of its node where it says nothing of the device."""
    names = ("rack", "cooling_zone", "power_zone")
    table = store.arrow(
        f"""
        SELECT node, device, part = '' AND isNull(hca) AS whole, rack, cooling_zone, power_zone, leaf_switch
        FROM ({inventory_sql(now_ms)})
        """
    )
    places = list(zip(*(_texts(table, name) for name in names), strict=True))
    of: dict[tuple[str, int | None], tuple[str, ...]] = {}
    switches: dict[str, str] = {}
    for node, device, whole, place, switch in zip(
        _texts(table, "node"), table["device"].to_pylist(), table["whole"].to_pylist(), places,
        _texts(table, "leaf_switch"), strict=True,
    ):  # fmt: skip
        if whole:
            of[node, device] = place
        if switch:
            switches.setdefault(node, switch)
    nowhere = ("",) * len(names)
    found = [
        (of.get((node, device), nowhere), of.get((node, None), nowhere))
        for node, device in zip(nodes, devices, strict=True)
    ]
    shown = {name: [mine[at] or host[at] for mine, host in found] for at, name in enumerate(names)}
    return shown | {"leaf_switch": [switches.get(node, "") for node in nodes]}


@dataclass(frozen=True)
class DeviceValues:
    """One number a device that has any: keys, values (NaN: not measured), age of the row in seconds."""

    keys: KeyArray
    values: FloatArray
    ages_s: FloatArray


def newest_values(store: Store, metric: str) -> DeviceValues:
    """Return the newest value of a key of DEVICE_METRICS for every device, with its age."""
    table = store.arrow(
        f"""
        SELECT {KEY} AS key, toFloat32({DEVICE_METRICS[metric]}) AS value,
            toFloat32(dateDiff('millisecond', ts, now64(3)) / 1000) AS age
        FROM flightwatch.device_latest WHERE ts > now64(3) - toIntervalSecond({{gone:UInt32}})
        ORDER BY version DESC LIMIT 1 BY cluster, node, device
        """,
        {"gone": GONE_SECONDS},
    )
    return _values(table)


def host_values(store: Store) -> DeviceValues:
    """Return the newest CPU share of every host, with its age; its key is the one of device HOST."""
    table = store.arrow(
        f"""
        SELECT cityHash64(cluster, node, toUInt16({HOST})) AS key, toFloat32(cpu_pct) AS value,
            toFloat32(dateDiff('millisecond', ts, now64(3)) / 1000) AS age
        FROM flightwatch.node_latest WHERE ts > now64(3) - toIntervalSecond({{gone:UInt32}})
        ORDER BY version DESC LIMIT 1 BY cluster, node
        """,
        {"gone": GONE_SECONDS},
    )
    return _values(table)


def step_slowness(store: Store) -> DeviceValues:
    """Return each device's exclusive compute in its newest step over the median of its role (job, run, stage)."""
    table = store.arrow(
        f"""
        WITH newest AS (
            SELECT cluster, node, job, run, rank, argMax(tuple(device), version).1 AS device,
                argMax(tuple(ifNull(compute_us, step_us)), version).1 AS took, max(ts) AS at
            FROM flightwatch.rank_latest WHERE ts > now64(3) - INTERVAL 10 MINUTE GROUP BY cluster, node, job, run, rank
        ), stages AS (
            SELECT job, run, rank, argMax(ifNull(pp, -1), ts) AS stage FROM flightwatch.placements
            WHERE job IN (SELECT job FROM newest) GROUP BY job, run, rank
        )
        SELECT {KEY} AS key, toFloat32(max(slow)) AS value,
            toFloat32(min(dateDiff('millisecond', at, now64(3))) / 1000) AS age
        FROM (
            SELECT cluster, node, assumeNotNull(device) AS device, at,
                took / nullIf(quantileExact(0.5)(took) OVER (PARTITION BY n.job, n.run, s.stage), 0) AS slow
            FROM newest AS n LEFT JOIN stages AS s ON s.job = n.job AND s.run = n.run AND s.rank = n.rank
            WHERE isNotNull(device) AND isNotNull(took)
        ) GROUP BY cluster, node, device
        """
    )
    return _values(table)


def open_findings(store: Store, limit: int = 200) -> list[dict[str, Any]]:
    """Return findings that are raised and not cleared, the worst first, as their newest row says it."""
    return store.rows(
        """
        SELECT * FROM (
            SELECT id, argMax(state, (ts, src_offset)) AS state, argMax(severity, (ts, src_offset)) AS severity,
                argMax(kind, (ts, src_offset)) AS kind, argMax(scope, (ts, src_offset)) AS scope,
                argMax(node, (ts, src_offset)) AS node, argMax(tuple(device), (ts, src_offset)).1 AS device,
                argMax(tuple(job), (ts, src_offset)).1 AS job, argMax(tuple(rank), (ts, src_offset)).1 AS rank,
                argMax(targets, (ts, src_offset)) AS targets, argMax(summary, (ts, src_offset)) AS summary,
                argMax(blames_hardware, (ts, src_offset)) AS blames_hardware, min(detected_at) AS detected_at,
                argMax(detector, (ts, src_offset)) AS detector, argMax(score, (ts, src_offset)) AS score
            FROM flightwatch.findings WHERE ts > now64(3) - INTERVAL 7 DAY GROUP BY id
        ) WHERE state != 'cleared'
        ORDER BY severity = 'info', severity, detected_at DESC LIMIT {limit:UInt32}
        """,
        {"limit": limit},
    )


def recent_changes(store: Store, seconds: int, limit: int = 60) -> list[dict[str, Any]]:
    """Return what happened last: events of weight, findings, configuration that changed, phases of runs."""
    return store.rows(
        """
        SELECT * FROM (
            SELECT ts, 'event' AS source, toString(severity) AS severity, node, device, toString(code) AS kind,
                message AS summary, ifNull(toString(job), '') AS job FROM flightwatch.events
            WHERE ts > now64(3) - toIntervalSecond({seconds:UInt32}) AND severity IN ('warning', 'error', 'critical')
            ORDER BY ts DESC LIMIT {limit:UInt32}
            UNION ALL
            SELECT ts, concat('finding.', toString(state)), toString(severity), node, device, toString(kind), summary,
                ifNull(toString(job),
                    '') FROM flightwatch.findings WHERE ts > now64(3) - toIntervalSecond({seconds:UInt32})
            ORDER BY ts DESC LIMIT {limit:UInt32}
            UNION ALL
            SELECT ts, 'run', '', node, NULL, toString(phase), concat(toString(job), ' ', toString(run)),
                toString(job) FROM flightwatch.runs WHERE ts > now64(3) - toIntervalSecond({seconds:UInt32})
            ORDER BY ts DESC LIMIT {limit:UInt32}
        ) ORDER BY ts DESC LIMIT {limit:UInt32}
        """,
        {"seconds": seconds, "limit": limit},
    )


def _texts(table: pa.Table, name: str) -> list[str]:
    return [value or "" for value in table[name].to_pylist()]


def _values(table: pa.Table) -> DeviceValues:
    def floats(name: str) -> FloatArray:
        return np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float32)

    keys = table["key"].to_numpy().astype(np.uint64)
    return DeviceValues(keys, floats("value"), floats("age"))


def joined(first: DeviceValues, second: DeviceValues) -> DeviceValues:
    """Return the values of both; keys are disjoint."""
    return DeviceValues(
        np.concatenate([first.keys, second.keys]),
        np.concatenate([first.values, second.values]),
        np.concatenate([first.ages_s, second.ages_s]),
    )


def running_jobs(store: Store) -> list[dict[str, Any]]:
    """Return the jobs of which a rank stepped in the last five minutes."""
    return store.rows(
        "SELECT DISTINCT cluster, job FROM flightwatch.rank_latest WHERE ts > now64(3) - INTERVAL 5 MINUTE"
    )


def lost_gpu_hours(store: Store, day: str, tenants: Sequence[str] | None) -> float | None:
    """Return GPU-hours lost by incidents that opened on a day (ISO date, UTC); None where none has a figure."""
    mine = "" if tenants is None else " AND tenant IN {tenants:Array(String)}"
    rows = store.rows(
        f"""
        SELECT sum(lost_gpu_hours) AS lost, countIf(isNotNull(lost_gpu_hours)) AS told FROM flightwatch.v_lost_gpu_hours
        WHERE day = {{day:Date}}{mine}
        """,
        {"day": day, "tenants": list(tenants or ())},
    )
    return float(rows[0]["lost"]) if rows[0]["told"] else None


def training_share(store: Store, jobs: Sequence[str] | None = None) -> float | None:
    """Return the mean over stepping jobs, weighed by ranks, of the share of their last day spent in phase train.

    None where no stepping job tells its phases. Steps that a restart repeats are not taken off. `jobs`: only of these.
    """
    mine = "" if jobs is None else " AND job IN {jobs:Array(String)}"
    rows = store.rows(
        f"""
        WITH live AS (
            SELECT job, uniqExact(rank) AS ranks FROM flightwatch.rank_latest
            WHERE ts > now64(3) - INTERVAL 5 MINUTE{mine} GROUP BY job
        )
        SELECT sum(l.ranks * p.share) / sum(l.ranks) AS share, count() AS jobs FROM (
            SELECT job, sumIf(spent, phase = 'train') / nullIf(dateDiff('millisecond', min(begun), max(over)),
                0) AS share
            FROM (
                SELECT job, toString(phase) AS phase,
                    greatest(ifNull(started_at, ts), now64(3) - INTERVAL 1 DAY) AS begun,
                    ifNull(max(ended_at), now64(3)) AS over, greatest(0, dateDiff('millisecond', begun, over)) AS spent
                FROM flightwatch.runs WHERE job IN (SELECT job FROM live) GROUP BY job, run, phase, started_at, ts
            ) WHERE over > now64(3) - INTERVAL 1 DAY GROUP BY job
        ) AS p INNER JOIN live AS l ON l.job = p.job
        """,
        None if jobs is None else {"jobs": list(jobs)},
    )
    return min(1.0, float(rows[0]["share"])) if rows[0]["jobs"] and rows[0]["share"] is not None else None


def only_nodes(found: Roster, nodes: Collection[str]) -> Roster:
    """Return the part of a roster on some nodes."""
    kept = [index for index, node in enumerate(found.nodes) if node in nodes]
    return Roster(
        [found.nodes[i] for i in kept],
        found.devices[kept],
        found.keys[kept],
        [found.cohort[i] for i in kept],
        {name: [values[i] for i in kept] for name, values in found.places.items()},
    )


def nodes_of(store: Store, tenants: Collection[str]) -> set[str]:
    """Return the nodes on which jobs of these tenants run, or ran in the last day."""
    rows = store.rows(
        """
        SELECT DISTINCT node FROM flightwatch.placements
        WHERE job IN (SELECT job FROM flightwatch.runs WHERE attrs['tenant'] IN {tenants:Array(String)})
            AND (isNull(valid_until) OR valid_until > now64(3) - INTERVAL 1 DAY)
        """,
        {"tenants": sorted(tenants)},
    )
    return {row["node"] for row in rows}
