"""Phases of the run as rows of `runs`, sent by rank 0: rendezvous, init, restore, train, evaluate, checkpoint."""

import os
import platform
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from flightwatch.core.vocabulary import RunPhase

if TYPE_CHECKING:
    from flightwatch.collectors.training.probe import Probe


class Phases:
    """Sends a row when a phase begins (no end) and when it ends."""

    def __init__(self, probe: "Probe") -> None:
        self._probe = probe
        self._process_ms = time.time_ns() // 1_000_000
        self._train_ms: Optional[int] = None
        self._early: List[Any] = []

    def training_begins(self, started_ms: int) -> None:
        """End init where the first step began."""
        self._train_ms = started_ms
        early, self._early = self._early, []
        for phase, begun_ms, ended_ms in early:
            self._row(phase, begun_ms, ended_ms)
        self._row(RunPhase.INIT, self._process_ms, started_ms)
        self._row(RunPhase.TRAIN, started_ms, None)

    def ends(self) -> None:
        """End train with the process."""
        if self._train_ms is not None:
            self._row(RunPhase.TRAIN, self._train_ms, time.time_ns() // 1_000_000)

    def span(self, phase: RunPhase, started_ms: int, ended_ms: int) -> None:
        """Send a phase that is over."""
        self._row(phase, started_ms, ended_ms)

    def span_ns(self, phase: RunPhase, started_ns: int, ended_ns: int) -> None:
        """Send a phase that is over, given on the monotonic clock in nanoseconds."""
        now_ms, at_ns = time.time_ns() // 1_000_000, time.perf_counter_ns()
        self._row(phase, now_ms - (at_ns - started_ns) // 1_000_000, now_ms - (at_ns - ended_ns) // 1_000_000)

    def _row(self, phase: RunPhase, started_ms: int, ended_ms: Optional[int]) -> None:
        probe = self._probe
        if self._train_ms is None:
            # Which rank this is, and whether it trains at all, is known at the first step.
            if len(self._early) < 64:
                self._early.append((phase, started_ms, ended_ms))
            return
        if probe.identity.rank != 0:
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
