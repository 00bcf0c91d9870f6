"""Opsgenie and Jira Service Management: Alert API.

Format: `POST /v2/alerts` (message 130 characters, alias 512, description 15,000, 20 tags of 50), close, acknowledge
and notes by alias; answers 202. For Jira Service Management set `url` to https://api.atlassian.com/jsm/ops/integration
(Opsgenie itself ends in April 2027); for Europe to https://api.eu.opsgenie.com.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from flightwatch.incidents.contract import Alert, AlertReason, Delivery
from flightwatch.incidents.notifiers.base import HttpNotifier, cut, is_over
from flightwatch.incidents.outgoing import Answer


class Opsgenie(HttpNotifier):
    """An alert by alias; repeats of one alias count up the same alert."""

    service = "opsgenie"
    default_url = "https://api.opsgenie.com"
    idempotent = True
    updates = True
    pages = True
    per_minute = 100.0

    def check(self) -> None:
        """An integration's API key is needed."""
        self.need("token")

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Create, note, acknowledge or close."""
        reference = {"alias": cut(alert.key, 512)}
        by_alias = f"{quote(cut(alert.key, 512), safe='')}/{{}}?identifierType=alias"
        note = {"user": "Flightwatch", "source": "Flightwatch", "note": cut(alert.lead, 15_000)}
        if is_over(alert):
            return self.result(self._api(by_alias.format("close"), note), reference)
        if alert.reason is AlertReason.ACKNOWLEDGED:
            return self.result(self._api(by_alias.format("acknowledge"), note), reference)
        if alert.reason is AlertReason.CHANGED:
            return self.result(self._api(by_alias.format("notes"), note), reference)
        return self.result(self._api("", self._alert(alert)), reference)

    def _api(self, path: str, body: dict[str, Any]) -> Answer:
        url = f"{self.url.rstrip('/')}/v2/alerts{'/' if path else ''}{path}"
        return self.call(url=url, json=body, headers={"Authorization": f"GenieKey {self.settings.token}"})

    def _alert(self, alert: Alert) -> dict[str, Any]:
        incident = alert.incident
        tags = ["flightwatch", alert.severity.value] + ([incident.kind] if incident else [])
        details = {label: cut(value, 1000) for label, value in alert.facts}
        if alert.link:
            details["link"] = alert.link
        entity = (incident.node or incident.job if incident else None) or alert.cluster
        return {
            "message": cut(alert.title, 130),
            "alias": cut(alert.key, 512),
            "description": cut(alert.lead, 15_000),
            "priority": alert.severity.value if alert.severity.value.startswith("P") else "P5",
            "source": cut(f"Flightwatch {alert.cluster}", 100),
            "entity": cut(entity, 512),
            "tags": [cut(tag, 50) for tag in tags],
            "details": details,
        } | ({"responders": [_responder(text) for text in self.settings.to]} if self.settings.to else {})


def _responder(text: str) -> dict[str, str]:
    """Read team:NAME, schedule:NAME, escalation:NAME or user:MAIL; a bare name is a team."""
    kind, _, name = text.partition(":") if ":" in text else ("team", "", text)
    return {"type": kind, "username" if kind == "user" else "name": name}
