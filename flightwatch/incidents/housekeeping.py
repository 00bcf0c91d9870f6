"""Followers of the engine that keep the store's projections and the control database in order."""

from __future__ import annotations

from flightwatch.core.clock import Clock
from flightwatch.pipeline.control.engine_writes import EngineWrites
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.control.projections import ProjectionWriter

_SWEEP_SECONDS = 3600.0
_DAY_MS = 86_400_000
#: Findings of closed incidents leave the control database after this; the store has them as long as findings live.
_FINDINGS_DAYS = 90
#: Messages that were handled, evidence that was pinned.
_HANDLED_DAYS = 7
#: Most inserts of one cycle, so that the role is checked again in between.
_MOST_ROUNDS = 20


class Projections:
    """Writes what waits in the outbox into the store. The store being away delays only this."""

    name = "projections"
    urgent = False

    def __init__(self, writer: ProjectionWriter) -> None:
        self._writer = writer

    def cycle(self, lease: Lease) -> None:
        """Write until nothing waits."""
        for _ in range(_MOST_ROUNDS):
            if not self._writer.step(lease):
                return


class Housekeeping:
    """Forgets what is old, once an hour."""

    name = "housekeeping"
    urgent = False

    def __init__(self, writes: EngineWrites, writer: ProjectionWriter, clock: Clock) -> None:
        self._writes, self._writer, self._clock = writes, writer, clock
        self._swept_s = float("-inf")

    def cycle(self, lease: Lease) -> None:
        """Forget when it is time."""
        del lease
        if self._clock.monotonic_s() - self._swept_s < _SWEEP_SECONDS:
            return
        now_ms = self._clock.now_ms()
        self._writes.forget(now_ms - _FINDINGS_DAYS * _DAY_MS, now_ms - _HANDLED_DAYS * _DAY_MS)
        self._writer.sweep()
        self._swept_s = self._clock.monotonic_s()
