"""Connections whose request head takes too long are closed; others are not."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from flightwatch.dashboard.http_protocol import LARGEST_HEAD_BYTES, BoundedHead
from flightwatch.dashboard.serve import HttpServer, bind_port

HEAD_SECONDS = 0.4


async def _late(request: Request) -> PlainTextResponse:
    """Answer after the body has come, however slowly."""
    await request.body()
    return PlainTextResponse("done")


def _hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    kept, BoundedHead.head_seconds = BoundedHead.head_seconds, HEAD_SECONDS
    bound = bind_port("127.0.0.1", 23700, trust_network=False)
    app = Starlette(routes=[Route("/", _hello), Route("/late", _late, methods=["POST"])])
    server = HttpServer("test", app, bound)
    server.start()
    yield bound.getsockname()[1]
    server.stop()
    BoundedHead.head_seconds = kept


def seconds_until_closed(port: int, first: bytes, then: bytes) -> float:
    """Send the start of a head, then some bytes again and again until the server hangs up."""
    # The server's time runs from the connection, so ours begins before it.
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(first)
        while True:
            assert time.monotonic() - begin < 60, "the server waits for ever"
            connection.settimeout(0.05)
            try:
                if connection.recv(1000) == b"":
                    break
            except TimeoutError:
                try:
                    connection.sendall(then)
                except OSError:
                    break
            except OSError:
                break
        return time.monotonic() - begin


@pytest.mark.parametrize(
    ("first", "then"),
    [(b"", b""), (b"G", b"E"), (b"GET / HTTP/1.1\r\n", b"a: b\r\n"), (b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"y")],
)
def test_a_head_that_does_not_end_is_closed(port: int, first: bytes, then: bytes) -> None:
    assert seconds_until_closed(port, first, then) >= HEAD_SECONDS * 0.8


def test_a_second_request_has_the_same_time(port: int) -> None:
    whole = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    assert seconds_until_closed(port, whole + b"GET / HTTP/1.1\r\n", b"a: b\r\n") >= HEAD_SECONDS * 0.8


def test_a_head_that_is_too_long_is_refused(port: int) -> None:
    head = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (LARGEST_HEAD_BYTES // 6 + 10)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_slow_answers_and_bodies_are_not_cut(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest("POST", "/late")
    connection.putheader("Content-Length", "2")
    connection.endheaders()
    sent = threading.Event()

    def dribble() -> None:
        connection.send(b"a")
        sent.wait(HEAD_SECONDS * 1.5)  # never set: it is the pause
        connection.send(b"b")

    thread = threading.Thread(target=dribble)
    thread.start()
    assert connection.getresponse().read() == b"done"
    thread.join()
    connection.close()


def test_answers_are_not_held_back_for_forty_milliseconds() -> None:
    """asyncio sets TCP_NODELAY on a connection only where its listening socket names the protocol."""
    bound = bind_port("127.0.0.1", 23800, trust_network=False)
    try:
        assert bound.proto == socket.IPPROTO_TCP
    finally:
        bound.close()
