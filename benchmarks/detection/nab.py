"""The any-metric detector on the published machine-temperature series, where the recordings are beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from flightwatch.core.vocabulary import FindingState
from flightwatch.detectors.anomaly import AnomalyDetector

FOLDER = Path(__file__).parents[2].parent / "shared" / "inputs" / "l_datasets"
KEY = "realKnownCause/machine_temperature_system_failure.csv"
#: A finding may begin so long before its labelled window.
EARLY_MS = 6 * 3_600_000


def nab_line() -> str:
    """Return what the detector makes of the labelled windows, as one line to print."""
    if not FOLDER.exists():
        return f"NAB machine temperature: not run, there are no recordings at {FOLDER}"
    rows = pd.read_csv(FOLDER / "nab_machine_temperature_cut.csv")
    stamps = pd.to_datetime(rows["timestamp"], utc=True)
    ts = stamps.to_numpy(dtype="datetime64[ms]").astype("int64").astype(float)
    frame = pd.DataFrame({"ts": ts, "node": "machine", "chip": "m", "label": "t", "value": rows["value"]})
    findings = AnomalyDetector().score({"sensor_samples": frame})
    at = [float(one.detected_at or 0) for one in findings if one.state == FindingState.RAISED]
    labelled = json.loads((FOLDER / "nab_windows_machine_temperature.json").read_text(encoding="utf-8"))[KEY]
    moments = [[pd.Timestamp(moment, tz="UTC").timestamp() * 1000 for moment in window] for window in labelled]
    spans = [(begin, end) for begin, end in moments if ts[0] <= end and begin <= ts[-1]]
    found = sum(any(begin - EARLY_MS <= one <= end for one in at) for begin, end in spans)
    outside = sum(not any(begin - EARLY_MS <= one <= end for begin, end in spans) for one in at)
    days = (ts[-1] - ts[0]) / 86_400_000
    return (
        f"NAB machine temperature: {found} of {len(spans)} windows found, {outside} findings outside in {days:.0f} days"
    )
