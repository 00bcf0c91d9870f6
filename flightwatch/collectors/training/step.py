"""One training step as the probe sees it: what is counted while it runs, and the row it becomes."""

import math
from typing import Any, Dict, List, Optional

#: Ops noted in one step.
MOST_OPS = 2048
#: Phases that blocking communication is counted by.
OUTSIDE, FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2, 3


class Blocked:
    """Calls of one collective in one process group, and how long they held the host.

    Attributes
    ----------
    timed: False where the host's time says nothing (asynchronous devices).
    """

    __slots__ = ("bytes", "calls", "longest_ns", "ns", "shortest_ns", "squares_ns2", "timed")

    def __init__(self) -> None:
        self.calls = 0
        self.bytes = 0
        self.ns = 0
        self.squares_ns2 = 0
        self.shortest_ns = 1 << 62
        self.longest_ns = 0
        self.timed = True

    def add(self, ns: int, size: int) -> None:
        """Count one call."""
        self.calls += 1
        self.bytes += size
        self.ns += ns
        self.squares_ns2 += ns * ns
        self.shortest_ns = min(self.shortest_ns, ns)
        self.longest_ns = max(self.longest_ns, ns)


class Step:
    """Durations and values of one step; durations are nanoseconds of the host's monotonic clock.

    Attributes
    ----------
    excluded_ns: evaluation inside the step, which is not part of its duration.
    blocked_ns: host time inside communication, by phase.
    hidden_ns: communication that ran beside compute (DDP's reducer tells), None where unknown.
    reducer_ns: time the end of backward waited for DDP's reducer, None where unknown.
    device: fields measured by device events, empty on synchronous devices.
    ops: every op on its own: name, start_ns, dur_ns (-1: unknown), bytes, seq (-1: none), span_ns (-1: no span).
    """

    __slots__ = (
        "backward_ns", "backwards", "blocked", "blocked_ns", "checkpoint_ns", "data_ns", "device", "end_ns",
        "excluded_ns", "forward_ns", "forwards", "grad_norm", "hidden_ns", "losses", "nonfinite", "number",
        "ops", "optimizer_ns", "overlapping_ns", "reducer_ns", "scale", "start_ms", "start_ns", "tokens", "work",
    )  # fmt: skip

    def __init__(self, number: int, start_ns: int, start_ms: int) -> None:
        self.number = number
        self.start_ns = start_ns
        self.start_ms = start_ms
        self.end_ns = start_ns
        self.forward_ns = self.backward_ns = self.optimizer_ns = self.data_ns = self.checkpoint_ns = 0
        self.overlapping_ns = 0
        self.excluded_ns = 0
        self.forwards = self.backwards = 0
        self.blocked: Dict[Any, Blocked] = {}
        self.blocked_ns = [0, 0, 0, 0]
        self.hidden_ns: Optional[int] = None
        self.reducer_ns: Optional[int] = None
        self.losses: List[Any] = []
        self.grad_norm: Any = None
        self.scale: Optional[float] = None
        self.nonfinite = 0
        self.tokens: Optional[float] = None
        self.work: Dict[str, float] = {}
        self.device: Dict[str, float] = {}
        self.ops: List[List[int]] = []

    def note(self, name: int, start_ns: int, dur_ns: int, size: int, seq: int, span_ns: int) -> Optional[List[int]]:
        """Note one op; return it, so that a wait can be added, None when the step has too many."""
        if len(self.ops) >= MOST_OPS:
            return None
        op = [name, start_ns, dur_ns, size, seq, span_ns]
        self.ops.append(op)
        return op

    def all_blocked_ns(self) -> int:
        """Return the host time inside communication so far."""
        outside, forward, backward, optimizer = self.blocked_ns
        return outside + forward + backward + optimizer

    def mean_loss(self) -> Optional[float]:
        """Return the mean of the micro-batches' losses, None when none was seen."""
        values = [value for value in self.losses if isinstance(value, float)]
        return math.fsum(values) / len(values) if values and all(map(math.isfinite, values)) else _first_bad(values)

    def times_us(self, reducer_runs: bool, hidden: bool, loader_seen: bool) -> Dict[str, Any]:
        """Return the columns of durations.

        On a host that waits for its device (CPU) every blocking call is seen, so that
        compute + comm + data + checkpoint + unattributed = step. Communication that ran beside compute is in
        `overlap_ratio` alone.

        Parameters
        ----------
        reducer_runs: DDP's reducer communicates: unless its times are known, compute is not.
        hidden: other communication is not seen by the host (asynchronous device, tensor parallelism through
            functional collectives): compute is what device events say, or unknown.
        loader_seen: the job has a data loader that is timed; else the time waiting for data is unknown.
        """
        step_ns = max(0, self.end_ns - self.start_ns - self.excluded_ns)
        known = not hidden and self.forwards > 0 and (not reducer_runs or self.reducer_ns is not None)
        blocked_ns = sum(self.blocked_ns) + (self.reducer_ns or 0)
        times: Dict[str, Any] = {
            "step_us": _us(step_ns),
            "forward_us": _us(self.forward_ns) if self.forwards else None,
            "backward_us": _us(self.backward_ns) if self.backwards else None,
            "optimizer_us": _us(self.optimizer_ns),
            "data_us": _us(self.data_ns) if loader_seen else None,
            "checkpoint_us": _us(self.checkpoint_ns),
        }
        if known:
            inside_ns = sum(self.blocked_ns[FORWARD:]) + (self.reducer_ns or 0) + self.overlapping_ns
            compute_ns = max(0, self.forward_ns + self.backward_ns + self.optimizer_ns - inside_ns)
            rest_ns = step_ns - compute_ns - blocked_ns - self.data_ns - self.checkpoint_ns
            times.update(compute_us=_us(compute_ns), comm_us=_us(blocked_ns), unattributed_us=_us(max(0, rest_ns)))
            if self.hidden_ns is not None and self.hidden_ns + blocked_ns > 0:
                times["overlap_ratio"] = round(self.hidden_ns / (self.hidden_ns + blocked_ns), 4)
        times.update(self.device)
        if hidden and "compute_us" in self.device:
            counted = sum(times.get(name) or 0.0 for name in ("compute_us", "comm_us", "data_us", "checkpoint_us"))
            times["unattributed_us"] = max(0.0, round(times["step_us"] - counted, 1))
        return {name: value for name, value in times.items() if value is not None}


def _us(ns: int) -> float:
    return round(ns / 1000, 1)


def _first_bad(values: List[float]) -> Optional[float]:
    for value in values:
        if not math.isfinite(value):
            return value
    return None
