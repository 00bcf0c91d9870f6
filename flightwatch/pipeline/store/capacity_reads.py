"""Reads for the question whether a node may leave: what exists, what is free, how far back a job would start again."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store

#: A device that said nothing for so long is not counted as free.
_FRESH_SECONDS = 300


@dataclass(frozen=True, slots=True)
class JobSize:
    """A running job: ranks in its newest attempt, and when its last checkpoint became durable (None: unknown)."""

    ranks: int | None
    checkpoint_at_ms: int | None


def known_nodes(store: Store, cluster: str) -> frozenset[str]:
    """Return the names of nodes in the inventory. Raises TransientError."""
    sql = f"SELECT DISTINCT node FROM {DATABASE}.inventory WHERE cluster = {{cluster:String}} AND node != ''"
    return frozenset(str(row["node"]) for row in store.rows(sql, {"cluster": cluster}))


def busy_nodes(store: Store, cluster: str) -> frozenset[str]:
    """Return nodes with a rank placed on them, or with a device that named a job lately. Raises TransientError."""
    sql = (
        f"SELECT DISTINCT node FROM {DATABASE}.v_placements WHERE cluster = {{cluster:String}} AND isNull(valid_until)"
        f" UNION DISTINCT SELECT DISTINCT node FROM {DATABASE}.v_device_latest"
        f" WHERE cluster = {{cluster:String}} AND notEmpty(ifNull(job, '')) AND age_s < {_FRESH_SECONDS}"
    )
    return frozenset(str(row["node"]) for row in store.rows(sql, {"cluster": cluster}))


def reporting_nodes(store: Store, cluster: str) -> frozenset[str]:
    """Return nodes with an accelerator that reported lately. Raises TransientError."""
    sql = (
        f"SELECT DISTINCT node FROM {DATABASE}.v_device_latest"
        f" WHERE cluster = {{cluster:String}} AND age_s < {_FRESH_SECONDS}"
    )
    return frozenset(str(row["node"]) for row in store.rows(sql, {"cluster": cluster}))


def job_size(store: Store, cluster: str, job: str) -> JobSize:
    """Return how many ranks a job has, and its last durable checkpoint.

    A checkpoint is durable when writing it has ended: `op_timings` of kind checkpoint that are not a restore.
    Raises TransientError.
    """
    which = {"cluster": cluster, "job": job}
    ranks = store.rows(
        f"SELECT uniqExact(rank) AS ranks FROM {DATABASE}.v_placements"
        " WHERE cluster = {cluster:String} AND job = {job:String} AND isNull(valid_until)"
        " GROUP BY run ORDER BY max(ts) DESC LIMIT 1",
        which,
    )
    saved = store.rows(
        "SELECT toUnixTimestamp64Milli(max(ts)) + toInt64(argMax(ifNull(dur_us, 0), ts) / 1000) AS at_ms,"
        f" count() AS n FROM {DATABASE}.op_timings WHERE cluster = {{cluster:String}} AND job = {{job:String}}"
        " AND kind = 'checkpoint' AND positionCaseInsensitive(op, 'restore') = 0 AND dur_us > 0",
        which,
    )
    at_ms = int(saved[0]["at_ms"]) if saved and saved[0]["n"] else None
    return JobSize(int(ranks[0]["ranks"]) if ranks and ranks[0]["ranks"] else None, at_ms)
