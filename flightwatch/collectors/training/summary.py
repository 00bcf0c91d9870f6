"""Sums over many steps, as rows of `op_timings` of level phase."""

from typing import Any, Dict, List, Mapping, Optional, Tuple

from flightwatch.collectors.training.step import Step
from flightwatch.core.vocabulary import OpKind, OpLevel

#: A summary is of so many steps and so much time, whichever is longer.
STEPS = 20
SECONDS = 60.0
#: Columns of rank_steps and the op they become: name, kind.
_PHASES = (
    ("step_us", "step", OpKind.STEP),
    ("forward_us", "forward", OpKind.COMPUTE),
    ("backward_us", "backward", OpKind.COMPUTE),
    ("optimizer_us", "optimizer", OpKind.COMPUTE),
    ("data_us", "data", OpKind.IO),
    ("checkpoint_us", "checkpoint", OpKind.CHECKPOINT),
)
#: Phases that may contain communication: their time is a span.
_SPANS = ("forward", "backward", "optimizer")


class _Sum:
    __slots__ = ("bytes", "count", "longest", "shortest", "square", "timed", "total")

    def __init__(self) -> None:
        self.total = self.square = self.longest = 0.0
        self.shortest = float("inf")
        self.count = 0
        self.bytes = 0
        self.timed = True

    def add(self, total: float, square: float, shortest: float, longest: float, count: int, size: int = 0) -> None:
        self.total += total
        self.square += square
        self.shortest = min(self.shortest, shortest)
        self.longest = max(self.longest, longest)
        self.count += count
        self.bytes += size


class Summary:
    """Gathers steps; after STEPS steps and SECONDS it gives rows."""

    def __init__(self) -> None:
        self._first: Optional[Step] = None
        self._steps = 0
        self._sums: Dict[Tuple[str, str, str], _Sum] = {}

    def add(self, step: Step, times: Mapping[str, Any], axes: Mapping[str, str]) -> List[Any]:
        """Take one step; return rows when a summary is full."""
        if self._first is None:
            self._first = step
        self._steps += 1
        for column, op, kind in _PHASES:
            value = times.get(column)
            if value is not None and (value > 0 or op == "step"):
                self._of(op, kind.value, "").add(value, value * value, value, value, 1)
        for (op, group), blocked in step.blocked.items():
            one = self._of(op, OpKind.COMM.value, group)
            one.timed = one.timed and blocked.timed
            one.add(
                blocked.ns / 1e3, blocked.squares_ns2 / 1e6, blocked.shortest_ns / 1e3, blocked.longest_ns / 1e3,
                blocked.calls, blocked.bytes,
            )  # fmt: skip
        full = self._steps >= STEPS and step.start_ms - self._first.start_ms >= SECONDS * 1000
        return self.rest(axes) if full else []

    def rest(self, axes: Mapping[str, str]) -> List[Any]:
        """Return rows of what was gathered and begin anew."""
        first, steps, sums = self._first, self._steps, self._sums
        self._first, self._steps, self._sums = None, 0, {}
        return [] if first is None else [_row(first, steps, key, one, axes) for key, one in sums.items()]

    def _of(self, op: str, kind: str, group: str) -> _Sum:
        # Bounded: a job has few groups and ops; what comes beyond is summed under one name.
        key = (op, kind, group) if len(self._sums) < 256 else ("other", kind, "")
        return self._sums.setdefault(key, _Sum())


def _row(first: Step, steps: int, key: Tuple[str, str, str], one: _Sum, axes: Mapping[str, str]) -> Tuple[str, Any]:
    op, kind, group = key
    values: Dict[str, Any] = {
        "ts": first.start_ms, "level": OpLevel.PHASE.value, "step": first.number, "steps": steps, "kind": kind,
        "op": op, "count": one.count,
    }  # fmt: skip
    if one.timed:
        values.update(dur_sq_us2=round(one.square, 1), min_us=round(one.shortest, 1), max_us=round(one.longest, 1))
        values["span_us" if op in _SPANS else "dur_us"] = round(one.total, 1)
    if group:
        values["process_group"] = group
        values["bytes"] = one.bytes
        if group in axes:
            values["axis"] = axes[group]
    return "op_timings", values
