"""A local HTTP(S) server that keeps every request and answers as told."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = ("127.0.0.1",)


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """What to answer. `close`: hang up without an answer. `hold`: answer only when the receiver stops."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    close: bool = False
    hold: bool = False


class Receiver:
    """Answers the queued replies in order, then `default` for ever."""

    def __init__(self, default: Reply | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.default = default or Reply()
        self.queue: list[Reply] = []
        self.requests: list[Seen] = []
        self.arrived = threading.Condition()
        self._released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._tls = tls is not None
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def wait_for(self, count: int, seconds: float = 300.0) -> list[Seen]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, seconds), self.requests
            return list(self.requests)

    def stop(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(300)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                """Say nothing."""

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                seen = Seen(self.command, self.path, dict(self.headers.items()), body)
                with receiver.arrived:
                    reply = receiver.queue.pop(0) if receiver.queue else receiver.default
                    receiver.requests.append(seen)
                    receiver.arrived.notify_all()
                self.close_connection = True
                if reply.hold:
                    receiver._released.wait(30)
                    return
                if reply.close:
                    # A reset, as a proxy that dies gives it.
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:
                    self.close_connection = True

        return Handler


@contextmanager
def receiving(default: Reply | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver(default, tls)
    try:
        yield receiver
    finally:
        receiver.stop()


def certificate(folder: Path, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """Make a self-signed certificate for an address or a name; return its file and the key's."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    try:
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        alternative = x509.DNSName(host)
    now = datetime.datetime.now(tz=datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / f"{host}.pem", folder / f"{host}.key"
    certificate_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


def server_tls(certificate_file: Path, key_file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    return context
