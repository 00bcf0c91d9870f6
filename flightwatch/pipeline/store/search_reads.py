"""Reads behind the search box: nodes and jobs by a part of their name."""

from __future__ import annotations

from collections.abc import Collection
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


#: Where names of a kind come from: whatever was received, and for nodes what the inventory and placements name.
_NAMES = {
    "node": """
        SELECT node AS name FROM flightwatch.node_latest GROUP BY node
        UNION DISTINCT SELECT node FROM flightwatch.device_latest GROUP BY node
        UNION DISTINCT SELECT node FROM flightwatch.self_metrics
            WHERE component = 'agent' AND ts > now64(3) - INTERVAL 1 DAY GROUP BY node
        UNION DISTINCT SELECT node FROM flightwatch.rank_latest GROUP BY node
        UNION DISTINCT SELECT node FROM flightwatch.inventory WHERE node != '' GROUP BY node
    """,
    "job": """
        SELECT job AS name FROM flightwatch.rank_latest GROUP BY job
        UNION DISTINCT SELECT job FROM flightwatch.runs GROUP BY job
    """,
}


def is_known(store: Store, kind: str, name: str) -> bool:
    """Say whether anything was ever received from, or is written down about, a node or job ("node", "job")."""
    sql = f"SELECT count() AS n FROM ({_NAMES[kind]}) WHERE name = {{name:String}}"
    return bool(store.rows(sql, {"name": name})[0]["n"])


def near(store: Store, kind: str, name: str, limit: int, among: Collection[str] | None = None) -> list[str]:
    """Return known names of a kind that are written most like `name`; `among`: only those."""
    mine = "" if among is None else " AND name IN {among:Array(String)}"
    rows = store.rows(
        f"""
        SELECT name FROM ({_NAMES[kind]})
        WHERE editDistance(lower(substring(name, 1, 200)), lower(substring({{name:String}}, 1, 200)))
            <= greatest(2, intDiv(length({{name:String}}), 3)){mine}
        ORDER BY editDistance(lower(substring(name, 1, 200)), lower(substring({{name:String}}, 1, 200))), name
        LIMIT {{limit:UInt16}}
        """,
        {"name": name, "limit": limit} | ({} if among is None else {"among": sorted(among)}),
    )
    return [row["name"] for row in rows]
