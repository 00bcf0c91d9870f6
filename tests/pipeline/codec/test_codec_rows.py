"""Rows to bytes and back, one message at a time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import Row
from flightwatch.pipeline.batch import Batch
from flightwatch.pipeline.codec import decode, encode, wire
from flightwatch.pipeline.codec.read import open_message, rows_of, signature_of
from tests.pipeline.codec.codec_samples import NOW_MS, batch, device_row, header, rows, same


def round_trip(*given_rows: Row) -> list[dict[str, Any]]:
    return [row.values for row in decode(encode(batch(*given_rows))).rows]


@settings(max_examples=150, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=3))
def test_every_value_comes_back_as_it_was(groups: list[list[Row]]) -> None:
    sent = [row for group in groups for row in group]
    received = decode(encode(batch(*sent))).rows
    by_table: dict[str, list[Row]] = {}
    for row in sent:
        by_table.setdefault(row.table, []).append(row)
    expected = [row for group in by_table.values() for row in group]
    assert [row.table for row in received] == [row.table for row in expected]
    for before, after in zip(expected, received, strict=True):
        for name, value in before.values.items():
            assert same(after.values.get(name), value), name


def test_the_header_comes_back() -> None:
    sent = header(2**63 + 5, "node; rm -rf /", evicted="3-7")
    assert decode(encode(Batch(sent, []))).header == sent


def test_a_counter_beyond_double_precision_is_exact() -> None:
    values = [2**53 + 1, 2**64 - 1, None, 0]
    got = round_trip(*(device_row(i, link_rx_bytes_total=v) for i, v in enumerate(values)))
    assert [row.get("link_rx_bytes_total") for row in got] == values


def test_unknown_stays_unknown_and_never_becomes_zero() -> None:
    got = round_trip(device_row(0, temp_c=None, ecc_mode=None), device_row(1, temp_c=0.0, ecc_mode=""))
    assert [(row["temp_c"], row["ecc_mode"]) for row in got] == [(None, None), (0.0, "")]


def test_a_row_without_time_keeps_none() -> None:
    got = round_trip(Row("events", {"ts": None, "code": "xid:79"}), Row("events", {"ts": NOW_MS, "code": "x"}))
    assert [row["ts"] for row in got] == [None, NOW_MS]


def test_a_column_that_all_rows_leave_out_is_not_sent() -> None:
    assert "temp_c" not in round_trip(device_row(0, temp_c=None))[0]


@pytest.mark.parametrize("value", ["hot", True, 1e300, -1, 2**80, "\udcff", [1], {"a": 1}])
def test_a_value_that_does_not_fit_travels_as_it_is(value: Any) -> None:
    got = round_trip(device_row(0, mem_used_bytes=5), device_row(1, mem_used_bytes=value))
    assert got[0]["mem_used_bytes"] == 5
    assert got[1]["mem_used_bytes"] == value


def test_a_column_of_the_vendor_may_have_any_name_and_200_of_them_fit() -> None:
    extra = {f"vendor:weird name {n}_c": float(n) for n in range(200)}
    assert round_trip(device_row(0, **extra))[0] | extra == round_trip(device_row(0, **extra))[0]


def test_a_signature_covers_every_byte_before_it() -> None:
    message = encode(batch(device_row()), sign=lambda data: len(data).to_bytes(64, "little"))
    body, signature = signature_of(message)
    assert signature == len(body).to_bytes(64, "little")
    assert body + signature == message
    assert decode(message).rows == decode(encode(batch(device_row()))).rows
    assert signature_of(encode(batch(device_row())))[1] is None


def test_a_cut_signature_is_refused() -> None:
    message = encode(batch(device_row()), sign=lambda data: bytes(64))
    with pytest.raises(BadRecord, match="signature"):
        signature_of(message[: wire.ENVELOPE.size + 10])


def test_too_many_rows_are_refused_by_the_writer() -> None:
    with pytest.raises(BadRecord, match="at most 100000 rows"):
        encode(Batch(header(), [device_row()] * (wire.MAX_ROWS + 1)))


def test_the_row_count_is_readable_without_decompressing() -> None:
    assert rows_of(encode(batch(device_row(0), device_row(1)))) == 2
    assert rows_of(b"something else entirely, of any length") == 0


def rebuilt(
    message: bytes, *, identity: dict[str, str] | None = None, section: bytes = b"", min_reader: int = 1
) -> bytes:
    """The message as a newer writer would have made it."""
    body = wire.decompressor().decompress(message[wire.ENVELOPE.size :])
    end = wire.LENGTH.size + wire.LENGTH.unpack_from(body)[0]
    names = orjson.dumps(orjson.loads(body[wire.LENGTH.size : end]) | (identity or {}))
    body = wire.LENGTH.pack(len(names)) + names + section + body[end:]
    fields = list(wire.ENVELOPE.unpack_from(message))
    fields[1], fields[2], fields[7] = wire.FORMAT_VERSION + 1, min_reader, len(body)
    return wire.ENVELOPE.pack(*fields) + wire.compressor().compress(body)


def test_a_newer_writer_is_read_without_what_it_added() -> None:
    old = encode(batch(device_row(temp_c=50.0)))
    section = wire.SECTION.pack(77, 3, 2, 1) + b"abcdef"
    new = rebuilt(old, identity={"colour": "blue"}, section=section)
    assert decode(new).rows == decode(old).rows
    assert open_message(new).skipped_sections == 1


def test_a_format_that_only_newer_readers_know_says_upgrade() -> None:
    with pytest.raises(BadRecord, match="upgrade, then replay"):
        decode(rebuilt(encode(batch(device_row())), min_reader=wire.FORMAT_VERSION + 1))


#: A message written by the first released format; it must be readable for ever.
RECORDED = bytes.fromhex(
    "4657010100010000020000000c01000000c02cc899010000070000000000000028b52ffd600c0085030072c40e1ab027ad01"
    "d031e0b110f4ba5ab6acf0069ea23c0e7bf0741d9729f77b504ddcbdd6ad4dc88c3dc228200352c99874109cc0012f4eb853"
    "52397e021300201017c19ce084a9413f820863c5245ab28089b201e0bb604aef553c21c3de170f6c31889a027081c118ae6e"
    "f86c8608"
)


def test_a_recorded_message_of_format_1_is_still_readable() -> None:
    got = decode(RECORDED)
    assert got.header == header(7)
    assert [row.values for row in got.rows] == [
        {"ts": NOW_MS, "device": 0, "vendor": "nvidia", "temp_c": 61.5, "ecc_corrected_total": 2**63, "node": "n1",
         "cluster": "c1"},
        {"ts": NOW_MS, "device": 1, "vendor": "nvidia", "temp_c": None, "ecc_corrected_total": 0, "node": "n1",
         "cluster": "c1"},
    ]  # fmt: skip


def bomb() -> bytes:
    body = bytes(wire.MAX_BODY_BYTES + 1)
    envelope = wire.ENVELOPE.pack(b"FW", 1, 1, 0, 1, 0, 1, len(body), 0, 1)
    return envelope + wire.compressor().compress(body)


def test_a_decompression_bomb_is_refused_before_memory_is_taken() -> None:
    message = bomb()
    assert len(message) < 100_000
    with pytest.raises(BadRecord, match="exceeds"):
        decode(message)
    lying = message[:12] + (1000).to_bytes(4, "little") + message[16:]
    with pytest.raises(BadRecord, match="differs"):
        decode(lying)


def test_a_repeated_word_cannot_stand_for_millions_of_cells() -> None:
    schema = orjson.dumps(["device_samples", wire.MAX_ROWS, [f"c{n}:s" for n in range(wire.MAX_COLUMNS)]])
    section = wire.SECTION.pack(1, len(schema), 0, 0) + schema
    with pytest.raises(BadRecord, match="too many"):
        decode(rebuilt(encode(batch()), section=section))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_and_never_crash(data: st.DataObject) -> None:
    message = bytearray(encode(batch(device_row(0, temp_c=1.0, uuid="u", extra={"a.b_c": 1.0}), device_row(1))))
    if data.draw(st.booleans()):
        # Damage inside the compressed body too: the checksum-less frame is where surprises live.
        body = bytearray(wire.decompressor().decompress(bytes(message[wire.ENVELOPE.size :])))
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        message = message[: wire.ENVELOPE.size] + wire.compressor().compress(bytes(body))
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
        message = message[: data.draw(st.integers(0, len(message)))]
    with contextlib.suppress(BadRecord):
        assert len(decode(bytes(message)).rows) <= wire.MAX_ROWS


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(BadRecord):
        decode(value)


def test_the_writer_imports_neither_numpy_nor_pyarrow() -> None:
    code = (
        "import sys; from flightwatch.pipeline.codec import encode\n"
        "assert not {'numpy', 'pyarrow', 'pandas', 'clickhouse_connect'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
