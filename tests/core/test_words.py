"""Vocabulary, clock and log scrubbing."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path

import pytest

import flightwatch.core.vocabulary as vocabulary
from flightwatch.core import logs
from flightwatch.core.clock import ManualClock, iso_utc, parse_iso_utc
from flightwatch.core.vocabulary import DRAIN_ORDER, EVICTION_ORDER, Lane, process_group_name


def test_process_group_name_ignores_order_and_repeats() -> None:
    # sha256("0,1,2") computed apart from the code.
    assert process_group_name("tp", [2, 0, 1, 1]) == "tp:c0be322c1ad6"
    assert process_group_name("tp", [0, 1, 2]) == process_group_name("tp", (2, 1, 0))
    assert process_group_name("dp", [0, 1, 2]) != process_group_name("tp", [0, 1, 2])


def test_blobs_go_first_and_events_last() -> None:
    assert EVICTION_ORDER[0] is Lane.BLOBS
    assert EVICTION_ORDER[-1] is Lane.EVENTS
    assert DRAIN_ORDER[0] is Lane.EVENTS
    assert set(EVICTION_ORDER) == set(Lane)


def test_vocabulary_parses_as_python_3_8() -> None:
    ast.parse(Path(vocabulary.__file__).read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize(
    "text",
    ["2026-11-29T19:10:13.000Z", "2026-11-29T19:10:13+00:00", "2026-11-29 19:10:13", "1795979413", "1795979413000"],
)
def test_times_in_any_accepted_form(text: str) -> None:
    ts_ms = parse_iso_utc(text)
    assert ts_ms == 1_795_979_413_000
    assert parse_iso_utc(str(iso_utc(ts_ms))) == ts_ms


def test_unknown_time_stays_unknown() -> None:
    assert iso_utc(None) is None
    with pytest.raises(ValueError):
        parse_iso_utc("yesterday")


def test_manual_clock_jumps_back_on_the_wall_only() -> None:
    clock = ManualClock(1000)
    clock.sleep_s(2)
    clock.set_wall_ms(0)
    assert (clock.now_ms(), clock.monotonic_s()) == (0, 2)


def test_logs_hide_credentials(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.configure("info", "json")
        logging.getLogger("x").info("connect %s password=hunter2", "postgresql://me:pw@db/f")
        line = json.loads(capsys.readouterr().err)
        assert line["message"] == "connect postgresql://***@db/f password=***"
        logs.configure("info", "text")
        logging.getLogger("x").info("token: abc")
        assert "abc" not in capsys.readouterr().err
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
