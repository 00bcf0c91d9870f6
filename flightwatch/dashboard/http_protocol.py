"""HTTP/1.1 connections that must bring the head of a request within a time.

uvicorn closes a connection that is idle after an answer, but waits for ever for one that sends the head of a request
byte by byte: some hundred such connections use up its file descriptors.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: A request's head must be complete so long after the connection opened or the last answer was followed by a byte.
HEAD_SECONDS = 10.0
#: Longest head of a request.
LARGEST_HEAD_BYTES = 32_768


class BoundedHead(H11Protocol):
    """A connection that is closed when the head of a request takes too long."""

    head_seconds = HEAD_SECONDS

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Stop waiting when the head is complete; start when a further request begins."""
        if self.conn.their_state is h11.IDLE:
            self._start_timer()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Stop waiting: the connection goes to another protocol."""
        self._stop_timer()
        super().handle_websocket_upgrade(event)

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
