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
from flightwatch.dashboard import flames, perfetto
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.gate import Gate
from flightwatch.dashboard.access.login import login_router
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.api.health import router
from flightwatch.dashboard.api.server import PREFIX, create_api
from flightwatch.dashboard.bodies import WholeBody
from flightwatch.dashboard.callbacks import refuse_malformed
from flightwatch.dashboard.i18n import words_for_scripts
from flightwatch.dashboard.pages import shell
from flightwatch.dashboard.pages.registry import PAGES
from flightwatch.dashboard.services import Services
from flightwatch.dashboard.serving import PathPrefix, StaticFiles, checked_prefix

#: The browser refuses to let any page call or load from another host. Dash and the grid build functions from text.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
    "frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
)
#: What a page sends back with an action: its inputs, never files.
LARGEST_BODY_BYTES = 8_000_000
#: Callbacks that run at once; more wait their turn.
THREADS = 16
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


def create_app(services: Services, *, loopback_only: bool, base_path: str = "") -> FastAPI:
    """Build the application.

    Parameters
    ----------
    services: handles of the process that serves it.
    loopback_only: refuse requests whose Host header names another machine (DNS rebinding).
    base_path: path below which a proxy offers the console (`/flightwatch`), whether or not it takes the path off.

    Raises
    ------
    ConfigError: `base_path` is no path.
    """
    prefix = checked_prefix(base_path)
    app = FastAPI(title="Flightwatch", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    access = services.access or AccessControl(AccessSettings(), services.control, loopback_only=loopback_only)
    app.include_router(router(services))
    app.add_middleware(StaticFiles)
    app.include_router(login_router(access, services.outgoing, prefix))
    app.add_middleware(Gate, access=access, prefix=prefix)

    @app.middleware("http")
    async def protect(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        tools = request.scope.get("path", "").startswith(f"{prefix}{perfetto.PREFIX}/")
        response.headers["Content-Security-Policy"] = (
            perfetto.CONTENT_SECURITY_POLICY if tools else CONTENT_SECURITY_POLICY
        )
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "same-origin"
        return response

    # The highest level takes twice the time of this one and saves a few percent.
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=4)
    if loopback_only:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK_NAMES, "[::1]"])
    app.add_middleware(WholeBody, largest_bytes=LARGEST_BODY_BYTES)
    if prefix:
        app.add_middleware(PathPrefix, prefix=prefix)

    app.mount(PREFIX, create_api(services, access))

    @app.api_route("/api/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    def no_such_route(path: str) -> JSONResponse:
        error = {"code": "not_found", "message": f"there is no /api/{path[:200]}", "where": None}
        return JSONResponse({"error": error}, status_code=404)

    app.include_router(perfetto.router(services))
    app.include_router(flames.router(services))
    files = perfetto.static_files()
    if files is not None:
        app.mount(perfetto.PREFIX, files)
    app.mount("/", WSGIMiddleware(_pages(services, prefix).server, workers=THREADS))
    return app


class _Console(Dash):  # type: ignore[misc]
    """Dash with the console's document around it, in the language and theme of whoever asks."""

    prefix = ""

    def interpolate_index(self, **parts: str) -> str:
        """Return the document."""
        return shell.index_page(
            self.prefix, words_for_scripts(), parts["metas"], parts["css"], parts["config"], parts["scripts"],
            parts["renderer"], parts["favicon"],
        )  # fmt: skip


def _pages(services: Services, prefix: str) -> Dash:
    dash = _Console(
        "flightwatch.dashboard",
        title="Flightwatch",
        update_title=None,
        serve_locally=True,
        pages_folder="",
        use_pages=False,
        # Pages come one at a time: the parts of the others are not there.
        suppress_callback_exceptions=True,
        requests_pathname_prefix=f"{prefix}/",
        routes_pathname_prefix="/",
        # The large editor is fetched by the page that needs it.
        assets_ignore=r"codemirror\.bundle\.js",
    )
    dash.prefix = prefix
    dash.layout = shell.layout
    shell.register(dash, services, PAGES)
    for page in PAGES:
        page.register(dash, services)
    refuse_malformed(dash)
    return dash
