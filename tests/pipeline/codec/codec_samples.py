"""Headers and strategies that the codec's tests share."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from flightwatch.core.catalogue import TABLES, Column, Table
from flightwatch.core.protocols import Row
from flightwatch.pipeline.batch import Batch, BatchHeader

NOW_MS = 1_760_000_000_000
FROM_BUS = ("received_at", "src_partition", "src_offset")


def header(seq: int = 1, node: str = "n1", **attributes: str) -> BatchHeader:
    return BatchHeader("agent-1", "spool-1", "samples", seq, node, "c1", NOW_MS, "0.1.0", attributes)


def batch(*rows: Row, seq: int = 1) -> Batch:
    return Batch(header(seq), rows)


def device_row(device: int = 0, **values: Any) -> Row:
    return Row("device_samples", {"ts": NOW_MS, "device": device, "vendor": "nvidia", **values})


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_RANGES = {"u8": (0, 2**8 - 1), "u16": (0, 2**16 - 1), "u32": (0, 2**32 - 1), "u64": (0, 2**64 - 1),
           "i16": (-(2**15), 2**15 - 1), "i32": (-(2**31), 2**31 - 1), "i64": (-(2**63), 2**63 - 1)}  # fmt: skip


def cells(column: Column) -> st.SearchStrategy[Any]:
    """Values that the column can hold, NULL included where it may be."""
    kind = column.type
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "f32": st.floats(width=32),
        "f64": st.floats(),
        "bool": st.booleans(),
        "word": _TEXT,
        "text": _TEXT,
        "time": st.integers(NOW_MS - 10**9, NOW_MS),
        "map_f64": st.dictionaries(_TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=3),
        "map_u64": st.dictionaries(_TEXT, st.integers(0, 2**64 - 1), max_size=3),
        "map_text": st.dictionaries(_TEXT, _TEXT, max_size=3),
        "list_i32": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
        "list_text": st.lists(_TEXT, max_size=3),
    }
    strategy = st.integers(*_RANGES[kind]) if kind in _RANGES else strategies[kind]
    return st.none() | strategy if column.nullable else strategy


def _some(draw: st.DrawFn, columns: list[Column]) -> list[Column]:
    return draw(st.lists(st.sampled_from(columns), unique=True, max_size=8)) if columns else []


@st.composite
def rows(draw: st.DrawFn, table: Table | None = None) -> list[Row]:
    """1 to 6 rows of one table with a common set of columns."""
    chosen = table or draw(st.sampled_from([t for t in TABLES.values() if t.lane is not None]))
    columns = [c for c in chosen.columns if c.name not in FROM_BUS]
    optional = [c for c in columns if c.nullable]
    kept = [c for c in columns if not c.nullable] + _some(draw, optional)
    count = draw(st.integers(1, 6))
    return [Row(chosen.name, {c.name: draw(cells(c)) for c in kept}) for _ in range(count)]


def same(left: Any, right: Any) -> bool:
    """Equality in which NaN equals NaN and types must agree."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return type(left) is type(right) and bool(left == right)
