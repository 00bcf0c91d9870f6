"""Statements of findings as the engine takes them from the bus, and what it keeps of each finding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flightwatch.core.errors import BadRecord
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.incidents.grouping import Member, incident_id
from flightwatch.pipeline.control.engine_writes import encoded

#: Longest evidence that is kept with the incident; the store has all of it.
_LONGEST_EVIDENCE = 8_000
_LONGEST_TEXT = 2_000
_MOST_TARGETS = 256
#: How grave each word is; higher is worse.
GRAVITY = {Severity.INFO: 0, Severity.P4: 1, Severity.P3: 2, Severity.P2: 3, Severity.P1: 4}


@dataclass(slots=True)
class Statement:
    """One row of the findings table. Times in milliseconds since the epoch.

    Attributes
    ----------
    evidence: JSON text. fast: made by the engine from events, before the detection loop.
    """

    id: str
    detector: str
    detector_version: str
    kind: FindingKind
    scope: FindingScope
    cluster: str
    state: FindingState
    severity: Severity
    score: float
    summary: str
    detected_at: int
    class_: str | None = None
    node: str | None = None
    device: int | None = None
    rank: int | None = None
    hca: str | None = None
    port: int | None = None
    job: str | None = None
    run: str | None = None
    targets: tuple[str, ...] = ()
    first_seen_at: int | None = None
    threshold: float | None = None
    blames_hardware: bool = False
    confidence: float | None = None
    expected_gain: float | None = None
    evidence: str = "{}"
    fast: bool = False


@dataclass(slots=True, eq=False)
class Known(Member):
    """A finding that the engine holds: what grouping needs, and its newest statement in short.

    Attributes
    ----------
    stated_at: data time of the newest statement; raised_ms: when the engine took its last raising in.
    cleared_at: data time of its clearing, None while it is stated. stale: its newest statement came too late to act on.
    placed: incident and parent as they are stored.
    """

    severity: Severity = Severity.P4
    score: float = 0.0
    summary: str = ""
    rank: int | None = None
    run: str | None = None
    blames_hardware: bool = False
    confidence: float | None = None
    expected_gain: float | None = None
    stated_at: int = 0
    raised_ms: int = 0
    cleared_at: int | None = None
    stale: bool = False
    fast: bool = False
    placed: tuple[str | None, str | None] = (None, None)

    @property
    def active(self) -> bool:
        """Say whether it is stated now."""
        return self.cleared_at is None


def statement_of(values: Mapping[str, Any]) -> Statement:
    """Read a row of the findings table.

    Raises
    ------
    BadRecord: an id, time or word is missing or unknown.
    """
    try:
        text = {name: _text(values.get(name)) for name in ("class", "node", "hca", "job", "run")}
        number = {name: _integer(values.get(name)) for name in ("device", "rank", "port", "first_seen_at")}
        detected_at = _integer(values.get("detected_at"))
        if detected_at is None or not values.get("id"):
            raise BadRecord("a finding without id or time")
        return Statement(
            id=str(values["id"]), detector=str(values.get("detector") or ""),
            detector_version=str(values.get("detector_version") or ""), kind=FindingKind(values["kind"]),
            scope=FindingScope(values["scope"]), cluster=str(values.get("cluster") or ""),
            state=FindingState(values["state"]), severity=Severity(values["severity"]),
            score=float(values.get("score") or 0.0), summary=str(values.get("summary") or "")[:_LONGEST_TEXT],
            detected_at=detected_at, class_=text["class"], node=text["node"], hca=text["hca"], job=text["job"],
            run=text["run"], device=number["device"], rank=number["rank"], port=number["port"],
            first_seen_at=number["first_seen_at"],
            targets=tuple(str(one) for one in (values.get("targets") or ())[:_MOST_TARGETS]),
            threshold=_float(values.get("threshold")), blames_hardware=bool(values.get("blames_hardware")),
            confidence=_float(values.get("confidence")), expected_gain=_float(values.get("expected_gain")),
            evidence=_evidence(values.get("evidence")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise BadRecord(f"a finding that cannot be read: {error}") from error


def statement_of_finding(finding: Finding, cluster: str, at_ms: int, *, fast: bool = False) -> Statement:
    """Return a detector's finding as a statement; `cluster` and `at_ms` where it names none."""
    row = finding.to_row()
    row["cluster"] = row["cluster"] or cluster
    row["detected_at"] = at_ms if row["detected_at"] is None else row["detected_at"]
    made = statement_of(row)
    made.fast = fast
    return made


