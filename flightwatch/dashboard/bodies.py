"""Request bodies: bounded in size and time, and complete before anything works on them."""

from __future__ import annotations

import asyncio
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class WholeBody:
    """ASGI middleware that reads a body whole before the application sees the request.

    Without it a page's worker thread waits for each byte of a slow sender, so that a handful of half-sent requests
    stop every page, and a body of any size fills the memory of the process.

    Parameters
    ----------
    largest_bytes: a larger body is answered with 413.
    seconds: a body that takes longer to arrive is answered with 408.
    """

    def __init__(self, app: ASGIApp, largest_bytes: int, seconds: float = 10.0) -> None:
        self._app = app
        self._largest_bytes = largest_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._read(receive)
        except TimeoutError:
            await _refuse(send, 408, f"the body did not arrive within {self._seconds:.0f} s")
            return
        if body is None:
            return
        if len(body) > self._largest_bytes:
            await _refuse(send, 413, f"the body is larger than {self._largest_bytes:,} bytes")
            return
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body, cut just behind its limit; None when the sender went away."""
        body = bytearray()
        while len(body) <= self._largest_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        return bytes(body)


async def _refuse(send: Send, status: int, message: str) -> None:
    code = "too_large" if status == 413 else "too_slow"
    body = json.dumps({"error": {"code": code, "message": message, "where": None}}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
