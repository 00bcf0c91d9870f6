"""What of a block is in the store already: for ranges that the deduplication window no longer covers.

A row is known by where it came from. Offsets alone are not enough (a recreated log counts from 0 again, and
topics share partition numbers), so broker time belongs to the place. Days are looked at apart, because an
insert over two days may have reached one of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.positions import LANES

#: What names a row's place, by table; the default needs the columns of an ingested table.
_PLACE = {
    "dead_letters": ("id", "replayed"),
    "data_gaps": ("src_partition", "src_offset", "agent_id", "lane"),
    LANES: ("topic", "src_partition", "incarnation", "agent_id", "spool_id", "lane", "src_offset"),
}
_DEFAULT_PLACE = ("src_partition", "src_offset", "received_at", "day")
_DAY = "toUInt32(intDiv(toUnixTimestamp64Milli(ts), 86400000)) AS day"


def absent(store: Store, table: str, rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each row of a block whether the store lacks it.

    Costs one query that reads the columns of the place within the block's times.
    """
    place = _PLACE.get(table, _DEFAULT_PLACE)
    ts_ms = rows.column("ts").cast(pa.int64())
    conditions: list[str] = []
    parameters: dict[str, int] = {}
    if table != LANES:
        # Daily partitions: this is what keeps the look-up cheap. (The lanes' ts is when they were written.)
        conditions.append("ts BETWEEN fromUnixTimestamp64Milli({low:Int64}) AND fromUnixTimestamp64Milli({high:Int64})")
        parameters |= {"low": pc.min(ts_ms).as_py(), "high": pc.max(ts_ms).as_py()}
    if "src_offset" in place:
        offsets = rows.column("src_offset").cast(pa.int64())
        conditions.append("src_partition = {partition:UInt16} AND src_offset BETWEEN {first:UInt64} AND {last:UInt64}")
        parameters |= {
            "partition": rows.column("src_partition")[0].as_py(),
            "first": pc.min(offsets).as_py(),
            "last": pc.max(offsets).as_py(),
        }
    columns = ", ".join(_DAY if name == "day" else f"`{name}`" for name in place)
    found = store.rows(
        f"SELECT DISTINCT {columns} FROM {DATABASE}.{table} WHERE {' AND '.join(conditions)}", parameters
    )
    there = {tuple(row[name] for name in place) for row in found}
    if not there:
        return np.ones(rows.num_rows, bool)
    keys = zip(*(_cells(rows, name, ts_ms) for name in place), strict=True)
    return np.fromiter((key not in there for key in keys), bool, rows.num_rows)


def _cells(rows: pa.Table, name: str, ts_ms: pa.ChunkedArray) -> list[Any]:
    if name == "day":
        return list((ts_ms.to_numpy() // 86_400_000).tolist())
    column = rows.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return list(column.to_pylist())
