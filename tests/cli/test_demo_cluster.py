"""The demo's simulated cluster: how much past it sends."""

from __future__ import annotations

import os
from pathlib import Path

from flightwatch.cli.demo_cluster import HISTORY_SECONDS, history_seconds


def test_the_past_begins_where_an_earlier_demo_ended(tmp_path: Path) -> None:
    output = tmp_path / "demo_cluster.log"
    assert history_seconds(output, 10_000.0) == HISTORY_SECONDS
    output.write_text("")
    os.utime(output, (9_900.0, 9_900.0))
    assert history_seconds(output, 10_000.0) == 100
    assert history_seconds(output, 9_000.0) == 0
    assert history_seconds(output, 50_000.0) == HISTORY_SECONDS
