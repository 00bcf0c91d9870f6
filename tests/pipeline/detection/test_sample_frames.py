"""Samples from the store: narrow, in parts, and the same values as the plain reader's."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from flightwatch.pipeline.detection.files import frame_of
from flightwatch.pipeline.detection.sample_frames import joined, sample_frame


def rows(first: int, node: str) -> pa.Table:
    nodes = pa.chunked_array([pa.array([node, node]).dictionary_encode(), pa.array([""]).dictionary_encode()])
    return pa.table(
        {
            "ts": pa.array([first, first + 1, first + 2], pa.timestamp("ms", tz="UTC")),
            "node": nodes,
            "temp_c": pa.array([40.5, None, 41.0], pa.float32()),
            "ecc_corrected_total": pa.array([2**40 + 1, None, 7], pa.uint64()),
            "remap_pending": pa.array([True, None, False]),
        }
    )


def test_values_are_those_of_the_plain_reader_and_half_as_wide() -> None:
    frame, plain = sample_frame("device_samples", rows(1000, "a")), frame_of("device_samples", rows(1000, "a"))
    assert frame["temp_c"].dtype == np.float32
    assert frame["ecc_corrected_total"].dtype == np.float64
    for name in plain.columns:
        assert (
            frame[name].astype(object).where(frame[name].notna(), None).tolist()
            == plain[name].astype(object).where(plain[name].notna(), None).tolist()
        )


def test_parts_are_joined_in_order_with_their_own_words() -> None:
    parts = [sample_frame("device_samples", rows(1000, "a")), sample_frame("device_samples", rows(2000, "b"))]
    whole = joined(parts)
    assert whole["ts"].tolist() == [1000, 1001, 1002, 2000, 2001, 2002]
    assert isinstance(whole["node"].dtype, pd.CategoricalDtype)
    assert whole["node"].astype(object).where(whole["node"].notna(), None).tolist() == ["a", "a", None, "b", "b", None]
