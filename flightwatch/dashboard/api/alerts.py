"""Alerts of Prometheus Alertmanager on their way in: they become findings and join the incident of the same cause."""

from __future__ import annotations

import threading
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from flightwatch.core.errors import BadRecord, TransientError
from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes, check_tenant
from flightwatch.incidents.alertmanager_in import MOST_ALERTS, findings_of
from flightwatch.pipeline.control.roles import Role


class AlertmanagerRequest(BaseModel):
    """What Alertmanager's `webhook_config` sends (version 4); fields not named here are passed on."""

    model_config = ConfigDict(extra="allow")

    version: str = Field("4", max_length=20)
    alerts: list[dict[str, Any]] = Field(max_length=MOST_ALERTS)


class Taken(BaseModel):
    """How many findings the alerts became."""

    findings: int


def routes(parts: Parts) -> Routes:
    """Build the route `/alerts/alertmanager`."""
    api = Routes("alerts")
    one_at_a_time = threading.Lock()

    @api.post("/alerts/alertmanager", Role.OPERATOR, "alerts", status_code=202, response_model=Taken)
    def take_alerts(viewer: Asker, request: AlertmanagerRequest) -> dict[str, Any]:
        """Take alerts. In Alertmanager: `webhook_configs` with a token of the scope `alerts` as its credentials."""
        check_tenant(viewer, Role.OPERATOR, None)
        publish = parts.services.publish_findings
        if publish is None:
            raise TransientError("this process has no bus")
        try:
            found = findings_of(request.model_dump(), parts.cluster, parts.clock.now_ms())
        except BadRecord as error:
            raise Denied(422, "invalid", str(error), "body.alerts") from error
        with one_at_a_time:  # batches are numbered
            publish(found)
        parts.done(viewer, "alerts.take", "alertmanager", f"{len(found)} alerts")
        return {"findings": len(found)}

    return api
