"""Routes: matchers, severities, times of day, and the default."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.alert_settings import RouteSettings
from flightwatch.incidents.channels import Channel
from flightwatch.incidents.routes import Routes
from tests.incidents.alert_kit import channel, incident

NOON_MS = int(datetime(2026, 11, 30, 12, 0, tzinfo=UTC).timestamp() * 1000)  # a Monday


@pytest.fixture(scope="module")
def channels() -> dict[str, Channel]:
    return {
        "chat": channel("slack", "http://127.0.0.1:1", "chat"),
        "pager": channel("pagerduty", "http://127.0.0.1:1", "pager"),
        "night": channel("webhook", "http://127.0.0.1:1", "night"),
    }


def at(day: int, hour: int, minute: int = 0) -> int:
    return int(datetime(2026, 11, day, hour, minute, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("severity", "want"),
    [
        (Severity.P1, ("chat", "pager", "night")),
        (Severity.P2, ("chat", "pager", "night")),
        (Severity.P3, ("chat", "night")),
        (Severity.P4, ()),
        (Severity.INFO, ()),
    ],
)
def test_default(channels: dict[str, Channel], severity: Severity, want: tuple[str, ...]) -> None:
    assert Routes({}, channels).channels(incident(severity=severity), NOON_MS) == want


def test_the_first_that_fits_decides(channels: dict[str, Channel]) -> None:
    routes = Routes(
        {
            "research": RouteSettings(match={"tenant": "nlp|vision*", "kind": "slow"}, channels=("chat",)),
            "quiet": RouteSettings(match={"node": "gpu-04*"}, channels=()),
            "rest": RouteSettings(severities=("P1", "P2"), channels=("pager",)),
        },
        channels,
    )
    assert routes.channels(incident(), NOON_MS) == ("chat",)
    assert routes.channels(incident(tenant="vision-2"), NOON_MS) == ("chat",)
    assert routes.channels(incident(tenant=None), NOON_MS) == ()
    assert routes.channels(incident(tenant=None, node="cpu-1"), NOON_MS) == ("pager",)
    # Nothing fits: the default.
    assert routes.channels(incident(tenant=None, node="cpu-1", severity=Severity.P3), NOON_MS) == ("chat", "night")


def test_go_on_adds(channels: dict[str, Channel]) -> None:
    routes = Routes(
        {
            "first": RouteSettings(match={"blames_hardware": "true"}, channels=("night",), go_on=True),
            "second": RouteSettings(channels=("chat",)),
        },
        channels,
    )
    assert routes.channels(incident(), NOON_MS) == ("chat", "night")


@pytest.mark.parametrize(
    ("moment", "fits"),
    [
        (at(30, 13, 59), False),  # Monday 21:59 in Shanghai
        (at(30, 14, 0), True),  # Monday 22:00
        (at(30, 22, 59), True),  # Tuesday 06:59, the night of Monday
        (at(30, 23, 0), False),  # Tuesday 07:00
        (at(27, 15), True),  # Friday night
        (at(27, 21), True),  # Saturday 05:00, still the night of Friday
        (at(28, 15), False),  # Saturday night
        (at(29, 22), False),  # Monday 06:00 is the night of Sunday
    ],
)
def test_nights_of_working_days(channels: dict[str, Channel], moment: int, fits: bool) -> None:
    night = RouteSettings(
        between="22:00-07:00", days=("mon", "tue", "wed", "thu", "fri"), time_zone="Asia/Shanghai", channels=("night",)
    )
    got = Routes({"night": night}, channels).channels(incident(severity=Severity.P4), moment)
    assert got == (("night",) if fits else ())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"channels": ("nobody",)}, r"routes\.r\.channels"),
        ({"match": {"colour": "red"}}, r"routes\.r\.match"),
        ({"severities": ("P9",)}, r"routes\.r\.severities"),
        ({"days": ("monday",)}, r"routes\.r\.days"),
        ({"between": "25:00-07:00"}, r"routes\.r\.between"),
        ({"between": "07:00-24:30"}, r"routes\.r\.between"),
        ({"between": "07:00-07:00"}, r"routes\.r\.between"),
        ({"time_zone": "Nowhere"}, r"routes\.r\.time_zone"),
    ],
)
def test_wrong_routes_name_their_setting(channels: dict[str, Channel], settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Routes({"r": RouteSettings(**settings)}, channels)
