"""Insert one block exactly once, durably."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from flightwatch.core.vocabulary import DATABASE

#: One insert is one block (a token is safe only for one identical block), written by one thread.
INSERT_SETTINGS: dict[str, Any] = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "max_insert_threads": 1,
    "max_insert_block_size": 1_048_576,
    "min_insert_block_size_rows": 1_048_576,
    "min_insert_block_size_bytes": 268_435_456,
    "input_format_parallel_parsing": 0,
    "input_format_null_as_default": 1,
    "parallel_view_processing": 0,
    "max_partitions_per_insert_block": 100,
}


def insert_block(client: Any, table: str, block: pa.Table, token: str) -> None:
    """Insert `block` into `table` under `token`; raises the client's errors (see `errors.translate`).

    Parameters
    ----------
    client: a clickhouse-connect client no other thread uses.
    table: table name without database.
    block: one block; several chunks are combined so that the engine sees one.
    token: deduplication token that names exactly these rows.
    """
    client.insert_arrow(
        table,
        without_empty_columns(block).combine_chunks(),
        database=DATABASE,
        settings=INSERT_SETTINGS | {"insert_deduplication_token": token},
    )


def without_empty_columns(block: pa.Table) -> pa.Table:
    """Leave out columns that are NULL, or an empty map or list, in every row: the engine fills them in for less.

    A device row has 60 columns and a vendor fills about half of them.
    """
    kept = [name for name in block.column_names if not _is_empty(block.column(name))]
    return block.select(kept) if kept else block


def _is_empty(column: pa.ChunkedArray) -> bool:
    if column.null_count == len(column):
        return True
    if pa.types.is_map(column.type) or pa.types.is_list(column.type):
        return all(chunk.offsets[-1].as_py() == chunk.offsets[0].as_py() for chunk in column.chunks if len(chunk))
    return False
