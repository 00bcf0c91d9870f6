"""Reads of jobs: which there are, how they step, what their time goes into, their scalars, phases and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.step_reads import Attempt

#: A rank that stepped this much earlier than the job's newest rank is silent.
SILENT_SECONDS = 120
#: Newest steps by which a job's slowest rank is told: one step alone is noise.
SPREAD_STEPS = 12
#: Jobs of which that is read at once.
SPREAD_JOBS = 30
#: Parts of a step, in the order in which pages stack them.
PARTS = ("compute_us", "wait_us", "transfer_us", "data_us", "launch_gap_us", "checkpoint_us", "unattributed_us")


def jobs(store: Store) -> list[dict[str, Any]]:
    """Return the newest attempt of every job of the last 30 days, the most recently active first.

    Each row: cluster, job, run, attempts, ranks, reporting, expected (None unknown), nodes, step, step_us (median of
    the newest), slowest_us, tokens_per_s (None unknown), age_seconds, started, phase, findings (open).
    """
    found = store.rows(
        f"""
        SELECT cluster, job, run, count() AS ranks, uniqExact(node) AS nodes, max(n.step) AS step, max(ts) AS newest_at,
            arrayCount(one -> one >= newest_at - toIntervalSecond({SILENT_SECONDS}), groupArray(ts)) AS reporting,
            quantileExactIf(0.5)(assumeNotNull(step_us), isNotNull(step_us)) AS middle_us, max(step_us) AS slowest_us,
            countIf(isNotNull(step_us)) AS timed, sum(n.tokens) AS tokens, countIf(isNotNull(n.tokens)) AS counted,
            dateDiff('millisecond', newest_at, now64(3)) / 1000 AS age_seconds
        FROM (
            SELECT cluster, job, run, rank, node, step, ts, step_us, tokens FROM flightwatch.rank_latest
            ORDER BY version DESC LIMIT 1 BY cluster, job, run, rank
        ) AS n
        GROUP BY cluster, job, run HAVING newest_at > now64(3) - INTERVAL 30 DAY
        ORDER BY newest_at DESC LIMIT 1 BY cluster, job LIMIT 1000
        """
    )
    if not found:
        return []
    expected, phased, told = _expected(store), _phased(store), _open_by_job(store)
    rows = []
    for row in found:
        timed, phase = row["timed"] > 0, phased.get((row["cluster"], row["job"]))
        rate = row["tokens"] / row["middle_us"] * 1e6 if row["counted"] and timed and row["middle_us"] else None
        rows.append(
            {name: row[name] for name in ("cluster", "job", "run", "ranks", "reporting", "nodes", "step", "slowest_us")}
            | {
                "attempts": max(1, phase["attempts"]) if phase else 1,
                "expected": expected.get((row["cluster"], row["job"], row["run"])),
                "step_us": row["middle_us"] if timed else None,
                "tokens_per_s": rate,
                "age_seconds": row["age_seconds"],
                "started": phase["started"] if phase else None,
                "phase": phase["phase"] if phase else "",
                "findings": told.get(row["job"], 0),
            }
        )
    return rows


def _expected(store: Store) -> dict[tuple[str, str, str], int]:
    rows = store.rows(
        "SELECT cluster, job, run, uniqExact(rank) AS ranks FROM flightwatch.placements GROUP BY cluster, job, run"
    )
    return {(row["cluster"], row["job"], row["run"]): row["ranks"] for row in rows}


def _phased(store: Store) -> dict[tuple[str, str], dict[str, Any]]:
    rows = store.rows(
        """
        SELECT cluster, job, uniqExact(run) AS attempts, min(ifNull(started_at, ts)) AS started,
            argMax(toString(phase), ts) AS phase
        FROM flightwatch.runs GROUP BY cluster, job
        """
    )
    return {(row["cluster"], row["job"]): row for row in rows}


def _open_by_job(store: Store) -> dict[str, int]:
    rows = store.rows(
        """
        SELECT job, countIf(state != 'cleared') AS open FROM (
            SELECT id, ifNull(toString(argMax(tuple(job), (ts, src_offset)).1), '') AS job,
                argMax(state, (ts, src_offset)) AS state
            FROM flightwatch.findings WHERE ts > now64(3) - INTERVAL 7 DAY GROUP BY id
        ) GROUP BY job
        """
    )
    return {row["job"]: row["open"] for row in rows}


def slowest_ranks(store: Store, found: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[int, float]]:
    """Return, by cluster and job, the rank whose compute is longest against its role, and its times the role's median.

    The median over the newest steps of each rank's exclusive compute; a role is a pipeline stage and expert group.
    A job that does not tell compute, or has one rank, is left out.

    Parameters
    ----------
    found: rows of `jobs`; at most `SPREAD_JOBS` of them are looked at.
    """
    which: list[str] = []
    values: dict[str, Any] = {}
    for at, row in enumerate(found[:SPREAD_JOBS]):
        which.append(
            f"(cluster = {{c{at}:String}} AND job = {{j{at}:String}} AND run = {{r{at}:String}}"
            f" AND step BETWEEN {{f{at}:UInt64}} AND {{l{at}:UInt64}})"
        )
        values |= {f"c{at}": row["cluster"], f"j{at}": row["job"], f"r{at}": row["run"],
                   f"f{at}": max(0, row["step"] - SPREAD_STEPS), f"l{at}": row["step"]}  # fmt: skip
    if not which:
        return {}
    rows = store.rows(
        f"""
        WITH taken AS (
            SELECT cluster, job, run, rank, quantileExact(0.5)(assumeNotNull(compute_us)) AS took
            FROM flightwatch.rank_steps WHERE ({" OR ".join(which)}) AND isNotNull(compute_us)
            GROUP BY cluster, job, run, rank
        ), placed AS (
            SELECT cluster, job, run, rank, argMax((ifNull(pp, -1), ifNull(ep, -1)), (ts, src_offset)) AS role
            FROM flightwatch.placements WHERE job IN (SELECT job FROM taken) GROUP BY cluster, job, run, rank
        )
        SELECT cluster, job, argMax(rank, times) AS slowest, max(times) AS ratio FROM (
            SELECT t.cluster AS cluster, t.job AS job, t.rank AS rank,
                took / nullIf(quantileExact(0.5)(took) OVER (PARTITION BY t.cluster, t.job, p.role), 0) AS times
            FROM taken AS t
            LEFT JOIN placed AS p ON p.cluster = t.cluster AND p.job = t.job AND p.run = t.run AND p.rank = t.rank
        ) GROUP BY cluster, job HAVING count() > 1 AND isNotNull(ratio)
        """,
        values,
    )
    return {(row["cluster"], row["job"]): (int(row["slowest"]), float(row["ratio"])) for row in rows}


def step_summary(store: Store, job: str, attempt: Attempt, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Return, per step: at, ranks, median and longest step, mean of each of PARTS, tokens, loss, grad_norm."""
    parts = ", ".join(f"avg(s.{name}) AS {name}" for name in PARTS)
    return store.rows(
        f"""
        SELECT step, min(s.ts) AS at, count() AS ranks, quantile(0.5)(s.step_us) AS step_us,
            max(s.step_us) AS longest_us, max(s.compute_us) AS slowest_compute_us,
            argMax(s.rank, s.compute_us) AS slowest_rank, {parts},
            if(countIf(isNotNull(s.tokens)) > 0, sum(s.tokens), NULL) AS tokens, avg(s.loss) AS loss,
            avg(s.grad_norm) AS grad_norm
        FROM flightwatch.rank_steps AS s
        WHERE cluster = {{cluster:String}} AND job = {{job:String}} AND run = {{run:String}}
            AND step IN {{steps:Array(UInt64)}}
        GROUP BY step ORDER BY step
        """,
        {"cluster": attempt.cluster, "job": job, "run": attempt.run, "steps": list(steps)},
    )


