"""Prometheus Alertmanager: alerts through its API v2, so that existing routes, silences and receivers apply.

Format: `POST /api/v2/alerts` with labels, annotations, startsAt, endsAt. Alertmanager ends an alert whose endsAt has
passed, so an open one is given a week and renewed with each message.
"""

from __future__ import annotations

from typing import Any

from flightwatch.core.clock import iso_utc
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.contract import Alert, Delivery
from flightwatch.incidents.notifiers.base import HttpNotifier, is_over

_SEVERITIES = {Severity.P1: "critical", Severity.P2: "critical", Severity.P3: "warning"}
_WEEK_MS = 7 * 86_400_000


class Alertmanager(HttpNotifier):
    """One alert an incident; its labels never change, so Alertmanager knows it again."""

    service = "alertmanager"
    idempotent = True
    updates = True
    per_minute = 600.0

    def check(self) -> None:
        """Its address is needed; it holds no secret."""
        if not self.url:
            self.need("url")

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Post the alert in its present state; what names it is kept from the first message."""
        labels = reference.get("labels") or self._labels(alert)
        annotations = {"summary": alert.title, "description": alert.lead, "priority": alert.severity.value}
        annotations |= {_name(label): value for label, value in alert.facts if _name(label)}
        one = {
            "labels": labels,
            "annotations": annotations,
            "startsAt": iso_utc(alert.opened_at_ms),
            "endsAt": iso_utc(alert.at_ms if is_over(alert) else alert.at_ms + _WEEK_MS),
            **({"generatorURL": alert.link} if alert.link else {}),
        }
        headers = {"Authorization": f"Bearer {self.settings.token}"} if self.settings.token else {}
        answer = self.call(url=f"{self.url.rstrip('/')}/api/v2/alerts", json=[one], headers=headers)
        return self.result(answer, {"labels": labels})

    @staticmethod
    def _labels(alert: Alert) -> dict[str, str]:
        incident = alert.incident
        labels = {
            "alertname": f"Flightwatch_{incident.kind}" if incident else "Flightwatch",
            "severity": _SEVERITIES.get(alert.severity, "info"),
            "cluster": alert.cluster,
            "incident": alert.key,
        }
        for name in ("node", "job", "tenant"):
            value = getattr(incident, name, None)
            if value:
                labels[name] = value
        return labels


def _name(label: str) -> str:
    """Return a label as Prometheus spells names; "" when nothing is left (Chinese labels)."""
    kept = "".join(char if char.isascii() and char.isalnum() else "_" for char in label.lower()).strip("_")
    return f"_{kept}" if kept[:1].isdigit() else kept
