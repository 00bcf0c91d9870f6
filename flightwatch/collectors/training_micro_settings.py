"""The section `[micro_traces]`: short profiles of running jobs for times of single ops, off unless turned on."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class MicroTraceSettings:
    """How often every job is traced for two steps."""

    enabled: bool = setting(
        False,
        "trace a few steps of every job now and then for compute times per op; jobs need the profiler's environment"
        " (`flightwatch run` sets it)",
    )
    minutes: float = setting(30.0, "shortest time between two traces of a job", minimum=0.01)
    steps: int = setting(2, "steps in a trace", minimum=1)
    most_cost_pct: float = setting(
        0.2, "the time between traces is stretched until their measured cost is below this share of it", minimum=0.001
    )
