"""Notices when the wall clock of this machine was set, ahead or back: times of rows are not comparable across it."""

from __future__ import annotations

from flightwatch.core.clock import Clock
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import EventSeverity, EventSource

#: Smaller steps happen when time synchronisation starts, and change the order of no two readings of one source.
SMALLEST_JUMP_SECONDS = 1.0


class ClockJumps:
    """Compares the wall clock with the monotonic one between two looks.

    A machine that was suspended shows as a jump ahead. A clock that is merely wrong, or slowly drifts, is no jump:
    `clock_offset_us` of node_samples tells how wrong it is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_s = self._difference_s()

    def look(self) -> Row | None:
        """Return an event if the clock was set since the last look."""
        ahead_s = self._difference_s()
        jumped_s = ahead_s - self._ahead_s
        self._ahead_s = ahead_s
        if abs(jumped_s) < SMALLEST_JUMP_SECONDS:
            return None
        way = "ahead" if jumped_s > 0 else "back"
        effect = "rows of this node have a hole" if jumped_s > 0 else "rows of this node from before and after overlap"
        return Row(
            "events",
            {
                "ts": self._clock.now_ms(),
                "source": EventSource.AGENT.value,
                "code": "agent:clock_jump",
                "severity": EventSeverity.WARNING.value,
                "message": f"the clock was set {way} by {abs(jumped_s):.1f} s: {effect}",
                "attrs": {"seconds": f"{jumped_s:.3f}"},
            },
        )

    def _difference_s(self) -> float:
        return self._clock.now_ms() / 1000 - self._clock.monotonic_s()
