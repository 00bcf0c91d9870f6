"""Frames of the simulator as the rows an agent would send."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pandas as pd

from flightwatch.core.catalogue import TABLES
from flightwatch.core.protocols import Row, Value

_WHOLE = ("u8", "u16", "u32", "u64", "i16", "i32", "i64", "time")


@cache
def _types(table: str) -> dict[str, str]:
    return {column.name: column.type for column in TABLES[table].columns}


def rows_of(table: str, frame: pd.DataFrame) -> Iterator[Row]:
    """Yield one row per row of the frame, NaN and None left out as None, whole numbers as int.

    Parameters
    ----------
    table: a table of the catalogue. frame: columns as in `detectors.contract`: maps flattened as `map.key`.
    """
    types = _types(table)
    names: list[str] = []
    columns: list[list[Value]] = []
    maps: dict[str, list[tuple[str, list[Value]]]] = {}
    for name in frame.columns:
        word, _, key = str(name).partition(".")
        cells = _cells(frame[name], types[word])
        if key:
            maps.setdefault(word, []).append((key, cells))
        else:
            names.append(word)
            columns.append(cells)
    for word, parts in maps.items():
        keys = [key for key, _ in parts]
        names.append(word)
        columns.append([_known(keys, cells) for cells in zip(*(cells for _, cells in parts), strict=True)])
    for row in zip(*columns, strict=True):
        yield Row(table, dict(zip(names, row, strict=True)))


def _known(keys: list[str], cells: tuple[Value, ...]) -> Value:
    return {key: cell for key, cell in zip(keys, cells, strict=True) if cell is not None}  # type: ignore[return-value]


def _cells(column: pd.Series, type_: str) -> list[Value]:
    if isinstance(column.dtype, pd.CategoricalDtype):
        words = [*column.cat.categories.tolist(), None]
        return [words[code] for code in column.cat.codes.tolist()]
    if not pd.api.types.is_numeric_dtype(column.dtype):
        return [None if cell is None or cell != cell else cell for cell in column.tolist()]
    values = column.to_numpy()
    known = np.isfinite(values)
    if type_ == "bool":
        cells: list[Value] = (np.nan_to_num(values) != 0).tolist()
    elif type_ in _WHOLE:
        cells = np.rint(np.where(known, values, 0)).astype(np.int64).tolist()
    else:
        cells = values.astype(float).tolist()
    if known.all():
        return cells
    return [cell if fine else None for cell, fine in zip(cells, known.tolist(), strict=True)]
