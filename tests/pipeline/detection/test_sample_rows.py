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

    def read(most_rows: int | None) -> dict[str, pd.DataFrame]:
        return read_window(store, NEEDED, lambda table: begin_ms - 1, until_ms, most_rows=most_rows)

    whole, fewer = read(None), read(SAMPLES * DEVICES // 4)
    assert len(whole["device_samples"]) == SAMPLES * DEVICES
    assert len(fewer["device_samples"]) == SAMPLES * DEVICES // 4
    assert len(fewer["node_samples"]) == len(whole["node_samples"])
    times = fewer["device_samples"]["ts"].drop_duplicates().sort_values()
    assert set(times.diff().dropna()) == {40_000.0}
    again = read(SAMPLES * DEVICES // 4)
    first, second = (
        one["device_samples"].sort_values(["ts", "node", "device"], ignore_index=True) for one in (fewer, again)
    )
    pd.testing.assert_frame_equal(first, second)
    for frames in (whole, fewer):
        (found,) = OverheatDetector().score(frames)
        assert (found.node, found.device) == ("n0002", 3)
    store.close()
