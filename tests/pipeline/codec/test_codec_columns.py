"""Merging messages into Arrow tables: the same values as row by row, and only what does not fit is refused."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flightwatch.core.catalogue import TABLES
from flightwatch.core.protocols import Row
from flightwatch.pipeline.batch import Batch
from flightwatch.pipeline.codec import encode, wire
from flightwatch.pipeline.codec.columns import Merged, Part, arrow_schema, merge
from flightwatch.pipeline.codec.read import Section, open_message, text_fault
from flightwatch.pipeline.codec.unknown import extra_name
from tests.pipeline.codec.codec_samples import NOW_MS, device_row, header, rows, same

DEVICES = TABLES["device_samples"]


def parts_of(messages: list[bytes], table: str = "device_samples") -> list[Part]:
    parts = []
    for number, message in enumerate(messages):
        opened = open_message(message)
        for section in opened.sections:
            if section.table == table:
                parts.append(
                    Part(
                        section, number, opened.identity.node, opened.identity.cluster, NOW_MS + number, 3, 100 + number
                    )
                )
    return parts


def merged(*batches: list[Row], bounds_ms: tuple[int, int] | None = None) -> Merged:
    messages = [encode(Batch(header(n + 1, f"node-{n}"), rows)) for n, rows in enumerate(batches)]
    return merge(DEVICES, parts_of(messages), bounds_ms)


def reasons(result: Merged) -> list[tuple[int, int, str]]:
    return [(row.message, row.index, row.reason) for row in result.refused]


def plain(cell: Any) -> Any:
    if isinstance(cell, list) and cell and isinstance(cell[0], tuple):
        return dict(cell)
    return cell


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_merged_rows_are_the_rows_that_were_sent(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([t.name for t in TABLES.values() if t.lane is not None]))
    table = TABLES[name]
    batches = data.draw(st.lists(rows(table), min_size=1, max_size=4))
    messages = [encode(Batch(header(n + 1), batch)) for n, batch in enumerate(batches)]
    result = merge(table, parts_of(messages, name))
    assert result.refused == []
    assert result.table.schema == arrow_schema(table)
    result.table.validate(full=True)
    order = sorted(range(result.table.num_rows), key=lambda row: int(result.message[row]))
    got = [result.table.slice(row, 1).to_pylist()[0] for row in order]
    sent = [row.values for batch in batches for row in batch]
    for column in table.columns:
        if column.name in ("received_at", "src_partition", "src_offset", "ts") or column.type == "time":
            continue
        for before, after in zip(sent, got, strict=True):
            expected = before.get(column.name)
            cell = plain(after[column.name])
            if expected is None and not column.nullable:
                assert cell in ("", [], {}) or column.name in ("node", "cluster")
            elif isinstance(expected, (dict, list)):
                assert cell == expected or (not cell and not expected)
            else:
                assert same(cell, expected), column.name


def test_rows_know_where_they_came_from() -> None:
    result = merged([device_row(0), device_row(1)], [device_row(0)])
    got = result.table.select(["node", "cluster", "received_at", "src_partition", "src_offset"]).to_pylist()
    assert [(r["node"], r["cluster"], r["src_partition"], r["src_offset"]) for r in got] == [
        ("node-0", "c1", 3, 100), ("node-0", "c1", 3, 100), ("node-1", "c1", 3, 101)
    ]  # fmt: skip
    assert [round(r["received_at"].timestamp() * 1000) for r in got] == [NOW_MS, NOW_MS, NOW_MS + 1]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("mem_used_bytes", -1, "out of range"),
        ("mem_used_bytes", 2**64, "out of range|must be an integer"),
        ("mem_used_bytes", 1.5, "out of range|must be an integer"),
        ("mem_used_bytes", "many", "must be an integer, not 'many'"),
        ("mem_used_bytes", True, "must be"),
        ("pcie_gen", 300, "out of range"),
        ("rank", 2**31, "out of range"),
        ("temp_c", 1e39, "out of range"),
        ("temp_c", "hot", "must be a number"),
        ("remap_pending", 1, "must be true or false"),
        ("ecc_mode", 5, "must be text"),
        ("ecc_mode", "\udcff\udcfe", "not valid UTF-8"),
        ("extra", {"a": "b"}, "must be a number"),
        ("extra", [1], "must be a map"),
        ("extra_counters", {"a": -1}, "out of range"),
        ("ts", None, "ts is missing"),
        ("ts", -5, "out of range"),
        ("ts", 10**17, "out of range"),
        ("device", None, "device is missing"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_only_the_row_that_does_not_fit_is_refused(column: str, value: Any, reason: str, alone: bool) -> None:
    bad = device_row(7, temp_c=1.0)
    bad.values[column] = value
    batch = [bad] if alone else [device_row(0, temp_c=5.0, mem_used_bytes=1, pcie_gen=5), bad, device_row(1)]
    result = merged(batch, [device_row(9)])
    import re

    (refused,) = result.refused
    assert (refused.message, refused.index) == (0, 0 if alone else 1)
    assert re.search(reason, refused.reason), refused.reason
    assert result.table.column("device").to_pylist() == ([9] if alone else [0, 1, 9])


def test_the_reason_names_the_row_and_later_tables_count_on() -> None:
    rows_of_two = [Row("node_samples", {"ts": NOW_MS, "cpu_pct": 1.0}), device_row(0), device_row(1, rank="x")]
    assert reasons(merged(rows_of_two)) == [(0, 2, "rank must be an integer, not 'x'")]


def test_a_whole_number_in_a_float_column_and_the_reverse_are_taken() -> None:
    result = merged([device_row(0, temp_c=50, mem_used_bytes=7.0), device_row(1, temp_c=50.5)])
    assert result.refused == []
    assert result.table.column("temp_c").to_pylist() == [50.0, 50.5]
    assert result.table.column("mem_used_bytes").to_pylist() == [7, None]


def test_not_a_number_is_kept_as_such() -> None:
    message = encode(
        Batch(header(), [Row("training_scalars", {"ts": NOW_MS, "step": 1, "rank": -1, "value": math.nan})])
    )
    result = merge(TABLES["training_scalars"], parts_of([message], "training_scalars"))
    assert math.isnan(result.table.column("value")[0].as_py())


def test_columns_of_a_newer_agent_go_to_the_extra_maps() -> None:
    result = merged(
        [
            device_row(0, new_total=2**60 + 1, new_c=1.5, extra={"nvml.fan_rpm": 5.0}),
            device_row(1, new_total=5, **{"nvml.power_w": 3}),
        ],
        [device_row(2, new_total="text"), device_row(3, new_total=2**53 + 1)],
    )
    extra = [dict(cell) for cell in result.table.column("extra").to_pylist()]
    counters = [dict(cell) for cell in result.table.column("extra_counters").to_pylist()]
    assert extra == [{"nvml.fan_rpm": 5.0, "agent.new_c": 1.5}, {"agent.new_total": 5.0, "nvml.power_w": 3.0}, {}, {}]
    assert counters == [{"agent.new_total": 2**60 + 1}, {}, {}, {"agent.new_total": 2**53 + 1}]
    assert result.dropped == {"new_total": 1}
    assert result.refused == []


def test_unknown_text_and_columns_without_a_place_are_counted_and_dropped() -> None:
    result = merged([device_row(0, colour="red", flag=True), device_row(1, colour="blue")])
    assert result.dropped == {"colour": 2, "flag": 1}
    message = encode(Batch(header(), [Row("events", {"ts": NOW_MS, "code": "x", "height_m": 3})]))
    events = merge(TABLES["events"], parts_of([message], "events"))
    assert events.dropped == {"height_m": 1}
    assert events.table.num_rows == 1


def test_two_hundred_vendor_columns_fit() -> None:
    result = merged([device_row(0, **{f"vendor.reading{n}_c": float(n) for n in range(200)})])
    assert dict(result.table.column("extra")[0].as_py()) == {f"vendor.reading{n}_c": float(n) for n in range(200)}


def test_names_of_extras_have_a_source() -> None:
    assert extra_name("nvml.fan_rpm") == "nvml.fan_rpm"
    assert extra_name("fan_rpm") == "agent.fan_rpm"


def test_times_far_from_broker_time_are_refused() -> None:
    day_ms = 86_400_000
    batch = [device_row(n) for n in range(4)]
    for row, days in zip(batch, (0, -13.9, -14.1, 1), strict=True):
        row.values["ts"] = round(NOW_MS + days * day_ms)
    result = merged(batch, bounds_ms=(14 * day_ms, 300_000))
    assert [(row.index, row.reason.split()[-3]) for row in result.refused] == [(2, "before"), (3, "after")]


def test_bytes_that_are_not_utf_8_cost_only_their_row() -> None:
    """A foreign producer's text part: one cell of two is not UTF-8."""
    schema = orjson.dumps(["device_samples", 2, ["ts:q", "device:H", "vendor:s"]])
    text = b'{"vendor":["good","b\xff\xfed"]}'
    data = wire.to_planes((NOW_MS).to_bytes(8, "little") * 2, 8) + wire.to_planes(b"\0\0\1\0", 2)
    section = Section("device_samples", 2, 0, schema, text, data)
    assert text_fault(schema, text) == ""
    result = merge(DEVICES, [Part(section, 0, "n", "c", NOW_MS, 0, 0)])
    assert reasons(result) == [(0, 1, "vendor is not valid UTF-8")]
    assert result.table.column("vendor").to_pylist() == ["good"]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"vendor":["one"]}', b'{"vendor":5}', b"{", b'{"other":["a","b"]}'])
def test_a_text_part_that_does_not_fit_is_found_before_merging(text: bytes) -> None:
    schema = orjson.dumps(["device_samples", 2, ["vendor:s"]])
    assert text_fault(schema, text) != ""


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bodies_never_break_a_merge(data: st.DataObject) -> None:
    from flightwatch.core.errors import BadRecord

    message = encode(Batch(header(), [device_row(0, temp_c=1.0, uuid="u", extra={"a": 1.0}), device_row(1, rank=None)]))
    body = bytearray(wire.decompressor().decompress(message[wire.ENVELOPE.size :]))
    for _ in range(data.draw(st.integers(1, 5))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    damaged = message[: wire.ENVELOPE.size] + wire.compressor().compress(bytes(body))
    try:
        sections = open_message(damaged).sections
    except BadRecord:
        return
    for section in sections:
        table = TABLES.get(section.table)
        if table is not None and not text_fault(section.schema, section.text):
            result = merge(table, [Part(section, 0, "n", "c", NOW_MS, 0, 0)], (10**9, 10**9))
            result.table.validate(full=True)
            assert result.table.num_rows + len(result.refused) == section.count
