"""Results read once for a moment, and let go after it."""

from __future__ import annotations

import gc
import weakref

from flightwatch.core.clock import ManualClock
from flightwatch.dashboard.components.remembered import Remembered


class Large:
    """A result that can be watched."""


def test_a_result_stands_for_its_time_and_no_longer() -> None:
    clock = ManualClock()
    remembered, read = Remembered(2.0, clock), iter(range(10))
    assert [remembered.get("a", lambda: next(read)) for _ in range(3)] == [0, 0, 0]
    clock.advance(1.9)
    assert remembered.get("a", lambda: next(read)) == 0
    assert remembered.get("a", lambda: next(read), 1.0) == 1
    clock.advance(2.0)
    assert remembered.get("a", lambda: next(read)) == 2


def test_what_is_over_is_let_go() -> None:
    clock = ManualClock()
    remembered = Remembered(2.0, clock)
    short, long = weakref.ref(remembered.get("short", Large)), weakref.ref(remembered.get("long", Large, 60.0))
    clock.advance(3.0)
    remembered.get("other", Large)
    gc.collect()
    assert short() is None
    assert long() is not None
