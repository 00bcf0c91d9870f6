"""Reads of the page that says what is connected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flightwatch.core.catalogue import TABLES
from flightwatch.pipeline.store.client import Store


def tables_with_rows(store: Store, names: Sequence[str]) -> dict[str, int | None]:
    """Return the time of the newest row of each table, milliseconds since the epoch; None for an empty one.

    Costs one look at the last month's partitions of each.
    """
    parts = " UNION ALL ".join(
        f"SELECT '{TABLES[name].name}' AS table, count() AS n, max(ts) AS newest FROM flightwatch.{TABLES[name].name}"
        f" WHERE ts > now64(3) - INTERVAL {'7 DAY' if name.endswith('_samples') or name == 'rank_steps' else '10 YEAR'}"
        for name in names
    )
    return {row["table"]: row["newest"] if row["n"] else None for row in store.rows(parts)}


def places_known(store: Store) -> dict[str, Any]:
    """Return how many nodes the inventory names, and how many of them with a rack and a leaf switch."""
    return store.rows(
        """
        SELECT uniqExactIf(node, node != '') AS nodes, uniqExactIf(node, isNotNull(rack)) AS racked,
            uniqExactIf(node, isNotNull(leaf_switch)) AS switched
        FROM flightwatch.inventory
        """
    )[0]
