"""Charts of scalars that a trainer reports: whatever the sign, what is there is seen."""

from __future__ import annotations

from typing import Any

import pytest

from flightwatch.dashboard.pages.job import scalar_chart


def axis(values: list[float | None]) -> dict[str, Any]:
    chart = scalar_chart("reward", (list(range(len(values))), values)).children[1]
    found: dict[str, Any] = chart.figure["layout"]["yaxis"]
    return found


@pytest.mark.parametrize("value", [2.0, -2.0, 1e-4, -1e-4])
def test_a_flat_line_is_within_its_axis(value: float) -> None:
    low, high = axis([value, value, None, value])["range"]
    assert low <= value <= high
    assert low <= 0 <= high


@pytest.mark.parametrize("values", [[0.5, -0.5, 0.5], [1.0, 2.0], [0.0, 0.0], [float("nan"), None], []])
def test_other_lines_keep_the_scale_of_their_values(values: list[float | None]) -> None:
    assert "range" not in axis(values)
