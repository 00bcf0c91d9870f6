"""The state of a page out of its address: windows, zones, parameters that people typed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.pages.contract import captured

NOW_MS = round(datetime(2026, 11, 29, 12, 0, tzinfo=UTC).timestamp() * 1000)


def view(**params: str) -> View:
    return View.of({"path": "/", "params": params})


def test_a_relative_range_ends_now() -> None:
    window = view(range="15m").window(NOW_MS)
    assert (window.end_ms, window.seconds, window.live) == (NOW_MS, 900.0, True)
    assert view().window(NOW_MS).seconds == 3600
    assert view(range="a year").window(NOW_MS).seconds == 3600


def test_a_fixed_range_is_meant_in_the_zone_shown() -> None:
    given = {"from": "2026-11-29 10:00", "to": "2026-11-29T11:30"}
    window = view(**given).window(NOW_MS)
    assert (NOW_MS - window.start_ms, NOW_MS - window.end_ms, window.live) == (7_200_000, 1_800_000, False)
    shanghai = view(**given, tz="Asia/Shanghai").window(NOW_MS)
    assert window.start_ms - shanghai.start_ms == 8 * 3_600_000
    with_zone = view(**{"from": "2026-11-29T10:00:00Z"}, tz="Asia/Shanghai").window(NOW_MS)
    assert (with_zone.start_ms, with_zone.end_ms) == (window.start_ms, NOW_MS)


@pytest.mark.parametrize("text", ["", "yesterday", "9999999999999999999", "2026-13-99", "x" * 500, "-1"])
def test_a_time_that_is_none_falls_back(text: str) -> None:
    assert view(**{"from": text}).window(NOW_MS).live


def test_a_fixed_range_is_never_backwards_nor_endless() -> None:
    window = view(**{"from": "2026-11-29T11:00", "to": "2026-11-29T10:00"}).window(NOW_MS)
    assert window.start_ms < window.end_ms
    assert view(**{"from": "1999-01-01T00:00"}).window(NOW_MS).seconds <= 92 * 86_400


@pytest.mark.parametrize("name", ["Mars/Olympus", "../../etc/passwd", "x" * 300, "/etc/localtime"])
def test_a_zone_that_is_none_is_utc(name: str) -> None:
    assert view(tz=name).zone_name == "UTC"
    assert view(tz=name).clock(NOW_MS) == "2026-11-29 12:00:00"
    assert view(tz="Asia/Tokyo").clock(NOW_MS, date=False) == "21:00:00"


def test_what_is_malformed_is_left_out() -> None:
    assert View.of(None) == View("/")
    assert View.of({"path": 3, "params": {"a": 1, "b": "x", "c": "y" * 70_000}}).params == {"b": "x"}
    assert view(device="3").number("device") == 3
    assert [view(device=text).number("device") for text in ("", "-1", "³", "9" * 12, "1e3")] == [None] * 5
    assert view(metric="drop table").choice("metric", ("temp_c",), "temp_c") == "temp_c"


def test_buckets_hold_the_points_that_are_wanted() -> None:
    assert view(range="1h").window(NOW_MS).bucket_seconds(240) == 15
    assert view(range="5m").window(NOW_MS).bucket_seconds(1000) == 1


def test_paths_of_pages() -> None:
    assert captured("/nodes/<name>", "/nodes/a%2Fb") == {"name": "a/b"}
    assert captured("/nodes/<name>", "/nodes/") is None
    assert captured("/", "/") == {}
    assert captured("/jobs", "/jobs/") == {}
    assert captured("/jobs", "/jobsx") is None
