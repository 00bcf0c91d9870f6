"""Peers of an incident's devices: those that do the same work."""

from __future__ import annotations

import time

from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.incident_page_reads import device_gauges
from tests.pipeline.store.blocks import insert


def test_idle_nodes_are_no_peers_of_busy_ones(store: Store) -> None:
    now_ms = time.time_ns() // 1_000_000
    warm = {"mine": 80.0, "mate": 60.0, "idle": 30.0}
    insert(
        store, "device_samples",
        *({"ts": now_ms - 1000 * age, "cluster": "peers", "node": node, "device": 0, "vendor": "nvidia", "temp_c": temp}
          for node, temp in warm.items() for age in range(20)),
    )  # fmt: skip

    def middle() -> set[float]:
        rows = device_gauges(store, "peers", ["mine"], None, now_ms - 60_000, now_ms, 60)
        assert {row["temp_c_mine"] for row in rows} == {80.0}
        return {row["temp_c_low"] for row in rows}

    assert middle() == {30.0}, "nothing is placed: everybody is a peer"
    insert(
        store, "placements",
        *({"ts": now_ms - 50_000, "cluster": "peers", "node": node, "job": "llama", "run": "0", "rank": rank}
          for rank, node in enumerate(("mine", "mate"))),
        {"ts": now_ms - 90_000, "cluster": "peers", "node": "idle", "job": "llama", "run": "an older one", "rank": 0},
    )  # fmt: skip
    assert middle() == {60.0}
