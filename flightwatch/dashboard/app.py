"""The ASGI application: FastAPI at the root, Dash pages mounted through a2wsgi.

Dash callbacks run in a2wsgi's threads; Dash's own FastAPI backend would run them on the event loop,
where one slow query stops every page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

# Plotly looks into pandas wherever it finds it loaded, and pyarrow loads it at its first table: while ingest's thread
# is in the middle of that, a page fails. So it is loaded before any thread starts.
import pandas  # noqa: F401
from a2wsgi import WSGIMiddleware
from dash import Dash
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from flightwatch import __version__
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.gate import Gate
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.api.health import router
from flightwatch.dashboard.api.server import PREFIX, create_api
from flightwatch.dashboard.bodies import WholeBody
from flightwatch.dashboard.pages import machine
from flightwatch.dashboard.services import Services

#: The browser refuses to let any page call or load from another host. Dash and the grid build functions from text.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
)
#: What a page sends back with an action: its inputs, never files.
LARGEST_BODY_BYTES = 8_000_000
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


def create_app(services: Services, *, loopback_only: bool) -> FastAPI:
    """Build the application.

    Parameters
    ----------
    services: handles of the process that serves it.
    loopback_only: refuse requests whose Host header names another machine (DNS rebinding).
    """
    app = FastAPI(title="Flightwatch", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    access = services.access or AccessControl(AccessSettings(), services.control, loopback_only=loopback_only)
    app.include_router(router(services))
    app.add_middleware(Gate, access=access)

    @app.middleware("http")
    async def protect(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"
        return response

    app.add_middleware(GZipMiddleware, minimum_size=1024)
    if loopback_only:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK_NAMES, "[::1]"])
    app.add_middleware(WholeBody, largest_bytes=LARGEST_BODY_BYTES)

    app.mount(PREFIX, create_api(services, access))

    @app.api_route("/api/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    def no_such_route(path: str) -> JSONResponse:
        error = {"code": "not_found", "message": f"there is no /api/{path[:200]}", "where": None}
        return JSONResponse({"error": error}, status_code=404)

    app.mount("/", WSGIMiddleware(_pages(services).server, workers=8))
    return app


def _pages(services: Services) -> Dash:
    dash = Dash(
        "flightwatch.dashboard",
        title="Flightwatch",
        update_title=None,
        serve_locally=True,
        pages_folder="",
        use_pages=False,
        suppress_callback_exceptions=False,
    )
    dash.layout = machine.layout
    machine.register(dash, services)
    return dash
