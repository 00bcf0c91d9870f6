"""What the unix socket offers to commands of the same user: status and guarded SQL."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from flightwatch import __version__
from flightwatch.dashboard.bodies import WholeBody
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store.guard import ADMIN_TABLES
from flightwatch.pipeline.store.people import People, answer_request

LARGEST_BODY_BYTES = 1_000_000


def create_local_app(services: Services) -> FastAPI:
    """Build the application behind `<data_dir>/flightwatch.sock`."""
    app = FastAPI(title="Flightwatch local", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(WholeBody, largest_bytes=LARGEST_BODY_BYTES)

    @app.get("/status")
    def status() -> dict[str, Any]:
        """What runs, lag, rows per second, last row per table, disk, coverage."""
        return dict(services.status())

    people = People(services.store)

    @app.post("/sql")
    async def sql(request: Request) -> Response:
        """Run one SELECT of the person who owns the socket: `{"query": ..., "format": ...}`."""
        body = await request.body()
        answer = await run_in_threadpool(answer_request, people, body, ADMIN_TABLES)
        return Response(answer.body, answer.status, media_type=answer.content_type)

    return app
