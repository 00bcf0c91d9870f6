"""Reads behind the search box: nodes and jobs by a part of their name."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from flightwatch.pipeline.store.client import Store


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing found: kind ("node" or "job"), its name, and the path of its page."""

    kind: str
    name: str
    path: str


def find(store: Store, text: str, limit: int) -> list[Hit]:
    """Return nodes and jobs whose name holds `text`, names that start with it first."""
    rows = store.rows(
        """
        SELECT kind, name FROM (
            SELECT 'node' AS kind, node AS name FROM flightwatch.node_latest GROUP BY node
            UNION DISTINCT SELECT 'node', node FROM flightwatch.device_latest GROUP BY node
            UNION DISTINCT SELECT 'job', job FROM flightwatch.rank_latest GROUP BY job
        )
        WHERE positionCaseInsensitive(name, {text:String}) > 0
        ORDER BY positionCaseInsensitive(name, {text:String}), length(name), name LIMIT {limit:UInt16}
        """,
        {"text": text, "limit": limit},
    )
    return [Hit(row["kind"], row["name"], f"/{row['kind']}s/{quote(row['name'], safe='')}") for row in rows]
