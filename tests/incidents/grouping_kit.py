"""Findings and places for tests of incidents."""

from __future__ import annotations

from typing import Any

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.joint import Places
from flightwatch.incidents.grouping import Grouping, Member

T0 = 1_764_400_200_000
MINUTE = 60_000


def finding(
    kind: FindingKind, node: str | None = None, device: int | None = None, at_ms: int = T0, **values: Any
) -> Finding:
    """Return a finding about a node, a device, or whatever `values` say."""
    scope = FindingScope.JOB if node is None else FindingScope.NODE if device is None else FindingScope.DEVICE
    place = node if device is None else f"{node} device {device}"
    base: dict[str, Any] = {
        "detector": kind.value, "detector_version": "1", "kind": kind, "scope": scope, "score": 5.0,
        "summary": f"{place}: {kind.value}.", "severity": Severity.P3, "detected_at": at_ms, "first_seen_at": at_ms,
        "cluster": "lab", "node": node, "device": device, "targets": (place,) if place else (),
    }  # fmt: skip
    return Finding(**(base | values))


def member(one: Finding) -> Member:
    """Return a finding as grouping holds it."""
    return Member(
        one.id, one.kind, one.class_, one.scope, one.cluster or "", one.node, one.device, one.hca, one.job,
        tuple(one.targets), one.first_seen_at, one.detected_at or 0, one.severity is not Severity.INFO,
    )  # fmt: skip


def racks(nodes: int = 64, size: int = 8, job_nodes: int = 32) -> Places:
    """Return places: nodes n0.. in racks and zones; the job `llm` uses the first ones."""
    names = [f"n{number}" for number in range(nodes)]
    rack = {name: f"r{number // size}" for number, name in enumerate(names)}
    zone = {name: f"z{number // (2 * size)}" for number, name in enumerate(names)}
    return Places({"rack": rack, "cooling_zone": zone}, {"llm": names[:job_nodes]})


def groups_of(findings: list[Finding], places: Places | None = None) -> dict[str, frozenset[str]]:
    """Return incident id to the findings in it, after taking findings in one by one."""
    grouping = Grouping(places or racks())
    for one in findings:
        grouping.add(member(one))
    grouping.changed()
    return {group.incident_id: frozenset(group.members) for group in grouping.groups()}
