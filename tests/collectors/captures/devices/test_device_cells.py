"""Cells, units, zones and header-driven tables by themselves."""

from __future__ import annotations

import pytest

from flightwatch.collectors.captures.box_tables import COMMON_LABELS, read_tables
from flightwatch.collectors.captures.device_rows import Device, stated_time, total, without_zone
from flightwatch.collectors.captures.openmetrics_text import parse_sample
from flightwatch.collectors.captures.quantities import (
    DEPRECATED,
    MALFORMED,
    NOT_READABLE,
    NOT_SUPPORTED,
    UNKNOWN_UNIT,
    quantity,
    scaled,
    text_or_none,
    yes_no,
)
from flightwatch.core.protocols import CaptureContext, Note, Row


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("97.69 W", "W", 97.69), ("26841 mW", "W", 26.841), ("(500Mhz)", "MHz", 500), ("1.98 GHz", "MHz", 1980.0),
        ("100.00%", "%", 100.0), ("16x", "count", 16), ("2559 bank(s)", "count", 2559),
        ("858 MiB", "bytes", 858 * 2**20),
        ("1 KiB", "bytes", 1024), ("36.0°C", "C", 36.0), ("-7 C", "C", -7), ("881.250 mV", "mV", 881.25),
        ("0.91 V", "mV", 910.0),
        ("204642816 us", "us", 204642816), ("5 s", "us", 5_000_000), ("0x0000000000000044", "count", 0x44),
        ("18446744073709551615", "count", 18446744073709551615), ("0.07 ratio", "%", 7.0),
    ],
)  # fmt: skip
def test_numbers_in_the_unit_asked_for(text: str, unit: str, value: float) -> None:
    assert quantity(text, unit).value == value
    assert isinstance(quantity(text, unit).value, type(value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("N/A", NOT_SUPPORTED), ("[N/A]", NOT_SUPPORTED), ("[Not Supported]", NOT_SUPPORTED), ("-", NOT_SUPPORTED),
        ("", NOT_SUPPORTED), ("N/A (Secondary die)", NOT_SUPPORTED),
        ("Requested functionality has been deprecated", DEPRECATED),
        ("[Unknown Error]", NOT_READABLE), ("ERR!", NOT_READABLE), ("[GPU requires reset]", NOT_READABLE),
        ("about 5 W", MALFORMED), ("1,000 W", MALFORMED), ("5 parsecs", UNKNOWN_UNIT), ("1e999 W", MALFORMED),
        ("٣ W", MALFORMED),
    ],
)  # fmt: skip
def test_unknown_with_its_reason(text: str, reason: str) -> None:
    assert quantity(text, "W").value is None
    assert quantity(text, "W").reason == reason


def test_a_number_cut_before_its_unit_is_refused_where_units_are_always_printed() -> None:
    assert quantity("627", "W", bare=False).reason == MALFORMED
    assert quantity("627", "W", "W", bare=False).value == 627
    assert quantity("12", "count", bare=False).value == 12


def test_scaling_adds_no_digits() -> None:
    assert scaled(0.07, 100) == 7.0
    assert scaled(9007199254740993, 1024) == 9007199254740993 * 1024


def test_flags_and_names() -> None:
    assert yes_no("Not Active") == (False, None)
    assert yes_no("Yes") == (True, None)
    assert yes_no("N/A") == (None, NOT_SUPPORTED)
    assert text_or_none("[N/A]") is None
    assert text_or_none("Unknown Error") is None
    assert text_or_none(" MLU590 ") == "MLU590"


def test_parts_that_are_unknown_are_not_zero() -> None:
    assert total([None, None]) is None
    assert total([None, 3, 4]) == 7


@pytest.mark.parametrize(
    ("stated_minus_true_minutes", "left_minutes"),
    [(480, 0), (-300, 0), (330, 0), (0, 0), (481, 1), (7, 7), (900, 900), (-1500, -1500)],
)
def test_a_printed_time_loses_its_zone_only_when_it_is_one(stated_minus_true_minutes: int, left_minutes: int) -> None:
    at_ms = 1_790_000_000_000
    assert without_zone(at_ms + stated_minus_true_minutes * 60_000, at_ms) == at_ms + left_minutes * 60_000
    assert without_zone(5, None) == 5


def test_times_as_tools_print_them() -> None:
    assert stated_time("Timestamp : Fri Jul  3 22:11:09 2026") == 1_783_116_669_000
    assert stated_time("2026/07/03 08:33:53.415") == 1_783_067_633_415
    assert stated_time("Fri Feb 31 22:11:09 2026") is None
    assert stated_time("no time") is None


def test_a_value_that_does_not_fit_its_column_is_left_out_and_told() -> None:
    carries = {"device_samples": ("device", "vendor", "pcie_width", "ecc_corrected_total", "temp_c", "quality")}
    device = Device(carries, CaptureContext(), "nvidia", "gpu 0")
    device.set("pcie_width", "4096x")
    device.set("ecc_corrected_total", "-3")
    device.set("temp_c", "65261 C")
    row, *notes = device.rows()
    assert isinstance(row, Row)
    assert (row.values["pcie_width"], row.values["ecc_corrected_total"]) == (None, None)
    assert (row.values["temp_c"], row.values["quality"]) == (65261.0, "implausible")
    texts = [note.text for note in notes if isinstance(note, Note)]
    assert any("ecc_corrected_total, pcie_width: does not fit the column" in text for text in texts)


def read(text: str) -> list[dict[str, str]]:
    lines = enumerate(text.strip("\n").split("\n"), 1)
    return [found.cells for found in read_tables(lines, COMMON_LABELS) if found.cells is not None]


def test_columns_may_move_and_unknown_ones_may_come() -> None:
    (cells,) = read("""
| Temp  Power-Cap-New  GPU  Name   | GPU-Util |
|==================================|==========|
| 41C   900W           3    X 1000 | 7%       |
""")
    assert cells == {"temp": "41C", "index": "3", "name": "X 1000", "util": "7%"}


def test_tables_of_processes_are_no_devices() -> None:
    assert not read("""
| Processes:                                   |
|  GPU   Name   Temp   PID   Process name      |
|==============================================|
|    0   a      b      17    /usr/bin/x        |
""")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a 1", 1), ('\t\ta{x="1", y="}"} 2.5', 2.5), ('a{x="1",} 3 1606402000', 3), ("a 1e3", 1000.0),
        ('a{le="\\"q\\\\"} 9223372036854775807 # {trace="t"} 0.5', 9223372036854775807),
    ],
)  # fmt: skip
def test_sample_lines(line: str, value: float) -> None:
    sample = parse_sample(line, 1)
    assert sample is not None
    assert sample.value == value


@pytest.mark.parametrize("line", ["a", "a{x=1} 2", 'a{x="1" 2', "a 0x10", "a 1 2 3", "1 2", "a 1 later", "a 1_000"])
def test_lines_that_are_no_samples(line: str) -> None:
    assert parse_sample(line, 1) is None


def test_sample_times_are_milliseconds_or_seconds_by_size() -> None:
    for text, at_ms in (("1606402000", 1_606_402_000_000), ("1606402000123", 1_606_402_000_123)):
        sample = parse_sample(f"a 1 {text}", 1)
        assert sample is not None
        assert sample.at_ms == at_ms
