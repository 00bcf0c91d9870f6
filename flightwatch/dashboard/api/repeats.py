"""Idempotency keys: a write that is sent again with its key is not done again and gets the same answer."""

from __future__ import annotations

import hashlib
import re

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flightwatch.core.errors import TransientError
from flightwatch.dashboard.access.current import viewer_of
from flightwatch.dashboard.access.denied import error_body
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.idempotency import Earlier, IdempotencyKeys

HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
#: Reads with a body, and presses of buttons, which have a guard of their own.
_OTHERS = re.compile(r"/sql$|/hooks/")
#: Answers with a secret in them are not kept: a repeat is told that it was done.
_SECRET = re.compile(r"/tokens$|/approval$")
_LONGEST_BODY = 500_000


class Repeats:
    """ASGI middleware inside the API, where bodies are complete and bounded and the viewer is known."""

    def __init__(self, app: ASGIApp, control: Control) -> None:
        self._app = app
        self._keys = IdempotencyKeys(control)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, from memory when it is a repeat."""
        if scope["type"] != "http" or scope["method"] not in _WRITES or _OTHERS.search(scope["path"]):
            await self._app(scope, receive, send)
            return
        key = Headers(scope=scope).get(HEADER)
        if key is None:
            await self._app(scope, receive, send)
            return
        if not _KEY.fullmatch(key):
            await _error(422, "invalid", f"{HEADER} has 1 to 200 visible characters", HEADER)(scope, receive, send)
            return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        await self._answer(scope, bytes(body), receive, send, key)

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send, key: str) -> None:
        subject = viewer_of(scope).subject
        asked = f"{scope['method']}\n{scope['path']}\n{scope['query_string'].decode('latin-1')}\n"
        request_hash = hashlib.sha256(asked.encode("utf-8", "surrogateescape") + body).hexdigest()
        try:
            earlier = await run_in_threadpool(self._keys.begin, subject, key, request_hash)
        except TransientError as error:
            await _error(503, "unavailable", str(error))(scope, receive, send)
            return
        if earlier is not None:
            await _again(earlier)(scope, receive, send)
            return
        status, answer = 500, b""
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        async def watching(message: Message) -> None:
            nonlocal status, answer
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body" and len(answer) <= _LONGEST_BODY:
                answer += message.get("body", b"")
            await send(message)

        try:
            await self._app(scope, replay, watching)
        finally:
            await run_in_threadpool(self._remember, scope["path"], subject, key, status, answer)

    def _remember(self, path: str, subject: str, key: str, status: int, answer: bytes) -> None:
        try:
            if status >= 300:
                self._keys.abandon(subject, key)
                return
            kept = len(answer) <= _LONGEST_BODY and not _SECRET.search(path)
            self._keys.end(subject, key, status, answer.decode("utf-8", "replace") if kept else None)
        except TransientError:
            # The claim stays and expires by itself; until then a repeat is told that the write still runs.
            return


def _again(earlier: Earlier) -> Response:
    if not earlier.same:
        return _error(422, "invalid", f"this {HEADER} was used for another request", HEADER)
    if earlier.status is None:
        return _error(409, "refused", "the first request with this key has not ended", HEADER)
    if earlier.body is None:
        return _error(409, "refused", "this was done with this key; its answer is not kept", HEADER)
    headers = {"Idempotent-Replayed": "true"}
    return Response(earlier.body, earlier.status, headers, media_type="application/json")


def _error(status: int, code: str, message: str, where: str | None = None) -> JSONResponse:
    return JSONResponse(error_body(code, message, where), status)
