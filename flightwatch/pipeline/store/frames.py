"""Frames into the store without the bus: for benchmarks, tests and simulations of a past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from flightwatch.core.catalogue import TABLES, Column
from flightwatch.core.protocols import Row
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.schema import arrow_field

_WHOLE = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "i16": np.int16, "i32": np.int32,
          "i64": np.int64, "time": np.int64}  # fmt: skip
_FLOATS = {"f32": np.float32, "f64": np.float64}


def insert_frame(store: Store, table: str, frame: pd.DataFrame, token: str) -> None:
    """Insert the rows of a frame as one block; `received_at` is their own time.

    Parameters
    ----------
    frame: columns by the conventions of `detectors.contract`; absent ones become NULL or their default.
    token: names exactly this block; the same token again changes nothing.

    Raises
    ------
    BadRecord: a cell does not fit its column. TransientError: outcome unknown, repeat the identical block.
    """
    if len(frame):
        store.insert_block(table, arrow_of(table, frame), token)


def insert_rows(store: Store, rows: Sequence[Row], token: str) -> None:
    """Insert rows, table by table; for few rows (inventory, placements). Raises as `insert_frame`."""
    by_table: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_table.setdefault(row.table, []).append(row.values)
    for table, values in by_table.items():
        insert_frame(store, table, pd.DataFrame(values), f"{token}:{table}")


def arrow_of(table: str, frame: pd.DataFrame) -> pa.Table:
    """Return a frame as an Arrow table with all columns of the catalogue that the frame has or that must have a value.

    Raises
    ------
    KeyError: no such table.
    """
    columns = dict(frame.items()) if "received_at" in frame else dict(frame.items()) | {"received_at": frame["ts"]}
    arrays: dict[str, pa.Array] = {}
    for column in TABLES[table].columns:
        parts = {str(name)[len(column.name) + 1 :]: values for name, values in columns.items()
                 if str(name).startswith(f"{column.name}.")}  # fmt: skip
        if parts:
            arrays[column.name] = _map(column, parts)
        elif column.name in columns:
            arrays[column.name] = _array(column, columns[column.name])
        elif not column.nullable and column.type in _WHOLE:
            arrays[column.name] = pa.array(np.zeros(len(frame), _WHOLE[column.type]))
    return pa.table(arrays)


def _array(column: Column, values: pd.Series) -> pa.Array:
    if column.type in ("word", "text"):
        return _words(column, values)
    if column.type.startswith(("map", "list")):
        cells = [[] if cell is None else list(cell.items()) if isinstance(cell, dict) else list(cell)
                 for cell in values.tolist()]  # fmt: skip
        return pa.array(cells, arrow_field(column).type)
    numbers = pd.to_numeric(values).to_numpy(dtype=float, na_value=np.nan)
    unknown = np.isnan(numbers)
    mask = unknown if column.nullable and unknown.any() else None
    if column.type in _FLOATS:
        return pa.array(numbers.astype(_FLOATS[column.type]), mask=mask)
    known = np.where(unknown, 0.0, numbers)
    if column.type == "bool":
        return pa.array(known != 0, mask=mask)
    array = pa.array(np.rint(known).astype(_WHOLE[column.type]), mask=mask)
    return array.cast(pa.timestamp("ms", tz="UTC")) if column.type == "time" else array


def _words(column: Column, values: pd.Series) -> pa.Array:
    if not isinstance(values.dtype, pd.CategoricalDtype):
        missing = None if column.nullable else ""
        texts = [missing if cell is None or cell != cell else str(cell) for cell in values.tolist()]
        array = pa.array(texts, pa.string())
        return array.dictionary_encode() if column.type == "word" else array
    codes, names = values.cat.codes.to_numpy().astype(np.int32), [str(one) for one in values.cat.categories]
    if not column.nullable and (codes < 0).any():
        codes, names = np.where(codes < 0, len(names), codes).astype(np.int32), [*names, ""]
    words = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(names, pa.string()))
    return words if column.type == "word" else words.cast(pa.string())


def _map(column: Column, parts: dict[str, pd.Series]) -> pa.Array:
    """Join flattened columns into one map; unknown entries are left out."""
    keys, kind = list(parts), arrow_field(column).type
    cells = np.stack([series.to_numpy(dtype=float) for series in parts.values()], axis=1)
    known = np.isfinite(cells)
    offsets = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int32)
    names = np.broadcast_to(np.arange(len(keys), dtype=np.int32), cells.shape)[known]
    texts = pa.DictionaryArray.from_arrays(pa.array(names), pa.array(keys, pa.string())).cast(pa.string())
    items = pa.array(cells[known]).cast(kind.item_type)
    return pa.MapArray.from_arrays(pa.array(offsets), texts, items)
