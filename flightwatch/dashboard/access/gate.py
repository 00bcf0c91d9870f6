"""The one gate: every request for the API, the pages, the websocket and the tools passes it, or goes no further.

It finds out who asks, refuses other sites and missing CSRF tokens, counts, writes refusals to the audit log, and
puts a `Viewer` into the request. What a viewer may do is decided by the routes (`access.needs`).
"""

from __future__ import annotations

import secrets
from http.cookies import SimpleCookie
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flightwatch.core.errors import FlightwatchError
from flightwatch.dashboard.access.control import CSRF_COOKIE, CSRF_HEADER, AccessControl
from flightwatch.dashboard.access.current import put_viewer
from flightwatch.dashboard.access.denied import Denied, error_body
from flightwatch.dashboard.access.origin import is_from_browser, refuse_other_hosts, refuse_other_sites
from flightwatch.dashboard.access.viewer import Viewer

#: Open to everybody: liveness, and the way in. Hooks check the signature of their sender themselves.
PUBLIC_PATHS = frozenset(
    {"/healthz", "/readyz", "/login", "/login/token", "/login/start", "/login/callback", "/login/style.css"}
)
#: What load balancers ask, by address.
HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
PUBLIC_PREFIX = "/api/v1/hooks/"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Gate:
    """ASGI middleware.

    Parameters
    ----------
    access: who is who. prefix: path below which a proxy offers the console.
    """

    def __init__(self, app: ASGIApp, access: AccessControl, prefix: str = "") -> None:
        self._app = app
        self._access = access
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through with its viewer, or answer it here."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            viewer = await self._admit(connection)
        except Denied as denied:
            await self._refuse(denied, connection, receive, send)
            return
        except FlightwatchError as error:
            await self._answer(Denied(503, "unavailable", str(error), None, 5), connection, receive, send)
            return
        if viewer is None:
            await self._app(scope, receive, send)
            return
        put_viewer(scope, viewer)
        await self._app(scope, receive, self._with_csrf_cookie(connection, viewer, send))

    async def _admit(self, connection: HTTPConnection) -> Viewer | None:
        """Return who asks, None on a public path. Raises Denied."""
        path = path_of(connection)
        is_write = connection.scope["type"] == "websocket" or connection.scope["method"] not in SAFE_METHODS
        public = path in PUBLIC_PATHS
        if path not in HEALTH_PATHS and not path.startswith(PUBLIC_PREFIX):
            refuse_other_hosts(connection, self._access.settings.public_url)
        if is_write and not path.startswith(PUBLIC_PREFIX):
            refuse_other_sites(connection, self._access.settings.public_url)
        if public or path.startswith(PUBLIC_PREFIX):
            self._access.limits.check_stranger(self._access.address(connection), path)
            return None
        viewer = self._access.present(connection)
        if viewer is None:
            viewer = await run_in_threadpool(self._access.identify, connection)
        try:
            self._check(connection, viewer, path, is_write=is_write)
        except Denied as denied:
            denied.subject = viewer.subject
            raise
        return viewer

    def _check(self, connection: HTTPConnection, viewer: Viewer, path: str, *, is_write: bool) -> None:
        _check_place(viewer, path)
        if is_write and connection.scope["type"] == "http":
            self._check_csrf(connection, viewer)
        if path.startswith("/api/"):
            self._access.limits.check(viewer.subject, is_write=is_write)

    def _check_csrf(self, connection: HTTPConnection, viewer: Viewer) -> None:
        """Refuse a write that a browser was made to send with its cookies, network place or proxy identity."""
        if not viewer.csrf or (viewer.via == "local" and not is_from_browser(connection)):
            return
        given = connection.headers.get(CSRF_HEADER, "")
        if not secrets.compare_digest(given.encode(), viewer.csrf.encode()):
            raise Denied(403, "csrf", f"send the cookie {CSRF_COOKIE} back in the header {CSRF_HEADER}", CSRF_HEADER)

    async def _refuse(self, denied: Denied, connection: HTTPConnection, receive: Receive, send: Send) -> None:
        if denied.status != 401 or "authorization" in connection.headers:
            await run_in_threadpool(self._access.record_denied, connection, denied)
        await self._answer(denied, connection, receive, send)

    def _with_csrf_cookie(self, connection: HTTPConnection, viewer: Viewer, send: Send) -> Send:
        """Return a `send` that hands a browser its CSRF cookie with a page when it has none or another one."""
        known = connection.cookies.get(CSRF_COOKIE)
        is_page = "text/html" in connection.headers.get("accept", "")
        if connection.scope["type"] != "http" or not viewer.csrf or known == viewer.csrf or not is_page:
            return send

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                cookie: SimpleCookie = SimpleCookie({CSRF_COOKIE: viewer.csrf})
                morsel = cookie[CSRF_COOKIE]
                morsel["path"] = "/"
                morsel["samesite"] = "Strict"
                if self._access.is_secure(connection):
                    morsel["secure"] = True
                MutableHeaders(scope=message).append("Set-Cookie", morsel.OutputString())
            await send(message)

        return sending

    async def _answer(self, denied: Denied, connection: HTTPConnection, receive: Receive, send: Send) -> None:
        if connection.scope["type"] == "websocket":
            # Before the handshake is accepted this becomes an HTTP 403.
            await send({"type": "websocket.close", "code": 1008, "reason": denied.code})
            return
        response: Response
        wants_page = "text/html" in connection.headers.get("accept", "") and connection.scope["method"] == "GET"
        if denied.status == 401 and wants_page and not path_of(connection).startswith("/api/"):
            query = connection.url.query
            target = path_of(connection) + (f"?{query}" if query else "")
            response = RedirectResponse(f"{self._prefix}/login?next={quote(target, safe='')}", status_code=303)
        else:
            response = JSONResponse(error_body(denied.code, denied.message, denied.where), denied.status)
            if denied.status == 401:
                response.headers["WWW-Authenticate"] = 'Bearer realm="flightwatch"'
            if denied.retry_after_seconds is not None:
                response.headers["Retry-After"] = str(denied.retry_after_seconds)
        response.headers["Cache-Control"] = "no-store"
        await response(connection.scope, receive, send)


def _check_place(viewer: Viewer, path: str) -> None:
    """Refuse what a viewer may not do outside of the API, whose routes check for themselves."""
    if path == "/metrics":
        if not (viewer.has_scope("metrics") or viewer.has_scope("read")):
            raise Denied(403, "forbidden", "this token lacks the scope metrics")
        if not viewer.sees_tenant(None):
            raise Denied(403, "forbidden", "these figures are about the whole cluster")
    elif viewer.via == "token" and not path.startswith("/api/"):
        raise Denied(403, "forbidden", "a token opens the API only; log in with it at /login to see the pages")


def path_of(connection: HTTPConnection) -> str:
    """Return the path of a request as the routes see it."""
    return str(connection.scope["path"])
