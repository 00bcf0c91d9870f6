"""Lists for the API: findings, devices, nodes, jobs; page by page, for one tenant's jobs where asked.

A page goes on after the sort keys of the last row of the one before, so nothing is skipped or repeated when rows
arrive meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flightwatch.core.catalogue import TABLES
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store

#: Columns of a finding, without where it came from.
_FINDING = tuple(
    column.name for column in TABLES["findings"].columns if column.name not in ("src_partition", "src_offset")
)
_JOBS_OF = f"SELECT job FROM {DATABASE}.runs WHERE attrs['tenant'] IN {{tenants:Array(String)}}"
#: Nodes on which a tenant's jobs run, or ran in the last day.
_NODES_OF = (
    f"SELECT node FROM {DATABASE}.placements WHERE job IN ({_JOBS_OF})"
    " AND (isNull(valid_until) OR valid_until > now64(3) - INTERVAL 1 DAY)"
)


class _Where:
    """Conditions and their bound values."""

    def __init__(self) -> None:
        self.conditions: list[str] = []
        self.values: dict[str, Any] = {}

    def equal(self, column: str, value: Any, kind: str = "String") -> None:
        if value is not None:
            self.add(f"{column} = {{{column}:{kind}}}", {column: value})

    def add(self, condition: str, values: Mapping[str, Any] | None = None) -> None:
        self.conditions.append(condition)
        self.values |= values or {}

    def __str__(self) -> str:
        return " AND ".join(self.conditions) or "1"


def findings_page(
    store: Store,
    *,
    since_ms: int,
    until_ms: int,
    equal: Mapping[str, str | None],
    tenants: Collection[str] | None = None,
    before: tuple[int, str] | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Return statements of findings, the newest first.

    Parameters
    ----------
    since_ms, until_ms: time of the statement.
    equal: column to value, None lets all pass; columns of the catalogue only.
    tenants: only findings about jobs of these. before: (ts, id) of the last one seen.
    """
    where = _Where()
    times = {"since": since_ms, "until": until_ms}
    where.add("ts >= fromUnixTimestamp64Milli({since:Int64}) AND ts < fromUnixTimestamp64Milli({until:Int64})", times)
    for name, value in equal.items():
        where.equal(TABLES["findings"].column(name).name, value)
    _scope(where, "job", _JOBS_OF, tenants)
    if before is not None:
        values = {"before_ts": before[0], "before_id": before[1]}
        where.add("(ts, id) < (fromUnixTimestamp64Milli({before_ts:Int64}), {before_id:String})", values)
    return store.rows(
        f"SELECT {_names(_FINDING)} FROM {DATABASE}.findings WHERE {where} ORDER BY ts DESC, id DESC LIMIT {limit:d}",
        where.values,
    )


