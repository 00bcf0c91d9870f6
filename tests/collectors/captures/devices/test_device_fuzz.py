"""Damaged captures: every device parser ends, raises nothing, and prints no number that was not there."""

from __future__ import annotations

import io
import random
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flightwatch.collectors.captures.base import Parser
from flightwatch.collectors.captures.registry import DEVICE_PARSERS, parsers
from flightwatch.core.catalogue import TABLES
from flightwatch.core.protocols import CaptureContext, Note, Row

SAMPLES = {path.name: path.read_bytes() for path in sorted((Path(__file__).parent / "samples").iterdir())}
NAMES = [name for name, _ in DEVICE_PARSERS]
BY_NAME: Mapping[str, Parser] = {parser.name: parser for parser in parsers() if parser.name in NAMES}
CONTEXT = CaptureContext("fuzz", 1_790_000_000_000, "n1")

_NUMBER = re.compile(rb"0[xX][0-9a-fA-F]+|\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+|\d+(?:[eE][+-]?\d+)?")
#: Factors between what a tool prints and what a column holds.
_FACTORS = (1, 1e-3, 1e3, 1e-6, 1e6, 0.01, 100, 2**10, 2**20, 2**30, 2**40)
#: Columns whose value is put together or taken from a position, not printed as such.
_DERIVED = re.compile(
    r"throttle_reasons|pcie_gen|.*_total|device|parent_device|mig_id|count|step|steps|rank|extra_counters|value"
)


def read(name: str, data: bytes) -> list[Row | Note]:
    return list(BY_NAME[name].parse(io.BytesIO(data), CONTEXT))


def numbers(data: bytes) -> list[float]:
    found: list[float] = []
    for word in set(_NUMBER.findall(data)):
        try:
            found.append(float(int(word, 16)) if word[:2].lower() == b"0x" else float(word))
        except (ValueError, OverflowError):
            continue
        # "1.2.3" and "12e5x" may be read in part: every prefix that is a number is there too.
        found.extend(float(part) for part in re.findall(rb"\d+(?:\.\d+)?", word)[:4])
    return found


def printed(row: Row) -> Iterator[tuple[str, float]]:
    for column, value in row.values.items():
        if column in ("ts", "node") or _DERIVED.fullmatch(column):
            continue
        if isinstance(value, dict):
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield column, abs(float(value))


def check(data: bytes, found: list[Row | Note]) -> None:
    there = sorted(numbers(data))
    for item in found:
        if isinstance(item, Note):
            assert item.level in ("info", "warning", "error")
            assert item.text
            continue
        table = TABLES[item.table]
        for column, value in item.values.items():
            kind = table.column(column).type
            if value is None:
                continue
            if kind in ("f32", "f64"):
                assert isinstance(value, float), (item.table, column, value)
            elif kind[0] in "ui" and kind[1:].isdigit():
                assert isinstance(value, int), (item.table, column, value)
                assert not isinstance(value, bool)
                assert kind[0] == "i" or value >= 0
        for column, value in printed(item):
            ok = any(
                abs(value - number * factor) <= 1e-6 * max(1.0, value) + (0.51 if column.endswith("_bytes") else 0)
                for factor in _FACTORS for number in there
            )  # fmt: skip
            assert ok or value == 0, (item.table, column, value)


def damaged(data: bytes, seed: int) -> bytes:
    """Truncate, flip, duplicate, drop or swap parts of a capture."""
    chance = random.Random(seed)
    lines = data.split(b"\n")
    for _ in range(chance.randint(1, 4)):
        what = chance.randrange(6)
        place = chance.randrange(len(lines))
        if what == 0:
            whole = b"\n".join(lines)
            lines = whole[: chance.randrange(len(whole) + 1)].split(b"\n")
        elif what == 1 and lines[place]:
            line = bytearray(lines[place])
            line[chance.randrange(len(line))] = chance.randrange(256)
            lines[place] = bytes(line)
        elif what == 2:
            lines.insert(place, lines[chance.randrange(len(lines))])
        elif what == 3 and len(lines) > 1:
            del lines[place]
        elif what == 4:
            other = chance.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
        else:
            lines[place] = lines[place].replace(b" ", b"", 3).replace(b":", chance.choice([b"", b"::", b": -"]), 1)
    return b"\n".join(lines)


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_damaged_captures_of_every_kind(sample: str) -> None:
    data = SAMPLES[sample]
    reader = next(name for name, parser in BY_NAME.items() if parser.recognise(data[:65536]))
    for seed in range(40):
        mutated = damaged(data, seed)
        BY_NAME[reader].recognise(mutated[:65536])
        check(mutated, read(reader, mutated))


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_every_truncation_keeps_to_what_is_printed(sample: str) -> None:
    data = SAMPLES[sample]
    reader = next(name for name, parser in BY_NAME.items() if parser.recognise(data[:65536]))
    for end in range(0, len(data), max(1, len(data) // 60)):
        check(data[:end], read(reader, data[:end]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.sampled_from(NAMES), st.sampled_from(sorted(SAMPLES)), st.binary(max_size=60), st.integers(0, 5000))
def test_any_parser_survives_any_capture(name: str, sample: str, noise: bytes, place: int) -> None:
    data = SAMPLES[sample]
    mixed = data[:place] + noise + data[place:]
    assert isinstance(BY_NAME[name].recognise(mixed[:65536]), bool)
    for item in read(name, mixed):
        assert isinstance(item, (Row, Note))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(NAMES), st.binary(max_size=300))
def test_any_parser_survives_any_bytes(name: str, data: bytes) -> None:
    assert isinstance(BY_NAME[name].recognise(data), bool)
    assert all(isinstance(item, (Row, Note)) for item in read(name, data))


LONG = {
    "one line": b"A" * 1_000_000,
    "open braces": b"{" * 500_000,
    "open brackets": b"[" * 500_000,
    "quotes": b'"' * 1_000_000,
    "keys": b'{"card0": {' + b'"a": 1,' * 140_000,
    "pairs": b"    Key : 1 W\n" * 70_000,
    "bars": b"|" * 1_000_000,
    "box": b"| GPU  Name | Temp  Perf |\n" * 40_000,
    "spaces": b"GPU  Temp   AvgPwr  SCLK  MCLK Fan Perf" + b" " * 1_000_000 + b"\n0 " + b"1 " * 400_000,
    "labels": b"a{" + b'l="x",' * 160_000 + b"} 1\n",
    "backslashes": b'a{l="' + b"\\" * 999_999,
    "commas": b"index,power.draw,name" + b"," * 900_000 + b"\n",
    "tags": b"<nvidia_smi_log>" + b"<a>" * 300_000,
    "gpus": b"<nvidia_smi_log>" + b"<gpu><uuid>x</uuid></gpu>" * 40_000,
    "dashes": (b"-" * 500 + b"\n") * 2_000,
    "digits": b"GPU 00000000:01:00.0\n    Temperature\n        GPU Current Temp : " + b"9" * 900_000 + b" C\n",
}


@pytest.mark.parametrize("shape", sorted(LONG))
def test_a_megabyte_of_anything_ends_in_two_seconds(shape: str) -> None:
    for name in NAMES:
        started = time.process_time()
        BY_NAME[name].recognise(LONG[shape][:65536])
        for item in BY_NAME[name].parse(io.BytesIO(LONG[shape]), CONTEXT):
            assert isinstance(item, (Row, Note))
        assert time.process_time() - started < 2.0, name


@pytest.mark.parametrize("text", ["9" * 5000, "0x" + "f" * 5000, "9" * 400, "1e999", "²", "٣", "-9", "NaN"])
def test_numbers_of_no_machine_are_not_read(text: str) -> None:
    for data in SAMPLES.values():
        for name in NAMES:
            if not BY_NAME[name].recognise(data):
                continue
            for place in list(re.finditer(rb"\d+", data))[:: 1 + len(data) // 1000]:
                odd = data[: place.start()] + text.encode() + data[place.end() :]
                assert all(isinstance(item, (Row, Note)) for item in read(name, odd))


def test_entities_are_refused_and_a_plain_document_type_is_not() -> None:
    bomb = b"""<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>
    <nvidia_smi_log><gpu id="1"><uuid>&b;</uuid></gpu></nvidia_smi_log>"""
    found = read("nvidia-smi-xml", bomb)
    assert not [item for item in found if isinstance(item, Row)]
    assert any(isinstance(item, Note) and "entities" in item.text for item in found)
    plain = (
        bomb.split(b"[")[0]
        + b'SYSTEM "nvsmi_device_v12.dtd"><nvidia_smi_log><gpu id="1"><uuid>u</uuid></gpu></nvidia_smi_log>'
    )
    assert any(isinstance(item, Row) for item in read("nvidia-smi-xml", plain))


def test_a_truncated_report_names_the_line_and_keeps_what_it_read() -> None:
    data = SAMPLES["nvidia_smi_610.xml"]
    cut = data[: data.index(b"<clocks>")]
    found = read("nvidia-smi-xml", cut)
    row = next(item for item in found if isinstance(item, Row))
    assert row.values["temp_c"] == 61.0
    assert row.values["quality"] == "partial"
    error = next(item for item in found if isinstance(item, Note) and item.level == "error")
    assert error.where == f"line {cut.count(bytes([10])) + 1}"


def test_documents_that_follow_one_another_are_all_read() -> None:
    data = SAMPLES["nvidia_smi_610.xml"]
    broken = data[: data.index(b"<clocks>")]
    found = read("nvidia-smi-xml", b"$ nvidia-smi -q -x -l 5\n" + data + b"\n" + broken)
    whole = read("nvidia-smi-xml", data)
    whole_rows = [item for item in whole if isinstance(item, Row)]
    rows = [item for item in found if isinstance(item, Row)]
    assert rows[: len(whole_rows)] == whole_rows
    assert rows[len(whole_rows)].values["temp_c"] == 61.0
    error = next(item for item in found if isinstance(item, Note) and item.level == "error")
    assert error.where == f"line {1 + data.count(bytes([10])) + 1 + broken.count(bytes([10])) + 1}"


def test_a_flood_of_empty_documents_ends_early() -> None:
    started = time.process_time()
    found = read("nvidia-smi-xml", b"<?xml" * 400_000)
    assert time.process_time() - started < 2.0
    assert len(found) < 300
    assert isinstance(found[-1], Note)
    assert "was not read" in found[-1].text


def test_a_value_cut_before_its_unit_is_not_read() -> None:
    text = b"GPU 00000000:01:00.0\n    Temperature\n        GPU Current Temp : 5"
    found = read("nvidia-smi-q", text)
    assert next(item for item in found if isinstance(item, Row)).values["temp_c"] is None
