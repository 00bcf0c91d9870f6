"""Whom `flightwatch profile start --suspects` records: the ranks of open slow findings and two role peers each."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from flightwatch.cli.sql import ask
from flightwatch.core.errors import Refused
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.pipeline.detection.escalation import Pairing, pairing

#: A finding that was not heard of for a day is not open any more.
_FINDINGS = (
    "SELECT id, argMax(detector, ts) AS said_by, argMax(scope, ts) AS on_scope, argMax(node, ts) AS on_node,"
    " argMax(rank, ts) AS on_rank, argMax(run, ts) AS in_run, argMax(targets, ts) AS named, argMax(score, ts) AS worst,"
    " argMax(summary, ts) AS words FROM flightwatch.findings"
    " WHERE job = @job AND kind = 'slow' AND ts > now() - INTERVAL 1 DAY"
    " GROUP BY id HAVING argMax(state, ts) != 'cleared' ORDER BY worst DESC LIMIT 20"
)
_PLACEMENTS = (
    "SELECT toUnixTimestamp64Milli(ts) AS at_ms, node, job, run, rank, device, tp, cp, pp, vpp, dp, dp_replicate,"
    " dp_shard, ep, etp, module FROM flightwatch.placements WHERE job = @job"
)
_RANKS = (
    "SELECT toUnixTimestamp64Milli(max(ts)) AS at_ms, max(step) AS newest, any(node) AS on_node,"
    " any(device) AS on_device, job, run, rank FROM flightwatch.rank_steps"
    " WHERE job = @job AND ts > now() - INTERVAL 1 HOUR GROUP BY job, run, rank"
)
#: Names that the queries cannot use, because they would hide the columns they are made of.
_NAMES = {"at_ms": "ts", "newest": "step", "on_node": "node", "on_device": "device"}


def suspects_of(settings: Loaded, job: str, most_ranks: int) -> tuple[list[int], str]:
    """Return the ranks to record, suspects and peers, and why.

    Whole pairings are taken, the worst finding first, as long as they fit `most_ranks`.

    Raises
    ------
    Refused: no slow finding of the job is open, or none of them names ranks that run.
    """
    found = [_finding(row, job) for row in _rows(settings, _FINDINGS, job)]
    if not found:
        raise Refused(f"no slow finding of job {job} is open: name the ranks with --ranks or --role")
    frames = {
        name: pd.DataFrame(_rows(settings, query, job)).rename(columns=_NAMES)
        for name, query in (("placements", _PLACEMENTS), ("rank_steps", _RANKS))
    }
    chosen: list[int] = []
    reasons: list[str] = []
    for finding in found:
        pair = pairing(finding, frames)
        if pair is None:
            continue
        more = _new(pair, chosen)
        if len(chosen) + len(more) <= most_ranks:
            chosen += more
            reasons.append(finding.summary)
    if not chosen:
        raise Refused(f"the slow findings of job {job} name no rank that made steps in the last hour")
    return sorted(chosen), " ".join(reasons)


def _new(pair: Pairing, chosen: list[int]) -> list[int]:
    return [rank for rank in pair.ranks if rank not in chosen]


def _rows(settings: Loaded, query: str, job: str) -> list[dict[str, Any]]:
    quoted = job.replace("\\", "\\\\").replace("'", "\\'")
    # The name is quoted, and the query passes the guard as any other.
    answer = ask(query.replace("@job", f"'{quoted}'"), "json", settings)
    return [json.loads(line) for line in answer.splitlines() if line.strip()]


def _finding(row: dict[str, Any], job: str) -> Finding:
    rank = row["on_rank"]
    return Finding(
        detector=str(row["said_by"]),
        detector_version="",
        kind=FindingKind.SLOW,
        scope=FindingScope(row["on_scope"]),
        summary=str(row["words"]),
        score=float(row["worst"]),
        severity=Severity.P3,
        detected_at=None,
        node=row["on_node"] or None,
        job=job,
        run=row["in_run"] or None,
        rank=int(rank) if rank is not None else None,
        targets=tuple(row["named"]),
        id=str(row["id"]),
    )
