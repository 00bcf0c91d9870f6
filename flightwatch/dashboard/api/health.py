"""Liveness, readiness and OpenMetrics of this process."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from flightwatch.core.errors import FlightwatchError
from flightwatch.core.vocabulary import Severity
from flightwatch.dashboard.api.openmetrics import exposition
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.control.incidents import IncidentRecords


def router(services: Services) -> APIRouter:
    """Build the routes `/healthz`, `/readyz`, `/metrics`."""
    routes = APIRouter()

    @routes.get("/healthz")
    def healthz() -> dict[str, str]:
        """Answer when the process lives."""
        return {"status": "ok"}

    @routes.get("/readyz")
    def readyz() -> JSONResponse:
        """Answer 200 when pages can be served, else 503 with the reason."""
        missing = services.ready()
        if missing is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": missing}, status_code=503)

    @routes.get("/metrics")
    def metrics() -> Response:
        """Figures of this instance for a Prometheus-style scraper."""
        refused = services.access.refusals() if services.access else {}
        body, content_type = exposition(services.status(), _open_incidents(services), refused)
        return Response(body, media_type=content_type)

    return routes


def _open_incidents(services: Services) -> dict[str, int] | None:
    """Return open incidents by severity, None where they cannot be counted now."""
    if services.control is None:
        return None
    try:
        counts = IncidentRecords(services.control).counts()
    except FlightwatchError:
        return None
    return {severity.value: counts.get(severity.value, 0) for severity in Severity}
