"""What the unix socket offers to commands of the same user: status and guarded SQL."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from flightwatch import __version__
from flightwatch.dashboard.services import Services


def create_local_app(services: Services) -> FastAPI:
    """Build the application behind `<data_dir>/flightwatch.sock`."""
    app = FastAPI(title="Flightwatch local", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/status")
    def status() -> dict[str, Any]:
        """What runs, lag, rows per second, last row per table, disk, coverage."""
        return dict(services.status())

    return app
