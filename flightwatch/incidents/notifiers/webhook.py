"""Generic webhook: versioned JSON, signed.

Body: `docs/alert-webhook.schema.json`. Headers: `Idempotency-Key` (the same for every attempt of one message),
`X-Flightwatch-Timestamp` (seconds) and, with a signing secret, `X-Flightwatch-Signature`: `sha256=` and the hex digest
of HMAC-SHA256(secret, timestamp + "." + body). A receiver checks the digest and refuses old timestamps.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import Any

from flightwatch.core.clock import iso_utc
from flightwatch.incidents.contract import Alert, Delivery, Disclosure, Incident
from flightwatch.incidents.notifiers.base import HttpNotifier

VERSION = 1


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Return the value of X-Flightwatch-Signature."""
    return "sha256=" + hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


class Webhook(HttpNotifier):
    """JSON to a program of the operator's. Receivers drop repeats by Idempotency-Key."""

    service = "webhook"
    idempotent = True
    updates = True
    per_minute = 600.0

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Post the message."""
        del reference
        body = json.dumps(self._body(alert), ensure_ascii=False, separators=(",", ":")).encode()
        timestamp = int(time.time())
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "Idempotency-Key": alert.idempotency_key,
            "X-Flightwatch-Timestamp": str(timestamp),
        }
        if self.settings.signing_secret:
            headers["X-Flightwatch-Signature"] = signature(self.settings.signing_secret, timestamp, body)
        if self.settings.token:
            headers["Authorization"] = f"Bearer {self.settings.token}"
        return self.result(self.call(content=body, headers=headers))

    def _body(self, alert: Alert) -> dict[str, Any]:
        body: dict[str, Any] = {
            "version": VERSION,
            "key": alert.key,
            "reason": alert.reason.value,
            "severity": alert.severity.value,
            "cluster": alert.cluster,
            "at": iso_utc(alert.at_ms),
            "opened_at": iso_utc(alert.opened_at_ms),
            "language": alert.language,
            "title": alert.title,
            "lead": alert.lead,
            "facts": [{"label": label, "value": value} for label, value in alert.facts],
            "link": alert.link or None,
            "incident": None,
        }
        if alert.incident is not None and self.settings.disclosure != Disclosure.MINIMAL.value:
            body["incident"] = _incident(alert.incident)
        return body


def _incident(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id, "revision": incident.revision, "state": incident.state.value, "kind": incident.kind,
        "class": incident.class_, "scope": incident.scope, "node": incident.node, "device": incident.device,
        "rank": incident.rank, "job": incident.job, "run": incident.run, "tenant": incident.tenant,
        "targets": list(incident.targets), "progress": incident.progress.value, "confidence": incident.confidence,
        "blames_hardware": incident.blames_hardware, "gpus_affected": incident.gpus_affected,
        "assignee": incident.assignee, "closed_at": iso_utc(incident.closed_at_ms),
        "loss_gpu_hours_per_hour": incident.loss_gpu_hours_per_hour, "lost_gpu_hours": incident.lost_gpu_hours,
    }  # fmt: skip
