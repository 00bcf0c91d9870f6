"""A counter of 32 bits stops at its ceiling shortly after its fault begins, in one frame and stretch after stretch."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flightwatch.simulator.cluster import Cluster
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.scenarios import START_MS
from flightwatch.simulator.stretches import stretches
from flightwatch.simulator.telemetry import CEILING, TelemetryModel, TelemetrySpec

CLUSTER = Cluster(nodes=4)
FAULT = Fault("counter_saturation", 2, start_step=100)
#: Steps of 5 s, samples of 10 s.
BEGIN = 50


def counted(frames: list[pd.DataFrame], node: str) -> np.ndarray:
    rows = pd.concat(frames)
    return rows[rows["node"] == node].sort_values("ts")["xmit_wait_total"].to_numpy()


def is_saturated_after_its_begin(values: np.ndarray) -> bool:
    reached = int(np.argmax(values == CEILING))
    return bool(BEGIN < reached < BEGIN + 12 and (values[reached:] == CEILING).all() and (np.diff(values) >= 0).all())


def test_in_one_frame() -> None:
    spec = TelemetrySpec(samples=90)
    ports = TelemetryModel(CLUSTER, [], [FAULT], 3, START_MS, spec).frames()["port_samples"]
    assert is_saturated_after_its_begin(counted([ports], "n0002"))
    assert counted([ports], "n0001").max() < 1e6


def test_stretch_after_stretch() -> None:
    drawn = stretches(CLUSTER, [], [FAULT], 3, START_MS, TelemetrySpec(samples=6))
    ports = [next(drawn)["port_samples"] for _ in range(15)]
    assert is_saturated_after_its_begin(counted(ports, "n0002"))
