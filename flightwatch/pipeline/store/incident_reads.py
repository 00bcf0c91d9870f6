"""What the incident engine reads of the store: who uses which node, how jobs get on, evidence rows."""

from __future__ import annotations

from typing import Any

from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store

#: Jobs without a sign of life for longer use no nodes any more.
_ALIVE_DAYS = 2
#: In synchronous training every rank's step takes the same time: a few ranks tell it.
_RANKS_TELLING = 64


def domains(store: Store) -> list[dict[str, Any]]:
    """Return cluster, node, rack, cooling_zone, power_zone, leaf_switch ("" where unknown) and devices of each node."""
    newest = ", ".join(
        f"argMaxIf(toString(assumeNotNull({name})), ts, isNotNull({name})) AS {name}"
        for name in ("rack", "cooling_zone", "power_zone", "leaf_switch")
    )
    return store.rows(
        f"SELECT cluster, node, {newest}, uniqExactIf(assumeNotNull(device), isNotNull(device)) AS devices "
        f"FROM (SELECT * REPLACE (toString(node) AS node) FROM {DATABASE}.inventory) GROUP BY cluster, node"
    )


def jobs(store: Store) -> list[dict[str, Any]]:
    """Return job, run, ranks, nodes and newest placement of the newest run of each job that lives."""
    return store.rows(
        "SELECT job, argMax(one_run, at) AS run, argMax(one_ranks, at) AS ranks, argMax(one_nodes, at) AS nodes, "
        "max(at) AS placed_at FROM ("
        "SELECT job, run AS one_run, uniqExact(rank) AS one_ranks, groupUniqArray(toString(node)) AS one_nodes, "
        f"max(ts) AS at FROM {DATABASE}.placements WHERE isNull(valid_until) AND job != '' GROUP BY job, one_run) "
        "GROUP BY job"
    )


def progress(store: Store) -> list[dict[str, Any]]:
    """Return job, time of its newest step and its step time (microseconds), of jobs with steps in the last days."""
    return store.rows(
        "SELECT job, max(rank_latest.ts) AS newest_step_at, quantileExact(0.5)(step_us) AS step_us "
        f"FROM {DATABASE}.rank_latest WHERE ts > now64(3) - INTERVAL {_ALIVE_DAYS} DAY GROUP BY job"
    )


def tenants(store: Store) -> list[dict[str, Any]]:
    """Return job and tenant of jobs that name one."""
    return store.rows(
        f"SELECT job, argMax(attrs['tenant'], ts) AS tenant FROM {DATABASE}.runs "
        "WHERE attrs['tenant'] != '' GROUP BY job"
    )


def step_times(store: Store, job: str, onset_ms: int, now_ms: int) -> tuple[float | None, float | None]:
    """Return the median step time of a job before a time (up to 20 minutes) and of late (3 minutes), microseconds."""
    rows = store.rows(
        "SELECT quantileExactIf(0.5)(step_us, ts < {onset:DateTime64(3, 'UTC')}) AS before, "
        "quantileExactIf(0.5)(step_us, ts >= {late:DateTime64(3, 'UTC')}) AS late, "
        "countIf(ts < {onset:DateTime64(3, 'UTC')} AND isNotNull(step_us)) AS n_before, "
        "countIf(ts >= {late:DateTime64(3, 'UTC')} AND isNotNull(step_us)) AS n_late "
        f"FROM {DATABASE}.rank_steps WHERE job = {{job:String}} AND rank < {_RANKS_TELLING} "
        "AND ((ts >= {begin:DateTime64(3, 'UTC')} AND ts < {onset:DateTime64(3, 'UTC')}) "
        "OR (ts >= {late:DateTime64(3, 'UTC')} AND ts < {now:DateTime64(3, 'UTC')}))",
        {"job": job, "onset": _seconds(onset_ms), "begin": _seconds(onset_ms - 1_200_000),
         "late": _seconds(max(onset_ms, now_ms - 180_000)), "now": _seconds(now_ms)},
    )  # fmt: skip
    (row,) = rows
    before = float(row["before"]) if row["n_before"] else None
    return before, float(row["late"]) if row["n_late"] else None


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f}"