def known_of(one: Statement, now_ms: int, stale: bool) -> Known:
    """Return what is kept of a finding that is new."""
    known = Known(
        one.id, one.kind, one.class_, one.scope, one.cluster, one.node, one.device, one.hca, one.job, one.targets,
        one.first_seen_at, one.detected_at, one.severity is not Severity.INFO,
    )  # fmt: skip
    restate(known, one, now_ms, stale)
    return known


def restate(known: Known, one: Statement, now_ms: int, stale: bool) -> None:
    """Take the newest statement of a finding over."""
    if one.state is FindingState.CLEARED:
        known.cleared_at = one.detected_at
    else:
        if known.cleared_at is not None or not known.raised_ms:
            known.raised_ms = now_ms
        known.cleared_at, known.stale = None, stale
        known.severity, known.score, known.class_ = one.severity, one.score, one.class_
        known.summary, known.blames_hardware = one.summary, one.blames_hardware
        known.confidence, known.expected_gain = one.confidence, one.expected_gain
        known.rank, known.run, known.targets = one.rank, one.run, one.targets
        known.fast = one.fast
    known.stated_at = max(known.stated_at, one.detected_at)


def ending_of(known: Known, now_ms: int) -> Statement:
    """Return the statement that a finding is over."""
    return Statement(
        id=known.id, detector="engine", detector_version="1", kind=known.kind, scope=known.scope, cluster=known.cluster,
        state=FindingState.CLEARED, severity=known.severity, score=known.score, summary=known.summary,
        detected_at=max(now_ms, known.stated_at), class_=known.class_, node=known.node, device=known.device,
        rank=known.rank, hca=known.hca, job=known.job, run=known.run, targets=known.targets,
        first_seen_at=known.first_seen_at, blames_hardware=known.blames_hardware, confidence=known.confidence,
        expected_gain=known.expected_gain,
    )  # fmt: skip


def row_of(one: Statement, known: Known, why: str) -> dict[str, Any]:
    """Return the row of `incident_findings` of a statement just taken over; `incident` is set when it is known."""
    return {
        "finding": one.id, "incident": known.incident or "", "opens": incident_id(known.cluster, known.id),
        "detector": one.detector, "detector_version": one.detector_version, "kind": one.kind.value,
        "class_": one.class_, "scope": one.scope.value, "cluster": one.cluster, "node": one.node,
        "device": one.device, "rank": one.rank, "hca": one.hca, "port": one.port, "job": one.job, "run": one.run,
        "targets": encoded(list(one.targets)), "state": one.state.value, "severity": known.severity.value,
        "score": one.score, "threshold": one.threshold, "blames_hardware": known.blames_hardware,
        "confidence": one.confidence, "expected_gain": one.expected_gain, "summary": known.summary or one.summary,
        "evidence": one.evidence, "first_seen_at_ms": one.first_seen_at, "detected_at_ms": known.detected_at,
        "stated_at_ms": known.stated_at, "cleared_at_ms": known.cleared_at,
        "parent": None if known.parent is None else known.parent.id, "why": why, "pin": known.pin,
        "fast": known.fast,
    }  # fmt: skip


def known_of_row(row: Mapping[str, Any], stale_before_ms: int) -> Known:
    """Return what the engine held of a stored finding before it started anew."""
    targets = tuple(json.loads(row["targets"]))
    severity = Severity(row["severity"])
    return Known(
        row["finding"], FindingKind(row["kind"]), row["class_"], FindingScope(row["scope"]), row["cluster"],
        row["node"], row["device"], row["hca"], row["job"], targets, row["first_seen_at_ms"], row["detected_at_ms"],
        severity is not Severity.INFO, incident=row["incident"], pin=row["pin"], severity=severity, score=row["score"],
        summary=row["summary"], rank=row["rank"], run=row["run"], blames_hardware=row["blames_hardware"],
        confidence=row["confidence"], expected_gain=row["expected_gain"], stated_at=row["stated_at_ms"],
        raised_ms=row["stated_at_ms"], cleared_at=row["cleared_at_ms"], stale=row["stated_at_ms"] < stale_before_ms,
        fast=row["fast"],
    )  # fmt: skip


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _evidence(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value or {})
    return text if 2 <= len(text) <= _LONGEST_EVIDENCE and text.startswith("{") else "{}"
