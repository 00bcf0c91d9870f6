"""A mail server for tests: keeps mails, speaks STARTTLS, answers as told."""

from __future__ import annotations

import email
import email.policy
import socketserver
import ssl
import threading
from email.message import EmailMessage
from typing import Any


class MailServer:
    """Answers RCPT and DATA with the given replies; `drop`: hangs up after DATA."""

    def __init__(
        self, tls: ssl.SSLContext | None, *, from_start: bool = False, rcpt: str = "250 ok", drop: bool = False
    ):
        self.mails: list[EmailMessage] = []
        self.encrypted: list[bool] = []
        self.tls, self.from_start, self.rcpt, self.drop = tls, from_start, rcpt, drop
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wrapped: list[ssl.SSLSocket] = []
                try:
                    server.talk(self)
                except (OSError, ValueError):
                    return
                finally:
                    for one in self.wrapped:
                        one.close()

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(300)

    def talk(self, peer: Any) -> None:
        stream, encrypted = peer.connection, False
        if self.from_start and self.tls is not None:
            stream, encrypted = self.tls.wrap_socket(stream, server_side=True), True
            peer.wrapped.append(stream)
        lines = stream.makefile("rwb", buffering=0)

        def say(text: str) -> None:
            lines.write(text.encode() + b"\r\n")

        say("220 test")
        while line := lines.readline():
            verb = line.split()[0].upper() if line.split() else b""
            if verb in (b"EHLO", b"HELO"):
                say("250-test" if self.tls and not encrypted else "250 test")
                if self.tls and not encrypted:
                    say("250 STARTTLS")
            elif verb == b"STARTTLS" and self.tls is not None:
                say("220 go on")
                stream, encrypted = self.tls.wrap_socket(stream, server_side=True), True
                peer.wrapped.append(stream)
                lines = stream.makefile("rwb", buffering=0)
            elif verb == b"RCPT":
                say(self.rcpt)
            elif verb == b"DATA":
                say("354 go on")
                body = b""
                while not body.endswith(b"\r\n.\r\n"):
                    body += lines.readline()
                parsed = email.message_from_bytes(body[:-3], policy=email.policy.default)
                self.mails.append(parsed)
                self.encrypted.append(encrypted)
                if self.drop:
                    return
                say("250 taken")
            elif verb == b"QUIT":
                say("221 bye")
                return
            else:
                say("250 ok")
