"""Clusters are judged apart; a node whose rows are on their way is not dead."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flightwatch.detectors.hosts import ConfigDriftDetector, DeadNodeDetector
from flightwatch.pipeline.detection.run import by_cluster, run_detectors

NOW_MS = 1_700_000_000_000.0


def facts(cluster: str, nodes: int, kernel: str) -> pd.DataFrame:
    return pd.DataFrame(
        {"ts": NOW_MS, "cluster": cluster, "node": [f"{cluster}{i}" for i in range(nodes)], "name": "kernel",
         "value": kernel}
    )  # fmt: skip


def test_nodes_of_two_clusters_are_no_peers() -> None:
    frames = {"config_facts": pd.concat([facts("real", 1, "6.1"), facts("sim", 20, "6.8")], ignore_index=True)}
    assert ConfigDriftDetector().score(frames)
    assert run_detectors([ConfigDriftDetector()], frames).findings == []
    assert [len(one["config_facts"]) for one in by_cluster(frames)] == [1, 20]


def test_rows_without_a_cluster_belong_to_all() -> None:
    rows = pd.concat([facts("a", 2, "x"), facts("b", 2, "x")], ignore_index=True)
    rows.loc[0, "cluster"] = None
    frames = {"config_facts": rows, "links": pd.DataFrame({"ts": [1.0]})}
    assert [(len(one["config_facts"]), len(one["links"])) for one in by_cluster(frames)] == [(2, 1), (3, 1)]


def samples(node: str, ts: np.ndarray, received: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"ts": ts, "received_at": received, "node": node})


def test_a_backlog_is_no_death() -> None:
    ts = NOW_MS + np.arange(0, 600_000, 10_000.0)
    live = [samples(f"n{i}", ts, ts + 2000) for i in range(8)]
    # n8's agent sends ten minutes of backlog at the end; so far four minutes have come.
    late = samples("n8", ts[:24], np.full(24, ts[-1] - 1000))
    assert DeadNodeDetector().score({"node_samples": pd.concat([*live, late])}) == []
    dead = samples("n8", ts[:24], ts[:24] + 2000)
    (finding,) = DeadNodeDetector().score({"node_samples": pd.concat([*live, dead])})
    assert finding.node == "n8"
