"""Every op of a step on its own: what the agent keeps in its ring, and rows of `op_timings` of level block.

An op is noted on the training thread as a short list; its names stand in a table that only grows and is told to
the agent once (and again every minute). Bounded: ops in a step and names in a process.
"""

import math
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from flightwatch.core.vocabulary import OpKind, OpLevel

if TYPE_CHECKING:
    from flightwatch.collectors.training.step import Step

MOST_NAMES = 1000
#: Ops in one element of a message.
OPS_AT_ONCE = 512
NAMES_AT_ONCE = 250
#: Bytes of a stored row of level block, and what all ranks of a job may add up to in a second.
ROW_BYTES = 60
BLOCK_BYTES_PER_SECOND = 100_000.0
LEAST_EVERY, MOST_EVERY = 16, 1 << 16

#: level, kind, op, process group
Name = Tuple[str, str, str, str]


class Detail:
    """Names of this process's ops, and what becomes of a step's ops.

    Parameters
    ----------
    axes: axis of each process group.
    """

    def __init__(self, axes: Mapping[str, str]) -> None:
        self._axes = axes
        self._table = int.from_bytes(os.urandom(4), "little")
        self._index: Dict[Name, int] = {}
        self._names: List[Name] = []
        self._told = 0

    def name(self, level: str, kind: str, op: str, group: str = "") -> int:
        """Return the number of a name; one beyond the table's bound is "other"."""
        key = (level, kind, op, group)
        index = self._index.get(key)
        if index is None:
            if len(self._names) >= MOST_NAMES and key != _OTHER:
                return self.name(*_OTHER)
            index = self._index[key] = len(self._names)
            self._names.append(key)
        return index

    def rows(self, step: "Step") -> List[Any]:
        """Return the elements of a message for a step, new names first. Called on the sending thread."""
        rows = self.names(step.start_ms, only_new=True)
        for first in range(0, len(step.ops), OPS_AT_ONCE):
            ops = [_numbers(op, step.start_ns) for op in step.ops[first : first + OPS_AT_ONCE]]
            rows.append(("detail", {"ts": step.start_ms, "step": step.number, "table": self._table, "ops": ops}))
        return rows

    def names(self, ts: int, only_new: bool = False) -> List[Any]:
        """Return the table of names, or its new part, as elements of a message."""
        first = self._told if only_new else 0
        names, self._told = list(self._names), len(self._names)
        found = []
        for start in range(first, len(names), NAMES_AT_ONCE):
            keys = [[*name, self._axes.get(name[3], "")] for name in names[start : start + NAMES_AT_ONCE]]
            found.append(("names", {"ts": ts, "table": self._table, "first": start, "keys": keys}))
        return found

    def block_rows(self, step: "Step") -> List[Any]:
        """Return rows of `op_timings`, one for each block and direction of a step."""
        sums: Dict[int, List[float]] = {}
        for index, _start_ns, dur_ns, _size, _seq, span_ns in step.ops:
            if self._names[index][0] != OpLevel.BLOCK.value:
                continue
            one = sums.setdefault(index, [0, 0.0, 0.0, 0.0, 1e18, 0.0])
            dur_us = dur_ns / 1000
            one[0] += 1
            one[1] += dur_us if dur_ns >= 0 else math.nan
            one[2] += span_ns / 1000
            one[3] += dur_us * dur_us
            one[4], one[5] = min(one[4], dur_us), max(one[5], dur_us)
        return [_block_row(step, self._names[index], one) for index, one in sums.items()]


_OTHER: Name = (OpLevel.OP.value, OpKind.COMPUTE.value, "other", "")


def _numbers(op: List[int], start_ns: int) -> List[Any]:
    index, begun_ns, dur_ns, size, seq, span_ns = op
    dur = -1 if dur_ns < 0 else round(dur_ns / 1000, 1)
    span = -1 if span_ns < 0 else round(span_ns / 1000)
    return [index, max(0, (begun_ns - start_ns) // 1000), dur, size, seq, span]


def _block_row(step: "Step", name: Name, one: List[float]) -> Tuple[str, Any]:
    level, kind, op, _ = name
    count, dur_us, span_us, square, shortest, longest = one
    values: Dict[str, Any] = {
        "ts": step.start_ms, "level": level, "step": step.number, "steps": 1, "kind": kind, "op": op,
        "span_us": round(span_us, 1), "count": int(count),
    }  # fmt: skip
    if dur_us == dur_us:
        values.update(dur_us=round(dur_us, 1), dur_sq_us2=round(square, 1), min_us=round(shortest, 1),
                      max_us=round(longest, 1))  # fmt: skip
    return "op_timings", values


def block_every(world: int, blocks: int, step_us: float, bytes_per_second: float = BLOCK_BYTES_PER_SECOND) -> int:
    """Return k: rows of level block are sent every k steps so that a job stays within its budget of bytes.

    A power of two: ranks whose step times differ a little may differ in k, and then still share every step of the
    larger one.
    """
    wanted = world * blocks * 2 * ROW_BYTES / max(1.0, bytes_per_second) / max(1e-6, step_us / 1e6)
    every = LEAST_EVERY
    while every < wanted and every < MOST_EVERY:
        every *= 2
    return every


def given_every(text: Optional[str]) -> Optional[int]:
    """Read FLIGHTWATCH_BLOCK_EVERY: a number of steps, 0 for never; None when it says nothing."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 9 else None
