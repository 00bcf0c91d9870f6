"""Reads of an incident's page: its devices beside their peers over time, what was looked at, pinned evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store

#: Gauges of devices that an incident's page shows.
GAUGES = ("temp_c", "power_w", "sm_clock_mhz", "voltage_mv")
#: Peers whose quantiles are drawn, about.
MOST_PEERS = 600
#: Up to this length raw samples are read, beyond it the one-minute rollup.
RAW_SECONDS = 900
#: What tells whether a possible cause could have been seen at all: kind to table and column.
WITNESSES: Mapping[str, tuple[str, str]] = {
    "cooling": ("node_samples", "inlet_c"),
    "overheat": ("device_samples", "temp_c"),
    "throttle": ("device_samples", "throttle_reasons"),
    "power": ("device_samples", "power_w"),
    "ecc": ("device_samples", "ecc_corrected_total"),
    "device_error": ("events", "code"),
    "rdma": ("port_samples", "rx_bytes_total"),
    "link_flap": ("port_samples", "link_downed_total"),
    "storage": ("storage_samples", "read_ms"),
    "config_drift": ("config_facts", "value"),
}


#: Nodes of the jobs and runs in the placeholders `jobs` and `runs`.
_OF_ATTEMPTS = (
    f"node IN (SELECT node FROM {DATABASE}.placements WHERE has({{jobs:Array(String)}}, job)"
    " AND has(arrayZip({jobs:Array(String)}, {runs:Array(String)}), (assumeNotNull(job), assumeNotNull(run))))"
)


def device_gauges(
    store: Store, cluster: str, nodes: Sequence[str], device: int | None, start_ms: int, end_ms: int, bucket_s: int
) -> list[dict[str, Any]]:
    """Return, per bucket and gauge, the median of the incident's devices and the quantiles of all others.

    Columns: `bucket` and, for each of GAUGES, NAME_mine, NAME_low (5 %), NAME_mid, NAME_high (95 %); NULL: nobody
    measured it. Peers are the other devices of the nodes' newest jobs (idle ones are no peers of busy ones), of the
    cluster where the nodes have no job: all of few, of many about MOST_PEERS, always the same by a hash of their names,
    whose quantiles are those of all within what a chart shows.
    """
    attempts = _attempts(store, cluster, nodes, end_ms)
    peers = _OF_ATTEMPTS if attempts else "true"
    if (end_ms - start_ms) / 1000 <= RAW_SECONDS:
        picks, source, time = ", ".join(f"avg({name}) AS {name}" for name in GAUGES), "device_samples", "ts"
    else:
        picks = ", ".join(f"sum({name}_sum) / nullIf(sum({name}_n), 0) AS {name}" for name in GAUGES)
        source, time, bucket_s = "device_1m", "m", max(60, bucket_s)
    shown = ", ".join(
        f"quantileExactIf(0.5)({name}, mine) AS {name}_mine,"
        f" quantilesExactIf(0.05, 0.5, 0.95)({name}, NOT mine) AS {name}_q,"
        f" countIf(mine AND isNotNull({name})) AS {name}_n, countIf(NOT mine AND isNotNull({name})) AS {name}_peers"
        for name in GAUGES
    )
    rows = store.rows(
        f"""
        SELECT bucket, {shown} FROM (
            SELECT toStartOfInterval({time}, toIntervalSecond({{bucket:UInt32}})) AS bucket,
                has({{nodes:Array(String)}}, node) AND ({{device:Int32}} < 0 OR device = {{device:Int32}}) AS mine,
                {picks}
            FROM {DATABASE}.{source}
            WHERE cluster = {{cluster:String}} AND {time} >= fromUnixTimestamp64Milli({{start:Int64}})
                AND {time} <= fromUnixTimestamp64Milli({{end:Int64}})
                AND (has({{nodes:Array(String)}}, node) OR {peers} AND cityHash64(node, device) % (
                    SELECT greatest(1, intDiv(uniq(node, device), {MOST_PEERS})) FROM {DATABASE}.device_latest
                    WHERE cluster = {{cluster:String}} AND {peers}
                ) = 0)
            GROUP BY bucket, node, device
        ) GROUP BY bucket ORDER BY bucket
        """,
        {"cluster": cluster, "nodes": list(nodes), "device": -1 if device is None else device, "start": start_ms,
         "end": end_ms, "bucket": bucket_s, "jobs": [str(one["job"]) for one in attempts],
         "runs": [str(one["run"]) for one in attempts]},
    )  # fmt: skip
    return [_quartiles(row) for row in rows]


def _attempts(store: Store, cluster: str, nodes: Sequence[str], end_ms: int) -> list[dict[str, Any]]:
    """Return the newest job and run that was placed on each node by a time."""
    return store.rows(
        f"""
        SELECT DISTINCT job, run FROM (
            SELECT job, run FROM {DATABASE}.placements
            WHERE cluster = {{cluster:String}} AND has({{nodes:Array(String)}}, node)
                AND ts <= fromUnixTimestamp64Milli({{end:Int64}})
            ORDER BY ts DESC LIMIT 1 BY node
        )
        """,
        {"cluster": cluster, "nodes": list(nodes), "end": end_ms},
    )


def _quartiles(row: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"bucket": row["bucket"]}
    for name in GAUGES:
        shown[f"{name}_mine"] = row[f"{name}_mine"] if row[f"{name}_n"] else None
        peers = row[f"{name}_q"] if row[f"{name}_peers"] else (None, None, None)
        shown |= dict(zip((f"{name}_low", f"{name}_mid", f"{name}_high"), peers, strict=True))
    return shown


def looked_at(store: Store, cluster: str, node: str, start_ms: int, end_ms: int) -> dict[str, int]:
    """Return, for each kind in WITNESSES, how many rows of the node could have shown it; 0: nobody measured it."""
    counted = ", ".join(
        f"(SELECT count() FROM {DATABASE}.{table} WHERE cluster = {{cluster:String}} AND node = {{node:String}}"
        f" AND ts >= fromUnixTimestamp64Milli({{start:Int64}}) AND ts <= fromUnixTimestamp64Milli({{end:Int64}})"
        f" AND isNotNull({column})) AS {kind}"
        for kind, (table, column) in WITNESSES.items()
    )
    rows = store.rows(
        f"SELECT {counted}", {"cluster": cluster, "node": node, "start": start_ms, "end": end_ms}
    )  # fmt: skip
    return {kind: int(rows[0][kind] or 0) for kind in WITNESSES}


def pinned(store: Store, incident: str) -> list[dict[str, Any]]:
    """Return how much evidence was pinned, by moment, role and table."""
    return store.rows(
        f"""
        SELECT moment, role, source_table, count() AS rows, uniqExact(node) AS nodes, min(ts) AS pinned_at
        FROM {DATABASE}.incident_evidence WHERE incident = {{incident:String}}
        GROUP BY moment, role, source_table ORDER BY moment, role, source_table
        """,
        {"incident": incident},
    )
