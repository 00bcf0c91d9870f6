"""Compilation as a phase of the run, from torch's own callbacks around it (torch >= 2.4)."""

from typing import Any, List

from flightwatch.collectors.training.late_imports import LateImports
from flightwatch.collectors.training.probe import Probe, now_ns
from flightwatch.core.vocabulary import RunPhase

#: Compilations closer to each other than this are told as one phase; shorter ones are not told.
_GAP_NS = 2_000_000_000
_LEAST_NS = 50_000_000


class Compiling:
    """Times of compilations."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._begun: List[int] = []
        self._phase = (0, 0)

    def install(self, late: LateImports) -> None:
        """Register with torch once its compiler is imported."""
        late.when("torch._dynamo.callback", self._register)
        self._probe.on_close.append(lambda _step: self.settle(now_ns()))
        self._probe.before_finish.append(lambda: self.settle(now_ns() + 2 * _GAP_NS))

    def _register(self, module: Any) -> None:
        handler = getattr(module, "callback_handler", None)
        if handler is None:
            return
        handler.register_start_callback(self._probe.guard(self._starts))
        handler.register_end_callback(self._probe.guard(self._ends))

    def _starts(self, *_arguments: Any) -> None:
        self._begun.append(now_ns())
        if len(self._begun) == 1:
            self._probe.phases.begins(RunPhase.COMPILE, self._begun[0])

    def _ends(self, *_arguments: Any) -> None:
        if not self._begun:
            return
        started_ns, ended_ns = self._begun.pop(), now_ns()
        if self._begun:
            return
        if ended_ns - started_ns < _LEAST_NS:
            self._probe.phases.passed_over(RunPhase.COMPILE)
        if not self._phase[1]:
            self._phase = (started_ns, ended_ns)
        else:
            self._phase = (self._phase[0], ended_ns)

    def settle(self, at_ns: int) -> None:
        """Tell a phase of compilation behind which nothing was compiled for a while."""
        started_ns, ended_ns = self._phase
        if not ended_ns or self._begun or at_ns - ended_ns < _GAP_NS:
            return
        self._phase = (0, 0)
        if ended_ns - started_ns >= _LEAST_NS:
            self._probe.phases.span_ns(RunPhase.COMPILE, started_ns, ended_ns)
