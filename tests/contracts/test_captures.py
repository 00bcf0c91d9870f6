"""The contract of capture parsers, over every registered parser and mutated look-alikes of its captures."""

from __future__ import annotations

import io
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flightwatch.collectors.captures import registry
from flightwatch.collectors.captures.base import Parser, TreeParser
from flightwatch.core.catalogue import TABLES
from flightwatch.core.protocols import CaptureContext, Note, Row

SAMPLES = sorted(
    path
    for path in (Path(__file__).parents[1] / "collectors" / "captures").glob("*/samples/*")
    if path.is_file() and not path.is_symlink()
)
PARSERS = list(registry.parsers())
#: Generous, since the suite shares its machine: 2 s per MB is the goal, samples are a few kB.
SECONDS = 2.0
WHOLE = {"u8": 2**8, "u16": 2**16, "u32": 2**32, "u64": 2**64, "i16": 2**15, "i32": 2**31, "i64": 2**63}
#: Numeric columns that count or number things, so that a value need not stand in the text.
COUNTING = {
    "device",
    "parent_device",
    "mig_id",
    "rank",
    "step",
    "steps",
    "count",
    "port",
    "entries",
    "nonfinite_count",
    "throttle_reasons",
}
XID = b"NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n"


def parser_of(head: bytes) -> Parser | None:
    return next((parser for parser in PARSERS if parser.recognise(head[:65536])), None)


def read(parser: Parser, data: bytes, source: str = "x.txt") -> list[Row | Note]:
    began = time.process_time()
    items = list(parser.parse(io.BytesIO(data), CaptureContext(source)))
    spent = time.process_time() - began
    assert spent < SECONDS + 2 * len(data) / 1e6, f"{parser.name} took {spent:.1f} s for {len(data)} bytes"
    return items


def check(parser: Parser, items: list[Row | Note]) -> None:
    for item in items:
        if isinstance(item, Note):
            assert item.level in ("info", "warning", "error")
            assert item.text
            continue
        table = TABLES[item.table]
        declared = set(parser.CARRIES[item.table]) | {"ts", "node"}
        extra = set(item.values) - declared
        assert not extra, f"{parser.name}: {item.table} carries undeclared {sorted(extra)}"
        for name, value in item.values.items():
            if value is not None:
                check_value(f"{parser.name} {item.table}.{name}", table.column(name).type, value)


def check_value(where: str, kind: str, value: object) -> None:
    if kind in ("word", "text"):
        assert isinstance(value, str), where
    elif kind == "bool":
        assert isinstance(value, bool), where
    elif kind == "time":
        assert isinstance(value, int), where
        assert not isinstance(value, bool), where
    elif kind in ("f32", "f64"):
        assert isinstance(value, (int, float)), where
        assert not isinstance(value, bool), where
        if not where.endswith("training_scalars.value"):
            assert abs(float(value)) < float("inf"), where
    elif kind in WHOLE:
        assert isinstance(value, int), where
        assert not isinstance(value, bool), where
        low = 0 if kind.startswith("u") else -WHOLE[kind]
        assert low <= value < WHOLE[kind], f"{where} = {value}"
    elif kind.startswith("map_"):
        assert isinstance(value, dict), where
        for key, item in value.items():
            assert isinstance(key, str), where
            assert isinstance(item, str if kind == "map_text" else (int, float)), f"{where}[{key}]"
    elif kind == "list_i32":
        assert isinstance(value, list), where
        assert all(isinstance(item, int) for item in value), where


