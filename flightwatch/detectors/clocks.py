"""Device clocks and temperatures around a change, to tell a throttled domain from a heavier stage."""

from __future__ import annotations

import numpy as np
import pandas as pd

from flightwatch.detectors.contract import Frames
from flightwatch.detectors.grouped import FloatArray
from flightwatch.detectors.layout import Layout


def change_around(
    frames: Frames, layout: Layout, column: str, before_ms: tuple[float, float], after_ms: tuple[float, float]
) -> FloatArray | None:
    """Return, per rank, the ratio after / before of a device column's medians; None when nothing is known.

    Parameters
    ----------
    before_ms, after_ms: half-open intervals of the samples' ts.
    """
    samples = frames.get("device_samples")
    if samples is None or samples.empty or not {"ts", "node", "device", column} <= set(samples.columns):
        return None
    rows = samples[(samples["ts"] >= before_ms[0]) & (samples["ts"] < after_ms[1])]
    if rows.empty:
        return None
    first = _medians(rows[rows["ts"] < before_ms[1]], column)
    last = _medians(rows[rows["ts"] >= after_ms[0]], column)
    keys = list(zip(layout.node_R, layout.device_R.tolist(), strict=True))
    pairs = [(first.get(key, np.nan), last.get(key, np.nan)) for key in keys]
    ratio = np.array([b / a if a and np.isfinite(a) and np.isfinite(b) else np.nan for a, b in pairs])
    return ratio if np.isfinite(ratio).any() else None


def _medians(rows: pd.DataFrame, column: str) -> dict[tuple[str | None, int], float]:
    if rows.empty:
        return {}
    grouped = rows.groupby(["node", "device"], observed=True)[column].median().reset_index()
    keys = zip(grouped["node"].astype(str), grouped["device"].astype(int), strict=True)
    return {key: value for key, value in zip(keys, grouped[column].tolist(), strict=True) if value == value}
