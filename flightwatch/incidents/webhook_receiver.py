"""A small receiver of the generic webhook: for the demo, for trying a channel, and as an example of checking messages.

It checks signature and time when it has the secret, and drops repeats by Idempotency-Key.
"""

from __future__ import annotations

import hmac
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flightwatch.core.errors import ConfigError
from flightwatch.incidents.notifiers.webhook import signature

_LARGEST = 1_000_000
#: A signature older than this is a replay.
_OLDEST_SECONDS = 300
_REMEMBERED = 10_000


class WebhookReceiver:
    """Listens on one address; `on_message` is called once for each message, in the thread of its request."""

    def __init__(self, host: str, port: int, on_message: Callable[[Mapping[str, Any]], None], secret: str = "") -> None:
        """Bind. Raises ConfigError: the address cannot be listened on."""
        self._on_message, self._secret = on_message, secret
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._guard = threading.Lock()
        try:
            self._server = ThreadingHTTPServer((host, port), _handler_of(self))
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="receiver", daemon=True)

    @property
    def url(self) -> str:
        """Address to send to."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/"

    @property
    def port(self) -> int:
        """Port that is listened on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Listen until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        if self._thread.ident:
            self._server.shutdown()
            self._thread.join(5)
        self._server.server_close()

    def take(self, headers: Mapping[str, str], body: bytes) -> int:
        """Check one request and hand its message over; return the status to answer. Names of headers in lower case."""
        if self._secret and not self._is_signed(headers, body):
            return 401
        try:
            message = json.loads(body)
        except ValueError:
            return 400
        if not isinstance(message, dict) or message.get("version") != 1:
            return 400
        key = headers.get("idempotency-key", "")
        with self._guard:
            if key and key in self._seen:
                return 204
            self._seen[key] = None
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        self._on_message(message)
        return 204

    def _is_signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        timestamp = headers.get("x-flightwatch-timestamp", "")
        if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > _OLDEST_SECONDS:
            return False
        given = headers.get("x-flightwatch-signature", "")
        return hmac.compare_digest(signature(self._secret, int(timestamp), body).encode(), given.encode())


def _handler_of(receiver: WebhookReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
            """Say nothing: messages are printed, requests are not."""

        def do_POST(self) -> None:
            """Take a message."""
            text = self.headers.get("Content-Length", "")
            length = int(text) if text.isdigit() else -1
            if not 0 <= length <= _LARGEST:
                self._answer(413 if length > _LARGEST else 411)
                return
            headers = {name.lower(): value for name, value in self.headers.items()}
            self._answer(receiver.take(headers, self.rfile.read(length)))

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler
