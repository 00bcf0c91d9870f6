"""Damaged captures: every parser of ports, hosts, storage and topology ends, raises nothing and invents nothing."""

from __future__ import annotations

import io
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flightwatch.collectors.captures.base import Parser, TreeParser
from flightwatch.collectors.captures.registry import HOST_PARSERS, TREE_PARSERS, parsers, tree_parsers
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.catalogue import TABLES
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import EventSeverity, EventSource

SAMPLES = {path.name: path.read_bytes() for path in sorted((Path(__file__).parent / "samples").iterdir())}
NAMES = [name for name, _ in HOST_PARSERS]
BY_NAME: dict[str, Parser] = {parser.name: parser for parser in parsers() if parser.name in NAMES}
CONTEXT = CaptureContext("fuzz", 1_790_000_000_000, "n1")
_NUMBER = re.compile(rb"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
#: Columns that hold what was printed, up to the factors of units.
PRINTED = {
    "port_samples": ("optics_rx_power_dbm", "optics_bias_ma", "optics_temp_c", "ber_ratio", "link_downed_total",
                     "symbol_errors_total", "xmit_wait_total", "rx_packets_total", "out_of_sequence_total"),
    "sensor_samples": ("value",),
    "facility_samples": ("value",),
    "storage_samples": ("inflight",),
    "node_samples": ("inlet_c", "outlet_c", "fan_rpm_min"),
}  # fmt: skip
_FACTORS = (1, 1000, 1e-3, 1e6, 1e-6, 3.785411784, 100, 6.894757, 1000 / 60, 0.01)


def check(items: list[Row | Note], data: bytes, parser: Parser | TreeParser) -> None:
    numbers = sorted({abs(float(word)) for word in _NUMBER.findall(data) if len(word) < 40})
    for item in items:
        if isinstance(item, Note):
            assert item.level in ("info", "warning", "error")
            assert item.text.isprintable()
            continue
        table = TABLES[item.table]
        assert set(item.values) == {"ts", "node", *parser.CARRIES[item.table]}
        cells: dict[str, Any] = dict(item.values)
        for column, value in cells.items():
            kind = table.column(column).type
            if value is None:
                continue
            if kind in ("f32", "f64"):
                assert type(value) in (int, float), (column, value)
                assert abs(float(value)) < 1e300, (column, value)
            elif kind[0] == "u":
                assert type(value) is int, (column, value)
                assert 0 <= value < 2 ** int(kind[1:]), (column, value)
            elif kind in ("word", "text"):
                assert isinstance(value, str)
        if item.table == "events":
            assert item.values["severity"] in list(EventSeverity)
            assert item.values["source"] in list(EventSource)
        for column in PRINTED.get(item.table, ()):
            value = item.values.get(column)
            if isinstance(value, (int, float)) and value != 0 and column in item.values:
                magnitude = abs(float(value))
                assert item.values.get("unit") == "C" or any(
                    abs(magnitude - number * factor) <= 1e-6 * magnitude for number in numbers for factor in _FACTORS
                ), (item.table, column, value)


def run(parser: Parser, data: bytes) -> None:
    started = time.process_time()
    items = list(parser.parse(io.BytesIO(data), CONTEXT))
    assert time.process_time() - started < 2 + 2 * len(data) / 1e6
    check(items, data, parser)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Truncate, repeat, drop or swap lines, flip bytes, replace numbers by words and huge values."""
    lines = data.split(b"\n")
    for _ in range(chance.randrange(1, 6)):
        kind = chance.randrange(7)
        index = chance.randrange(len(lines))
        if kind == 0:
            lines = lines[: index + 1]
        elif kind == 1:
            lines.insert(index, chance.choice(lines))
        elif kind == 2 and len(lines) > 1:
            del lines[index]
        elif kind == 3:
            lines[index] = lines[index][: chance.randrange(len(lines[index]) + 1)]
        elif kind == 4 and lines[index]:
            place = chance.randrange(len(lines[index]))
            lines[index] = lines[index][:place] + bytes([chance.randrange(256)]) + lines[index][place + 1 :]
        else:
            word = chance.choice(
                (b"N/A", b"foo", b"-1", b"nan", b"inf", b"1e999", b"18446744073709551616", b"", b"9" * 50)
            )
            lines[index] = _NUMBER.sub(word, lines[index], count=chance.randrange(1, 3))
    return b"\n".join(lines)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_sample_is_recognised_once_and_read_without_damage(name: str) -> None:
    data = SAMPLES[name]
    readers = [parser for parser in BY_NAME.values() if parser.recognise(data[:65536])]
    # Cooling equipment speaks Redfish too: the first of the two in the registry reads it.
    assert len(readers) == 1 or {reader.name for reader in readers} == {"redfish", "redfish-facility"}
    run(readers[0], data)


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_damaged_samples(name: str) -> None:
    chance = random.Random(name)
    for _ in range(60):
        data = damaged(SAMPLES[name], chance)
        for parser in BY_NAME.values():
            if parser.recognise(data[:65536]):
                run(parser, data)


@pytest.mark.parametrize("name", NAMES)
def test_every_parser_survives_every_sample(name: str) -> None:
    for data in SAMPLES.values():
        run(BY_NAME[name], data)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=400), name=st.sampled_from(NAMES))
def test_random_bytes(data: bytes, name: str) -> None:
    BY_NAME[name].recognise(data)
    run(BY_NAME[name], data)


@pytest.mark.parametrize("name", NAMES)
def test_long_and_deep_inputs_end_in_time(name: str) -> None:
    for data in (b"[" * 100_000, b'{"a":' * 50_000, b"| " * 200_000, b"0" * 300_000, b"a=" * 200_000, b" " * 400_000,
                 b"1 " * 150_000, b"<system>" + b"<pci>" * 40_000, b"- [sum] " * 40_000):  # fmt: skip
        BY_NAME[name].recognise(data[:65536])
        run(BY_NAME[name], data)


def test_registered_names_and_declarations() -> None:
    every: list[Parser | TreeParser] = [*BY_NAME.values(), *tree_parsers()]
    for parser in every:
        for table, columns in parser.CARRIES.items():
            for column in columns:
                TABLES[table].column(column)
        for column in parser.NULL_NOTES:
            table, _, name = column.rpartition(".")
            assert not table or name == "ts" or TABLES[table].column(name)
    assert list(BY_NAME) == NAMES
    assert [parser.name for parser in tree_parsers()] == [name for name, _ in TREE_PARSERS]


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    contents=st.lists(
        st.one_of(st.binary(max_size=60), st.integers(-9, 2**70).map(lambda number: b"%d\n" % number)),
        min_size=9,
        max_size=9,
    )
)
def test_trees_of_garbage(contents: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("tree")
    paths = (
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "sys/class/infiniband/mlx5_0/ports/1/rate",
        "sys/class/hwmon/hwmon0/temp1_input", "sys/class/hwmon/hwmon0/temp1_max", "sys/class/hwmon/hwmon0/temp1_label",
        "sys/devices/system/edac/mc/mc0/ue_count", "proc/fs/lustre/osc/a-OST0000-osc-ffff88105db50000/stats",
        "proc/fs/lustre/osc/a-OST0000-osc-ffff88105db50000/import",
        "proc/fs/lustre/osc/a-OST0000-osc-ffff88105db50000/rpc_stats",
    )  # fmt: skip
    for path, content in zip(paths, contents, strict=True):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    for parser in tree_parsers():
        assert parser.recognise_tree(paths)
        check(list(parser.parse_tree(FolderTree(str(root)), CONTEXT)), b"\n".join(contents), parser)
