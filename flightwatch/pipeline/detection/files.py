"""Tables from CSV and Parquet files as the frames detectors read."""

from __future__ import annotations

import ast
import codecs
import io
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from flightwatch.core.catalogue import TABLES, Column, Table
from flightwatch.core.errors import BadRecord, ConfigError

PARQUET_MAGIC, GZIP_MAGIC = b"PAR1", b"\x1f\x8b"
#: What a gzip file may unpack to: it is held in memory, and ten megabytes of it can be ten gigabytes of text.
MOST_UNPACKED_BYTES = 4 << 30
#: Columns without which a row of the table says nothing.
REQUIRED = {
    "rank_steps": ("step", "rank"),
    "op_timings": ("step", "rank", "kind", "dur_us"),
    "placements": ("rank",),
    "training_scalars": ("step", "name", "value"),
}
_TRUE, _FALSE = ("true", "t", "yes", "1"), ("false", "f", "no", "0")


@dataclass
class ReadTable:
    """One file read.

    Attributes
    ----------
    frame: rows by the conventions of `detectors.contract`.
    problems: sentences about what could not be read; any makes the input malformed.
    remarks: sentences about what was left out on purpose.
    """

    name: str
    frame: pd.DataFrame
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def read_table(name: str, path: Path) -> ReadTable:
    """Read one table from a CSV, Parquet or JSON-lines file, as it is or in gzip, recognised by content.

    Columns are as in the catalogue, in any order; absent ones are unknown, others are left out. Empty cells
    are unknown. Times are ISO-8601 (no zone: UTC) or epoch milliseconds. Maps and lists are JSON.

    Raises
    ------
    ConfigError: unknown table, or the file cannot be opened.
    BadRecord: nothing in the file can be read.
    """
    if name not in TABLES:
        raise ConfigError(f"--table {name}=...: there is no table {name!r}; known: {', '.join(sorted(TABLES))}")
    problems: list[str] = []
    try:
        with path.open("rb") as stream:
            is_gzip = stream.read(2) == GZIP_MAGIC
            stream.seek(0)
            source: IO[bytes] = io.BytesIO(_unzipped(stream, str(path), problems)) if is_gzip else stream
            table = _parsed(source, path, TABLES[name], problems)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = "".join(char if char.isprintable() else "?" for char in str(error).splitlines()[0][:300])
        raise BadRecord(f"is neither Parquet nor CSV nor JSON lines that can be read: {reason}", str(path)) from error
    except OSError as error:
        raise ConfigError(f"--table {name}={path}: cannot read the file: {error.strerror or error}") from error
    read = ReadTable(name, pd.DataFrame(), problems)
    read.frame = _frame(table, TABLES[name], read, str(path))
    return read


def frame_of(name: str, table: pa.Table) -> pd.DataFrame:
    """Return an Arrow table of the store as a frame by the conventions of `detectors.contract`."""
    read = ReadTable(name, pd.DataFrame())
    return _frame(table, TABLES[name], read, name) if table.num_rows else pd.DataFrame(columns=table.column_names)


def _parsed(source: IO[bytes], path: Path, table: Table, problems: list[str]) -> pa.Table:
    """Read a file by what it begins with."""
    head = source.read(4)
    source.seek(0)
    if head == PARQUET_MAGIC:
        try:
            return pq.read_table(source)
        except OSError as error:
            # Arrow tells damaged pages so.
            raise pa.ArrowInvalid(str(error)) from error
    if not head:
        raise pa.ArrowInvalid("the file is empty")
    encoding = _encoding(source, path, problems)
    source.seek(0)
    return pajson.read_json(source) if head.lstrip()[:1] == b"{" else _read_csv(source, path, encoding, table, problems)


def _unzipped(stream: IO[bytes], path: str, problems: list[str]) -> bytes:
    """Return what a gzip file holds; of a damaged or cut one the whole lines before the damage, which is told."""
    parts: list[bytes] = []
    left = MOST_UNPACKED_BYTES
    unpacker = zlib.decompressobj(wbits=31)
    try:
        while chunk := stream.read(1 << 20):
            while chunk:
                parts.append(unpacker.decompress(chunk, left))
                left -= len(parts[-1])
                if left <= 0:
                    raise BadRecord(f"unpacks to {MOST_UNPACKED_BYTES >> 30} GiB or more", path)
                chunk = unpacker.unused_data
                if unpacker.eof and chunk.lstrip(b"\0"):
                    unpacker = zlib.decompressobj(wbits=31)
                elif unpacker.eof:
                    break
        whole = unpacker.eof
    except zlib.error:
        whole = False
    text = b"".join(parts)
    if not whole:
        problems.append(f"{path}: the gzip file is damaged or cut; what is before that was read")
        text = text[: text.rfind(b"\n") + 1]
    return text


