"""PagerDuty: Events API v2.

Format: `POST /v2/enqueue`; dedup_key takes 255 characters, payload.summary 1,024, a request 512 KB; answers 202. The
service drops repeats of one dedup_key into the same alert, and wakes people by its own escalation.
"""

from __future__ import annotations

from typing import Any

from flightwatch.core.clock import iso_utc
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.contract import Alert, AlertReason, Delivery
from flightwatch.incidents.notifiers.base import HttpNotifier, cut, is_over

_SEVERITIES = {Severity.P1: "critical", Severity.P2: "error", Severity.P3: "warning"}


class PagerDuty(HttpNotifier):
    """An event of an integration; trigger, acknowledge and resolve by one key."""

    service = "pagerduty"
    default_url = "https://events.pagerduty.com/v2/enqueue"
    idempotent = True
    updates = True
    pages = True
    per_minute = 120.0

    def check(self) -> None:
        """The integration's routing key is needed."""
        self.need("token")

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Trigger, acknowledge or resolve."""
        del reference
        action = "trigger"
        if is_over(alert):
            action = "resolve"
        elif alert.reason is AlertReason.ACKNOWLEDGED:
            action = "acknowledge"
        body: dict[str, Any] = {
            "routing_key": self.settings.token, "event_action": action, "dedup_key": cut(alert.key, 255),
        }  # fmt: skip
        if action == "trigger":
            body |= self._event(alert)
        return self.result(self.call(json=body), {"dedup_key": alert.key})

    @staticmethod
    def _event(alert: Alert) -> dict[str, Any]:
        incident = alert.incident
        payload: dict[str, Any] = {
            "summary": cut(alert.title, 1024),
            "source": (incident.node or incident.job if incident else None) or alert.cluster,
            "severity": _SEVERITIES.get(alert.severity, "info"),
            "timestamp": iso_utc(alert.at_ms),
            "group": alert.cluster,
            "custom_details": {"lead": alert.lead} | dict(alert.facts),
        }
        if incident is not None:
            payload["class"] = incident.kind
            if incident.job:
                payload["component"] = incident.job
        event: dict[str, Any] = {"payload": payload, "client": "Flightwatch"}
        if alert.link:
            event |= {"client_url": alert.link, "links": [{"href": alert.link, "text": "Incident"}]}
        return event
