"""When a job's next micro-trace is due, and what the last ones cost it.

Agents do not talk to each other, and yet all ranks of a job should be traced in the same steps: a trace begins at a
multiple of the cycle, and the cycle is a power of two of steps. Agents that differ in the cycle (their step times
or measured costs differ a little) still share every step of the longer one.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict
from dataclasses import dataclass, field

from flightwatch.collectors.training_micro_settings import MicroTraceSettings

#: A configuration must be out before the first step: processes ask for it every 5 s.
LEAD_SECONDS = 10.0
LONGEST_LEAD_SECONDS = 45.0
#: What a trace is taken to cost before one was measured: a trace of 5 steps was measured at 2.8 steps.
UNMEASURED_COST_STEPS = 4.0
#: Steps around a trace whose time counts as its cost: warm-up before, writing the file behind.
BEFORE, BEHIND = 2, 6
_REFERENCE = 32
_KEPT_STEPS = 256
_MOST_CYCLE = 1 << 40


@dataclass(slots=True)
class _Job:
    ranks: OrderedDict[int, float] = field(default_factory=OrderedDict)
    step_us: OrderedDict[int, float] = field(default_factory=OrderedDict)
    newest: int = -1
    newest_at_ms: int = 0
    seen_s: float = 0.0
    armed: int = -1
    measuring: int = -1
    cost_steps: float = UNMEASURED_COST_STEPS


@dataclass(frozen=True, slots=True)
class Due:
    """A trace to ask for: of these ranks, from the end of this step on."""

    job: str
    run: str
    ranks: tuple[int, ...]
    start_step: int
    cycle: int


class MicroSchedule:
    """Steps of jobs on this node, and what is due. Not thread-safe."""

    def __init__(self, settings: MicroTraceSettings) -> None:
        self._settings = settings
        self._jobs: OrderedDict[tuple[str, str], _Job] = OrderedDict()

    def step(self, job: str, run: str, rank: int, number: int, at_ms: int, step_us: float, now_s: float) -> None:
        """Take one step of one rank."""
        known = self._jobs.setdefault((job, run), _Job())
        self._jobs.move_to_end((job, run))
        while len(self._jobs) > 64:
            self._jobs.popitem(last=False)
        known.ranks[rank], known.seen_s = now_s, now_s
        if number > known.newest:
            known.newest, known.newest_at_ms = number, at_ms + round(step_us / 1000)
        # Steps of a synchronous job last as long as the slowest of them.
        known.step_us[number] = max(step_us, known.step_us.get(number, 0.0))
        while len(known.step_us) > _KEPT_STEPS:
            known.step_us.popitem(last=False)

    def due(self, now_ms: int, now_s: float) -> list[Due]:
        """Return the traces to ask for now; each is returned once."""
        found = []
        for (job, run), known in self._jobs.items():
            median_us = _median(known)
            ranks = tuple(sorted(rank for rank, seen_s in known.ranks.items() if now_s - seen_s < 60.0))
            if median_us is None or not ranks or known.measuring >= 0:
                continue
            cycle = self._cycle(known, median_us)
            start = (known.newest // cycle + 1) * cycle
            ahead_s = (start - known.newest) * median_us / 1e6 - (now_ms - known.newest_at_ms) / 1000
            if start != known.armed and LEAD_SECONDS <= ahead_s <= max(LONGEST_LEAD_SECONDS, 3 * median_us / 1e6):
                known.armed = start
                found.append(Due(job, run, ranks, start, cycle))
        return found

    def _cycle(self, known: _Job, median_us: float) -> int:
        """Return steps between two traces: by time, and by what the measured ones cost."""
        by_time = self._settings.minutes * 60e6 / median_us
        by_cost = known.cost_steps / (self._settings.most_cost_pct / 100)
        cycle = 1
        while cycle < max(by_time, by_cost) and cycle < _MOST_CYCLE:
            cycle *= 2
        return cycle

    def traced(self, job: str, run: str, start: int) -> None:
        """Note that a trace was taken: its cost is measured when the steps behind it have come."""
        known = self._jobs.get((job, run))
        if known is not None and known.measuring < 0:
            known.measuring = start

    def measured(self) -> list[tuple[str, str, float]]:
        """Return job, run and share of time of the traces whose cost is known now."""
        found = []
        for (job, run), known in self._jobs.items():
            start = known.measuring
            last = start + self._settings.steps + BEHIND
            if start < 0 or known.newest < last:
                continue
            known.measuring = -1
            before = [us for step, us in known.step_us.items() if start - BEFORE - _REFERENCE <= step < start - BEFORE]
            around = [us for step, us in known.step_us.items() if start - BEFORE <= step <= last]
            if len(before) < 8 or not around:
                continue
            median_us = statistics.median(before)
            cost_steps = max(0.0, sum(around) / median_us - len(around))
            # Two noisy measurements: the dearer counts, and ages.
            known.cost_steps = max(cost_steps, 0.5 * known.cost_steps)
            found.append((job, run, cost_steps / self._cycle(known, median_us)))
        return found


def _median(known: _Job) -> float | None:
    """Return the usual step time in microseconds, None while too few steps are known."""
    recent = list(known.step_us.values())[-_REFERENCE:]
    return max(1.0, statistics.median(recent)) if len(recent) >= 8 else None
