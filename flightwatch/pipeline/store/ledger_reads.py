"""Ledgers: GPU-hours lost, goodput of jobs, failures and repairs, history of a node or serial number.

Money is not computed here, and nothing is estimated for incidents without a figure: they are counted beside the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store

#: What lost hours can be summed by.
GROUPINGS = ("day", "kind", "node", "device", "job", "tenant", "incident")
#: Kinds of incidents that are failures of hardware or of a job, not remarks about them.
FAILURES = ("hang", "crash", "device_error", "dead_node", "ecc", "link_flap", "overheat", "cooling", "power",
            "nonfinite", "replica_digest")  # fmt: skip


def lost_gpu_hours(
    store: Store,
    since_ms: int,
    until_ms: int,
    by: Sequence[str] = ("kind",),
    tenants: Sequence[str] | None = None,
    limit: int = 1000,
) -> list[dict[str, Any]]:
    """Return GPU-hours lost to incidents opened in [since, until), the greatest loss first.

    Parameters
    ----------
    by: any of GROUPINGS. tenants: only their incidents; None: all.

    Returns
    -------
    The groupings, `incidents`, `open_incidents`, `lost_gpu_hours` (None where no incident has a figure),
    `incidents_without_figure`.

    Raises
    ------
    ConfigError: an unknown grouping. TransientError: the store is away.
    """
    unknown = [name for name in by if name not in GROUPINGS]
    if unknown or not by:
        raise ConfigError(
            f"lost GPU-hours are grouped by {', '.join(GROUPINGS)}, not by {', '.join(unknown) or 'nothing'}"
        )
    columns = {"day": "toString(toDate(i.opened_at))", "incident": "i.id", "device": "i.device"}
    named = ", ".join(f"{columns.get(name, f'toString(i.{name})')} AS by_{name}" for name in dict.fromkeys(by))
    where = ["i.opened_at >= {since:DateTime64(3, 'UTC')}", "i.opened_at < {until:DateTime64(3, 'UTC')}",
             "i.state != 'false_positive'",
             "NOT (i.state = 'resolved' AND empty(i.findings) AND isNull(i.lost_gpu_hours))"]  # fmt: skip
    parameters: dict[str, Any] = {"since": _seconds(since_ms), "until": _seconds(until_ms), "limit": limit}
    if tenants is not None:
        where.append("has({tenants:Array(String)}, ifNull(toString(i.tenant), ''))")
        parameters["tenants"] = [tenant for tenant in tenants if tenant]
    grouped = ", ".join(f"by_{name}" for name in dict.fromkeys(by))
    rows = store.rows(
        f"SELECT {named}, count() AS incidents, countIf(i.state IN ('open', 'acknowledged')) AS open_incidents, "
        "if(count(i.lost_gpu_hours) = 0, NULL, sum(i.lost_gpu_hours)) AS lost, "
        "countIf(isNull(i.lost_gpu_hours)) AS incidents_without_figure "
        f"FROM {DATABASE}.v_incidents AS i WHERE {' AND '.join(where)} GROUP BY {grouped} "
        f"ORDER BY lost DESC NULLS LAST, incidents DESC, {grouped} LIMIT {{limit:UInt32}}",
        parameters,
    )
    return [
        {name.removeprefix("by_"): value for name, value in row.items() if name != "lost"}
        | {"lost_gpu_hours": row["lost"]}
        for row in rows
    ]


def goodput(store: Store, jobs: Sequence[str] | None = None, limit: int = 200) -> list[dict[str, Any]]:
    """Return goodput (effective training time ratio) of jobs with its breakdown, the newest job first.

    Parameters
    ----------
    jobs: only these; None: all.

    Returns
    -------
    job, cluster, attempts, started_at, newest_at, wall_s; phase_s: seconds by phase of the run, exclusive of each
    other; between_s: seconds in no phase (down between attempts, or not observed); steps, steps_repeated,
    productive_s (each step counted once, at the time of its last execution), repeated_s (train time that led to no new
    step or passed between steps), goodput_ratio (None without steps).
    """
    where = "" if jobs is None else "WHERE has({jobs:Array(String)}, toString(job)) "
    parameters: dict[str, Any] = {"limit": limit} | ({} if jobs is None else {"jobs": list(jobs)})
    rows = store.rows(
        f"SELECT * FROM {DATABASE}.v_goodput {where}ORDER BY newest_at DESC, job LIMIT {{limit:UInt32}}", parameters
    )
    for row in rows:
        row["phase_s"] = {phase: round(seconds, 3) for phase, seconds in sorted(row["phase_s"].items()) if seconds}
        row["between_s"] = round(max(0.0, row["wall_s"] - sum(row["phase_s"].values())), 3)
        train, productive = row["phase_s"].get("train"), row["productive_s"]
        row["repeated_s"] = None if train is None or productive is None else round(max(0.0, train - productive), 3)
    return rows


def failures_and_repairs(store: Store, since_ms: int, until_ms: int, by: str = "kind") -> list[dict[str, Any]]:
    """Return mean time between failures and to repair over [since, until), by kind or by node.

    A failure is an incident of a kind in FAILURES that was no false alarm. MTBF by kind: node-hours of all nodes in
    the inventory / failures; by node: hours / failures of the node. MTTR: mean time from opening to end, of those that
    ended.

    Returns
    -------
    kind or node, failures, repaired, mtbf_h, mttr_h (None where nothing was repaired), most failures first.
    """
    if by not in ("kind", "node"):
        raise ConfigError("failures are grouped by kind or by node")
    hours = max(0, until_ms - since_ms) / 3_600_000
    (inventory,) = store.rows(f"SELECT uniqExact(node) AS nodes FROM {DATABASE}.inventory")
    exposure = hours * (inventory["nodes"] if by == "kind" else 1)
    rows = store.rows(
        f"SELECT toString(i.{by}) AS name, count() AS failures, countIf(isNotNull(i.closed_at)) AS repaired, "
        "avgIf(dateDiff('millisecond', i.opened_at, i.closed_at), isNotNull(i.closed_at)) / 3600000 AS mttr_h "
        f"FROM {DATABASE}.v_incidents AS i WHERE i.opened_at >= {{since:DateTime64(3, 'UTC')}} "
        "AND i.opened_at < {until:DateTime64(3, 'UTC')} AND i.state != 'false_positive' AND notEmpty(i.findings) "
        f"AND has({{kinds:Array(String)}}, toString(i.kind)) AND isNotNull(i.{by}) "
        "GROUP BY name ORDER BY failures DESC, name LIMIT 1000",
        {"since": _seconds(since_ms), "until": _seconds(until_ms), "kinds": list(FAILURES)},
    )
    return [
        {
            by: row["name"], "failures": row["failures"], "repaired": row["repaired"],
            "mtbf_h": exposure / row["failures"] if exposure else None,
            "mttr_h": row["mttr_h"] if row["repaired"] else None,
        }
        for row in rows
    ]  # fmt: skip


def interruptions(store: Store, job: str) -> dict[str, Any]:
    """Return how often a job was interrupted: mean time between interruptions and to the next step.

    An interruption is the end of an attempt that another one follows. Up time is from the first to the last step of an
    attempt, repair from its last step to the next attempt's first.

    Returns
    -------
    job, attempts, interruptions, mtbf_h, mttr_h (None without an interruption), up_h.
    """
    rows = store.rows(
        "SELECT run, min(started_at) AS first_at, "
        "max(started_at + toIntervalMicrosecond(toInt64(ifNull(step_us_median, 0)))) AS last_at "
        f"FROM {DATABASE}.v_step_times WHERE job = {{job:String}} GROUP BY run ORDER BY first_at",
        {"job": job},
    )
    up_ms = sum(row["last_at"] - row["first_at"] for row in rows)
    gaps = [max(0, after["first_at"] - before["last_at"]) for before, after in pairwise(rows)]
    return {
        "job": job, "attempts": len(rows), "interruptions": len(gaps), "up_h": up_ms / 3_600_000,
        "mtbf_h": up_ms / 3_600_000 / len(gaps) if gaps else None,
        "mttr_h": sum(gaps) / 3_600_000 / len(gaps) if gaps else None,
    }  # fmt: skip


def node_history(
    store: Store,
    *,
    node: str | None = None,
    serial: str | None = None,
    since_ms: int | None = None,
    sources: Sequence[str] = (),
    limit: int = 500,
) -> list[dict[str, Any]]:
    """Return what happened to a node, or to the thing with a serial number wherever it was, the newest first.

    Parameters
    ----------
    sources: event, finding, incident, action, config, inventory; empty: all.

    Raises
    ------
    ConfigError: neither node nor serial is given.
    """
    if node is None and serial is None:
        raise ConfigError("a history needs a node or a serial number")
    where, parameters = [], dict[str, Any](limit=limit)
    for name, value in (("node", node), ("serial", serial)):
        if value is not None:
            where.append(f"{name} = {{{name}:String}}")
            parameters[name] = value
    if since_ms is not None:
        where.append("ts >= {since:DateTime64(3, 'UTC')}")
        parameters["since"] = _seconds(since_ms)
    if sources:
        where.append("has({sources:Array(String)}, source)")
        parameters["sources"] = list(sources)
    return store.rows(
        f"SELECT * FROM {DATABASE}.v_node_history WHERE {' AND '.join(where)} ORDER BY ts DESC LIMIT {{limit:UInt32}}",
        parameters,
    )


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.3f}"
