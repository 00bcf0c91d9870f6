"""Queries about dead letters."""

from __future__ import annotations

from typing import Any

from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store

# Rows with one id are versions of one letter: `replayed` comes as a second row, without payload.
_NEWEST = f"""
SELECT id, min(letters.ts) AS ts, any(letters.cluster) AS cluster, any(letters.node) AS node,
  any(letters.topic) AS topic, any(letters.partition) AS partition, any(letters.offset) AS offset,
  any(letters.index) AS index, any(letters.reason) AS reason, max(letters.payload) AS payload,
  max(letters.replayed) AS replayed
FROM {DATABASE}.dead_letters AS letters
WHERE {{id:String}} = '' OR id = {{id:String}}
GROUP BY id
HAVING NOT replayed OR {{replayed:Bool}}
ORDER BY ts, id
LIMIT {{limit:UInt32}}
"""


def listed(store: Store, letter_id: str = "", *, replayed: bool = True, limit: int = 100_000) -> list[dict[str, Any]]:
    """Return dead letters, oldest first, as rows of `dead_letters`.

    Parameters
    ----------
    letter_id: only this one; empty for all.
    replayed: also those that have been replayed.
    """
    return store.rows(_NEWEST, {"id": letter_id, "replayed": replayed, "limit": limit})
