"""How the console is served: below a path prefix, compressed, static files kept ready and cached by browsers."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flightwatch.core.errors import ConfigError

#: Paths of files that only change with a new version; their address changes with them.
_STATIC = re.compile(r"/(?:_dash-component-suites|assets|perfetto)/")
#: Addresses that name a version: fingerprints of component suites, Dash's `?m=`, Perfetto's folder.
_VERSIONED = re.compile(r"\.v\d+[_\d.a-z]*m\d+\.|[?&]m=\d|/v\d+\.\d+-[0-9a-f]+/")
_TEXT = re.compile(rb"(?:text/|application/(?:javascript|json|wasm)|image/svg)")
SMALLEST_BYTES = 1024
#: All static files of the console together have about 8 MB; Perfetto's are streamed when this is full.
MOST_BYTES = 96_000_000


def checked_prefix(base_path: str) -> str:
    """Return a path prefix without its last slash; "" for none.

    Raises
    ------
    ConfigError: it is not a path like /flightwatch.
    """
    prefix = base_path.rstrip("/")
    if prefix and not re.fullmatch(r"(?:/[A-Za-z0-9._~-]+)+", prefix):
        raise ConfigError(f"console.base_path = {base_path!r} is not a path like /flightwatch")
    return prefix


class PathPrefix:
    """ASGI middleware: the console lives below `prefix`, whether or not a proxy takes the prefix off.

    Behind it every path carries the prefix, and `root_path` names it, as ASGI wants it.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request that may lack the prefix."""
        if scope["type"] in ("http", "websocket"):
            path = scope["path"]
            if path != self._prefix and not path.startswith(self._prefix + "/"):
                path = self._prefix + path
            scope = {**scope, "path": path, "root_path": self._prefix}
        await self._app(scope, receive, send)


class StaticFiles:
    """ASGI middleware that keeps static answers compressed in memory and lets browsers keep them.

    Compressing a megabyte of script for each request costs 50 ms of a core; it is done once a file.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._kept: dict[tuple[str, bool], tuple[list[tuple[bytes, bytes]], bytes]] = {}
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a static file from memory where it is there; all else passes."""
        path = scope.get("path", "")
        if scope["type"] != "http" or scope["method"] != "GET" or not _STATIC.search(path):
            await self._app(scope, receive, send)
            return
        address = f"{path}?{scope['query_string'].decode('latin-1')}"
        packed = b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b"")
        found = self._kept.get((path, packed))
        if found is None:
            # Conditional and partial requests would give answers that fit nobody else.
            plain = [
                pair for pair in scope["headers"] if pair[0] not in (b"if-none-match", b"if-modified-since", b"range")
            ]
            status, headers, body = await _collect(self._app, {**scope, "headers": plain}, receive)
            if status != 200:
                await _answer(send, status, headers, body)
                return
            found = await asyncio.to_thread(_prepared, headers, body, packed, bool(_VERSIONED.search(address)))
            if self._bytes + len(found[1]) <= MOST_BYTES:
                self._kept[path, packed] = found
                self._bytes += len(found[1])
        await _answer(send, 200, *found)


async def _collect(app: ASGIApp, scope: Scope, receive: Receive) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    start: MutableMapping[str, Any] = {}
    body = bytearray()

    async def take(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        elif message["type"] == "http.response.body":
            body.extend(message.get("body", b""))

    await app(scope, receive, take)
    return int(start["status"]), list(start.get("headers", [])), bytes(body)


def _prepared(
    headers: list[tuple[bytes, bytes]], body: bytes, packed: bool, versioned: bool
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    dropped = (b"content-length", b"cache-control", b"expires", b"content-encoding", b"vary", b"date")
    kept = [(name.lower(), value) for name, value in headers if name.lower() not in dropped]
    kind = dict(kept).get(b"content-type", b"")
    if packed and len(body) >= SMALLEST_BYTES and _TEXT.match(kind):
        body = gzip.compress(body, 6)
        kept.append((b"content-encoding", b"gzip"))
    lasting = b"public, max-age=31536000, immutable" if versioned else b"public, max-age=3600"
    kept += [(b"cache-control", lasting), (b"vary", b"accept-encoding"), (b"content-length", str(len(body)).encode())]
    return kept, body


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
