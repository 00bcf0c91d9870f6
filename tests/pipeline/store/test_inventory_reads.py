"""The inventory as of a time, merged over its sources, and what changed."""

from __future__ import annotations

from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.inventory_reads import changes, inventory_sql

BASE_MS = 1_700_000_000_000
COLUMNS = "node, device, hca, port, rack, slot, leaf_switch, attrs"


def put(store: Store, at_ms: int, values: str) -> None:
    moment = f"fromUnixTimestamp64Milli(toInt64({BASE_MS + at_ms}))"
    store.command(
        f"INSERT INTO flightwatch.inventory (ts, received_at, cluster, {COLUMNS})"
        f" SELECT {moment}, {moment}, 'c1', t.1, t.2, t.3, t.4, t.5, t.6, t.7, t.8 FROM (SELECT {values} AS t)"
    )


def read(store: Store, at_ms: int) -> list[dict]:
    return store.rows(inventory_sql(BASE_MS + at_ms, "c1"), {"cluster": "c1"})


def test_sources_complete_each_other_and_time_goes_back(store: Store) -> None:
    put(store, 1000, "('n1', NULL, NULL, NULL, 'r1', NULL, NULL, map())")
    put(store, 2000, "('n1', NULL, NULL, NULL, NULL, NULL, 'leaf1', map('bmc', 'x'))")
    put(store, 3000, "('n1', NULL, NULL, NULL, 'r2', NULL, NULL, map())")
    put(store, 3000, "('n1', NULL, 'mlx5_0', 1, NULL, NULL, 'leaf2', map())")
    put(store, 3000, "('n1', NULL, NULL, NULL, NULL, 'PS1', NULL, map('part', 'power supply'))")
    (old,) = read(store, 2500)
    assert (old["rack"], old["leaf_switch"], old["attrs"]) == ("r1", "leaf1", {"bmc": "x"})
    now = {(row["hca"], row["part"]): row for row in read(store, 9000)}
    assert set(now) == {(None, ""), ("mlx5_0", ""), (None, "power supply PS1")}
    assert (now[None, ""]["rack"], now[None, ""]["leaf_switch"]) == ("r2", "leaf1")
    found = changes([old], list(now.values()))
    assert {"node": "n1", "change": "changed", "column": "rack", "before": "r1", "after": "r2"} in found
    assert {"node": "n1", "hca": "mlx5_0", "port": 1, "change": "added", "values": {"leaf_switch": "leaf2"}} in found
    assert read(store, 0) == []
