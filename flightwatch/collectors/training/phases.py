"""Phases of the run as rows of `runs`: rendezvous, init, compile, restore, train, evaluate, checkpoint.

Sent by the first rank of each node: rank 0's are stored, the others' tell their own agent's hang watch that no step
is expected. A phase is told when it ends, and when it lasts longer than OPEN_SECONDS also while it runs.
"""

import os
import platform
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from flightwatch.core.vocabulary import RunPhase

if TYPE_CHECKING:
    from flightwatch.collectors.training.probe import Probe


#: A phase that lasts so long is told before its end.
OPEN_SECONDS = 1.0


class Phases:
    """Sends a row when a phase begins (no end) and when it ends."""

    def __init__(self, probe: "Probe") -> None:
        self._probe = probe
        self._process_ms = time.time_ns() // 1_000_000
        self._train_ms: Optional[int] = None
        self._early: List[Any] = []
        self._running: Dict[RunPhase, int] = {}

    def training_begins(self, started_ms: int) -> None:
        """End init where the first step began."""
        self._train_ms = started_ms
        early, self._early = self._early, []
        for phase, begun_ms, ended_ms in early:
            self._row(phase, begun_ms, ended_ms)
        self._row(RunPhase.INIT, self._process_ms, started_ms)
        self._row(RunPhase.TRAIN, started_ms, None)

    def begins(self, phase: RunPhase, started_ns: int) -> None:
        """Note that a phase runs; `span_ns` or `passed_over` ends it."""
        self._running[phase] = started_ns

    def passed_over(self, phase: RunPhase) -> None:
        """Note the end of a phase that was too short to be told."""
        self._running.pop(phase, None)

    def tell_running(self) -> None:
        """Tell phases that last long, once. Called on the sending thread."""
        at_ns = time.perf_counter_ns()
        for phase, started_ns in list(self._running.items()):
            if at_ns - started_ns >= OPEN_SECONDS * 1e9 and self._running.pop(phase, None) is not None:
                self._row(phase, time.time_ns() // 1_000_000 - (at_ns - started_ns) // 1_000_000, None)

    def ends(self) -> None:
        """End train with the process."""
        if self._train_ms is not None:
            self._row(RunPhase.TRAIN, self._train_ms, time.time_ns() // 1_000_000)

    def span(self, phase: RunPhase, started_ms: int, ended_ms: int) -> None:
        """Send a phase that is over."""
        self._row(phase, started_ms, ended_ms)

    def span_ns(self, phase: RunPhase, started_ns: int, ended_ns: int) -> None:
        """Send a phase that is over, given on the monotonic clock in nanoseconds."""
        self._running.pop(phase, None)
        now_ms, at_ns = time.time_ns() // 1_000_000, time.perf_counter_ns()
        self._row(phase, now_ms - (at_ns - started_ns) // 1_000_000, now_ms - (at_ns - ended_ns) // 1_000_000)

    def _row(self, phase: RunPhase, started_ms: int, ended_ms: Optional[int]) -> None:
        probe = self._probe
        if self._train_ms is None:
            # Which rank this is, and whether it trains at all, is known at the first step.
            if len(self._early) < 64:
                self._early.append((phase, started_ms, ended_ms))
            return
        if probe.identity.rank != 0 and probe.identity.local_rank != 0:
            return
        values: Dict[str, Any] = {"ts": started_ms, "phase": phase.value, "started_at": started_ms, "attrs": _attrs()}
        values["attrs"]["world_size"] = str(probe.identity.world)
        if ended_ms is not None:
            values["ended_at"] = ended_ms
        probe.wire.put(("runs", values))


def _attrs() -> Dict[str, str]:
    from flightwatch import __version__

    attrs = {"python": platform.python_version(), "flightwatch": __version__}
    torch = sys.modules.get("torch")
    if torch is not None:
        attrs["torch"] = str(torch.__version__)
    for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        if os.environ.get(name, "").isdigit():
            attrs[name.lower()] = os.environ[name]
    return attrs
