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
        block.combine_chunks(),
        database=DATABASE,
        settings=INSERT_SETTINGS | {"insert_deduplication_token": token},
    )