def _encoding(stream: IO[bytes], path: Path, problems: list[str]) -> str:
    """Return the encoding of a text file; bytes that are not UTF-8 are told and read as Latin-1."""
    chunk = stream.read(1 << 20)
    if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    decoder, at = codecs.getincrementaldecoder("utf-8")(), 0
    while chunk:
        try:
            decoder.decode(chunk)
        except UnicodeDecodeError as error:
            problems.append(f"{path}: byte {at + error.start} is not UTF-8 text; the file was read as Latin-1")
            return "latin-1"
        at += len(chunk)
        chunk = stream.read(1 << 20)
    return "utf-8"


def _read_csv(source: IO[bytes], path: Path, encoding: str, table: Table, problems: list[str]) -> pa.Table:
    """Read a CSV; typed by the catalogue where every cell fits, else as text that is converted cell by cell."""
    skipped: list[int] = []

    def skip(row: Any) -> str:
        skipped.append(int(row.number) if row.number is not None else -1)
        return "skip"

    numbers = {column.name: pa.float64() for column in table.columns if _is_number(column)}
    words = {column.name: pa.string() for column in table.columns if not _is_number(column)}
    parse = pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip)
    read = pacsv.ReadOptions(block_size=16 << 20, encoding=encoding)
    for types in (numbers | words, dict.fromkeys(numbers | words, pa.string())):
        convert = pacsv.ConvertOptions(
            column_types=types, null_values=["", "NULL", "null", "\\N"], strings_can_be_null=True,
            quoted_strings_can_be_null=True, include_missing_columns=False,
        )  # fmt: skip
        skipped.clear()
        source.seek(0)
        try:
            result = pacsv.read_csv(source, read_options=read, parse_options=parse, convert_options=convert)
        except pa.ArrowInvalid:
            if types.get(next(iter(numbers))) == pa.string():
                raise
            continue
        if skipped:
            problems.append(f"{path}: {len(skipped)} lines have the wrong number of columns and were left out")
        return result
    raise pa.ArrowInvalid("no column could be read")


def _is_number(column: Column) -> bool:
    return column.type in ("f32", "f64", "u8", "u16", "u32", "u64", "i16", "i32", "i64")


def _frame(table: pa.Table, wanted: Table, read: ReadTable, path: str) -> pd.DataFrame:
    known = {column.name: column for column in wanted.columns}
    columns: dict[str, Any] = {}
    left_out = []
    for name in table.column_names:
        plain = name.strip().lstrip("\ufeff")
        if plain not in known:
            left_out.append(plain)
            continue
        column = known[plain]
        values = table.column(name)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if column.type.startswith("map"):
            columns |= _flattened(plain, values, read, path)
        else:
            columns[plain] = _converter(column)(plain, values, read, path)
    if not columns:
        raise BadRecord(f"has no column of table {wanted.name}", path)
    missing = [column for column in REQUIRED.get(wanted.name, ()) if column not in columns]
    if missing:
        raise BadRecord(f"table {wanted.name} needs the column {' and '.join(missing)}", path)
    if left_out:
        read.remarks.append(f"{path}: columns not in table {wanted.name} were left out: {', '.join(left_out[:8])}")
    return pd.DataFrame(columns)


def _converter(column: Column) -> Callable[[str, pa.ChunkedArray, ReadTable, str], Any]:
    if column.type == "time":
        return _times
    if column.type == "bool":
        return _bools
    if column.type.startswith("list"):
        return _lists
    return _numbers if _is_number(column) else _words


def _numbers(name: str, values: pa.ChunkedArray, read: ReadTable, path: str) -> np.ndarray:
    if pa.types.is_floating(values.type) or pa.types.is_integer(values.type) or pa.types.is_null(values.type):
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=float)
    if pa.types.is_boolean(values.type):
        return np.asarray(values.cast(pa.int8()).cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=float)
    text = values.to_pandas().astype(object)
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    words = text.where(text.notna(), "nan").astype(str).str.strip().str.lower()
    bad = np.isnan(numbers) & ~words.isin(["nan", "", "+nan", "-nan"]).to_numpy()
    _report(name, bad, text, read, path, "not a number")
    return np.asarray(numbers)


