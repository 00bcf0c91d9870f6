"""Many messages of one table into one Arrow table: numpy works on whole groups of equally laid out sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flightwatch.core.catalogue import Column, Table
from flightwatch.core.errors import BadRecord
from flightwatch.pipeline.codec import cells as cell_rules
from flightwatch.pipeline.codec import wire
from flightwatch.pipeline.codec.read import Schema, Section, parse_schema, parse_text
from flightwatch.pipeline.codec.unknown import Extras, absorb
from flightwatch.pipeline.store.schema import arrow_field

_NUMPY = {
    "f32": np.float32, "f64": np.float64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "i16": np.int16, "i32": np.int32, "i64": np.int64, "bool": np.uint8, "time": np.int64,
}  # fmt: skip
_DTYPES = {"q": "<i8", "Q": "<u8", "d": "<f8", "i": "<i4", "I": "<u4", "f": "<f4", "h": "<i2", "H": "<u2", "b": "i1",
           "B": "u1", "?": "u1"}  # fmt: skip

Bools = npt.NDArray[np.bool_]

_WORDS = pa.dictionary(pa.int32(), pa.string())


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a merged column: the store's, words as dictionaries."""
    return _WORDS if column.type == "word" else arrow_field(column).type


@dataclass(slots=True)
class Part:
    """One section with what the bus and the header say about its rows.

    Attributes
    ----------
    message: number the caller gave to the message.
    received_at_ms, partition, offset: broker time and place of the message.
    """

    section: Section
    message: int
    node: str
    cluster: str
    received_at_ms: int
    partition: int
    offset: int


@dataclass(slots=True)
class Group:
    """Sections of equal layout, M messages of n rows each, and which rows are refused so far.

    Attributes
    ----------
    reasons: row number in the group to why it is refused; the first reason stays.
    """

    layout: Schema
    parts: list[Part]
    reasons: dict[int, str] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        """Rows in the group, M * n."""
        return self.layout.count * len(self.parts)

    def refuse(self, rows: Bools, reason: Callable[[int], str]) -> None:
        """Refuse the rows marked True."""
        for row in np.flatnonzero(rows):
            self.reasons.setdefault(int(row), reason(int(row)))


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that cannot be stored: its message, its index there, and why."""

    message: int
    index: int
    reason: str


@dataclass(slots=True)
class Merged:
    """Rows of one table out of many messages.

    Attributes
    ----------
    table: all catalogue columns in catalogue order, in the types of `arrow_type`.
    message: for each row of `table` the number of its message.
    refused: rows left out.
    dropped: unknown columns that fit nowhere, with the number of rows that had them.
    """

    table: pa.Table
    message: npt.NDArray[np.int64]
    refused: list[RefusedRow]
    dropped: Counter[str]


def merge(table: Table, parts: Sequence[Part], ts_bounds_ms: tuple[int, int] | None = None) -> Merged:
    """Decode sections of one table and join their rows, ordered by layout, then as given.

    Parameters
    ----------
    table: catalogue entry of the sections' table.
    parts: sections; a damaged text part must have been ruled out with `read.text_fault`.
    ts_bounds_ms: a row whose ts lies further than this (before, after) from its message's broker time is refused.
    """
    groups: dict[bytes, list[Part]] = {}
    for part in parts:
        groups.setdefault(part.section.schema, []).append(part)
    tables: list[pa.Table] = []
    messages: list[npt.NDArray[np.int64]] = []
    refused: list[RefusedRow] = []
    dropped: Counter[str] = Counter()
    for schema, members in groups.items():
        group = Group(parse_schema(schema), members)
        block = _decode_group(table, group, ts_bounds_ms)
        message = np.repeat(np.fromiter((p.message for p in members), np.int64, len(members)), group.layout.count)
        if group.reasons:
            refused += [_refused(group, row, reason) for row, reason in sorted(group.reasons.items())]
            keep = np.ones(group.rows, bool)
            keep[list(group.reasons)] = False
            block, message = block.filter(pa.array(keep)), message[keep]
        dropped += group.dropped
        tables.append(block)
        messages.append(message)
    if not tables:
        return Merged(arrow_schema(table).empty_table(), np.empty(0, np.int64), [], dropped)
    joined = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    return Merged(joined, np.concatenate(messages), refused, dropped)


def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of merged tables."""
    return pa.schema([pa.field(column.name, arrow_type(column)) for column in table.columns])


