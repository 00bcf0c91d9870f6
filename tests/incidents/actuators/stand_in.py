"""A small local HTTP server that answers as told and keeps what it got."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Got:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Server:
    """`answers`: "METHOD /path" (without the query) to (status, JSON) or a function of the request."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any] | Callable[[Got], tuple[int, Any]]] = {}
        self.got: list[Got] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                got = Got(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                outer.got.append(got)
                answer = outer.answers.get(f"{self.command} {self.path.split('?')[0]}", (404, {"message": "not found"}))
                status, document = answer(got) if callable(answer) else answer
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = _any

            def log_message(self, *said: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