def mutations(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    lines = data.split(b"\n")
    for _ in range(count):
        kind = chance.randrange(12)
        at = chance.randrange(len(data) + 1)
        if kind == 0:
            yield data[:at]
        elif kind == 1:
            yield data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        elif kind == 2:
            yield data[:at] + data[at + chance.randrange(1, 60) :]
        elif kind == 3:
            yield data[:at] + data[max(0, at - 200) : at] + data[at:]
        elif kind == 4:
            shuffled = lines[:]
            chance.shuffle(shuffled)
            yield b"\n".join(shuffled)
        elif kind == 5:
            yield re.sub(rb"\d+", b"9" * chance.choice((20, 40, 400, 5000)), data, count=chance.randrange(1, 20))
        elif kind == 6:
            yield re.sub(rb"\d+", chance.choice((b"-1", b"nan", b"inf", b"1e999", b"N/A", b"", b"\xc3\x28")), data)
        elif kind == 7:
            yield data.replace(b"\n", b"\r\n")
        elif kind == 8:
            yield data.decode("utf-8", "replace").encode("utf-16")
        elif kind == 9:
            yield data[:at] + b"\0" * 40 + b"\xff\xfe" + data[at:]
        elif kind == 10:
            yield b"\xef\xbb\xbf" + data.replace(b" ", b"\t")
        else:
            other = SAMPLES[chance.randrange(len(SAMPLES))].read_bytes()
            yield data[:at] + other


def test_every_parser_is_registered_once_and_declares_itself() -> None:
    names = [parser.name for parser in PARSERS]
    assert len(set(names)) == len(names)
    for (listed, _), parser in zip(registry.PARSERS, PARSERS, strict=False):
        assert listed == parser.name
    everything: list[Parser | TreeParser] = [*PARSERS, *registry.tree_parsers()]
    for declared in everything:
        assert declared.CARRIES, declared.name
        for table, columns in declared.CARRIES.items():
            assert set(columns) <= set(TABLES[table].column_names), (declared.name, table)
            assert len(set(columns)) == len(columns)
        for column, reason in declared.NULL_NOTES.items():
            table, _, name = column.rpartition(".")
            tables = [table] if table else list(declared.CARRIES)
            known = {"ts", "node"} | {c for t in tables for c in TABLES[t].column_names}
            assert name in known, f"{declared.name}: NULL_NOTES names {column}"
            assert reason


def test_every_parser_has_a_sample() -> None:
    seen = {parser.name for path in SAMPLES if (parser := parser_of(path.read_bytes())) is not None}
    # These two read what other suites build at run time: pickles and traces.
    assert {parser.name for parser in PARSERS} - seen <= {"flight-recorder", "kineto-trace"}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parents[1].name}/{path.name}")
def test_samples_and_their_mutations(path: Path) -> None:
    data = path.read_bytes()
    parser = parser_of(data)
    if parser is None:
        pytest.skip("a file of a recorded tree, read by a tree parser")
    check(parser, read(parser, data))
    for mutated in mutations(data, seed=len(data), count=30):
        check(parser, read(parser, mutated))
        found = parser_of(mutated)
        if found is not None and found is not parser:
            check(found, read(found, mutated))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parents[1].name}/{path.name}")
def test_no_number_is_invented(path: Path) -> None:
    """Without any digit in the text no measured value may come out."""
    data = path.read_bytes()
    parser = parser_of(data)
    if parser is None:
        pytest.skip("a file of a recorded tree, read by a tree parser")
    for item in read(parser, re.sub(rb"\d", b"?", data)):
        if not isinstance(item, Row):
            continue
        for name, value in item.values.items():
            column = TABLES[item.table].column(name)
            if column.type[0] in "fui" and name not in COUNTING and column.type != "bool":
                assert value is None, f"{parser.name} {item.table}.{name} = {value}"


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_anything_is_survived(parser: Parser) -> None:
    for data in (b"", b"\0" * 5000, b"{" * 5000, b"[" * 5000, b"<" * 5000, b"," * 5000, b"a" * 200_000, b"\n" * 20_000,
                 b'{"a": ' * 3000, b"\xff\xfe" + b"1" * 101, "０１２３".encode() * 500, b"1 " * 50_000):  # fmt: skip
        parser.recognise(data)
        check(parser, read(parser, data))


@pytest.mark.parametrize("unit", [
    b"\n", b" ", b"\t", b"1", b"a", b"a,", b"{", b'{"', b"<a ", b"| ", b"-", b"==", b"a: ", b"# ", b".", b"ab cd ",
    b"a=1 ", b"12 34 ", b"[1] ", b"ab\n", b"+-", b"0x00 ", b"a/b/", b"Jan  1 00:00:00 a b\n", b"1:2:3 ",
    b"(a)", b'"a" ',
])  # fmt: skip
def test_recognition_is_quick_on_monotonous_text(unit: bytes) -> None:
    head = (XID + unit * 65536)[:65536]
    for parser in PARSERS:
        began = time.process_time()
        parser.recognise(head)
        parser.recognise(head[len(XID) :])
        assert time.process_time() - began < 0.5, parser.name


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=3000), st.integers(0, len(SAMPLES) - 1), st.integers(0, 10_000))
def test_random_bytes_inside_a_capture(junk: bytes, which: int, at: int) -> None:
    data = SAMPLES[which].read_bytes()
    at = min(at, len(data))
    mutated = data[:at] + junk + data[at:]
    for parser in PARSERS:
        if parser.recognise(mutated[:65536]):
            check(parser, read(parser, mutated))


@pytest.mark.soak
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(0, len(SAMPLES) - 1))
def test_long_mutation_run(seed: int, which: int) -> None:
    data = SAMPLES[which].read_bytes()
    parser = parser_of(data)
    if parser is not None:
        for mutated in mutations(data, seed, 3):
            check(parser, read(parser, mutated))
