"""Rows to bytes, in the agent: standard library, zstandard and orjson only."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import Row, Value
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.codec import wire

_FLOATS = {float, int}
_INTS = {int}
_MAX_EXACT_INT = 2**53
_CODES: dict[str, dict[str, str]] = {
    name: {column.name: wire.CODE_OF_TYPE.get(column.type, "") for column in table.columns}
    for name, table in TABLES.items()
}


def encode(batch: Batch, sign: Callable[[bytes], bytes] | None = None) -> bytes:
    """Return one bus message.

    Rows are grouped by table, in the order in which tables first appear. Columns that are NULL in every
    row are left out, as are `node` and `cluster` where they repeat the header. A value of a type or range
    that its column cannot hold travels as it is: the reader puts that row, and only that row, aside.

    Parameters
    ----------
    batch: header and rows.
    sign: returns the signature (64 bytes, Ed25519) of the bytes it is given; None leaves the message unsigned.

    Raises
    ------
    BadRecord: the message would exceed `wire.MAX_MESSAGE_BYTES`, `MAX_BODY_BYTES` or `MAX_ROWS`; split the batch.
    """
    header = batch.header
    if len(batch.rows) > wire.MAX_ROWS:
        raise BadRecord(f"a batch holds at most {wire.MAX_ROWS} rows, not {len(batch.rows)}")
    groups: dict[str, list[dict[str, Value]]] = {}
    for row in batch.rows:
        groups.setdefault(row.table, []).append(row.values)
    identity = _json(_identity(header))
    parts = [wire.LENGTH.pack(len(identity)), identity]
    for table, rows in groups.items():
        parts += _section(table, rows, header)
    body = b"".join(parts)
    if len(body) > wire.MAX_BODY_BYTES:
        raise BadRecord(f"a batch holds at most {wire.MAX_BODY_BYTES} bytes before compression, not {len(body)}")
    return _seal(header, len(batch.rows), body, sign)


def encode_rows(header: BatchHeader, rows: Sequence[Row], sign: Callable[[bytes], bytes] | None = None) -> bytes:
    """Return one bus message of `rows`; see `encode`."""
    return encode(Batch(header, rows), sign)


def _seal(header: BatchHeader, rows: int, body: bytes, sign: Callable[[bytes], bytes] | None) -> bytes:
    signature_bytes = 0 if sign is None else wire.SIGNATURE_BYTES
    envelope = wire.ENVELOPE.pack(
        wire.MAGIC,
        wire.FORMAT_VERSION,
        wire.FORMAT_VERSION,
        0 if sign is None else wire.FLAG_SIGNED,
        wire.DICTIONARY,
        signature_bytes,
        rows,
        len(body),
        header.created_at_ms,
        header.seq,
    )
    message = envelope + wire.compressor().compress(body)
    if sign is not None:
        signature = sign(message)
        if len(signature) != wire.SIGNATURE_BYTES:
            raise ValueError(f"a signature has {wire.SIGNATURE_BYTES} bytes, not {len(signature)}")
        message += signature
    if len(message) > wire.MAX_MESSAGE_BYTES:
        raise BadRecord(f"a message holds at most {wire.MAX_MESSAGE_BYTES} bytes, not {len(message)}")
    return message


def _identity(header: BatchHeader) -> dict[str, Any]:
    identity: dict[str, Any] = {
        "agent": header.agent_id,
        "spool": header.spool_id,
        "lane": header.lane,
        "node": header.node,
        "cluster": header.cluster,
        "program": header.program_version,
    }
    if header.attributes:
        identity["attributes"] = dict(header.attributes)
    return identity


def _section(table: str, rows: list[dict[str, Value]], header: BatchHeader) -> list[bytes]:
    known = _CODES.get(table, {})
    names = dict.fromkeys(name for values in rows for name in values)
    schema: list[str] = []
    text: dict[str, Any] = {}
    numbers: dict[int, list[bytes]] = {8: [], 4: [], 2: [], 1: []}
    for name in names:
        cells = [values.get(name) for values in rows]
        if _repeats_header(name, cells, header):
            continue
        nulls = cells.count(None)
        if nulls == len(cells):
            continue
        packed = _pack(cells, known.get(name), nulls)
        if packed is None:
            code = _text_column(cells, nulls)
            text[name] = cells[0] if code == wire.CODE_TEXT and cells.count(cells[0]) == len(cells) else cells
        else:
            code, data = packed
            numbers[wire.WIDTHS[code]].append(data)
            if nulls:
                numbers[1].append(bytes(cell is None for cell in cells))
                code += "n"
        schema.append(f"{name}:{code}")
    schema_bytes = _json([table, len(rows), schema])
    text_bytes = _json(text) if text else b""
    data = b"".join(wire.to_planes(b"".join(columns), width) for width, columns in numbers.items())
    lengths = wire.SECTION.pack(wire.SECTION_TABLE, len(schema_bytes), len(text_bytes), len(data))
    return [lengths, schema_bytes, text_bytes, data]


def _repeats_header(name: str, cells: list[Value], header: BatchHeader) -> bool:
    if name == "node":
        return cells.count(header.node) == len(cells)
    return name == "cluster" and cells.count(header.cluster) == len(cells)


def _pack(cells: list[Value], code: str | None, nulls: int) -> tuple[str, bytes] | None:
    """Return code and bytes of a column of plain numbers, None when it is not one."""
    if nulls:
        cells = [0 if cell is None else cell for cell in cells]
    kinds = set(map(type, cells))
    if code == "?" or kinds == {bool}:
        # NULL cells were filled with 0, an int; what else is there must be bool.
        return ("?", bytes(map(bool, cells))) if kinds <= {bool, int} and _only_bools(cells, nulls) else None
    if not kinds <= _FLOATS:
        return None
    for candidate in (code, _guess(kinds, cells)):
        if candidate and (candidate in "fd" or kinds == _INTS):
            try:
                return candidate, struct.pack(f"<{len(cells)}{candidate}", *cells)
            except (struct.error, OverflowError):
                continue
    return None


def _only_bools(cells: list[Value], nulls: int) -> bool:
    return sum(type(cell) is not bool for cell in cells) == nulls


def _guess(kinds: set[type], cells: list[Any]) -> str:
    if kinds == _INTS:
        return "q" if min(cells) < 0 else "Q"
    if all(type(cell) is float or abs(cell) <= _MAX_EXACT_INT for cell in cells):
        return "d"
    return ""


def _text_column(cells: list[Value], nulls: int) -> str:
    strings = sum(type(cell) is str for cell in cells)
    return wire.CODE_TEXT if strings + nulls == len(cells) else wire.CODE_JSON


def _json(value: Mapping[str, Any] | list[Any]) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # Undecodable text (lone surrogates), integers beyond 64 bits, foreign objects: written so that the
        # reader can name the row. ASCII escapes keep lone surrogates as they are.
        return json.dumps(value, default=repr, skipkeys=True, separators=(",", ":")).encode("ascii")
