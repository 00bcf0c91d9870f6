"""The live channel: a websocket that says that something changed, so that pages fetch it.

It pushes `{"tables": {table: newest row}, "control": number, "at": time}` within a second of a change, and at least
every 15 s. Nothing of what changed is in it, so it needs no scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool

from flightwatch.core.clock import iso_utc
from flightwatch.core.errors import FlightwatchError
from flightwatch.dashboard.access.current import viewer_of
from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Routes
from flightwatch.pipeline.control.revisions import latest_change
from flightwatch.pipeline.control.roles import Role

log = logging.getLogger(__name__)

POLL_SECONDS = 0.8
#: A message at least so often, so that both ends notice a dead connection.
BEAT_SECONDS = 15.0
#: How often it is checked that the viewer may still come in.
RECHECK_SECONDS = 60.0
MOST_SOCKETS = 2_000
MOST_EACH = 60


class Revisions:
    """The newest revision, found at most once in POLL_SECONDS however many sockets ask. Thread-safe."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._found: dict[str, Any] = {"tables": {}, "control": 0}
        self._next_s = float("-inf")

    def newest(self) -> dict[str, Any]:
        """Return tables and control sequence; what cannot be read now stays as it was."""
        with self._lock:
            if self._parts.clock.monotonic_s() >= self._next_s:
                self._found = self._read()
                self._next_s = self._parts.clock.monotonic_s() + POLL_SECONDS
            return self._found

    def _read(self) -> dict[str, Any]:
        found = dict(self._found)
        try:
            tables = self._parts.services.status()["tables"]
            found["tables"] = {row["table"]: row["last_ts"] for row in tables if row["last_ts"] is not None}
            if self._parts.services.control is not None:
                found["control"] = latest_change(self._parts.services.control)
        except FlightwatchError as error:
            log.warning("The live channel cannot see what is new: %s", error)
        return found


class Sockets:
    """Counts open sockets. Only the event loop touches it."""

    def __init__(self) -> None:
        self._by_subject: dict[str, int] = {}

    def enter(self, subject: str) -> bool:
        """Count one more; False when there are too many."""
        mine = self._by_subject.get(subject, 0)
        if mine >= MOST_EACH or sum(self._by_subject.values()) >= MOST_SOCKETS:
            return False
        self._by_subject[subject] = mine + 1
        return True

    def leave(self, subject: str) -> None:
        """Count one less."""
        left = self._by_subject.get(subject, 1) - 1
        if left:
            self._by_subject[subject] = left
        else:
            self._by_subject.pop(subject, None)


def routes(parts: Parts) -> Routes:
    """Build the route `/live`."""
    api = Routes("live")
    revisions, sockets = Revisions(parts), Sockets()

    @api.websocket("/live", Role.VIEWER)
    async def live(socket: WebSocket) -> None:
        subject = viewer_of(socket.scope).subject
        if not sockets.enter(subject):
            await socket.close(1013, "too many live connections")
            return
        try:
            await socket.accept()
            await _push(socket, revisions, parts)
        finally:
            sockets.leave(subject)

    return api


async def _push(socket: WebSocket, revisions: Revisions, parts: Parts) -> None:
    """Send revisions until the browser leaves or its viewer may no longer come in."""
    gone = asyncio.create_task(_until_gone(socket))
    sent: dict[str, Any] | None = None
    loop = asyncio.get_running_loop()
    beat_s, recheck_s = loop.time(), loop.time() + RECHECK_SECONDS
    try:
        while not gone.done():
            if loop.time() >= recheck_s:
                if not await _still_in(socket, parts):
                    await socket.close(1008, "log in again")
                    return
                recheck_s = loop.time() + RECHECK_SECONDS
            found = await run_in_threadpool(revisions.newest)
            if found != sent or loop.time() >= beat_s:
                await socket.send_json(found | {"at": iso_utc(parts.clock.now_ms())})
                sent, beat_s = found, loop.time() + BEAT_SECONDS
            await asyncio.wait({gone}, timeout=POLL_SECONDS)
    except (WebSocketDisconnect, RuntimeError):
        # The browser left between two messages.
        return
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
            await gone


async def _until_gone(socket: WebSocket) -> None:
    """Read and forget what a browser sends; return when it leaves."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass


async def _still_in(socket: WebSocket, parts: Parts) -> bool:
    before = viewer_of(socket.scope)
    if before.via == "socket":
        return True
    try:
        now = parts.access.present(socket)
        if now is None:
            now = await run_in_threadpool(parts.access.identify, socket)
    except Denied:
        return False
    except FlightwatchError:
        # The database is away: whoever was in stays until it can be asked.
        return True
    return now.subject == before.subject