def _refused(group: Group, row: int, reason: str) -> RefusedRow:
    part = group.parts[row // group.layout.count]
    return RefusedRow(part.message, part.section.first_row + row % group.layout.count, reason)


def _decode_group(table: Table, group: Group, ts_bounds_ms: tuple[int, int] | None) -> pa.Table:
    numbers = _numbers(group)
    texts = _Texts(group)
    extras = Extras()
    arrays: dict[str, pa.Array] = _from_bus(group)
    columns = {column.name: column for column in table.columns}
    for name, code in group.layout.columns:
        column = columns.get(name)
        if name in arrays or column is None:
            if column is None:
                absorb(extras, group, table, name, code, numbers.get(name), texts)
            continue
        if code in (wire.CODE_TEXT, wire.CODE_JSON):
            arrays[name] = texts.array(column, code)
        else:
            arrays[name] = _numeric(column, code, *numbers[name], group)
    if ts_bounds_ms is not None and "ts" in numbers:
        _check_times(numbers["ts"][0], ts_bounds_ms, group)
    for column in table.columns:
        if column.name not in arrays:
            arrays[column.name] = _absent(column, group)
    for name in ("extra", "extra_counters"):
        if extras.maps[name] and name in columns:
            arrays[name] = extras.merged_into(name, arrays[name])
    return pa.table([arrays[column.name] for column in table.columns], schema=arrow_schema(table))


def _from_bus(group: Group) -> dict[str, pa.Array]:
    """Columns whose values come from the message, not from the row."""
    parts, count = group.parts, group.layout.count
    given = {name for name, _ in group.layout.columns}

    def numbers(values: Sequence[int], kind: str) -> pa.Array:
        return pa.array(np.repeat(np.array(values, _NUMPY[kind]), count))

    arrays = {
        "received_at": numbers([part.received_at_ms for part in parts], "time").cast(pa.timestamp("ms", tz="UTC")),
        "src_partition": numbers([part.partition for part in parts], "u16"),
        "src_offset": numbers([part.offset for part in parts], "u64"),
    }
    for name in {"node", "cluster"} - given:
        # A batch of no node in particular (findings, dead letters) has an empty name: unknown, not "".
        words = pa.array([getattr(part, name) or None for part in parts], pa.string()).dictionary_encode()
        arrays[name] = words.take(pa.array(np.repeat(np.arange(len(parts)), count)))
    return arrays


def _numbers(group: Group) -> dict[str, tuple[npt.NDArray[Any], Bools | None]]:
    """Unpack all plain numbers of a group: column to values and null mask, M * n each."""
    layout, messages = group.layout, len(group.parts)
    raw = np.frombuffer(b"".join(part.section.data for part in group.parts), np.uint8).reshape(messages, -1)
    by_width: dict[int, list[tuple[str, str]]] = {8: [], 4: [], 2: [], 1: []}
    for name, code in layout.columns:
        if code not in (wire.CODE_TEXT, wire.CODE_JSON):
            by_width[wire.WIDTHS[code[0]]].append((name, code[0]))
            if code.endswith("n"):
                by_width[1].append((name, "null"))
    values: dict[str, npt.NDArray[Any]] = {}
    nulls: dict[str, Bools] = {}
    start = 0
    for width, columns in by_width.items():
        size = width * layout.count * len(columns)
        planes = raw[:, start : start + size].reshape(messages, width, layout.count * len(columns))
        region = np.ascontiguousarray(planes.transpose(0, 2, 1)).reshape(messages, len(columns), layout.count * width)
        start += size
        for at, (name, code) in enumerate(columns):
            cells = np.ascontiguousarray(region[:, at, :]).reshape(-1)
            if code == "null":
                nulls[name] = cells != 0
            else:
                values[name] = cells.view(_DTYPES[code])
    return {name: (cells, nulls.get(name)) for name, cells in values.items()}


def _numeric(column: Column, code: str, values: npt.NDArray[Any], null: Bools | None, group: Group) -> pa.Array:
    """Fit unpacked numbers to a catalogue column; rows that do not fit are refused."""
    kind = column.type
    known = ~null if null is not None else np.ones(len(values), bool)
    if null is not None and not column.nullable:
        group.refuse(null, lambda _: f"{column.name} is missing")
    if kind not in _NUMPY:
        wanted = "text" if kind in cell_rules.TEXTS else f"of type {kind}"
        group.refuse(known, lambda row: f"{column.name} must be {wanted}, not {values[row].item()!r}")
        return pa.nulls(len(values), arrow_type(column))
    if wire.CODE_OF_TYPE.get(kind) != code[0] or kind == "time":
        values = _converted(column, code[0], values, known, group)
    if kind == "bool":
        values = values != 0
    array = pa.array(values, mask=null) if null is not None else pa.array(values)
    return array.cast(arrow_type(column)) if kind == "time" else array


def _converted(column: Column, code: str, values: npt.NDArray[Any], known: Bools, group: Group) -> npt.NDArray[Any]:
    kind = column.type
    if (code == "?") != (kind == "bool"):
        wanted = "true or false" if kind == "bool" else "a number"
        group.refuse(known, lambda row: f"{column.name} must be {wanted}, not {values[row].item()!r}")
        return np.zeros(len(values), _NUMPY[kind])
    bad = _out_of_range(kind, code, values) & known
    group.refuse(bad, lambda row: f"{column.name} = {values[row].item()!r} is out of range")
    with np.errstate(all="ignore"):
        return np.where(bad | ~known, 0, values).astype(_NUMPY[kind])


def _out_of_range(kind: str, code: str, values: npt.NDArray[Any]) -> Bools:
    if kind in cell_rules.INTEGER_RANGES:
        low, high = cell_rules.INTEGER_RANGES[kind]
        if code in "df":
            with np.errstate(all="ignore"):
                exact = (np.floor(values) == values) & (np.abs(values) <= cell_rules.MAX_EXACT_INT)
            bad: Bools = ~(exact & (values >= low) & (values <= high))
            return bad
        limits = np.iinfo(values.dtype)
        bad = np.zeros(len(values), bool)
        if low > limits.min:
            bad |= values < low
        if high < limits.max:
            bad |= values > high
        return bad
    if kind == "f32" and code == "d":
        too_large: Bools = np.isfinite(values) & (np.abs(values) > cell_rules.MAX_F32)
        return too_large
    return np.zeros(len(values), bool)


def _check_times(ts_ms: npt.NDArray[Any], bounds_ms: tuple[int, int], group: Group) -> None:
    received = np.repeat(np.array([part.received_at_ms for part in group.parts], np.int64), group.layout.count)
    with np.errstate(all="ignore"):
        offset_ms = ts_ms.astype(np.float64) - received
    wrong = (offset_ms < -bounds_ms[0]) | (offset_ms > bounds_ms[1])
    group.refuse(
        wrong,
        lambda row: (
            f"ts is {abs(offset_ms[row]) / 1000:.0f} s {'before' if offset_ms[row] < 0 else 'after'} broker time"
        ),
    )


def _absent(column: Column, group: Group) -> pa.Array:
    try:
        value = cell_rules.missing(column)
    except BadRecord as error:
        reason = error.reason
        group.refuse(np.ones(group.rows, bool), lambda _: reason)
        return pa.nulls(group.rows, arrow_type(column))
    kind = arrow_type(column)
    if value is None:
        return pa.nulls(group.rows, kind)
    if isinstance(value, (dict, list)):
        offsets = pa.array(np.zeros(group.rows + 1, np.int32))
        if isinstance(value, list):
            return pa.ListArray.from_arrays(offsets, pa.array([], kind.value_type))
        return pa.MapArray.from_arrays(offsets, pa.array([], kind.key_type), pa.array([], kind.item_type))
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(group.rows, np.int32)), pa.array([value], pa.string()))
    return words if column.type == "word" else words.cast(kind)


