"""Results as arrays, column by column: for series of which pages draw thousands of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

FloatColumn = np.ndarray[Any, np.dtype[np.float64]]
WholeColumn = np.ndarray[Any, np.dtype[np.int64]]
#: Column name to its values; all have one length.
Columns = Mapping[str, np.ndarray[Any, Any]]


def floats(table: pa.Table, name: str) -> FloatColumn:
    """Return a numeric column as floats; NULL becomes NaN."""
    return np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)


def wholes(table: pa.Table, name: str) -> WholeColumn:
    """Return a column of whole numbers that has no NULL."""
    return np.asarray(table[name].to_numpy(), dtype=np.int64)
