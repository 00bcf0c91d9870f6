"""A window of samples stays bounded: whole sampling intervals are left out, evenly and the same ones at each call."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from flightwatch.core.clock import SystemClock
from flightwatch.detectors.overheat import OverheatDetector
from flightwatch.pipeline.detection.window import read_window
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.frames import insert_frame
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.telemetry import TelemetryModel, TelemetrySpec

NEEDED = {"device_samples": {"node", "device", "model", "temp_c", "power_w", "util_pct"}, "node_samples": {"inlet_c"}}
SAMPLES, DEVICES = 360, 32


def test_a_window_keeps_to_its_rows_and_what_they_tell(tmp_path: Path) -> None:
    begin_ms = SystemClock().now_ms() // 10_000 * 10_000 - 2 * 3_600_000
    fault = Fault("paste_failure", 2, 3, start_step=300)
    job = Job(tp=4, dp=8)
    model = TelemetryModel(Cluster(nodes=4), [job], [fault], 3, begin_ms, TelemetrySpec(samples=SAMPLES))
    store = open_store(f"chdb://{tmp_path / 'data'}", StoreSettings())
    migrate(store)
    for table, frame in model.frames().items():
        if table in NEEDED:
            insert_frame(store, table, frame, table)
    until_ms = begin_ms + SAMPLES * 10_000

    def read(most_rows: int | None, more_ms: int = 0) -> dict[str, pd.DataFrame]:
        return read_window(store, NEEDED, lambda table: begin_ms - 1, until_ms + more_ms, most_rows=most_rows)

    whole, fewer = read(None), read(SAMPLES * DEVICES // 4)
    assert len(whole["device_samples"]) == SAMPLES * DEVICES
    assert len(fewer["device_samples"]) == SAMPLES * DEVICES // 4
    assert len(fewer["node_samples"]) == len(whole["node_samples"])
    times = fewer["device_samples"]["ts"].drop_duplicates().sort_values()
    assert set(times.diff().dropna()) == {40_000.0}
    again = read(SAMPLES * DEVICES // 4, more_ms=17_000)  # rows are a little fewer for the time, as in each cycle
    first, second = (
        one["device_samples"].sort_values(["ts", "node", "device"], ignore_index=True) for one in (fewer, again)
    )
    pd.testing.assert_frame_equal(first, second)
    for frames in (whole, fewer):
        (found,) = OverheatDetector().score(frames)
        assert (found.node, found.device) == ("n0002", 3)
    store.close()


def test_a_shard_is_bounded_by_what_it_reads_itself(tmp_path: Path) -> None:
    """Two jobs in two shards: each shard's rows fit, so nothing is left out although the whole table would not."""
    begin_ms = SystemClock().now_ms() // 10_000 * 10_000 - 3_600_000
    store = open_store(f"chdb://{tmp_path / 'data'}", StoreSettings())
    migrate(store)
    model = TelemetryModel(Cluster(nodes=4), [Job(tp=4, dp=8)], [], 3, begin_ms, TelemetrySpec(samples=60))
    insert_frame(store, "device_samples", model.frames()["device_samples"], "device_samples")
    names = store.rows("SELECT concat('job', toString(number)) AS job, cityHash64(job) % 2 AS shard FROM numbers(20)")
    jobs = [next(str(row["job"]) for row in names if row["shard"] == shard) for shard in (0, 1)]
    placed = [{"ts": float(begin_ms), "node": f"n000{node}", "job": jobs[node // 2], "run": "0", "rank": float(node)}
              for node in range(4)]  # fmt: skip
    insert_frame(store, "placements", pd.DataFrame(placed), "placements")
    needed, until_ms = {"device_samples": {"temp_c"}}, begin_ms + 600_000
    for shard in (0, 1):
        rows = read_window(
            store, needed, lambda table: begin_ms - 1, until_ms, shard, shards=2, most_rows=60 * DEVICES // 2
        )["device_samples"]
        assert len(rows) == 60 * DEVICES // 2
    store.close()
