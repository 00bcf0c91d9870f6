"""The one client for URLs that Flightwatch calls: chat services, webhooks, schedulers, identity providers.

What it refuses protects the machines around it: a URL that an administrator, or somebody who took over
that account, points at this machine or at a cloud's metadata service would otherwise be an open door.
"""

from __future__ import annotations

import json as json_module
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpcore
import httpx

from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.errors import ConfigError, Refused, TransientError
from flightwatch.incidents.addresses import AllowedAddresses, is_guarded
from flightwatch.incidents.outgoing_settings import OutgoingSettings

#: Addresses of one name that are tried in turn.
_TRIED_ADDRESSES = 4


class OutgoingError(TransientError):
    """The call brought no answer.

    Attributes
    ----------
    sent: something was sent, so the service may have acted on it: the outcome is unknown.
    """

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Answer:
    """What a service answered.

    Attributes
    ----------
    headers: names in lower case. truncated: the answer was longer than `max_answer_bytes` and is cut.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    truncated: bool = False
    elapsed_ms: float = 0.0

    @property
    def ok(self) -> bool:
        """True for 2xx."""
        return 200 <= self.status < 300

    def text(self, limit: int = 300) -> str:
        """Return the start of the answer as one printable line."""
        shown = self.content[: 4 * limit].decode("utf-8", "replace")
        return "".join(char if char.isprintable() else " " for char in shown)[:limit].strip()

    def json(self) -> Any:
        """Return the answer as JSON; None when it is none."""
        try:
            return json_module.loads(self.content)
        except ValueError:
            return None


def place_of(url: str) -> str:
    """Return scheme, host and port of a URL: all of it that may stand in a log or an error (paths carry secrets)."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "an address that is no URL"
    port = f":{parsed.port}" if parsed.port else ""
    return f"{parsed.scheme}://{parsed.host}{port}"


