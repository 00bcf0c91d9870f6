"""The dead-man's switch."""

from __future__ import annotations

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import ConfigError
from flightwatch.incidents.alert_settings import AlertSettings
from flightwatch.incidents.heartbeat import Heartbeat
from tests.incidents.alert_kit import outgoing
from tests.incidents.http_receiver import Reply, receiving


def test_it_is_called_in_its_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    with receiving() as receiver:
        settings = AlertSettings(heartbeat_url=f"{receiver.url}/ping/secret-uuid", heartbeat_seconds=60.0)
        heartbeat = Heartbeat(settings, outgoing(), clock)
        due = [heartbeat.due]
        assert heartbeat.beat()
        for seconds in (59, 1):
            clock.advance(seconds)
            due.append(heartbeat.due)
        assert due == [True, False, True]
        receiver.queue = [Reply(500), Reply(close=True)]
        assert not heartbeat.beat()
        assert not heartbeat.beat()
    assert [(one.method, one.path) for one in receiver.requests] == [("POST", "/ping/secret-uuid")] * 3
    assert "secret-uuid" not in caplog.text


def test_without_an_address_nothing_is_due() -> None:
    assert not Heartbeat(AlertSettings(), outgoing(), ManualClock()).due


def test_a_wrong_address_is_named() -> None:
    with pytest.raises(ConfigError, match=r"alerts\.heartbeat_url"):
        Heartbeat(AlertSettings(heartbeat_url="ftp://x"), outgoing(), ManualClock())
