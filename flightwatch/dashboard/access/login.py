"""Coming in and going out: the login page, tokens, the identity provider, logout. No GET changes anything of ours."""

from __future__ import annotations

import re
import secrets
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from flightwatch.core.errors import ConfigError, FlightwatchError
from flightwatch.dashboard.access.control import CSRF_COOKIE, AccessControl
from flightwatch.dashboard.access.current import viewer_of
from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.access.login_page import STYLE, account_page, language_of, login_page
from flightwatch.dashboard.access.oidc import OidcLogin
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.pipeline.control.sessions import LOGIN_SECONDS

LOGIN_COOKIE = "flightwatch_login"
_LOCAL_PATH = re.compile(r"/(?![/\\])[^\x00-\x1f\x7f\\]*")


def next_path(text: str | None) -> str:
    """Return a page of ours to go on to: a path on this server, never another site's address."""
    return text if text and len(text) <= 2_000 and _LOCAL_PATH.fullmatch(text) else "/"


def login_router(access: AccessControl, outgoing: Outgoing | None = None, prefix: str = "") -> APIRouter:
    """Build the routes below `/login`, and `/logout`.

    Parameters
    ----------
    outgoing: client with which the identity provider is asked. prefix: path below which the console lives.
    """
    router, door = APIRouter(include_in_schema=False), _Door(access, _oidc(access, outgoing, prefix), prefix)
    router.add_api_route("/login", door.show, methods=["GET"])
    router.add_api_route("/login/style.css", door.style, methods=["GET"])
    router.add_api_route("/login/token", door.by_token, methods=["POST"])
    router.add_api_route("/login/start", door.start, methods=["GET"])
    router.add_api_route("/login/callback", door.callback, methods=["GET"])
    router.add_api_route("/logout", door.account, methods=["GET"])
    router.add_api_route("/logout", door.leave, methods=["POST"])
    return router


class _Door:
    """The pages and their forms; a refusal is shown on the login page, with the sentence that says why."""

    def __init__(self, access: AccessControl, oidc: OidcLogin | None, prefix: str) -> None:
        self._access, self._oidc, self._prefix = access, oidc, prefix

    def _page(self, request: Request, target: str, error: str = "", status: int = 200) -> HTMLResponse:
        text = login_page(_language(request), self._prefix, target, oidc=self._oidc is not None, error=error)
        return HTMLResponse(text, status, {"Cache-Control": "no-store"})

    def show(self, request: Request) -> HTMLResponse:
        return self._page(request, next_path(request.query_params.get("next")))

    def style(self) -> Response:
        return Response(STYLE, media_type="text/css", headers={"Cache-Control": "max-age=3600"})

    async def by_token(self, request: Request) -> Response:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
        target = next_path(fields.get("next", [None])[0])
        try:
            return await run_in_threadpool(_token_session, request, self._access, self._prefix, fields, target)
        except Denied as denied:
            await run_in_threadpool(self._access.record_denied, request, denied)
            return self._page(request, target, str(denied), denied.status)

    def start(self, request: Request) -> Response:
        """Send the browser to the identity provider."""
        target = next_path(request.query_params.get("next"))
        if self._oidc is None:
            return self._page(request, target, "", 404)
        browser = secrets.token_urlsafe(32)
        try:
            response = RedirectResponse(self._oidc.begin(target, browser), 303, {"Cache-Control": "no-store"})
        except Denied as denied:
            return self._page(request, target, str(denied), denied.status)
        # Lax: it must come back with the provider's redirect, which another site starts.
        response.set_cookie(
            LOGIN_COOKIE, browser, max_age=LOGIN_SECONDS, httponly=True, samesite="lax",
            secure=self._access.is_secure(request),
        )  # fmt: skip
        return response

    def callback(self, request: Request) -> Response:
        """Take the browser back from the identity provider."""
        if self._oidc is None:
            return self._page(request, "/", "", 404)
        try:
            return _oidc_session(request, self._access, self._oidc, self._prefix)
        except Denied as denied:
            self._access.record_denied(request, denied)
            return self._page(request, "/", str(denied), denied.status)

    def account(self, request: Request) -> HTMLResponse:
        viewer = viewer_of(request.scope)
        text = account_page(_language(request), self._prefix, viewer.name, viewer.csrf)
        return HTMLResponse(text, headers={"Cache-Control": "no-store"})

    def leave(self, request: Request) -> Response:
        """End the session of this browser."""
        access, viewer = self._access, viewer_of(request.scope)
        name = access.session_cookie(request)
        identity = request.cookies.get(name)
        if identity and access.sessions is not None and access.audit is not None:
            access.sessions.close(identity)
            access.forget()
            access.audit.record(None, viewer.subject, "session.close", viewer.name, True, "", address=viewer.address)
        response = RedirectResponse(f"{self._prefix}/login", 303, {"Cache-Control": "no-store"})
        response.delete_cookie(name, secure=access.is_secure(request), httponly=True, samesite="lax")
        response.delete_cookie(CSRF_COOKIE)
        return response


