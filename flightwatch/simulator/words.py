"""Columns of words in frames, stored as codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd


def coded(codes: np.ndarray[Any, np.dtype[Any]], names: Sequence[str]) -> pd.Categorical[str]:
    """Return a column that holds `names[code]` for each code."""
    return pd.Categorical.from_codes(codes.astype(np.int32), pd.Index(list(names), dtype=object))


def constant(name: str, rows: int) -> pd.Categorical[str]:
    """Return a column with one word in all rows."""
    return coded(np.zeros(rows, dtype=np.int32), [name])
