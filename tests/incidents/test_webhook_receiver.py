"""The small receiver: signatures, replays, repeats, sizes; and the test message through it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from flightwatch.cli.demo_inbox import DemoInbox, readable
from flightwatch.core.clock import SystemClock
from flightwatch.core.errors import ConfigError
from flightwatch.incidents.channel_test import send_test
from flightwatch.incidents.notifiers.webhook import signature
from flightwatch.incidents.webhook_receiver import WebhookReceiver
from tests.incidents.alert_kit import TAKEN, alert, channel, outgoing
from tests.incidents.http_receiver import receiving


@pytest.fixture
def received() -> list[Mapping[str, Any]]:
    return []


@pytest.fixture
def receiver(received: list[Mapping[str, Any]]) -> Iterator[WebhookReceiver]:
    one = WebhookReceiver("127.0.0.1", 0, received.append, "secret-sign")
    one.start()
    yield one
    one.stop()


def test_signed_messages_arrive_once(receiver: WebhookReceiver, received: list[Mapping[str, Any]]) -> None:
    notifier = channel("webhook", receiver.url.rstrip("/")).notifier
    assert notifier.send(alert(), None).ok
    assert notifier.send(alert(), None).ok
    assert [message["title"] for message in received] == [alert().title]


def test_others_are_refused(receiver: WebhookReceiver, received: list[Mapping[str, Any]]) -> None:
    body, now = b'{"version": 1}', int(time.time())

    def headers(timestamp: int, secret: str) -> dict[str, str]:
        signed = signature(secret, timestamp, body)
        return {"x-flightwatch-timestamp": str(timestamp), "x-flightwatch-signature": signed}

    assert receiver.take({}, body) == 401
    assert receiver.take(headers(now, "wrong"), body) == 401
    assert receiver.take(headers(now - 3600, "secret-sign"), body) == 401
    assert receiver.take(headers(now, "secret-sign"), body + b" ") == 401
    assert not received
    assert receiver.take(headers(now, "secret-sign"), body) == 204
    big = outgoing().request("POST", receiver.url, content=b"x" * 1_100_000)
    assert big.status == 413


def test_what_is_no_message_is_refused(received: list[Mapping[str, Any]]) -> None:
    one = WebhookReceiver("127.0.0.1", 0, received.append)
    try:
        assert [one.take({}, body) for body in (b"", b"[]", b"{}", b'{"version": 2}')] == [400] * 4
        with pytest.raises(ConfigError, match="cannot listen"):
            WebhookReceiver("127.0.0.1", one.port, received.append)
    finally:
        one.stop()


def test_the_demo_prints_what_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    inbox = DemoInbox()
    try:
        demo = inbox.start(SystemClock())
        assert demo.notifier.send(alert(title="P2 · slow \x1b[31m"), None).ok
    finally:
        inbox.stop()
    printed = capsys.readouterr().out
    assert "P2 · job slowed" in printed
    assert "\x1b" not in printed


def test_readable_is_wrapped() -> None:
    text = readable({"title": "t", "lead": "word " * 60, "facts": [{"label": "a", "value": "b"}], "link": None})
    assert all(len(line) <= 100 for line in text.splitlines())
    assert text.endswith("a: b")


@pytest.mark.parametrize("service", [*TAKEN])
def test_a_test_message_to_every_service(service: str) -> None:
    with receiving(TAKEN[service]) as local:
        delivery = send_test(channel(service, local.url), SystemClock(), "blue", "li")
        seen = list(local.requests)
    assert delivery.ok
    if service == "pagerduty":
        assert [one.json["event_action"] for one in seen] == ["trigger", "resolve"]
    else:
        assert "est" in json.dumps(seen[0].body.decode("utf-8", "replace"))