def _times(name: str, values: pa.ChunkedArray, read: ReadTable, path: str) -> np.ndarray:
    if pa.types.is_timestamp(values.type):
        moments = values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
        return np.asarray(moments.to_numpy(zero_copy_only=False), dtype=float) / 1000
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return _numbers(name, values, read, path)
    encoded = values.combine_chunks().dictionary_encode()
    unique = pd.Series(encoded.dictionary.to_pylist(), dtype=object)
    numbers = np.array(pd.to_numeric(unique, errors="coerce").to_numpy(dtype=float, na_value=np.nan))
    rest = np.isnan(numbers)
    if rest.any():
        moments = pd.to_datetime(unique[rest], utc=True, format="ISO8601", errors="coerce")
        # The unit differs with the text's digits: go through one unit.
        stamps = moments.to_numpy(dtype="datetime64[us]").astype("int64") / 1000
        numbers[rest] = np.where(moments.isna().to_numpy(), np.nan, stamps)
        _report(name, np.isnan(numbers), unique, read, path, "not a time")
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    known = ~np.isnan(codes.astype(float))
    return np.where(known, np.append(numbers, np.nan)[np.where(known, codes, -1).astype(int)], np.nan)


def _bools(name: str, values: pa.ChunkedArray, read: ReadTable, path: str) -> np.ndarray:
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return _numbers(name, values, read, path)
    text = values.to_pandas().astype(object)
    lowered = text.where(text.notna(), "").astype(str).str.strip().str.lower()
    result = np.where(lowered.isin(_TRUE), 1.0, np.where(lowered.isin(_FALSE), 0.0, np.nan))
    _report(name, np.isnan(result) & (lowered != "").to_numpy(), text, read, path, "not true or false")
    return result


def _words(name: str, values: pa.ChunkedArray, read: ReadTable, path: str) -> pd.Categorical | np.ndarray:
    del name, read, path
    text = values.combine_chunks().cast(pa.string()).dictionary_encode()
    categories = text.dictionary.to_pylist()
    codes = np.array(text.indices.fill_null(-1).to_numpy(zero_copy_only=False))
    if "" in categories:
        # The store writes unknown words as empty ones.
        empty = categories.index("")
        codes = np.where(codes == empty, -1, codes - (codes > empty))
        categories.pop(empty)
    if len(categories) > 0.5 * len(codes):
        return np.array([None if code < 0 else categories[code] for code in codes.tolist()], dtype=object)
    return pd.Categorical.from_codes(codes, categories)


def _lists(name: str, values: pa.ChunkedArray, read: ReadTable, path: str) -> np.ndarray:
    result = np.empty(len(values), dtype=object)
    for i, value in enumerate(values.to_pylist()):
        result[i] = _literal(value, read, f"{path}: column {name}") if isinstance(value, str) else value
    return result


def _flattened(name: str, values: pa.ChunkedArray, read: ReadTable, path: str) -> dict[str, np.ndarray]:
    """Turn one map column into one column per key."""
    found: dict[str, np.ndarray] = {}
    for i, value in enumerate(values.to_pylist()):
        if value is None or value == "":
            continue
        pairs = _literal(value, read, f"{path}: column {name}") if isinstance(value, str) else value
        items = pairs.items() if isinstance(pairs, dict) else pairs if isinstance(pairs, list) else ()
        for key, item in items:
            column = f"{name}.{key}"
            if column not in found:
                numeric = isinstance(item, (int, float)) or item is None
                found[column] = np.full(len(values), np.nan) if numeric else np.full(len(values), None, dtype=object)
            try:
                found[column][i] = np.nan if item is None else item
            except (TypeError, ValueError):
                _once(read, f"{path}: column {name}: mixed values under {key!r}")
    return found


def _literal(text: str, read: ReadTable, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            _once(read, f"{where}: {text[:40]!r} is neither JSON nor a map")
            return None


def _report(name: str, bad: np.ndarray, text: Any, read: ReadTable, path: str, what: str) -> None:
    if bad.any():
        example = str(pd.Series(text)[np.asarray(bad)].iloc[0])[:40]
        read.problems.append(f"{path}: column {name}: {int(bad.sum())} cells are {what}, for example {example!r}")


def _once(read: ReadTable, sentence: str) -> None:
    if len(read.problems) < 20:
        read.problems.append(sentence)
