"""Who is who: turns what a request carries (token, session, proxy header, its place) into a viewer."""

from __future__ import annotations

import re
import secrets
import threading
from collections import Counter, OrderedDict
from dataclasses import replace
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.errors import ConfigError, TransientError
from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.access.groups import default_grants, grants_of_groups
from flightwatch.dashboard.access.limits import Limits
from flightwatch.dashboard.access.origin import FORWARDED, client_address, is_listed, is_secure, networks
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.access.viewer import EVERYWHERE_ADMIN, EVERYWHERE_VIEWER, Via, Viewer
from flightwatch.pipeline.control.audit import AuditLog
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.people import PeopleRecords, Person
from flightwatch.pipeline.control.sessions import Sessions
from flightwatch.pipeline.control.tokens import Token, Tokens

SESSION_COOKIE = "flightwatch_session"
#: Prefix that makes browsers insist on TLS and on our very host.
#: Dash sends the cookie's value back in this header with every callback.
CSRF_COOKIE = "_csrf_token"
CSRF_HEADER = "X-CSRFToken"
SECURE_PREFIX = "__Host-"
#: So long a found viewer is not looked up again; a revoked token or role of another process lives on for this time.
CACHE_SECONDS = 3.0
_MOST_CACHED = 5_000
_CSRF = re.compile(r"[A-Za-z0-9_-]{32}")


class AccessControl:
    """Recognises viewers. Thread-safe.

    Parameters
    ----------
    settings: the section `[access]`.
    control: people, tokens, sessions, audit; None: only the viewer of loopback exists, and nothing is written down.
    loopback_only: this server is reachable from this machine only.

    Attributes
    ----------
    audit, people, tokens, sessions: records, None without a control database.
    clock: time of what this process measures.

    Raises
    ------
    ConfigError: settings that cannot work together.
    """

    def __init__(
        self, settings: AccessSettings, control: Control | None, *, loopback_only: bool, clock: Clock | None = None
    ) -> None:
        _check(settings, control)
        self.settings = settings
        self.control = control
        self.proxies = networks(settings.proxy_addresses)
        self.limits = Limits(clock or SystemClock(), settings.requests_per_second, settings.writes_per_minute)
        self.audit = AuditLog(control) if control else None
        self.people = PeopleRecords(control) if control else None
        self.tokens = Tokens(control) if control else None
        self.sessions = Sessions(control) if control else None
        self._loopback_only = loopback_only
        self.clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()
        self._cache: OrderedDict[tuple[str, str], tuple[float, Viewer]] = OrderedDict()

    def address(self, connection: HTTPConnection) -> str | None:
        """Return the client's address."""
        return client_address(connection, self.proxies)

    def is_secure(self, connection: HTTPConnection) -> bool:
        """Say whether the browser speaks TLS."""
        return is_secure(connection, self.proxies, self.settings.public_url)

    def present(self, connection: HTTPConnection) -> Viewer | None:
        """Return the viewer where that takes no database: by the request's place, or found a moment ago.

        Raises
        ------
        Denied: 403, a proxy forwards to a console that knows nobody.
        """
        kind, credential = self._credential(connection)
        if kind == "none":
            return None if self.settings.login_required else self._by_place(connection)
        with self._lock:
            found = self._cache.get((kind, credential))
        if found is None or found[0] < self.clock.monotonic_s():
            return None
        viewer = found[1]
        address = self.address(connection)
        return viewer if viewer.address == address else replace(viewer, address=address)

    def identify(self, connection: HTTPConnection) -> Viewer:
        """Return the viewer of a request, looking into the control database.

        Raises
        ------
        Denied: 401 nobody or a credential that is not valid, 403 a person without a role or a forged header,
            429 too many wrong credentials. TransientError: the control database is away.
        """
        kind, credential = self._credential(connection)
        if kind == "token":
            viewer = self._by_token(connection, credential)
        elif kind == "session":
            found = self._by_session(connection, credential)
            if found is None:
                return self._nobody(connection)
            viewer = found
        elif kind == "proxy":
            viewer = self._by_proxy(connection, credential)
        else:
            return self._nobody(connection)
        with self._lock:
            self._cache[kind, credential] = (self.clock.monotonic_s() + CACHE_SECONDS, viewer)
            while len(self._cache) > _MOST_CACHED:
                self._cache.popitem(last=False)
        return viewer

    def forget(self) -> None:
        """Look everybody up again: roles, tokens or sessions changed."""
        with self._lock:
            self._cache.clear()

    def record_denied(self, connection: HTTPConnection, denied: Denied, viewer: Viewer | None = None) -> None:
        """Write a refused attempt to the audit log; a flood from one place is cut."""
        with self._lock:
            self._refused[denied.code] += 1
        address = self.address(connection)
        actor = viewer.subject if viewer else denied.subject or "anonymous"
        if self.audit is None or not self.limits.may_audit(actor, address):
            return
        method = connection.scope.get("method", "WEBSOCKET")
        target = printable(f"{method} {connection.scope['path']}")[:300]
        try:
            self.audit.record(None, actor, f"denied.{denied.code}", target, False, str(denied), address=address)
        except TransientError:
            # The attempt is refused either way.
            return

    def refusals(self) -> dict[str, int]:
        """Return how many requests this process refused, by code; missing logins of browsers are not counted."""
        with self._lock:
            return dict(self._refused)

    def person_viewer(self, person: Person, via: Via, csrf: str, address: str | None) -> Viewer:
        """Return the viewer of a known person. Raises Denied (403) when they are kept out or have no role."""
        if person.disabled:
            raise Denied(403, "forbidden", f"{person.subject} may not come in: ask an administrator")
        grants = tuple(person.grants) or default_grants(self.settings)
        if not grants:
            raise Denied(403, "forbidden", f"{person.subject} has no role yet: ask an administrator for one")
        return Viewer(person.subject, person.name, grants, via, csrf, address)

    def session_cookie(self, connection: HTTPConnection) -> str:
        """Return the name of the session's cookie for this connection."""
        return (SECURE_PREFIX if self.is_secure(connection) else "") + SESSION_COOKIE

    def _credential(self, connection: HTTPConnection) -> tuple[str, str]:
        """Return kind and value of what the request carries; a token beats a session beats a proxy's header."""
        header = self.settings.proxy_user_header
        peer = connection.client.host if connection.client else None
        named = connection.headers.getlist(header) if header else []
        if named and not is_listed(peer, self.proxies):
            raise Denied(403, "forged_header", f"{header} is believed only from access.proxy_addresses", header)
        authorization = connection.headers.get("authorization")
        if authorization is not None:
            scheme, _, value = authorization.partition(" ")
            return "token", value.strip() if scheme.lower() == "bearer" else ""
        session = connection.cookies.get(self.session_cookie(connection))
        if session:
            return "session", session
        if len(named) > 1 or (named and not named[0].strip()):
            raise Denied(403, "forged_header", f"{header} must name one person", header)
        if named:
            groups = connection.headers.get(self.settings.proxy_groups_header or "-", "")
            return "proxy", f"{named[0].strip()}\n{groups}"
        return "none", ""

    def _by_token(self, connection: HTTPConnection, text: str) -> Viewer:
        token = self.tokens.verify(text) if self.tokens else None
        if token is None or self.tokens is None:
            self.limits.failed_login(self.address(connection))
            raise Denied(401, "unauthenticated", "this token is unknown, expired or revoked", "Authorization")
        self.tokens.used(token)
        return token_viewer(token, "token", "", self.address(connection))

    def _by_session(self, connection: HTTPConnection, identity: str) -> Viewer | None:
        session = self.sessions.find(identity) if self.sessions else None
        if session is None or self.tokens is None or self.people is None:
            return None
        address = self.address(connection)
        if session.token_id is not None:
            token = self.tokens.valid(session.token_id)
            return token_viewer(token, "session", session.csrf, address) if token else None
        person = self.people.get(session.subject)
        return self.person_viewer(person, "session", session.csrf, address) if person else None

    def _by_proxy(self, connection: HTTPConnection, credential: str) -> Viewer:
        if self.people is None:
            raise Denied(503, "unavailable", "the control database is not open")
        subject, _, groups = credential.partition("\n")
        try:
            claimed = None
            if self.settings.proxy_groups_header:
                claimed = grants_of_groups(self.settings, [part.strip() for part in groups.split(",")])
            person = self.people.seen(subject, subject, claimed)
        except ConfigError as error:
            raise Denied(403, "forged_header", str(error), self.settings.proxy_user_header) from error
        return self.person_viewer(person, "proxy", _csrf_of(connection), self.address(connection))

    def _by_place(self, connection: HTTPConnection) -> Viewer:
        address = self.address(connection)
        if not self._loopback_only:
            return Viewer("anonymous", "anonymous", EVERYWHERE_VIEWER, "anonymous", _csrf_of(connection), address)
        if not self.proxies and any(name in connection.headers for name in FORWARDED):
            raise Denied(
                403, "forbidden",
                "a proxy forwards to this console, which knows nobody: set [access] so that people log in",
            )  # fmt: skip
        return Viewer("local", "local", EVERYWHERE_ADMIN, "local", _csrf_of(connection), address)

    def _nobody(self, connection: HTTPConnection) -> Viewer:
        if self.settings.login_required:
            raise Denied(401, "unauthenticated", "log in, or send a token: Authorization: Bearer fw_...")
        return self._by_place(connection)


