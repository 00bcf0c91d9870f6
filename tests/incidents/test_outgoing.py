"""The outgoing client: what it calls, what it refuses, and how it ends."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from flightwatch.core.errors import ConfigError, Refused
from flightwatch.incidents.addresses import AllowedAddresses, is_guarded
from flightwatch.incidents.outgoing import Outgoing, OutgoingError, place_of
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from tests.incidents.http_receiver import LOOPBACK, Reply, certificate, receiving, server_tls


def outgoing(**settings: object) -> Outgoing:
    return Outgoing(OutgoingSettings(allowed_addresses=LOOPBACK, **settings))  # type: ignore[arg-type]


def test_a_call_arrives_whole_and_its_answer_comes_back() -> None:
    with receiving(Reply(201, {"id": 7}, {"Retry-After": "3"})) as receiver:
        answer = outgoing().request("POST", f"{receiver.url}/a/b?c=d", json={"x": "ü"}, headers={"X-Key": "k"})
    seen = receiver.requests[0]
    assert (seen.method, seen.path, seen.json) == ("POST", "/a/b?c=d", {"x": "ü"})
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.headers["X-Key"] == "k"
    assert seen.headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert (answer.status, answer.ok, answer.json(), answer.headers["retry-after"]) == (201, True, {"id": 7}, "3")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1", "fe80::1%eth0", "0.0.0.0",
        "0.1.2.3", "::", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "224.0.0.1", "255.255.255.255",
        "64:ff9b::7f00:1", "2002:7f00:1::", "::ffff:169.254.169.254",
    ],
)  # fmt: skip
def test_guarded_addresses(address: str) -> None:
    assert is_guarded(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:4860:4860::8888", "fd12::1"])
def test_addresses_that_are_called(address: str) -> None:
    assert not is_guarded(address)


def test_allowed_entries() -> None:
    allowed = AllowedAddresses(("127.0.0.1:9000", "10.0.0.0/8", "[::1]:80", "fe80::/10"))
    assert allowed.has("127.0.0.1", 9000)
    assert allowed.has("::ffff:127.0.0.1", 9000)
    assert not allowed.has("127.0.0.1", 9001)
    assert allowed.has("10.9.9.9", 1)
    assert allowed.has("::1", 80)
    assert not allowed.has("::1", 81)
    assert allowed.has("fe80::7", 443)
    with pytest.raises(ConfigError, match=r"outgoing\.allowed_addresses"):
        AllowedAddresses(("localhost",))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]"])
def test_this_machine_is_refused_whatever_it_is_called(host: str) -> None:
    with receiving() as receiver, pytest.raises(Refused, match="allowed_addresses"):
        Outgoing().request("GET", f"http://{host}:{receiver.port}/")
    assert not receiver.requests


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/", "gopher://x", "//host/a", "http://", "http://a:b@h/"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        outgoing().request("GET", url)


def test_redirects_are_answers_not_orders() -> None:
    with receiving(Reply(302, None, {"Location": "http://169.254.169.254/"})) as receiver:
        answer = outgoing().request("GET", receiver.url)
    assert (answer.status, len(receiver.requests)) == (302, 1)


def test_an_endless_answer_is_cut() -> None:
    with receiving(Reply(200, b"x" * 50_000)) as receiver:
        answer = outgoing(max_answer_bytes=1000).request("GET", receiver.url)
    assert (len(answer.content), answer.truncated) == (1000, True)


def test_no_answer_in_time_has_an_unknown_outcome() -> None:
    with receiving(Reply(hold=True)) as receiver:
        with pytest.raises(OutgoingError, match="in time") as caught:
            outgoing(timeout_seconds=0.3).request("POST", f"{receiver.url}/secret-path", json={})
        assert caught.value.sent
        assert "secret-path" not in str(caught.value)


def test_dripping_bytes_do_not_stretch_the_timeout() -> None:
    stop = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\n")
            while not stop.wait(0.02):
                try:
                    peer.sendall(b"X-A: b\r\n")
                except OSError:
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(OutgoingError):
            outgoing(timeout_seconds=0.4).request("GET", f"http://127.0.0.1:{server.getsockname()[1]}/")
    finally:
        stop.set()
        thread.join(300)
        server.close()
    assert not thread.is_alive()


def test_a_closed_connection_and_a_closed_port_differ() -> None:
    with receiving(Reply(close=True)) as receiver:
        with pytest.raises(OutgoingError) as caught:
            outgoing().request("POST", receiver.url, json={})
        assert caught.value.sent
        url = receiver.url
    with pytest.raises(OutgoingError) as caught:
        outgoing().request("POST", url, json={})
    assert not caught.value.sent


def test_an_unknown_name_is_a_clear_error() -> None:
    with pytest.raises(OutgoingError, match="cannot be resolved") as caught:
        outgoing().request("GET", "http://no-such-host.invalid/")
    assert not caught.value.sent


def test_tls_is_verified(tmp_path: Path) -> None:
    certificate_file, key_file = certificate(tmp_path)
    with receiving(tls=server_tls(certificate_file, key_file)) as receiver:
        with pytest.raises(OutgoingError, match=r"(?i)certificate") as caught:
            outgoing().request("POST", receiver.url, json={})
        assert not caught.value.sent
        assert outgoing(ca_file=str(certificate_file)).request("POST", receiver.url, json={}).ok


def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    certificate_file, key_file = certificate(tmp_path, "other.example")
    with receiving(tls=server_tls(certificate_file, key_file)) as receiver, pytest.raises(OutgoingError):
        outgoing(ca_file=str(certificate_file)).request("GET", receiver.url)
    assert not receiver.requests


def test_a_missing_ca_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"outgoing\.ca_file"):
        Outgoing(OutgoingSettings(ca_file="/nowhere/ca.pem"))


def test_only_scheme_host_and_port_are_shown() -> None:
    assert place_of("https://hooks.example:8443/services/T0/B0/secret?token=x") == "https://hooks.example:8443"
