"""Saving and loading: the blocking part, what goes on in the background, restores, and their bytes.

Rows of `op_timings` of kind checkpoint and level op: `checkpoint_save` (blocks the training; also in
`rank_steps.checkpoint_us`), `checkpoint_persist` (from the save's return until the files are written, while
training goes on), `checkpoint_restore`. Bytes are those of the tensors given or found, of this rank.
"""

import threading
import time
from typing import Any, Callable, Dict, List

from flightwatch.collectors.training.hooks import around
from flightwatch.collectors.training.late_imports import LateImports
from flightwatch.collectors.training.probe import Probe
from flightwatch.core.vocabulary import OpKind, OpLevel, RunPhase

#: A save or restore shorter than this is not a phase of the run.
_PHASE_NS = 100_000_000
_MOST_TENSORS = 50_000
#: Saves of other threads are parts of a save in the background, which is told as a whole.
_ELSEWHERE = object()
_DISTRIBUTED = "torch.distributed.checkpoint"


class Checkpoints:
    """Patches of torch.save, torch.load and torch.distributed.checkpoint."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._depth = 0
        self._thread = threading.get_ident()

    def install(self, torch: Any, late: LateImports) -> None:
        """Patch; the distributed part when it is imported. Called on the thread that trains."""
        self._around(torch, "save", RunPhase.CHECKPOINT)
        self._around(torch, "load", RunPhase.RESTORE)
        late.when(_DISTRIBUTED, self._distributed)

    def _distributed(self, module: Any) -> None:
        for name, phase in (("save", RunPhase.CHECKPOINT), ("async_save", RunPhase.CHECKPOINT),
                            ("load", RunPhase.RESTORE)):  # fmt: skip
            if hasattr(module, name):
                self._around(module, name, phase)

    def _around(self, owner: Any, name: str, phase: RunPhase) -> None:
        def begins(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return _ELSEWHERE
            self._depth += 1
            if self._depth == 1:
                self._probe.phases.begins(phase, time.perf_counter_ns())
            return args[0] if args else kwargs.get("state_dict", kwargs.get("obj"))

        around(self._probe, owner, name, begins, self._ended(phase))

    def _ended(self, phase: RunPhase) -> Callable[[Any, int, int, Any], None]:
        def after(given: Any, started_ns: int, ended_ns: int, result: Any) -> None:
            if given is _ELSEWHERE:
                return
            self._depth -= 1
            if self._depth > 0:
                return
            restores = phase is RunPhase.RESTORE
            # torch.load returns what it read; the distributed one fills what it was given.
            size = tensor_bytes(result if restores and result is not None else given)
            self._tell("checkpoint_restore" if restores else "checkpoint_save", started_ns, ended_ns, size)
            if not restores and self._probe.steps_done:
                # After the optimizer, outside of a step: it belongs to the one that follows.
                self._probe.activity().checkpoint_ns += ended_ns - started_ns
            if ended_ns - started_ns >= _PHASE_NS:
                self._probe.phases.span_ns(phase, started_ns, ended_ns)
            else:
                self._probe.phases.passed_over(phase)
            if not restores:
                self._follow(result, ended_ns, size)

        return after

    def _follow(self, result: Any, returned_ns: int, size: int) -> None:
        """Tell when an asynchronous save has written its files."""
        future = getattr(result, "upload_completion", result)
        add = getattr(future, "add_done_callback", None)
        if add is not None:
            done = self._probe.guard(
                lambda _future: self._tell("checkpoint_persist", returned_ns, time.perf_counter_ns(), size)
            )
            add(done)

    def _tell(self, op: str, started_ns: int, ended_ns: int, size: int) -> None:
        probe = self._probe
        took_us = round((ended_ns - started_ns) / 1000, 1)
        ago_ms = (time.perf_counter_ns() - started_ns) // 1_000_000
        values: Dict[str, Any] = {
            "ts": time.time_ns() // 1_000_000 - ago_ms, "level": OpLevel.OP.value, "kind": OpKind.CHECKPOINT.value,
            "op": op, "step": probe.next_number(), "steps": 1, "dur_us": took_us, "min_us": took_us, "max_us": took_us,
            "dur_sq_us2": round(took_us * took_us, 1), "bytes": size, "count": 1,
        }  # fmt: skip
        probe.wire.put(("op_timings", values))


def tensor_bytes(value: Any) -> int:
    """Return the bytes of the tensors in nested dicts and lists; of sharded tensors those that are here."""
    total, seen = 0, 0
    stack: List[Any] = [value]
    while stack and seen < _MOST_TENSORS:
        one = stack.pop()
        seen += 1
        if isinstance(one, dict):
            stack.extend(one.values())
        elif isinstance(one, (list, tuple)):
            stack.extend(one)
        elif hasattr(one, "state_dict") and not hasattr(one, "element_size"):
            continue  # An object with a state of its own: asking for it could cost a copy.
        elif hasattr(one, "element_size"):
            local = one.to_local() if hasattr(one, "to_local") else one
            total += local.numel() * local.element_size()
    return total
