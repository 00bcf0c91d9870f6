"""Telemetry without end: stretch after stretch of one model, heat and counters going on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.telemetry import TelemetryModel, TelemetrySpec

SAMPLED = ("device_samples", "node_samples", "port_samples", "storage_samples")


def stretches(
    cluster: Cluster, jobs: Sequence[Job], faults: Sequence[Fault], seed: int, start_ms: int, spec: TelemetrySpec
) -> Iterator[dict[str, pd.DataFrame]]:
    """Yield the sample tables of `spec.samples` times at once, for ever; memory is that of one stretch.

    Rows are ordered by time and, inside one time, by node and device. Counters go on from stretch to stretch.
    """
    model = TelemetryModel(cluster, jobs, faults, seed, start_ms, spec)
    totals: dict[str, dict[str, np.ndarray]] = {table: {} for table in SAMPLED}
    first = 0
    while True:
        model.seconds_T = (first + np.arange(spec.samples)) * spec.interval_s
        frames = model.frames()
        for table in SAMPLED:
            _go_on(frames[table], totals[table], cluster)
        model.saturate(frames["port_samples"])
        yield {table: frames[table] for table in SAMPLED}
        first += spec.samples


def _go_on(frame: pd.DataFrame, totals: dict[str, np.ndarray], cluster: Cluster) -> None:
    """Add to each counter what its node and device had counted before; remember what they have now."""
    if frame.empty:
        return
    places = cluster.nodes * cluster.devices_per_node
    device = frame["device"].to_numpy().astype(np.int64) if "device" in frame else 0
    place = frame["node"].cat.codes.to_numpy().astype(np.int64) * cluster.devices_per_node + device
    # The last row of a place: assignment keeps the last of repeated indices, and rows are in order of time.
    newest = np.full(places, -1)
    newest[place] = np.arange(len(frame))
    seen = newest >= 0
    for name in [name for name in frame.columns if str(name).endswith("_total")]:
        before = totals.setdefault(str(name), np.zeros(places))
        values = frame[name].to_numpy() + before[place]
        frame[name] = values
        before[seen] = values[newest[seen]]
