"""Queries about dead letters."""

from __future__ import annotations

import re
from typing import Any

from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store

_ID = re.compile(r"[\w.-]{1,200}/\d{1,5}/\d{1,20}/-?\d{1,10}")


def letters_sql(letter_id: str = "", *, replayed: bool = True, limit: int = 10_000) -> str:
    """Return the SELECT that lists dead letters, oldest first; it passes the guard of people's SQL.

    Rows with one id are versions of one letter: `replayed` comes as a second row, without payload.

    Parameters
    ----------
    letter_id: only this one; empty for all.
    replayed: also those that have been replayed.

    Raises
    ------
    ConfigError: not the id of a letter.
    """
    if letter_id and not _ID.fullmatch(letter_id):
        raise ConfigError(f"{letter_id!r} is not the id of a dead letter: TOPIC/PARTITION/OFFSET/INDEX")
    where = f"WHERE id = '{letter_id}'" if letter_id else ""
    having = "" if replayed else "HAVING NOT max(replayed)"
    return (
        "SELECT id, min(ts) AS put_aside_at, any(cluster) AS of_cluster, any(node) AS of_node, any(topic) AS of_topic,"
        " any(`partition`) AS of_partition, any(`offset`) AS of_offset, any(`index`) AS of_index,"
        " any(reason) AS why, max(payload) AS content, max(replayed) AS is_replayed"
        f" FROM {DATABASE}.dead_letters {where} GROUP BY id {having} ORDER BY put_aside_at, id LIMIT {limit:d}"
    )


def as_letter(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `letters_sql` under the names of the table's columns."""
    return {
        "ts": row["put_aside_at"], "id": row["id"], "cluster": row["of_cluster"], "node": row["of_node"],
        "topic": row["of_topic"], "partition": int(row["of_partition"]), "offset": int(row["of_offset"]),
        "index": int(row["of_index"]), "reason": row["why"], "payload": row["content"],
        "replayed": bool(row["is_replayed"]),
    }  # fmt: skip


def listed(store: Store, letter_id: str = "", *, replayed: bool = True, limit: int = 10_000) -> list[dict[str, Any]]:
    """Return dead letters as rows of the table; see `letters_sql`."""
    return [as_letter(row) for row in store.rows(letters_sql(letter_id, replayed=replayed, limit=limit))]