def _language(request: Request) -> str:
    accept = request.headers.get("accept-language", "")
    return language_of(request.query_params.get("lang"), request.cookies.get("fw_lang"), accept)


def _oidc(access: AccessControl, outgoing: Outgoing | None, prefix: str) -> OidcLogin | None:
    settings = access.settings
    if not settings.oidc_issuer or access.sessions is None:
        return None
    redirect_uri = f"{settings.public_url.rstrip('/')}{prefix}/login/callback"
    return OidcLogin(settings, access.sessions, outgoing or Outgoing(), redirect_uri, access.clock)


def _token_session(
    request: Request, access: AccessControl, prefix: str, fields: dict[str, list[str]], target: str
) -> Response:
    if access.tokens is None:
        raise Denied(503, "unavailable", "the control database is not open")
    token = access.tokens.verify(fields.get("token", [""])[0].strip())
    if token is None:
        access.limits.failed_login(access.address(request))
        raise Denied(401, "unauthenticated", "this token is unknown, expired or revoked", "token")
    hours = min(access.settings.session_hours, (token.expires_at_ms - token.created_at_ms) / 3_600_000)
    return _opened(request, access, prefix, token.subject, hours, target, token.id)


def _oidc_session(request: Request, access: AccessControl, oidc: OidcLogin, prefix: str) -> Response:
    query = request.query_params
    browser = request.cookies.get(LOGIN_COOKIE, "")
    if "error" in query:
        raise Denied(403, "forbidden", "the identity provider refused the login", "error")
    if not browser or not query.get("state") or not query.get("code"):
        raise Denied(403, "forbidden", "this login was not started in this browser: start again", "state")
    if access.people is None:
        raise Denied(503, "unavailable", "the control database is not open")
    try:
        identity, target = oidc.finish(query["state"], query["code"], browser, query.get("iss"))
        person = access.people.seen(identity.subject, identity.name, identity.grants)
    except ConfigError as error:
        raise Denied(403, "forbidden", str(error)) from error
    except FlightwatchError as error:
        raise Denied(503, "unavailable", str(error), None, 5) from error
    # Refuses who is kept out or has no role, before there is a session.
    access.person_viewer(person, "session", "", access.address(request))
    response = _opened(request, access, prefix, person.subject, access.settings.session_hours, target, None)
    response.delete_cookie(LOGIN_COOKIE)
    return response


def _opened(
    request: Request, access: AccessControl, prefix: str, subject: str, hours: float, target: str, token_id: str | None
) -> Response:
    """Start a new session, whatever the browser had before, and go on."""
    if access.sessions is None or access.audit is None:
        raise Denied(503, "unavailable", "the control database is not open")
    address = access.address(request)
    name = access.session_cookie(request)
    if old := request.cookies.get(name):
        access.sessions.close(old)
        access.forget()
    identity, _ = access.sessions.open(subject, hours, address or "", token_id)
    how = "token" if token_id else "identity provider"
    access.audit.record(None, subject, "session.open", subject, True, how, address=address)
    response = RedirectResponse(prefix + quote(target, safe="/?&=%#:,+@!~*'();.-_[]"), 303)
    response.headers["Cache-Control"] = "no-store"
    response.set_cookie(
        name, identity, max_age=round(hours * 3600), httponly=True, samesite="lax", secure=access.is_secure(request)
    )
    return response