class _Texts:
    """Text parts of a group. Equal text parts (a node repeats its names every second) are parsed once."""

    def __init__(self, group: Group) -> None:
        self.group = group
        numbers: dict[bytes, int] = {}
        which = [numbers.setdefault(part.section.text, len(numbers)) for part in group.parts]
        self.parsed = [parse_text(raw, group.layout) for raw in numbers]
        count = group.layout.count
        self._rows = (np.array(which, np.int64)[:, None] * count + np.arange(count)).reshape(-1)
        self._repeats = len(numbers) < len(which)

    def cells(self, name: str) -> list[Any]:
        """Return the cells of one column for all rows of the group."""
        unique = self._unique(name)
        return [unique[row] for row in self._rows] if self._repeats else unique

    def array(self, column: Column, code: str) -> pa.Array:
        """Return one column as Arrow; rows that do not fit are refused."""
        unique = self._unique(column.name)
        if code == wire.CODE_TEXT and column.type in cell_rules.TEXTS:
            values = unique if column.nullable else ["" if cell is None else cell for cell in unique]
        else:
            values = None
        try:
            array = pa.array(values, pa.string()) if values is not None else self._checked(column, unique)
        except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError):
            array = self._checked(column, unique)
        if column.type == "word":
            array = array.dictionary_encode()
        return array.take(pa.array(self._rows)) if self._repeats else array

    def _unique(self, name: str) -> list[Any]:
        return [cell for columns in self.parsed for cell in columns[name]]

    def _checked(self, column: Column, unique: list[Any]) -> pa.Array:
        fitting: list[Any] = []
        for at, cell in enumerate(unique):
            try:
                fitting.append(cell_rules.checked(column, cell))
            except BadRecord as error:
                fitting.append(None)
                reason = error.reason
                self.group.refuse(self._rows == at, lambda _, reason=reason: reason)  # type: ignore[misc]
        if column.type.startswith("map"):
            fitting = [None if cell is None else list(cell.items()) for cell in fitting]
        return pa.array(fitting, pa.string() if column.type == "word" else arrow_type(column))
