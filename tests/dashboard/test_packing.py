"""Numbers of charts, packed."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from flightwatch.dashboard.components.packing import along, packed_array, told

BEGIN = datetime(2026, 11, 29, 19, 0)


def floats(packed: dict[str, Any]) -> list[float]:
    """Return the numbers of a packed array."""
    return np.frombuffer(base64.b64decode(packed["bdata"]), dtype=f"<{packed['dtype']}").tolist()  # type: ignore[no-any-return]


def times(*seconds: int) -> list[datetime]:
    """Return moments so many seconds after BEGIN."""
    return [BEGIN + timedelta(seconds=one) for one in seconds]


def test_even_times_travel_as_begin_and_distance() -> None:
    trace = along(times(0, 15, 30), [1.0, 2.0, 3.0])
    assert (trace["x0"], trace["dx"]) == ("2026-11-29T19:00:00.000", 15_000)
    assert floats(trace["y"]) == [1.0, 2.0, 3.0]


def test_a_rare_hole_becomes_a_gap_at_its_place() -> None:
    seconds = [15 * i for i in range(100) if i != 40]
    trace = along(times(*seconds), [float(one) for one in seconds])
    values = floats(trace["y"])
    assert np.isnan(values[40])
    assert (values[39], values[41], len(values)) == (39 * 15.0, 41 * 15.0, 100)


def test_a_hole_of_weeks_is_not_filled_value_by_value() -> None:
    seconds = [*range(100), 90 * 86_400]
    trace = along(times(*seconds), [1.0] * len(seconds))
    assert len(trace["x"]) == len(floats(trace["y"])) == 101


@pytest.mark.parametrize("seconds", [(0, 15, 45, 60, 90), (0, 10, 25, 33), (0, 0, 5), (30, 15, 0), (0,)])
def test_other_times_are_told_one_by_one(seconds: tuple[int, ...]) -> None:
    trace = along(times(*seconds), [1.0] * len(seconds))
    assert trace["x"] == [one.isoformat(timespec="milliseconds") for one in times(*seconds)]
    assert len(floats(trace["y"])) == len(seconds)


def test_steps_and_names_stay_what_they_are() -> None:
    assert along([1, 2, 9], [None, 2.0, 3.0])["x"] == [1, 2, 9]
    assert along(["a", "b"], [1, 2])["x"] == ["a", "b"]


def test_nothing_known_is_nothing_told() -> None:
    assert not told([None, None])
    assert not told([])
    assert told(np.array([np.nan, 0.0]))


def test_two_dimensions_keep_their_shape() -> None:
    assert packed_array(np.zeros((3, 5)))["shape"] == "3, 5"
