"""HTTP servers in threads: the console on a TCP port, the local interface on a unix socket."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn

from flightwatch.core.errors import ConfigError, FlightwatchError
from flightwatch.dashboard.http_protocol import LARGEST_HEAD_BYTES, BoundedHead

START_SECONDS = 60.0
STOP_SECONDS = 10.0
PORTS_TRIED = 100


class HttpServer:
    """One uvicorn server on an already bound socket, run in a thread of its own.

    Parameters
    ----------
    name: shown in messages.
    app: ASGI application.
    bound: listening socket; closed by `stop`.
    """

    def __init__(self, name: str, app: Any, bound: socket.socket) -> None:
        self.name = name
        self._socket = bound
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=5, lifespan="off", server_header=False,
            http=BoundedHead, h11_max_incomplete_event_size=LARGEST_HEAD_BYTES, ws="websockets-sansio",
            ws_max_size=65_536,
            # The gate believes forwarded headers of listed proxies only.
            proxy_headers=False,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [bound]}, name=f"http-{name}", daemon=True
        )

    def start(self) -> None:
        """Start answering.

        Raises
        ------
        FlightwatchError: it did not come up.
        """
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise FlightwatchError(f"the {self.name} server did not start")
            time.sleep(0.02)

    @property
    def alive(self) -> bool:
        """Whether it still answers."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Finish open requests for a few seconds, then close the socket."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._socket.close()


def is_loopback(host: str) -> bool:
    """Say whether an address to listen on is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind_port(
    host: str, port: int, *, trust_network: bool, next_free: bool = True, login: bool = False
) -> socket.socket:
    """Bind the console's port, or the next free one.

    Parameters
    ----------
    trust_network: everybody who reaches the port may read everything.
    login: everybody must log in or send a token (`AccessSettings.login_required`).

    Raises
    ------
    ConfigError: not a port; the address is not a loopback address, there is no login and the network is not declared
        trusted; the address is not one of this machine; no port is free.
    """
    if not is_loopback(host) and not (login or trust_network):
        raise ConfigError(
            f"console.host = {host} would show everything to everyone who can reach it, because there is no login:"
            " listen on 127.0.0.1, set up a login in [access], or declare the network trusted with"
            " console.trust_network = true"
        )
    if not 1 <= port <= 65535:
        raise ConfigError(f"console.port = {port} is not a port: 1 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + (PORTS_TRIED if next_free else 1), 65536)):
        # asyncio turns Nagle's algorithm off only where the protocol is named: 40 ms of every answer otherwise.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, candidate))
            bound.listen(128)
        except OSError as error:
            bound.close()
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                continue
            raise ConfigError(f"console.host = {host}: cannot listen there: {error.strerror}") from error
        return bound
    tried = f"no free port from there to {candidate}" if next_free else "it is taken"
    raise ConfigError(f"console.port = {port}: {tried}")


def bind_unix(path: Path) -> socket.socket:
    """Bind a unix socket that only this user can open; a leftover of a dead process is replaced.

    Raises
    ------
    ConfigError: the path is too long for a socket, or its folder is not writable.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    previous = os.umask(0o177)
    try:
        bound.bind(str(path))
        bound.listen(64)
    except OSError as error:
        bound.close()
        raise ConfigError(f"{path}: cannot make the local socket: {error.strerror or error}") from error
    finally:
        os.umask(previous)
    return bound