def finding_statements(store: Store, id_: str, tenants: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Return all statements of one finding, the oldest first."""
    where = _Where()
    where.equal("id", id_)
    _scope(where, "job", _JOBS_OF, tenants)
    return store.rows(
        f"SELECT {_names(_FINDING)} FROM {DATABASE}.findings WHERE {where} ORDER BY ts LIMIT 1000", where.values
    )


def devices_page(
    store: Store,
    *,
    equal: Mapping[str, str | None],
    tenants: Collection[str] | None = None,
    after: tuple[str, str, int] | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Return the newest row of every accelerator with its age, by cluster, node and device."""
    where = _Where()
    for name, value in equal.items():
        where.equal(TABLES["device_samples"].column(name).name, value)
    _scope(where, "job", _JOBS_OF, tenants)
    if after is not None:
        values = dict(zip(("after_cluster", "after_node", "after_device"), after, strict=True))
        where.add(
            "(cluster, node, device) > ({after_cluster:String}, {after_node:String}, {after_device:Int64})", values
        )
    return store.rows(
        f"SELECT * FROM {DATABASE}.v_device_latest WHERE {where} ORDER BY cluster, node, device LIMIT {limit:d}",
        where.values,
    )


def nodes_page(
    store: Store,
    *,
    text: str | None = None,
    cluster: str | None = None,
    tenants: Collection[str] | None = None,
    after: tuple[str, str] | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Return nodes that were heard or stand in the inventory: last_seen, age_s, devices, rack, cooling_zone."""
    where = _Where()
    where.equal("cluster", cluster)
    where.add("node != ''")
    if text is not None:
        where.add("positionCaseInsensitive(node, {text:String}) > 0", {"text": text})
    _scope(where, "node", _NODES_OF, tenants)
    if after is not None:
        values = dict(zip(("after_cluster", "after_node"), after, strict=True))
        where.add("(cluster, node) > ({after_cluster:String}, {after_node:String})", values)
    return store.rows(
        f"""
        SELECT cluster, node, nullIf(max(seen), toDateTime64(0, 3, 'UTC')) AS last_seen,
            dateDiff('millisecond', last_seen, now64(3)) / 1000 AS age_s,
            uniqExactIf(unit, unit >= 0) AS devices, argMaxIf(place.1, at, isNotNull(place.1)) AS rack,
            argMaxIf(place.2, at, isNotNull(place.2)) AS cooling_zone
        FROM (
            SELECT cluster, node, ts AS seen, -1 AS unit,
                (NULL::Nullable(String), NULL::Nullable(String)) AS place, ts AS at
            FROM {DATABASE}.v_node_latest WHERE {where}
            UNION ALL
            SELECT cluster, node, ts, toInt32(device), (NULL::Nullable(String), NULL::Nullable(String)), ts
            FROM {DATABASE}.v_device_latest WHERE {where}
            UNION ALL
            SELECT cluster, node, toDateTime64(0, 3, 'UTC'), ifNull(toInt32(device), -1),
                (toNullable(toString(rack)), toNullable(toString(cooling_zone))), ts
            FROM {DATABASE}.inventory WHERE {where}
        )
        GROUP BY cluster, node ORDER BY cluster, node LIMIT {limit:d}
        """,
        where.values,
    )


def node_is_of(store: Store, node: str, tenants: Collection[str]) -> bool:
    """Say whether jobs of these tenants run on a node, or ran there in the last day."""
    rows = store.rows(
        f"SELECT count() AS found FROM ({_NODES_OF}) WHERE node = {{node:String}}",
        {"node": node, "tenants": sorted(tenants)},
    )
    return bool(rows[0]["found"])


def nodes_of(store: Store, tenants: Collection[str]) -> set[str]:
    """Return the nodes on which jobs of tenants run, or ran in the last day."""
    rows = store.rows(f"SELECT DISTINCT node FROM ({_NODES_OF})", {"tenants": sorted(tenants)})
    return {row["node"] for row in rows}


def node_latest(store: Store, node: str) -> dict[str, list[dict[str, Any]]]:
    """Return the newest rows of one node: host, devices, ports, sensors, storage, and its inventory."""
    views = {
        "host": "v_node_latest", "devices": "v_device_latest", "ports": "v_port_latest", "sensors": "v_sensor_latest",
        "storage": "v_storage_latest",
    }  # fmt: skip
    found = {
        part: store.rows(
            f"SELECT * FROM {DATABASE}.{view} WHERE node = {{node:String}} ORDER BY ALL LIMIT 5000", {"node": node}
        )
        for part, view in views.items()
    }
    found["inventory"] = store.rows(
        f"""
        SELECT * EXCEPT (src_partition, src_offset) FROM {DATABASE}.inventory WHERE node = {{node:String}}
        ORDER BY ts DESC LIMIT 1 BY cluster, device, hca, port, attrs['part'], slot LIMIT 5000
        """,
        {"node": node},
    )
    return found


def node_history(store: Store, node: str, since_ms: int, limit: int = 500) -> list[dict[str, Any]]:
    """Return what happened to a node since a time, the newest first."""
    return store.rows(
        f"""
        SELECT * FROM {DATABASE}.v_node_history
        WHERE node = {{node:String}} AND ts >= fromUnixTimestamp64Milli({{since:Int64}})
        ORDER BY ts DESC LIMIT {limit:d}
        """,
        {"node": node, "since": since_ms},
    )


def jobs_page(
    store: Store,
    *,
    text: str | None = None,
    cluster: str | None = None,
    tenants: Collection[str] | None = None,
    after: tuple[str, str] | None = None,
    limit: int = 50,
) -> list[dict[str, Any]]:
    """Return jobs by cluster and name: newest run and its phase, tenant, owner, attempts, ranks heard, newest step."""
    where = _Where()
    where.equal("cluster", cluster)
    if text is not None:
        where.add("positionCaseInsensitive(job, {text:String}) > 0", {"text": text})
    _scope(where, "job", _JOBS_OF, tenants)
    if after is not None:
        values = dict(zip(("after_cluster", "after_job"), after, strict=True))
        where.add("(cluster, job) > ({after_cluster:String}, {after_job:String})", values)
    return store.rows(
        f"""
        SELECT cluster, job, argMax(attempt, at) AS run, argMaxIf(state, at, state != '') AS phase,
            argMaxIf(owner_tenant, at, owner_tenant != '') AS tenant, argMaxIf(person, at, person != '') AS owner,
            uniqExact(attempt) AS attempts, min(first_at) AS first_seen, max(at) AS last_seen,
            dateDiff('millisecond', last_seen, now64(3)) / 1000 AS age_s, max(newest) AS newest_step,
            uniqExactIf((attempt, number), number >= 0) AS ranks
        FROM (
            SELECT cluster, job, toString(run) AS attempt, toString(phase) AS state, attrs['tenant'] AS owner_tenant,
                attrs['owner'] AS person, ifNull(started_at, ts) AS first_at, ts AS at,
                NULL::Nullable(UInt64) AS newest, -1::Int64 AS number
            FROM {DATABASE}.runs WHERE {where}
            UNION ALL
            SELECT cluster, job, toString(run), '', '', '', ts, ts, step, toInt64(rank)
            FROM {DATABASE}.v_rank_latest WHERE {where}
        )
        GROUP BY cluster, job ORDER BY cluster, job LIMIT {limit:d}
        """,
        where.values,
    )


def job_details(store: Store, job: str, steps: int = 50) -> dict[str, list[dict[str, Any]]]:
    """Return phases of a job's attempts, its placements, coverage, goodput and newest steps, each the newest first."""
    value = {"job": job}
    return {
        "phases": store.rows(
            f"""
            SELECT cluster, run, phase, started_at, ended_at, attrs FROM {DATABASE}.runs
            WHERE job = {{job:String}} ORDER BY ts DESC LIMIT 500
            """,
            value,
        ),
        "placements": store.rows(
            f"""
            SELECT * EXCEPT (received_at, src_partition, src_offset) FROM {DATABASE}.v_placements
            WHERE job = {{job:String}} AND isNull(valid_until) ORDER BY run DESC, rank LIMIT 20000
            """,
            value,
        ),
        "coverage": store.rows(
            f"SELECT * FROM {DATABASE}.v_coverage WHERE scope = 'job' AND job = {{job:String}} ORDER BY run DESC", value
        ),
        "goodput": store.rows(f"SELECT * FROM {DATABASE}.v_goodput WHERE job = {{job:String}}", value),
        "steps": store.rows(
            f"""
            SELECT * FROM {DATABASE}.v_step_times
            WHERE job = {{job:String}} ORDER BY started_at DESC LIMIT {steps:d}
            """,
            value,
        ),
    }


def job_tenant(store: Store, job: str) -> str | None:
    """Return the tenant of a job, None when none is known."""
    rows = store.rows(
        f"""
        SELECT argMax(attrs['tenant'], ts) AS tenant FROM {DATABASE}.runs
        WHERE job = {{job:String}} AND attrs['tenant'] != ''
        """,
        {"job": job},
    )
    return rows[0]["tenant"] or None


def jobs_of(store: Store, tenants: Collection[str]) -> set[str]:
    """Return the jobs of tenants."""
    rows = store.rows(f"SELECT DISTINCT job FROM ({_JOBS_OF})", {"tenants": sorted(tenants)})
    return {row["job"] for row in rows}


def _scope(where: _Where, column: str, of: str, tenants: Collection[str] | None) -> None:
    if tenants is not None:
        where.add(f"{column} IN ({of})", {"tenants": sorted(tenants)})


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in columns)
