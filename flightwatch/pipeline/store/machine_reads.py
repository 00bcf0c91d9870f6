"""Reads of the machine page: one node's series, latest readings, warmest sensors.

Every read names its time window, so that old partitions are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from flightwatch.core.catalogue import TABLES
from flightwatch.core.clock import Clock, SystemClock
from flightwatch.pipeline.store.client import Store

#: A chart gets at most this many points; more are merged into buckets.
POINTS = 360
LATEST_WINDOW_SECONDS = 120
#: A table is busy when it has a row measured so lately; how long it stands that a table was found silent.
RECENT_MINUTES, SILENT_SECONDS = 2, 5.0
_INGESTED = tuple(name for name, table in TABLES.items() if table.lane is not None)

Series = dict[str, tuple[list[datetime], list[float | None]]]


_WINDOW = "node = {node:String} AND ts > now64(3) - toIntervalMinute({minutes:UInt32})"
_BUCKET = "toStartOfInterval(ts, toIntervalSecond({bucket:UInt32}))"
_AGE = "dateDiff('millisecond', max(ts), now64(3)) / 1000"
_LATEST = "node = {node:String} AND ts > now64(3) - toIntervalSecond({window:UInt32})"


def node_names(store: Store) -> list[str]:
    """Return the nodes heard in the last hour, sorted."""
    rows = store.rows(
        """
        SELECT DISTINCT node FROM flightwatch.node_samples
        WHERE ts > now64(3) - INTERVAL 1 HOUR ORDER BY node LIMIT 5000
        """
    )
    return [row["node"] for row in rows]


def _bucket_seconds(minutes: int) -> int:
    return max(1, minutes * 60 // POINTS)


def _moment(ts_ms: int) -> datetime:
    return datetime.fromtimestamp(ts_ms / 1000, tz=UTC)


def node_series(
    store: Store, node: str, columns: Sequence[str], minutes: int
) -> tuple[list[datetime], dict[str, list[float | None]]]:
    """Return bucket times and, per column of `node_samples`, the mean of each bucket (None: nothing measured)."""
    known = TABLES["node_samples"]
    picks = ", ".join(f"avg({known.column(name).name}) AS {name}" for name in columns)
    rows = store.rows(
        f"""
        SELECT {_BUCKET} AS bucket, {picks} FROM flightwatch.node_samples
        WHERE {_WINDOW} GROUP BY bucket ORDER BY bucket
        """,
        {"node": node, "minutes": minutes, "bucket": _bucket_seconds(minutes)},
    )
    times = [_moment(row["bucket"]) for row in rows]
    return times, {name: [row[name] for row in rows] for name in columns}


def warmest_sensors(store: Store, node: str, minutes: int, limit: int = 6) -> Series:
    """Return temperature over time of the sensors that were warmest in the window, `chip label` to series."""
    rows = store.rows(
        f"""
        WITH top AS (
            SELECT chip, label FROM flightwatch.sensor_samples WHERE {_WINDOW} AND unit = 'C'
            GROUP BY chip, label HAVING isNotNull(max(value)) ORDER BY max(value) DESC LIMIT {{limit:UInt8}}
        )
        SELECT chip, label, {_BUCKET} AS bucket, avg(value) AS mean FROM flightwatch.sensor_samples
        WHERE {_WINDOW} AND unit = 'C' AND (chip, label) IN top
        GROUP BY chip, label, bucket ORDER BY chip, label, bucket
        """,
        {"node": node, "minutes": minutes, "bucket": max(5, _bucket_seconds(minutes)), "limit": limit},
    )
    return _series(rows, lambda row: f"{row['chip']} {row['label']}")


def device_temperatures(store: Store, node: str, minutes: int) -> Series:
    """Return temperature over time per accelerator of a node."""
    rows = store.rows(
        f"""
        SELECT device, {_BUCKET} AS bucket, avg(temp_c) AS mean FROM flightwatch.device_samples
        WHERE {_WINDOW} GROUP BY device, bucket ORDER BY device, bucket
        """,
        {"node": node, "minutes": minutes, "bucket": _bucket_seconds(minutes)},
    )
    return _series(rows, lambda row: f"device {row['device']}")


def _series(rows: Sequence[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]) -> Series:
    series: Series = {}
    for row in rows:
        times, values = series.setdefault(name(row), ([], []))
        times.append(_moment(row["bucket"]))
        values.append(row["mean"])
    return series


def latest_readings(store: Store, node: str) -> list[dict[str, Any]]:
    """Return the newest value of every reading of a node in the last two minutes.

    Each row: source, label, value, unit, status, age_seconds. Wide tables give one row per column that has a value;
    a sensor whose newest reading is unknown has value None.
    """
    window = {"node": node, "window": LATEST_WINDOW_SECONDS}
    readings = _latest_wide(store, "node_samples", (), "host", window)
    readings += _latest_wide(store, "device_samples", ("device",), "device", window)
    readings += _latest_wide(store, "port_samples", ("hca", "port"), "port", window)
    readings += _latest_wide(store, "storage_samples", ("target",), "storage", window)
    readings += store.rows(
        f"""
        SELECT chip AS source, concat(label, ' ', quantity) AS label,
            argMax(tuple(coalesce(value, toFloat64(counter))), ts).1 AS value,
            argMax(unit, ts) AS unit, argMax(tuple(status), ts).1 AS status, {_AGE} AS age_seconds
        FROM flightwatch.sensor_samples WHERE {_LATEST}
        GROUP BY chip, label, quantity ORDER BY source, label
        """,
        window,
    )
    return readings


def _latest_wide(
    store: Store, table: str, keys: Sequence[str], source: str, window: Mapping[str, Any]
) -> list[dict[str, Any]]:
    numeric = [
        column
        for column in TABLES[table].columns
        if column.nullable and column.type in ("f32", "f64", "u32", "u64", "u8")
    ]
    # The newest row as it is: "unknown now" is not "as it was".
    picks = ", ".join([*keys, *(column.name for column in numeric)])
    each = f" BY {', '.join(keys)}" if keys else ""
    rows = store.rows(
        f"""
        SELECT {picks}, dateDiff('millisecond', ts, now64(3)) / 1000 AS age_seconds
        FROM flightwatch.{table} WHERE {_LATEST} ORDER BY ts DESC LIMIT 1{each}
        """,
        window,
    )
    rows = sorted(rows, key=lambda row: tuple(row[key] for key in keys))
    readings = []
    for row in rows:
        name = " ".join(str(row[key]) for key in keys)
        for column in numeric:
            if row[column.name] is not None:
                reading = {"label": column.meaning, "value": row[column.name], "unit": column.unit, "status": None}
                readings.append({"source": f"{source} {name}".strip(), "age_seconds": row["age_seconds"]} | reading)
    return readings


class TableActivity:
    """How fast each ingested table fills and when its newest row came, as cheap as a question every second must be.

    A busy table tells it by the rows of its last minutes. A table without any is searched through a day, which costs
    as much as the day is large, so its answer stands for SILENT_SECONDS. Not counted: rows measured earlier than
    RECENT_MINUTES ago while the table gets newer ones too.
    """

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        self._store, self._clock = store, clock or SystemClock()
        self._silent: dict[str, dict[str, Any]] = {}
        self._searched_s = float("-inf")

    def __call__(self) -> list[dict[str, Any]]:
        """Return, per ingested table: table, rows_per_second (last minute), last_ts and age_seconds of its newest row.

        Tables without a row received in the last hour have None.
        """
        found = {row["table"]: row for row in _activity(self._store, _INGESTED, RECENT_MINUTES)}
        silent = [name for name in _INGESTED if found[name]["last_ts"] is None]
        now_s = self._clock.monotonic_s()
        if silent and (now_s - self._searched_s > SILENT_SECONDS or not set(silent) <= set(self._silent)):
            self._silent = {row["table"]: row for row in _activity(self._store, silent, 1440)}
            self._searched_s = now_s
        return [found[name] if found[name]["last_ts"] is not None else self._silent[name] for name in _INGESTED]


def table_activity(store: Store) -> list[dict[str, Any]]:
    """Return what `TableActivity` tells, once."""
    return TableActivity(store)()


def _activity(store: Store, tables: Sequence[str], minutes: int) -> list[dict[str, Any]]:
    parts = [
        f"""
        SELECT '{name}' AS table, countIf(received_at > now64(3) - INTERVAL 1 MINUTE) / 60 AS rows_per_second,
            if(count() = 0, NULL, max(received_at)) AS last_ts,
            if(count() = 0, NULL, dateDiff('millisecond', max(received_at), now64(3)) / 1000) AS age_seconds
        FROM flightwatch.{name}
        WHERE ts > now64(3) - INTERVAL {minutes:d} MINUTE AND received_at > now64(3) - INTERVAL 1 HOUR
        """
        for name in tables
    ]
    return store.rows(" UNION ALL ".join(parts))


def coverage(store: Store, nodes: Sequence[str] | None = None) -> dict[str, int]:
    """Return nodes_reporting and devices_reporting (last minute) and nodes_known (last day); `nodes`: only of these."""
    mine = "" if nodes is None else " AND node IN {nodes:Array(String)}"
    rows = store.rows(
        f"""
        SELECT uniqExactIf(node, ts > now64(3) - INTERVAL 1 MINUTE) AS nodes_reporting,
            uniqExact(node) AS nodes_known,
            (
                SELECT uniqExact(node, device) FROM flightwatch.device_samples
                WHERE ts > now64(3) - INTERVAL 1 MINUTE{mine}
            ) AS devices_reporting
        FROM flightwatch.self_metrics WHERE component = 'agent' AND ts > now64(3) - INTERVAL 1 DAY{mine}
        """,
        None if nodes is None else {"nodes": list(nodes)},
    )
    return {name: int(value) for name, value in rows[0].items()}


def holes_and_dead_letters(store: Store) -> tuple[int, int, int]:
    """Return, over the last day: batches known to be missing, holes of unknown size, records put aside."""
    rows = store.rows(
        """
        SELECT gaps, unknown, dead FROM
            (SELECT sum(batches) AS gaps, countIf(isNull(batches)) AS unknown FROM flightwatch.data_gaps
             WHERE ts > now64(3) - INTERVAL 1 DAY) AS holes,
            (SELECT count() AS dead FROM flightwatch.dead_letters WHERE ts > now64(3) - INTERVAL 1 DAY) AS letters
        """
    )
    return int(rows[0]["gaps"] or 0), int(rows[0]["unknown"]), int(rows[0]["dead"])
