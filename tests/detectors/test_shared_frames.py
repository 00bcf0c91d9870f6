"""Work that detectors of one pass share, and gaps that are filled one by one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flightwatch.detectors.series import carried, grid_of
from flightwatch.detectors.shared import KeptArrays, SharedFrames


def samples() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    times, devices = np.arange(60) * 10_000.0, np.arange(5.0)
    rows = pd.DataFrame({"ts": np.repeat(times, 5), "device": np.tile(devices, 60)})
    return rows.assign(node="n1", temp_c=rng.normal(60, 1, 300)).sample(frac=0.9, random_state=1, ignore_index=True)


def test_a_grid_is_made_once_a_pass_and_cannot_be_changed() -> None:
    shared = SharedFrames({"device_samples": samples()})
    first, second = (grid_of(shared, "device_samples", ("node", "device")) for _ in range(2))
    assert first is second
    assert first is not None
    column = first.column("temp_c")
    assert column is not None
    with pytest.raises(ValueError, match="read-only"):
        column[0, 0] = 0.0


def test_the_order_of_rows_makes_no_difference() -> None:
    rows = samples()
    # Two samples in one cell: the later one counts, in whatever order they come.
    rows = pd.concat([rows, rows.assign(ts=rows["ts"] + 1, temp_c=rows["temp_c"] + 50)], ignore_index=True)
    shuffled = rows.sample(frac=1.0, random_state=2, ignore_index=True)
    columns = []
    for one in (rows, shuffled):
        grid = grid_of({"device_samples": one}, "device_samples", ("node", "device"))
        assert grid is not None
        columns.append(grid.column("temp_c", forward_cells=2))
    np.testing.assert_array_equal(columns[0], columns[1])


@pytest.mark.parametrize("most", [1, 3, 8, 9, 50])
def test_gaps_are_filled_as_far_as_allowed(most: int) -> None:
    rng = np.random.default_rng(most)
    values = np.where(rng.random((80, 6)) < 0.5, np.nan, rng.random((80, 6)))
    values[:, 5] = np.nan
    expected = pd.DataFrame(values).ffill(limit=most).to_numpy()
    np.testing.assert_array_equal(carried(values, most), expected)


def test_arrays_used_longest_ago_are_let_go() -> None:
    kept = KeptArrays(most_bytes=2 * 80)
    made: list[str] = []

    def array(name: str) -> np.ndarray:
        made.append(name)
        return np.zeros(10)

    for name in ("a", "b", "a", "c", "a", "b"):
        kept.get(name, lambda name=name: array(name))  # type: ignore[misc]
    assert made == ["a", "b", "c", "b"]
