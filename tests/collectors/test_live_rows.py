"""What of a parser's answer is sent again and again, and what once."""

from __future__ import annotations

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.live_rows import LiveRows
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row, Value


def memory() -> tuple[LiveRows, Environment]:
    def no_command(words: object, timeout_seconds: float) -> bytes:
        raise NoData("no command")

    environment = Environment(FolderTree("/"), True, AgentSettings(), no_command)
    return LiveRows(environment, "test"), environment


def event(code: str, device: int = 0) -> Row:
    values: dict[str, Value] = {"device": device, "source": "agent", "code": code, "severity": "error", "message": code,
                                "attrs": {}}  # fmt: skip
    return Row("events", values)


def test_readings_pass_always_with_a_time() -> None:
    rows, _ = memory()
    for now_ms in (1000, 2000):
        (kept,) = rows.keep([Row("device_samples", {"device": 0, "vendor": "x", "ts": None})], now_ms)
        assert kept.values["ts"] == now_ms


def test_a_row_without_its_required_columns_is_counted_and_left_out() -> None:
    rows, _ = memory()
    assert not rows.keep([Row("device_samples", {"device": None, "vendor": "x"})], 1)
    assert rows.incomplete == 1


def test_configuration_goes_to_the_board() -> None:
    rows, environment = memory()
    assert not rows.keep([Row("config_facts", {"device": 2, "name": "driver", "value": "9"})], 1)
    assert environment.facts.all() == {(2, "driver"): "9"}


def test_inventory_passes_when_it_changes() -> None:
    rows, _ = memory()
    first = Row("inventory", {"device": 0, "model": "A", "ts": 1})
    assert len(rows.keep([first], 1)) == 1
    assert not rows.keep([Row("inventory", {"device": 0, "model": "A", "ts": 2})], 2)
    assert len(rows.keep([Row("inventory", {"device": 0, "model": "B", "ts": 3})], 3)) == 1


def test_a_condition_passes_when_it_begins_and_again_after_it_ended() -> None:
    rows, _ = memory()
    assert len(rows.keep([event("remap:pending"), event("remap:pending", 1)], 1)) == 2
    assert not rows.keep([event("remap:pending"), event("remap:pending", 1)], 2)
    assert not rows.keep([], 3)
    assert len(rows.keep([event("remap:pending")], 4)) == 1


def test_errors_are_kept_as_sentences() -> None:
    rows, _ = memory()
    rows.keep([Note("error", "line 3", "cut off"), Note("info", "", "fine")], 1)
    assert rows.errors == ["cut off"]
