"""Bytes to rows. Pure Python: for single messages; `columns` merges many of them fast."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
import zstandard

from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import Row
from flightwatch.pipeline.batch import Batch, BatchHeader, ColumnBlock
from flightwatch.pipeline.codec import wire


class LaneKey(NamedTuple):
    """One numbering: a lane of one spool of one agent. A tuple, because it is hashed for every message."""

    agent_id: str
    spool_id: str
    lane: str


@dataclass(frozen=True, slots=True)
class Identity:
    """What all batches of one lane of one agent share."""

    agent_id: str
    spool_id: str
    lane: str
    node: str
    cluster: str
    program_version: str
    attributes: tuple[tuple[str, str], ...]
    key: LaneKey


@dataclass(slots=True)
class Section:
    """One table of one message, still packed.

    Attributes
    ----------
    schema: JSON of table, count and column codes; equal bytes mean equal layout.
    first_row: index in the message of the section's first row.
    """

    table: str
    count: int
    first_row: int
    schema: bytes
    text: bytes
    data: bytes


@dataclass(slots=True)
class Opened:
    """One message, decompressed and cut into sections.

    Attributes
    ----------
    skipped_sections: sections of a kind that only newer readers know.
    """

    identity: Identity
    seq: int
    created_at_ms: int
    sections: list[Section]
    skipped_sections: int

    @property
    def header(self) -> BatchHeader:
        """Header as the writer gave it."""
        part = self.identity
        return BatchHeader(
            part.agent_id, part.spool_id, part.lane, self.seq, part.node, part.cluster, self.created_at_ms,
            part.program_version, dict(part.attributes),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Schema:
    """Layout of a section: table, rows, and column names with their codes.

    Attributes
    ----------
    data_bytes: length the packed numbers must have.
    """

    table: str
    count: int
    columns: tuple[tuple[str, str], ...]
    data_bytes: int


def rows_of(value: bytes) -> int:
    """Return the number of rows a message says it holds, 0 when it is not one of ours. Not to be trusted."""
    if len(value) < wire.ENVELOPE.size or value[:2] != wire.MAGIC:
        return 0
    return min(int(wire.ENVELOPE.unpack_from(value)[6]), wire.MAX_ROWS)


def signature_of(value: bytes) -> tuple[bytes, bytes | None]:
    """Return the signed bytes and the signature, None when the message is unsigned.

    Raises
    ------
    BadRecord: the message is cut.
    """
    if len(value) < wire.ENVELOPE.size:
        raise BadRecord(f"{len(value)} bytes are not a Flightwatch batch")
    flags, size = value[4], int.from_bytes(value[6:8], "little")
    if not flags & wire.FLAG_SIGNED:
        return value, None
    if not 0 < size <= len(value) - wire.ENVELOPE.size:
        raise BadRecord("the signature is cut")
    return value[:-size], value[-size:]


def open_message(value: bytes) -> Opened:
    """Decompress one message and cut it into sections, within fixed bounds of memory.

    Raises
    ------
    BadRecord: not a Flightwatch batch, damaged, too large, or of a format only newer readers know.
    """
    if len(value) < wire.ENVELOPE.size or value[:2] != wire.MAGIC:
        raise BadRecord("not a Flightwatch batch")
    _, _, min_reader, flags, dictionary, signature_bytes, _, body_bytes, created_at_ms, seq = wire.ENVELOPE.unpack_from(
        value
    )
    if min_reader > wire.FORMAT_VERSION or dictionary > wire.DICTIONARY:
        raise BadRecord(f"format {min_reader} is newer than this program's {wire.FORMAT_VERSION}: upgrade, then replay")
    if body_bytes > wire.MAX_BODY_BYTES:
        raise BadRecord(f"body of {body_bytes} bytes exceeds {wire.MAX_BODY_BYTES}")
    end = len(value) - signature_bytes if flags & wire.FLAG_SIGNED else len(value)
    body = _decompress(value[wire.ENVELOPE.size : end], body_bytes)
    if len(body) < wire.LENGTH.size:
        raise BadRecord("the body is cut")
    identity_end = wire.LENGTH.size + wire.LENGTH.unpack_from(body)[0]
    identity = _identity(body[wire.LENGTH.size : identity_end])
    sections, skipped = _sections(body, identity_end)
    return Opened(identity, seq, created_at_ms, sections, skipped)


def _decompress(frame: bytes, body_bytes: int) -> bytes:
    try:
        # The frame states its size and the library allocates that: check before decompressing.
        if zstandard.frame_content_size(frame) != body_bytes:
            raise BadRecord("the body's size differs from the envelope's")
        return wire.decompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise BadRecord(f"the body does not decompress: {error}") from error


def _sections(body: bytes, start: int) -> tuple[list[Section], int]:
    sections: list[Section] = []
    skipped = first_row = 0
    position = start
    while position < len(body):
        if position + wire.SECTION.size > len(body):
            raise BadRecord("a section header is cut")
        kind, schema_bytes, text_bytes, data_bytes = wire.SECTION.unpack_from(body, position)
        schema_at = position + wire.SECTION.size
        text_at = schema_at + schema_bytes
        data_at = text_at + text_bytes
        position = data_at + data_bytes
        if position > len(body):
            raise BadRecord("a section is cut")
        if kind != wire.SECTION_TABLE:
            skipped += 1
            continue
        schema = body[schema_at:text_at]
        layout = parse_schema(schema)
        if layout.data_bytes != data_bytes:
            raise BadRecord(f"{layout.table}: {data_bytes} bytes of numbers where {layout.data_bytes} belong")
        sections.append(
            Section(layout.table, layout.count, first_row, schema, body[text_at:data_at], body[data_at:position])
        )
        first_row += layout.count
        if first_row > wire.MAX_ROWS:
            raise BadRecord(f"more than {wire.MAX_ROWS} rows")
    return sections, skipped


@lru_cache(maxsize=65_536)
def _identity(raw: bytes) -> Identity:
    try:
        fields = orjson.loads(raw)
        words = [fields[key] for key in ("agent", "spool", "lane", "node", "cluster", "program")]
        attributes = tuple(sorted(fields.get("attributes", {}).items()))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BadRecord(f"the identity is unreadable: {error}") from error
    if not all(isinstance(word, str) for word in [*words, *(part for pair in attributes for part in pair)]):
        raise BadRecord("the identity holds something other than text")
    agent, spool, lane, node, cluster, program = words
    return Identity(agent, spool, lane, node, cluster, program, attributes, LaneKey(agent, spool, lane))


@lru_cache(maxsize=4_096)
def parse_schema(raw: bytes) -> Schema:
    """Read a section's layout.

    Raises
    ------
    BadRecord: malformed, an unknown code, or more rows, columns or cells than allowed.
    """
    try:
        table, count, columns = orjson.loads(raw)
        pairs = tuple((name, code) for name, _, code in (column.rpartition(":") for column in columns))
    except (orjson.JSONDecodeError, ValueError, TypeError, AttributeError) as error:
        raise BadRecord(f"a layout is unreadable: {error}") from error
    if not isinstance(table, str) or type(count) is not int or not 0 <= count <= wire.MAX_ROWS:
        raise BadRecord("a layout is unreadable")
    if len(pairs) > wire.MAX_COLUMNS or len(pairs) * count > wire.MAX_CELLS:
        raise BadRecord(f"{table}: {len(pairs)} columns of {count} rows are too many")
    if len({name for name, _ in pairs}) != len(pairs):
        raise BadRecord(f"{table}: a column appears twice")
    for name, code in pairs:
        if code not in (wire.CODE_TEXT, wire.CODE_JSON) and code.removesuffix("n") not in wire.WIDTHS:
            raise BadRecord(f"{table}.{name}: unknown column code {code!r}")
    row_bytes = sum(wire.WIDTHS.get(code[0], 0) + code.endswith("n") for _, code in pairs)
    return Schema(table, count, pairs, count * row_bytes)


def parse_text(raw: bytes, layout: Schema) -> dict[str, list[Any]]:
    """Return the text columns of a section, each with `count` cells.

    Bytes that are not UTF-8 come back as lone surrogates, so that only their row is refused.

    Raises
    ------
    BadRecord: not JSON, or a column has another number of cells.
    """
    names = [(name, code) for name, code in layout.columns if code in (wire.CODE_TEXT, wire.CODE_JSON)]
    if not names:
        return {}
    try:
        columns = orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            columns = json.loads(raw.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"{layout.table}: the text part is unreadable: {error}") from error
    if not isinstance(columns, dict):
        raise BadRecord(f"{layout.table}: the text part is not an object")
    cells: dict[str, list[Any]] = {}
    for name, code in names:
        column = columns.get(name)
        if code == wire.CODE_TEXT and isinstance(column, str):
            column = [column] * layout.count
        if not isinstance(column, list) or len(column) != layout.count:
            raise BadRecord(f"{layout.table}.{name}: not {layout.count} cells")
        cells[name] = column
    return cells


@lru_cache(maxsize=16_384)
def text_fault(schema: bytes, text: bytes) -> str:
    """Return why a text part does not fit its layout, "" when it does. A node repeats its texts: cached."""
    try:
        parse_text(text, parse_schema(schema))
    except BadRecord as error:
        return error.reason
    return ""


def block_of(section: Section) -> ColumnBlock:
    """Return one section as columns of Python values.

    Raises
    ------
    BadRecord: damaged.
    """
    layout = parse_schema(section.schema)
    columns: dict[str, list[Any]] = dict(parse_text(section.text, layout))
    numbers = _regions(section.data, layout)
    for name, code in layout.columns:
        if code in (wire.CODE_TEXT, wire.CODE_JSON):
            continue
        cells = list(struct.unpack(f"<{layout.count}{code[0]}", next(numbers[wire.WIDTHS[code[0]]])))
        if code.endswith("n"):
            mask = next(numbers[1])
            cells = [None if null else cell for cell, null in zip(cells, mask, strict=True)]
        columns[name] = cells
    return ColumnBlock(layout.table, layout.count, {name: columns[name] for name, _ in layout.columns})


def _regions(data: bytes, layout: Schema) -> dict[int, Iterator[bytes]]:
    """Cut the packed numbers into one iterator of columns (and null masks) per width."""
    regions: dict[int, Iterator[bytes]] = {}
    position = 0
    for width in (8, 4, 2, 1):
        columns = sum(wire.WIDTHS.get(code[0]) == width for _, code in layout.columns)
        if width == 1:
            columns += sum(code.endswith("n") for _, code in layout.columns)
        size = columns * width * layout.count
        numbers = wire.from_planes(data[position : position + size], width)
        step = width * layout.count
        regions[width] = iter([numbers[at * step : (at + 1) * step] for at in range(columns)])
        position += size
    return regions


def decode(value: bytes) -> Batch:
    """Return header and rows of one message; `node` and `cluster` are filled in from the header.

    Values are as the writer gave them: not checked against the catalogue.

    Raises
    ------
    BadRecord: as `open_message`.
    """
    opened = open_message(value)
    rows: list[Row] = []
    for section in opened.sections:
        block = block_of(section)
        for index in range(block.count):
            values = {name: cells[index] for name, cells in block.columns.items()}
            values.setdefault("node", opened.identity.node)
            values.setdefault("cluster", opened.identity.cluster)
            rows.append(Row(block.table, values))
    return Batch(opened.header, rows)
