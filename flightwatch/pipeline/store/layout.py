"""How columns are stored: a codec for each, chosen by measurement (docs/decisions/0021-codecs.md)."""

from __future__ import annotations

from flightwatch.core.catalogue import TABLES, Column, Table
from flightwatch.pipeline.store.settings import StoreSettings

#: Days to keep rows: settings field by table; a table not named here keeps what the catalogue says.
RETENTION = {
    "device_samples": "samples_days",
    "node_samples": "samples_days",
    "sensor_samples": "samples_days",
    "storage_samples": "samples_days",
    "port_samples": "samples_days",
    "self_metrics": "samples_days",
    "facility_samples": "facility_days",
    "device_1m": "rollup_days",
    "node_1m": "rollup_days",
    "port_1m": "rollup_days",
    "op_1m": "rollup_days",
    "op_timings": "op_detail_days",
    "collectives": "op_detail_days",
    "rank_steps": "rank_steps_days",
    "process_groups": "rank_steps_days",
    "dumps": "rank_steps_days",
    "events": "history_days",
    "findings": "history_days",
    "runs": "history_days",
    "config_facts": "history_days",
    "data_gaps": "history_days",
    "profiles": "history_days",
    "incident_notes": "history_days",
    "alert_deliveries": "history_days",
    "actions": "history_days",
    "silences": "history_days",
    "audit_log": "history_days",
    "profile_ops": "dead_letters_days",
    "dead_letters": "dead_letters_days",
}
#: Days after which the newest row of a target that fell silent is forgotten.
LATEST_DAYS = 90
#: Tables with the newest row of every target: source table and what names a target.
LATEST = {
    "device_latest": ("device_samples", "cluster, node, device"),
    "node_latest": ("node_samples", "cluster, node"),
    "port_latest": ("port_samples", "cluster, node, hca, port"),
    "sensor_latest": ("sensor_samples", "cluster, node, chip, label, quantity"),
    "storage_latest": ("storage_samples", "cluster, node, target"),
    "facility_latest": ("facility_samples", "cluster, zone, label, quantity"),
    "rank_latest": ("rank_steps", "cluster, job, run, rank"),
    "self_latest": ("self_metrics", "cluster, node, component, instance, name"),
}


def codec(column: Column) -> str:
    """Return the CODEC of one column."""
    if column.type == "time" or column.name == "src_offset" or (column.counter and column.type == "f64"):
        return "CODEC(Delta(8), ZSTD(3))"
    if column.name.endswith("_bytes_total"):
        # Traffic grows by nearly the same each time: the second difference leaves only its noise.
        return "CODEC(Delta, Delta, T64('bit'), ZSTD(1))"
    if column.counter or column.name in ("step", "seq"):
        return "CODEC(Delta, T64, ZSTD(1))"
    return "CODEC(ZSTD(3))"


def column_list(table: Table) -> str:
    """Return the column definitions of a catalogue table for CREATE TABLE."""
    return ",\n  ".join(f"`{c.name}` {c.clickhouse_type} {codec(c)}" for c in table.columns)


def ttl_expression(table: str, settings: StoreSettings) -> str | None:
    """Return when a row of `table` expires, None when rows are kept."""
    if table == "training_scalars":
        return f"toDateTime(ts) + toIntervalDay(if(rank < 0, {settings.history_days}, {settings.rank_scalars_days}))"
    if table.endswith("_latest"):
        return f"toDateTime(received_at) + toIntervalDay({LATEST_DAYS})"
    if table not in RETENTION:
        days = TABLES[table].ttl_days if table in TABLES else None
        return None if days is None else f"toDateTime(ts) + toIntervalDay({days})"
    column = "m" if table.endswith("_1m") else "toDateTime(ts)"
    return f"{column} + toIntervalDay({getattr(settings, RETENTION[table])})"
