"""Alerts of Prometheus Alertmanager as findings, so that what other rules see joins the incident of the same cause.

Format: Alertmanager's webhook, version 4. Labels name the place (`node` or the host of `instance`, `gpu` or `device`,
`job_name`, `rack`); `severity` decides how urgent it is; `flightwatch_kind`, where a rule sets it, says what is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from flightwatch.core.clock import parse_iso_utc
from flightwatch.core.errors import BadRecord
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding

DETECTOR, VERSION = "alertmanager", "1"
#: Most alerts of one request, characters of a text, labels kept as evidence.
MOST_ALERTS, _LONGEST, _MOST_LABELS = 2000, 500, 64
_SEVERITIES = {
    "critical": Severity.P2, "page": Severity.P2, "emergency": Severity.P2, "error": Severity.P3, "high": Severity.P3,
    "major": Severity.P3, "warning": Severity.P3, "warn": Severity.P3, "p1": Severity.P1, "p2": Severity.P2,
    "p3": Severity.P3, "p4": Severity.P4, "none": Severity.INFO, "info": Severity.INFO,
}  # fmt: skip
_NO_SUCH_TIME = "0001-01-01"


def findings_of(body: Any, cluster: str, now_ms: int) -> list[Finding]:
    """Return the findings of one request.

    Parameters
    ----------
    body: the parsed JSON. cluster: name where the alerts carry no label `cluster`.

    Raises
    ------
    BadRecord: it is no request of Alertmanager's, or too large; the alerts that can be read are lost with it.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("alerts"), list):
        raise BadRecord("not a request of Alertmanager: no list `alerts`")
    if str(body.get("version", "4")) != "4":
        raise BadRecord(f"version {str(body.get('version'))[:20]} of Alertmanager's webhook is not known; 4 is")
    if len(body["alerts"]) > MOST_ALERTS:
        raise BadRecord(f"more than {MOST_ALERTS} alerts in one request")
    return [_finding(one, f"alert {number}", cluster, now_ms) for number, one in enumerate(body["alerts"], 1)]


def _finding(alert: Any, where: str, cluster: str, now_ms: int) -> Finding:
    if not isinstance(alert, Mapping):
        raise BadRecord("not an object", where)
    labels, annotations = _texts(alert.get("labels"), where), _texts(alert.get("annotations"), where)
    name = labels.get("alertname")
    if not name:
        raise BadRecord("no label alertname", where)
    node, device = _node(labels), _index(labels)
    scope = FindingScope.DEVICE if device is not None else FindingScope.NODE if node else FindingScope.FACILITY
    if not node and labels.get("rack"):
        scope = FindingScope.RACK
    over = alert.get("status") == "resolved"
    started = _time(alert.get("startsAt"), where) or now_ms
    target = node or labels.get("rack") or name
    summary = annotations.get("summary") or annotations.get("description") or name
    return Finding(
        detector=DETECTOR, detector_version=VERSION, kind=_kind(labels), scope=scope,
        summary=f"{name}: {summary}" if name not in summary else summary, score=1.0, threshold=1.0,
        severity=_SEVERITIES.get(labels.get("severity", "").lower(), Severity.P4),
        detected_at=(_time(alert.get("endsAt"), where) or now_ms) if over else now_ms, first_seen_at=started,
        cluster=labels.get("cluster") or cluster, node=node, device=device, job=labels.get("job_name"),
        targets=(target if device is None else f"{target} device {device}",),
        state=FindingState.CLEARED if over else FindingState.RAISED, aspect=name,
        evidence={"labels": labels, "generator": str(alert.get("generatorURL", ""))[:_LONGEST]},
        id=_id(alert, labels),
    )  # fmt: skip


def _id(alert: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """Return the same id for the same alert from firing to resolved, whatever the day."""
    fingerprint = str(alert.get("fingerprint") or sorted(labels.items()))
    return hashlib.sha256(f"{DETECTOR}|{fingerprint}|{alert.get('startsAt')}".encode()).hexdigest()[:20]


def _texts(values: Any, where: str) -> dict[str, str]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise BadRecord("labels or annotations are no object", where)
    return {str(key)[:_LONGEST]: str(value)[:_LONGEST] for key, value in list(values.items())[:_MOST_LABELS]}


def _kind(labels: Mapping[str, str]) -> FindingKind:
    try:
        return FindingKind(labels.get("flightwatch_kind", ""))
    except ValueError:
        return FindingKind.ANOMALY


def _node(labels: Mapping[str, str]) -> str | None:
    for name in ("node", "hostname", "Hostname", "nodename"):
        if labels.get(name):
            return labels[name]
    instance = labels.get("instance", "")
    host, _, port = instance.rpartition(":")
    return (host if host and port.isdigit() else instance).strip("[]") or None


def _index(labels: Mapping[str, str]) -> int | None:
    text = labels.get("gpu") or labels.get("device") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else None


def _time(value: Any, where: str) -> int | None:
    if not value or str(value).startswith(_NO_SUCH_TIME):
        return None
    try:
        return parse_iso_utc(str(value))
    except (ValueError, OverflowError) as error:
        raise BadRecord(f"not a time: {str(value)[:40]!r}", where) from error