def scalars(
    store: Store, job: str, attempt: Attempt, first_step: int, last_step: int, most: int
) -> list[dict[str, Any]]:
    """Return values of the whole job by name and step, thinned out to at most about `most` a name."""
    stride = max(1, (last_step - first_step + 1) // most)
    return store.rows(
        """
        SELECT name, step, avg(value) AS value FROM flightwatch.training_scalars
        WHERE cluster = {cluster:String} AND job = {job:String} AND run = {run:String} AND rank < 0
            AND step BETWEEN {first:UInt64} AND {last:UInt64} AND step % {stride:UInt64} = 0
        GROUP BY name, step ORDER BY name, step
        """,
        {"cluster": attempt.cluster, "job": job, "run": attempt.run, "first": first_step, "last": last_step,
         "stride": stride},
    )  # fmt: skip


def phases(store: Store, job: str) -> list[dict[str, Any]]:
    """Return the phases of all attempts of a job: run, phase, started, ended (None: still going)."""
    return store.rows(
        """
        SELECT run, toString(phase) AS phase, ifNull(started_at, ts) AS started, max(ended_at) AS ended
        FROM flightwatch.runs WHERE job = {job:String} GROUP BY run, phase, started ORDER BY started LIMIT 500
        """,
        {"job": job},
    )


def findings_of(store: Store, job: str, start_ms: int, limit: int = 100) -> list[dict[str, Any]]:
    """Return findings about a job since a time, open ones first, as their newest row says it."""
    return store.rows(
        """
        SELECT * FROM (
            SELECT id, argMax(state, (ts, src_offset)) AS state, argMax(severity, (ts, src_offset)) AS severity,
                argMax(kind, (ts, src_offset)) AS kind, argMax(tuple(class), (ts, src_offset)).1 AS class,
                argMax(node, (ts, src_offset)) AS node, argMax(tuple(device), (ts, src_offset)).1 AS device,
                argMax(tuple(rank), (ts, src_offset)).1 AS rank, argMax(summary, (ts, src_offset)) AS summary,
                argMax(blames_hardware, (ts, src_offset)) AS blames_hardware, min(detected_at) AS detected_at,
                max(ts) AS newest
            FROM flightwatch.findings
            WHERE job = {job:String} AND ts > now64(3) - INTERVAL 30 DAY GROUP BY id
        ) WHERE state != 'cleared' OR newest >= fromUnixTimestamp64Milli({start:Int64})
        ORDER BY state = 'cleared', severity = 'info', severity, detected_at DESC LIMIT {limit:UInt32}
        """,
        {"job": job, "start": start_ms, "limit": limit},
    )


def goodput(store: Store, job: str) -> dict[str, Any] | None:
    """Return productive share of a job's time over its attempts: wall_s, train_s by phase, None without phases.

    Training time is counted from the phases that ended and up to the newest step of the one that goes on, as the view
    `v_run_phases` has them: a job that was killed says no end, and does not train on. Steps that a restart repeated
    are not taken off here (the view `v_goodput` does that, at the cost of reading every step).
    """
    rows = store.rows(
        """
        SELECT min(begin_at) AS first, max(end_at) AS last,
            sumIf(dateDiff('millisecond', begin_at, end_at), phase = 'train') / 1000 AS train_s
        FROM flightwatch.v_run_phases WHERE job = {job:String} HAVING count() > 0
        """,
        {"job": job},
    )
    if not rows or rows[0]["last"] <= rows[0]["first"]:
        return None
    wall_s = (rows[0]["last"] - rows[0]["first"]) / 1000
    return {"wall_s": wall_s, "train_s": rows[0]["train_s"], "ratio": min(1.0, rows[0]["train_s"] / wall_s)}
