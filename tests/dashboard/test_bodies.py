"""Bodies that are too large, too slow or cut off, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from fastapi import FastAPI, Request

from flightwatch.dashboard.bodies import WholeBody
from flightwatch.dashboard.serve import HttpServer, bind_port

HEAD = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    app = FastAPI()
    app.add_middleware(WholeBody, largest_bytes=1_000, seconds=0.5)

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    bound = bind_port("127.0.0.1", 23_900, trust_network=False)
    server = HttpServer("bodies", app, bound)
    server.start()
    yield bound.getsockname()
    server.stop()


def answer(address: tuple[str, int], sent: bytes) -> bytes:
    with socket.create_connection(address, timeout=120) as connection:
        connection.sendall(sent)
        received = b""
        while b"\r\n\r\n" not in received or not received.partition(b"\r\n\r\n")[2]:
            piece = connection.recv(10_000)
            if not piece:
                break
            received += piece
        return received


def test_a_body_within_the_limit_arrives_whole(address: tuple[str, int]) -> None:
    received = answer(address, HEAD % 1_000 + b"x" * 1_000)
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"1000")
    assert answer(address, HEAD % 0).endswith(b"0")


def test_a_larger_body_is_refused_before_it_is_there(address: tuple[str, int]) -> None:
    received = answer(address, HEAD % 2_000_000_000 + b"x" * 2_000)
    assert received.startswith(b"HTTP/1.1 413")
    assert b"the body is larger than 1,000 bytes" in received


def test_a_slow_body_is_given_up_and_stops_nobody_else(address: tuple[str, int]) -> None:
    slow = [socket.create_connection(address, timeout=120) for _ in range(20)]
    try:
        for connection in slow:
            connection.sendall(HEAD % 100 + b"x")
        assert answer(address, HEAD % 3 + b"abc").endswith(b"3")
        assert all(connection.recv(1_000).startswith(b"HTTP/1.1 408") for connection in slow)
    finally:
        for connection in slow:
            connection.close()
