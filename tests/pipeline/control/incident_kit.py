"""Incidents and findings as the engine writes them, for tests of what people do with them."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.schema_incidents import INCIDENT_FINDINGS, INCIDENTS


def incident_row(id_: str, at_ms: int, **values: Any) -> dict[str, Any]:
    """Return a row of `incidents` with one finding; `values` replace columns."""
    row: dict[str, Any] = dict.fromkeys(INCIDENTS.c.keys())
    row |= {
        "id": id_, "revision": 1, "cluster": "lab", "state": "open", "severity": "P2", "kind": "slow",
        "class_": "compute", "scope": "device", "title": f"n1 device 0 is slow ({id_})", "summary": "It is slow.",
        "node": "n1", "device": 0, "job": "llm", "tenant": "red", "targets": json.dumps(["n1 device 0"]),
        "opened_at_ms": at_ms, "updated_at_ms": at_ms, "evidence_at_ms": at_ms, "root_finding": f"f-{id_}",
        "blames_hardware": True, "progress": "slowed", "reopened": 0, "stale": False, "findings_count": 1,
        "thread": id_, "peak_severity": "P2",
    }  # fmt: skip
    return row | values


def finding_row(finding: str, incident: str, at_ms: int, **values: Any) -> dict[str, Any]:
    """Return a row of `incident_findings`."""
    row: dict[str, Any] = dict.fromkeys(INCIDENT_FINDINGS.c.keys())
    row |= {
        "finding": finding, "incident": incident, "opens": f"i-{finding}", "detector": "slow", "detector_version": "1",
        "kind": "slow", "class_": "compute", "scope": "device", "cluster": "lab", "node": "n1", "device": 0,
        "targets": json.dumps(["n1 device 0"]), "state": "raised", "severity": "P2", "score": 7.0,
        "blames_hardware": True, "summary": "It is slow.", "evidence": json.dumps({"peers": 7}),
        "detected_at_ms": at_ms, "stated_at_ms": at_ms, "why": "", "fast": False,
    }  # fmt: skip
    return row | values


def add_incident(control: Control, id_: str, at_ms: int, **values: Any) -> None:
    """Store an incident with its root finding."""
    with control.transaction() as connection:
        connection.execute(sa.insert(INCIDENTS).values(incident_row(id_, at_ms, **values)))
        connection.execute(sa.insert(INCIDENT_FINDINGS).values(finding_row(f"f-{id_}", id_, at_ms)))
