"""Times on an accelerator's own clock: events on the compute stream, read when they have passed.

Written against `torch.Event` (CUDA, and the same interface of torch_musa and torch_npu). Events are pooled,
pushed to a bounded queue and read at a later step only when `query()` says that they have passed: nothing here
waits for the device. During stream capture (CUDA graphs) nothing is recorded.

**Tested with a stand-in for events only; not run on a device.** A pair around `Work.wait()` on the compute
stream brackets the stall that the wait causes there. Compute is forward, backward and optimizer on the stream
without these stalls: idle time of the stream between kernels is in it, and `launch_gap_us` stays unknown.
"""

import collections
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from flightwatch.collectors.training.step import Step

_MOST_MARKS = 2048
_MOST_STEPS = 16
PHASES = ("forward", "backward", "optimizer")


class DeviceTimer:
    """Pairs of events per step.

    Parameters
    ----------
    make_event: returns a new timing event.
    capturing: says whether the current stream is being captured.

    Attributes
    ----------
    others: called with a step and the spans (us) of what was marked besides phases and waits.
    """

    def __init__(self, make_event: Callable[[], Any], capturing: Callable[[], bool]) -> None:
        self._make_event = make_event
        self._capturing = capturing
        self._pool: List[Any] = []
        self._pairs: List[Tuple[str, Any, Any]] = []
        self._open: Dict[str, Any] = {}
        self.others: List[Callable[[Step, Dict[str, float]], None]] = []
        self._waiting: Deque[Tuple[Step, List[Tuple[str, Any, Any]]]] = collections.deque()

    def begin(self, what: str) -> None:
        """Record the beginning of a phase or of a "wait"."""
        if len(self._pairs) < _MOST_MARKS and not self._capturing():
            self._open[what] = self._record()

    def end(self, what: str) -> None:
        """Record its end."""
        opened = self._open.pop(what, None)
        if opened is not None:
            self._pairs.append((what, opened, self._record()))

    def optimizer_and_step_done(self, step: Step) -> None:
        """End the optimizer's phase and the step with it."""
        self.end("optimizer")
        self.step_done(step)

    def step_done(self, step: Step) -> None:
        """Queue the pairs of a step, and read those of earlier steps that have passed."""
        self._waiting.append((step, self._pairs))
        self._pairs = []
        while self._waiting and all(last.query() for _, _, last in self._waiting[0][1]):
            self._read(*self._waiting.popleft())
        while len(self._waiting) > _MOST_STEPS:
            self._recycle(self._waiting.popleft()[1])

    def _read(self, step: Step, pairs: List[Tuple[str, Any, Any]]) -> None:
        sums: Dict[str, float] = {}
        for what, first, last in pairs:
            sums[what] = sums.get(what, 0.0) + first.elapsed_time(last) * 1000
        self._recycle(pairs)
        others = {what: sums[what] for what in sums if what not in PHASES and what != "wait"}
        for take in self.others if others else ():
            take(step, others)
        for phase in PHASES:
            if phase in sums:
                step.device[phase + "_us"] = round(sums[phase], 1)
        if all(phase in sums for phase in PHASES):
            stall_us = sums.get("wait", 0.0)
            step.device["comm_us"] = round(stall_us, 1)
            step.device["compute_us"] = round(max(0.0, sum(sums[phase] for phase in PHASES) - stall_us), 1)

    def _record(self) -> Any:
        event = self._pool.pop() if self._pool else self._make_event()
        event.record()
        return event

    def _recycle(self, pairs: List[Tuple[str, Any, Any]]) -> None:
        for _, first, last in pairs:
            self._pool.extend((first, last))
        del self._pool[_MOST_MARKS:]


def make_timer(torch: Any, device_type: str) -> Optional[DeviceTimer]:
    """Return a timer for an asynchronous device, None for the CPU or a torch without timing events."""
    if device_type == "cpu":
        return None
    event_class = getattr(torch, "Event", None)
    backend: Any = getattr(torch, device_type, None)
    if event_class is None and hasattr(backend, "Event"):
        backend_event = backend.Event
        make: Callable[[], Any] = lambda: backend_event(enable_timing=True)  # noqa: E731
    elif event_class is not None:
        make = lambda: event_class(device=device_type, enable_timing=True)  # noqa: E731
    else:
        return None
    return DeviceTimer(make, getattr(backend, "is_current_stream_capturing", lambda: False))