def _check(settings: AccessSettings, control: Control | None) -> None:
    """Refuse settings that would let the wrong ones in, or nobody.

    Raises
    ------
    ConfigError: one sentence saying what is missing.
    """
    if settings.login_required and control is None:
        raise ConfigError("[access] needs the control database: people, tokens and sessions are kept there")
    if settings.proxy_user_header and not settings.proxy_addresses:
        raise ConfigError("access.proxy_user_header needs access.proxy_addresses: from whom it is believed")
    if settings.oidc_issuer and not (settings.oidc_client_id and settings.public_url):
        raise ConfigError("access.oidc_issuer needs access.oidc_client_id and access.public_url")
    parts = urlsplit(settings.public_url)
    if settings.public_url and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise ConfigError(f"access.public_url = {settings.public_url!r}: write https://NAME")
    default_grants(settings)


def _csrf_of(connection: HTTPConnection) -> str:
    """Return the value a browser sends back where there is no session: the one it has, or a new one."""
    known = connection.cookies.get(CSRF_COOKIE, "")
    return known if _CSRF.fullmatch(known) else secrets.token_urlsafe(24)


def token_viewer(token: Token, via: Via, csrf: str, address: str | None) -> Viewer:
    """Return the viewer of a token, in a header or in the session it opened."""
    return Viewer(token.subject, token.name, token.grants, via, csrf, address, token.scopes)


def printable(text: str) -> str:
    """Return text without control characters, which would forge lines in logs."""
    return "".join(character if character.isprintable() else "?" for character in text)
