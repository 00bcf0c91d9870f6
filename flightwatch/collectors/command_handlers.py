"""What the agent does with each command it accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flightwatch.collectors.hang.evidence import HangCollector
from flightwatch.collectors.profiler.service import Profiler
from flightwatch.core.protocols import Command


def command_handlers(profiler: Profiler | None, hang: HangCollector) -> Mapping[str, Callable[[Command], None]]:
    """Return command type to what does it; without a profiler its commands are unknown to the agent."""
    handlers: dict[str, Callable[[Command], None]] = {"collect_evidence": hang.collect_evidence}
    if profiler is not None:
        handlers |= {"profile_start": profiler.profile_start, "profile_stop": profiler.profile_stop}
    return handlers
