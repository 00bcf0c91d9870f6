"""Tables of samples of the store as frames, compactly: narrow numbers stay narrow, words stay numbers of a list.

A million rows of device samples take half of what 64-bit columns take; every value is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import union_categoricals

from flightwatch.core.catalogue import TABLES

#: ClickHouse sends words of few values once, rows as numbers of them.
ARROW_SETTINGS = {"output_format_arrow_low_cardinality_as_dictionary": 1}
#: Types whose values 32-bit floats hold exactly.
NARROW = ("f32", "u8", "u16", "i16", "bool")


def sample_frame(name: str, rows: pa.Table) -> pd.DataFrame:
    """Return rows of a table of samples by the conventions of `detectors.contract`; maps are left out.

    Raises
    ------
    KeyError: no such table.
    """
    kinds = {column.name: column.type for column in TABLES[name].columns}
    rows = rows.unify_dictionaries()
    columns: dict[str, np.ndarray | pd.Categorical] = {}
    for column in rows.column_names:
        kind = kinds[column]
        if kind == "time":
            columns[column] = _milliseconds(rows.column(column))
        elif kind == "word" or kind == "text":
            columns[column] = _words(rows.column(column))
        elif not kind.startswith(("map", "list")):
            columns[column] = _numbers(rows.column(column), pa.float32() if kind in NARROW else pa.float64())
    # Columns are new arrays: gathered into one block they would exist twice.
    return pd.DataFrame(columns, copy=False)


def joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all parts as one frame; takes the parts apart, so that little exists twice.

    Parameters
    ----------
    parts: at least one, as `sample_frame` returns them, with the same columns.
    """
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, np.ndarray | pd.Categorical] = {}
    for name in list(parts[0].columns):
        values = [part.pop(name).array for part in parts]
        if isinstance(values[0], pd.Categorical):
            columns[name] = union_categoricals(values)
        else:
            columns[name] = np.concatenate([np.asarray(one) for one in values])
    return pd.DataFrame(columns, copy=False)


def _numbers(values: pa.ChunkedArray, kind: pa.DataType) -> np.ndarray:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    return np.asarray(values.cast(kind, safe=False).to_numpy())


def _milliseconds(values: pa.ChunkedArray) -> np.ndarray:
    moments = values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
    return np.asarray(moments.to_numpy(), dtype=float) / 1000


def _words(values: pa.ChunkedArray) -> pd.Categorical:
    if not pa.types.is_dictionary(values.type):
        values = values.cast(pa.string()).dictionary_encode()
    numbered = values.combine_chunks()
    listed = numbered.dictionary.to_pylist()
    # The store writes unknown words as empty ones.
    known: list[str] = [word for word in listed if word]
    code_of = {word: code for code, word in enumerate(known)}
    codes = np.array([*(code_of.get(word, -1) for word in listed), -1])
    at = numbered.indices.fill_null(len(listed)).to_numpy(zero_copy_only=False)
    return pd.Categorical.from_codes(codes[at], pd.Index(known, dtype=object))
