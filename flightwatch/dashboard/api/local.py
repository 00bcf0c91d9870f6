"""What the unix socket offers to commands of the same user: status and guarded SQL."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from flightwatch import __version__
from flightwatch.dashboard.bodies import WholeBody
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store.guard import ADMIN_TABLES
from flightwatch.pipeline.store.people import People, answer_request

LARGEST_BODY_BYTES = 1_000_000
#: How often a running query looks whether somebody still waits for it.
DISCONNECT_SECONDS = 0.5


def create_local_app(services: Services, people: People | None = None) -> FastAPI:
    """Build the application behind `<data_dir>/flightwatch.sock`.

    Parameters
    ----------
    people: runs the queries; None: over the store of `services`.
    """
    app = FastAPI(title="Flightwatch local", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(WholeBody, largest_bytes=LARGEST_BODY_BYTES)

    @app.get("/status")
    def status() -> dict[str, Any]:
        """What runs, lag, rows per second, last row per table, disk, coverage."""
        return dict(services.status())

    runner = people or People(services.store)

    @app.post("/sql")
    async def sql(request: Request) -> Response:
        """Run one SELECT of the person who owns the socket: `{"query": ..., "format": ...}`."""
        body, query_id = await request.body(), uuid.uuid4().hex
        work = asyncio.create_task(run_in_threadpool(answer_request, runner, body, ADMIN_TABLES, query_id))
        while not (await asyncio.wait({work}, timeout=DISCONNECT_SECONDS))[0]:
            if await request.is_disconnected():  # Ctrl-C of the person who asked
                await run_in_threadpool(runner.cancel, query_id)
        answer = await work
        return Response(answer.body, answer.status, media_type=answer.content_type)

    return app
