"""Reads for messages to people: where a node is, whose job it is, what changed, and the picture of the evidence.

Each read names its time window and may be cut off: a message that is late is worse than one without a detail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store

#: Most points of one line in a picture.
POINTS = 240
_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node or device is, and how its parts are called; None where the inventory does not say."""

    slot: str | None = None
    serial: str | None = None
    device_serial: str | None = None
    bmc: str | None = None
    rack: str | None = None
    cooling_zone: str | None = None


@dataclass(frozen=True, slots=True)
class ChangedFact:
    """One configuration value that changed."""

    device: int | None
    name: str
    before: str
    after: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Series:
    """Evidence over time: one target, and its peers as quartiles; None where nothing was measured.

    Attributes
    ----------
    quantity: what is shown, in English, with its unit.
    """

    quantity: str
    times_ms: Sequence[int]
    target: Sequence[float | None]
    low: Sequence[float | None]
    middle: Sequence[float | None]
    high: Sequence[float | None]


class AlertReads:
    """Reads of one cluster. Every method raises TransientError when the store is away or too slow.

    Parameters
    ----------
    seconds: longest time of one read.
    """

    def __init__(self, store: Store, cluster: str, seconds: float = 1.0) -> None:
        self._store, self._cluster = store, cluster
        self._limits = {"max_execution_time": max(1, round(seconds)), "timeout_overflow_mode": "throw"}

    def _rows(self, sql: str, **values: Any) -> list[dict[str, Any]]:
        return self._store.rows(sql, {"cluster": self._cluster} | values, self._limits)

    def place(self, node: str, device: int | None) -> Place:
        """Return where a node and its device are."""
        rows = self._rows(
            f"""
            SELECT ifNull(toInt32(device), -1) AS unit, argMaxIf(slot, ts, isNotNull(slot)) AS slot,
                argMaxIf(serial, ts, isNotNull(serial)) AS serial, argMaxIf(rack, ts, isNotNull(rack)) AS rack,
                argMaxIf(cooling_zone, ts, isNotNull(cooling_zone)) AS cooling_zone,
                argMaxIf(attrs['bmc'], ts, attrs['bmc'] != '') AS bmc
            FROM {DATABASE}.inventory
            WHERE cluster = {{cluster:String}} AND node = {{node:String}} AND isNull(hca) AND attrs['part'] = ''
            GROUP BY unit
            """,
            node=node,
        )
        host = next((row for row in rows if row["unit"] == -1), {})
        part = next((row for row in rows if row["unit"] == device), {}) if device is not None else {}
        both = (host, part)
        return Place(
            slot=host.get("slot") or None, serial=host.get("serial") or None, device_serial=part.get("serial") or None,
            bmc=host.get("bmc") or None, rack=_first(both, "rack"), cooling_zone=_first(both, "cooling_zone"),
        )  # fmt: skip

    def owner(self, job: str) -> str | None:
        """Return who runs a job, as its newest attempt says."""
        rows = self._rows(
            f"""
            SELECT argMaxIf(multiIf(attrs['owner'] != '', attrs['owner'], attrs['user'] != '', attrs['user'],
                attrs['tenant']), ts, attrs['owner'] != '' OR attrs['user'] != '' OR attrs['tenant'] != '') AS owner
            FROM {DATABASE}.runs WHERE cluster = {{cluster:String}} AND job = {{job:String}}
            """,
            job=job,
        )
        return rows[0]["owner"] or None if rows else None

    def start_seconds(self, job: str) -> float | None:
        """Return how long attempts of a job take from their start to training, the median; None when none did yet."""
        rows = self._rows(
            f"""
            SELECT quantileExact(0.5)(took) AS took, count() AS attempts FROM (
                SELECT run, dateDiff('millisecond', minIf(ifNull(started_at, ts), phase != 'train'),
                    minIf(ifNull(started_at, ts), phase = 'train')) / 1000 AS took
                FROM {DATABASE}.runs WHERE cluster = {{cluster:String}} AND job = {{job:String}} GROUP BY run
                HAVING countIf(phase = 'train') > 0 AND countIf(phase != 'train') > 0 AND took > 0
            )
            """,
            job=job,
        )
        return float(rows[0]["took"]) if rows and rows[0]["attempts"] else None

    def coverage(self, job: str) -> tuple[int, int] | None:
        """Return how many ranks of a job's newest attempt report, and how many there are; None when unknown."""
        rows = self._rows(
            f"""
            SELECT reporting, expected FROM {DATABASE}.v_coverage
            WHERE scope = 'job' AND cluster = {{cluster:String}} AND job = {{job:String}}
            ORDER BY newest_at DESC LIMIT 1
            """,
            job=job,
        )
        return (int(rows[0]["reporting"]), int(rows[0]["expected"])) if rows else None

    def changes(self, node: str, until_ms: int, hours: int = 24) -> list[ChangedFact]:
        """Return configuration values of a node that changed in the hours before a time, the newest first."""
        rows = self._rows(
            f"""
            SELECT unit, name, last.1 AS after, prev.1 AS before, last.2 AS at_ms FROM (
                SELECT ifNull(toInt32(device), -1) AS unit, name,
                    arraySort(x -> x.2, groupArray((value, toUnixTimestamp64Milli(ts)))) AS seen,
                    arrayFilter((x, i) -> i = 1 OR x.1 != seen[i - 1].1, seen, arrayEnumerate(seen)) AS steps,
                    steps[-1] AS last, steps[-2] AS prev
                FROM {DATABASE}.config_facts
                WHERE cluster = {{cluster:String}} AND node = {{node:String}}
                    AND toUnixTimestamp64Milli(ts) <= {{until:Int64}}
                GROUP BY unit, name HAVING length(steps) > 1 AND at_ms > {{since:Int64}}
            ) ORDER BY at_ms DESC LIMIT 8
            """,
            node=node, until=until_ms, since=until_ms - hours * _HOUR_S * 1000,
        )  # fmt: skip
        return [
            ChangedFact(None if row["unit"] < 0 else int(row["unit"]), row["name"], row["before"], row["after"],
                        int(row["at_ms"]))
            for row in rows
        ]  # fmt: skip

    # Pictures -----------------------------------------------------------------------------------------------------

    def step_times(self, job: str, ranks: Sequence[int], column: str, since_ms: int, until_ms: int) -> Series | None:
        """Return a time of each step of some ranks (the median) beside all other ranks of the job, in milliseconds."""
        return self._series(
            f"{column.removesuffix('_us').replace('_', ' ')} time of a step (ms)",
            f"""
            SELECT toUnixTimestamp64Milli(max(ts)) AS at_ms,
                quantileExactIf(0.5)({_KNOWN_COLUMNS[column]}, mine) / 1000 AS target,
                countIf(mine) AS targets, countIf(NOT mine) AS others,
                quantilesExactIf(0.05, 0.5, 0.95)({_KNOWN_COLUMNS[column]}, NOT mine) AS peers,
                peers[1] / 1000 AS low, peers[2] / 1000 AS middle, peers[3] / 1000 AS high
            FROM (
                SELECT ts, step, has({{ranks:Array(Int32)}}, toInt32(rank)) AS mine, {_KNOWN_COLUMNS[column]}
                FROM {DATABASE}.rank_steps WHERE cluster = {{cluster:String}} AND job = {{job:String}} AND {_WITHIN}
                    AND isNotNull({_KNOWN_COLUMNS[column]})
            ) GROUP BY step ORDER BY at_ms
            """,
            job=job, ranks=list(ranks), **_window(since_ms, until_ms),
        )  # fmt: skip

    def temperatures(self, nodes: Sequence[str], device: int | None, since_ms: int, until_ms: int) -> Series | None:
        """Return the temperature of some nodes' devices (the median) beside all other devices of the cluster."""
        return self._series(
            "device temperature (C)",
            f"""
            SELECT at_ms, quantileExactIf(0.5)(temp, mine) AS target,
                countIf(mine) AS targets, countIf(NOT mine) AS others,
                quantilesExactIf(0.05, 0.5, 0.95)(temp, NOT mine) AS peers, peers[1] AS low, peers[2] AS middle,
                peers[3] AS high
            FROM (
                SELECT toUnixTimestamp(toStartOfInterval(ts, toIntervalSecond({{bucket:UInt32}}))) * 1000 AS at_ms,
                    has({{nodes:Array(String)}}, node) AND ({{device:Int32}} < 0 OR device = {{device:Int32}}) AS mine,
                    avg(temp_c) AS temp
                FROM {DATABASE}.device_samples WHERE cluster = {{cluster:String}} AND {_WITHIN} AND isNotNull(temp_c)
                GROUP BY at_ms, node, device
            ) GROUP BY at_ms ORDER BY at_ms
            """,
            nodes=list(nodes), device=-1 if device is None else device,
            bucket=max(10, (until_ms - since_ms) // 1000 // POINTS), **_window(since_ms, until_ms),
        )  # fmt: skip

    def progress(self, job: str, since_ms: int, until_ms: int) -> Series | None:
        """Return the newest finished step of a job over time: a job that stopped shows as a flat end."""
        return self._series(
            "newest finished step",
            f"""
            SELECT toUnixTimestamp(toStartOfInterval(ts, toIntervalSecond({{bucket:UInt32}}))) * 1000 AS at_ms,
                max(step) AS target, count() AS targets, 0 AS others, NULL AS low, NULL AS middle, NULL AS high
            FROM {DATABASE}.rank_steps WHERE cluster = {{cluster:String}} AND job = {{job:String}} AND {_WITHIN}
            GROUP BY at_ms ORDER BY at_ms
            """,
            job=job, bucket=max(5, (until_ms - since_ms) // 1000 // POINTS), **_window(since_ms, until_ms),
        )  # fmt: skip

    def scalar(self, job: str, column: str, since_ms: int, until_ms: int) -> Series | None:
        """Return the loss or gradient norm of a job over its steps."""
        return self._series(
            column.replace("_", " "),
            f"""
            SELECT toUnixTimestamp64Milli(max(ts)) AS at_ms, max({_KNOWN_COLUMNS[column]}) AS target,
                count() AS targets, 0 AS others, NULL AS low, NULL AS middle, NULL AS high
            FROM {DATABASE}.rank_steps WHERE cluster = {{cluster:String}} AND job = {{job:String}} AND {_WITHIN}
                AND isNotNull({_KNOWN_COLUMNS[column]})
            GROUP BY step ORDER BY at_ms
            """,
            job=job, **_window(since_ms, until_ms),
        )  # fmt: skip

    def _series(self, quantity: str, sql: str, **values: Any) -> Series | None:
        rows = self._rows(sql, **values)
        rows = rows[:: max(1, -(-len(rows) // POINTS))]
        if len(rows) < 2 or not any(row["targets"] for row in rows):
            return None

        def column(name: str, count: str) -> list[float | None]:
            return [float(row[name]) if row[count] and row[name] is not None else None for row in rows]

        return Series(
            quantity, [int(row["at_ms"]) for row in rows], column("target", "targets"), column("low", "others"),
            column("middle", "others"), column("high", "others"),
        )  # fmt: skip


_WITHIN = "ts > {since:DateTime64(3, 'UTC')} AND ts <= {until:DateTime64(3, 'UTC')}"
#: Columns that pictures show; names of columns are never taken from elsewhere.
_KNOWN_COLUMNS = {
    name: name for name in ("compute_us", "data_us", "transfer_us", "step_us", "launch_gap_us", "loss", "grad_norm")
}


def _window(since_ms: int, until_ms: int) -> dict[str, Any]:
    return {
        "since": datetime.fromtimestamp(since_ms / 1000, tz=UTC),
        "until": datetime.fromtimestamp(until_ms / 1000, tz=UTC),
    }


def _first(rows: Sequence[Mapping[str, Any]], name: str) -> str | None:
    return next((str(row[name]) for row in rows if row.get(name)), None)