def checked_url(url: str, where: str) -> str:
    """Return the URL when it can be called.

    Raises
    ------
    ConfigError: not http or https, no host, or credentials in it; `where` names the setting.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{where} is not a URL") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{where} must be http://HOST/... or https://HOST/..., not {place_of(url)}")
    if parsed.userinfo:
        raise ConfigError(f"{where} must not hold a name and password: set them apart")
    return url


@dataclass
class _Call:
    """One call on its way: its deadline, and whether anything was sent."""

    clock: Clock
    deadline_s: float
    sent: bool = False

    def left(self) -> float:
        left = self.deadline_s - self.clock.monotonic_s()
        if left <= 0:
            raise httpcore.ReadTimeout("the time for the whole call is over")
        return left


class Outgoing:
    """Calls http and https URLs: no redirects, no proxies, guarded addresses, bounded answer, total timeout.

    It connects to the very address it checked, so a name that changes between check and use gains nothing.
    Thread-safe; connections are not kept, so calls share no state.
    """

    def __init__(self, settings: OutgoingSettings | None = None, clock: Clock | None = None) -> None:
        """Prepare. Raises ConfigError: an entry of allowed_addresses or the CA file is wrong."""
        self.settings = settings or OutgoingSettings()
        self._clock = clock or SystemClock()
        self._allowed = AllowedAddresses(self.settings.allowed_addresses)
        self.tls = tls_context(self.settings.ca_file, "outgoing.ca_file")

    def request(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        data: Mapping[str, Any] | None = None,
        files: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_seconds: float | None = None,
    ) -> Answer:
        """Call once.

        Parameters
        ----------
        json, content, data, files: the body, as httpx takes them. tls: own authorities or client certificate.
        timeout_seconds: for this call, instead of the setting; covers everything from the name to the last byte.

        Raises
        ------
        OutgoingError: no answer; its `sent` says whether the service may have acted.
        Refused: the address is guarded. ConfigError: not an http or https URL.
        """
        checked_url(url, "the URL")
        built = httpx.Request(
            method, url, json=json, content=content, data=data, files=files,
            headers={"User-Agent": "flightwatch", "Accept-Encoding": "identity", "Connection": "close"}
            | dict(headers or {}),
        )  # fmt: skip
        built.read()
        started = self._clock.monotonic_s()
        call = _Call(self._clock, started + (timeout_seconds or self.settings.timeout_seconds))
        try:
            answer = self._exchange(built, call, tls or self.tls)
        except (httpcore.TimeoutException, TimeoutError) as error:
            raise OutgoingError(f"{place_of(url)} did not answer in time", sent=call.sent) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise OutgoingError(f"{place_of(url)}: {reason}", sent=call.sent) from error
        elapsed_ms = (self._clock.monotonic_s() - started) * 1000
        return Answer(answer.status, answer.headers, answer.content, answer.truncated, elapsed_ms)

    def _exchange(self, built: httpx.Request, call: _Call, tls: ssl.SSLContext) -> Answer:
        request = httpcore.Request(
            built.method,
            httpcore.URL(
                scheme=built.url.raw_scheme,
                host=built.url.raw_host,
                port=built.url.port,
                target=built.url.raw_path,
            ),
            headers=built.headers.raw,
            content=built.content,
            extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), call.left())},
        )
        with httpcore.ConnectionPool(
            ssl_context=tls, max_keepalive_connections=0, network_backend=_CheckedBackend(self, call)
        ) as pool:
            response = pool.handle_request(request)
            try:
                content, truncated = self._bounded(response.iter_stream())
            finally:
                response.close()
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return Answer(response.status, headers, content, truncated)

    def _bounded(self, chunks: Iterable[bytes]) -> tuple[bytes, bool]:
        body = bytearray()
        for chunk in chunks:
            body += chunk
            if len(body) > self.settings.max_answer_bytes:
                return bytes(body[: self.settings.max_answer_bytes]), True
        return bytes(body), False

    def addresses(self, host: str, port: int, timeout_seconds: float | None = None) -> list[str]:
        """Resolve a name and return the addresses that may be called, in the resolver's order.

        Raises
        ------
        Refused: it has addresses, and none may be called. OutgoingError: it has none, or nobody answers.
        """
        found = _resolve(host, port, timeout_seconds or self.settings.timeout_seconds)
        allowed = [address for address in found if not is_guarded(address) or self._allowed.has(address, port)]
        if not allowed:
            raise Refused(
                f"{host} is {', '.join(found[:3])}: loopback, link-local and metadata addresses are called only when"
                " outgoing.allowed_addresses lists them"
            )
        return allowed[:_TRIED_ADDRESSES]


def tls_context(ca_file: str, where: str) -> ssl.SSLContext:
    """Return a verifying client context with the system's authorities, or those of a PEM file.

    Raises
    ------
    ConfigError: the file cannot be read or holds no certificate; `where` names the setting.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{where} = {Path(ca_file)}: no certificates can be read from it") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _resolve(host: str, port: int, timeout_seconds: float) -> list[str]:
    """Ask the resolver, for a limited time: getaddrinfo knows no timeout of its own."""
    found: list[str] = []
    failure: list[OSError] = []

    def ask() -> None:
        try:
            for *_, place in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
                address = str(place[0])
                if address not in found:
                    found.append(address)
        except (OSError, UnicodeError) as error:
            failure.append(error if isinstance(error, OSError) else OSError(str(error)))

    thread = threading.Thread(target=ask, name="resolve", daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    if thread.is_alive() or failure or not found:
        reason = failure[0].strerror if failure and failure[0].strerror else "no answer"
        raise OutgoingError(f"the name {host} cannot be resolved: {reason}", sent=False)
    return list(found)


class _CheckedBackend(httpcore.NetworkBackend):
    """Connects to checked addresses only."""

    def __init__(self, outgoing: Outgoing, call: _Call) -> None:
        self._outgoing, self._call = outgoing, call
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Resolve, check, connect; the addresses are tried in turn."""
        del timeout
        trouble: Exception = httpcore.ConnectError("no address")
        for address in self._outgoing.addresses(host, port, self._call.left()):
            try:
                stream = self._plain.connect_tcp(address, port, self._call.left(), local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                trouble = error
                continue
            return _Stream(stream, self._call)
        raise trouble


class _Stream(httpcore.NetworkStream):
    """A connection whose every wait ends at the call's deadline."""

    def __init__(self, stream: httpcore.NetworkStream, call: _Call) -> None:
        self._stream, self._call = stream, call

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read until the deadline."""
        return self._stream.read(max_bytes, self._call.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write until the deadline."""
        self._call.sent = self._call.sent or bool(buffer)
        self._stream.write(buffer, self._call.left())

    def close(self) -> None:
        """Close."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Begin TLS for the name that was asked for, not for the address."""
        stream = self._stream.start_tls(ssl_context, server_hostname, self._call.left())
        return _Stream(stream, self._call)

    def get_extra_info(self, info: str) -> Any:
        """Tell about the connection."""
        return self._stream.get_extra_info(info)
