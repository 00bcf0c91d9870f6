"""What the unix socket offers to commands of the same user: status, guarded SQL, and the whole API as administrator."""

from __future__ import annotations

import asyncio
import getpass
import uuid
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from flightwatch import __version__
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.current import put_viewer
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.access.viewer import EVERYWHERE_ADMIN, Viewer
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.server import PREFIX, create_api
from flightwatch.dashboard.api.sql import audited
from flightwatch.dashboard.bodies import WholeBody
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store.guard import ADMIN_TABLES
from flightwatch.pipeline.store.people import People, answer_request

LARGEST_BODY_BYTES = 1_000_000
#: How often a running query looks whether somebody still waits for it.
DISCONNECT_SECONDS = 0.5


def owner() -> str:
    """Return how the audit log names whoever opens the socket."""
    return f"socket:{getpass.getuser()}"


class Owner:
    """ASGI middleware: whoever opens the socket (0600) is its owner, who may do everything."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._viewer = Viewer(owner(), getpass.getuser(), EVERYWHERE_ADMIN, "socket")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through with its viewer."""
        if scope["type"] in ("http", "websocket"):
            put_viewer(scope, self._viewer)
        await self._app(scope, receive, send)


def create_local_app(services: Services, people: People | None = None) -> FastAPI:
    """Build the application behind `<data_dir>/flightwatch.sock`.

    Parameters
    ----------
    people: runs the queries; None: over the store of `services`, each noted in the audit log.
    """
    app = FastAPI(title="Flightwatch local", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    access = services.access or AccessControl(AccessSettings(), services.control, loopback_only=True)
    app.add_middleware(Owner)
    app.add_middleware(WholeBody, largest_bytes=LARGEST_BODY_BYTES)
    app.mount(PREFIX, create_api(services, access))

    @app.get("/status")
    def status() -> dict[str, Any]:
        """What runs, lag, rows per second, last row per table, disk, coverage."""
        return dict(services.status())

    runner = people or audited(Parts(services, access), owner())

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
