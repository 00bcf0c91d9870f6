"""What runs and how far it is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes, check_tenant
from flightwatch.pipeline.control.roles import Role


class IngestStatus(BaseModel):
    """How far ingest is; null: unknown."""

    rows_per_second: float | None
    lag_seconds: float | None
    retention_share: float | None
    newest_row_age_seconds: float | None
    partitions: list[dict[str, Any]]
    tables: list[dict[str, Any]]
    coverage: dict[str, Any]
    data_gaps_24h: int | None
    holes_of_unknown_size_24h: int | None
    dead_letters_24h: int | None
    notices: list[str]


def routes(parts: Parts) -> Routes:
    """Build the routes `/status` and `/ingest`."""
    api = Routes("status")

    @api.get("/status", Role.VIEWER, response_model=dict[str, Any])
    def get_status(viewer: Asker) -> dict[str, Any]:
        """Say what runs, lag, rows per second, newest row per table, disk, coverage."""
        check_tenant(viewer, Role.VIEWER, None)
        return dict(parts.services.status())

    @api.get("/ingest", Role.VIEWER, response_model=IngestStatus)
    def get_ingest(viewer: Asker) -> dict[str, Any]:
        """Say how far ingest is."""
        check_tenant(viewer, Role.VIEWER, None)
        status = parts.services.status()
        return {name: status.get(name) for name in IngestStatus.model_fields}

    return api
