"""What the ops of one rank's trace cost: self times, and how the device's time divides.

Host ops nest on their thread: self time = duration - children. Device kernels do not nest: self time =
duration. Kinds: compute and comm (kernels, by name; without kernels the host's ops are the compute), io
(copies and sets), host (everything the host does around kernels), idle (device gaps).
"""

from __future__ import annotations

import heapq
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from flightwatch.collectors.captures.kineto.stream import TraceReader
from flightwatch.core.protocols import Note

#: Most events kept per trace; 24 bytes each.
EVENT_LIMIT = 24_000_000
DEVICE_CATEGORIES = {"kernel": "compute", "gpu_memcpy": "io", "gpu_memset": "io"}
HOST_CATEGORIES = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "operator", "runtime")
_COMM = re.compile(
    r"nccl|rccl|hccl|mccl|cncl|ixccl|mxccl|gloo:|c10d::|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.I
)
#: The profiler's own frame around each step: its self time is the step's unexplained rest, not an op.
_STEP = re.compile(r"ProfilerStep#(\d+)$")


@dataclass(slots=True)
class Track:
    """Events of one host thread or device stream: parallel arrays of start and duration (us) and name index."""

    device: bool
    label: str
    starts: array[float] = field(default_factory=lambda: array("d"))
    durations: array[float] = field(default_factory=lambda: array("d"))
    names: array[int] = field(default_factory=lambda: array("l"))

    def ordered(self) -> Sequence[int]:
        """Return event indices by start, the longer first where starts are equal (a parent before its child).

        Traces mostly are in that order already; sorting by keys of their own would take 100 bytes an event.
        """
        starts, durations = self.starts, self.durations
        count = len(starts)
        if all(
            starts[i] < starts[i + 1] or (starts[i] == starts[i + 1] and durations[i] >= durations[i + 1])
            for i in range(count - 1)
        ):
            return range(count)
        order = sorted(range(count), key=durations.__getitem__, reverse=True)
        order.sort(key=starts.__getitem__)
        return order


@dataclass(slots=True)
class OpCost:
    """Cost of one op of one rank: calls and self time in microseconds."""

    op: str
    kind: str
    calls: int = 0
    self_us: float = 0.0


class RankTrace:
    """One trace, read.

    Attributes
    ----------
    rank: from the trace, else from the file name, else None (never assumed 0).
    base_us: added to times to get microseconds since the epoch.
    tracks: host threads and device streams.
    notes: what could not be read.
    """

    def __init__(self, source: str, rank_of_name: int | None) -> None:
        self.source = source
        self.rank = rank_of_name
        self.base_us = 0.0
        self.tracks: dict[tuple[bool, str, str], Track] = {}
        self.notes: list[Note] = []
        self.steps: list[int] = []
        self._untimed = 0
        self._names: dict[tuple[str, str], int] = {}
        self.ops: list[tuple[str, str]] = []

    def read(self, reader: TraceReader) -> RankTrace:
        """Take all events; damage becomes a note."""
        count = 0
        for event in reader:
            if isinstance(event, Note):
                self.notes.append(event)
                continue
            if event.get("ph") == "X" and self._take(event):
                count += 1
                if count >= EVENT_LIMIT:
                    self.notes.append(
                        Note("error", f"event {count}", f"only the first {EVENT_LIMIT} events are analysed")
                    )
                    break
        if self._untimed:
            text = f"{self._untimed} events without a usable time or duration were left out"
            self.notes.append(Note("warning", "", text))
        if reader.meta.rank is not None:
            self.rank = reader.meta.rank
        self.base_us = reader.meta.base_us
        if self.rank is None:
            self.notes.append(Note("warning", "", "the trace does not say its rank, and its file name does not either"))
        return self

    def _take(self, event: dict[str, Any]) -> bool:
        category = str(event.get("cat", "")).lower()
        name, start, duration = event.get("name"), _number(event.get("ts")), _number(event.get("dur"))
        if not isinstance(name, str) or start is None or duration is None or duration < 0:
            self._untimed += 1
            return False
        device = category in DEVICE_CATEGORIES
        if not device and category and category not in HOST_CATEGORIES:
            return False
        step = _STEP.match(name)
        if step:
            self.steps.append(int(step.group(1)))
        kind = self._kind(name, category, device)
        track = self._track(event, device)
        track.starts.append(start)
        track.durations.append(duration)
        track.names.append(self._name_index(name, kind))
        return True

    def _track(self, event: dict[str, Any], device: bool) -> Track:
        pid, tid = str(event.get("pid")), str(event.get("tid"))
        key = (device, pid, tid)
        track = self.tracks.get(key)
        if track is None:
            label = f"device {pid} stream {tid}" if device else f"thread {tid}"
            track = self.tracks[key] = Track(device, label)
        return track

    @staticmethod
    def _kind(name: str, category: str, device: bool) -> str:
        if _COMM.search(name) and (device or category in ("user_annotation", "cpu_op", "")):
            return "comm"
        return DEVICE_CATEGORIES[category] if device else "host"

    def _name_index(self, name: str, kind: str) -> int:
        key = (name, kind)
        index = self._names.get(key)
        if index is None:
            index = self._names[key] = len(self.ops)
            self.ops.append(key)
        return index

    @property
    def has_device(self) -> bool:
        """Whether the trace holds device work at all."""
        return any(track.device for track in self.tracks.values())

    def costs(self) -> list[OpCost]:
        """Return all ops, the most expensive first, with the device's idle time as an op of kind idle."""
        has_device = self.has_device
        costs: dict[tuple[str, str], OpCost] = {}
        for track in self.tracks.values():
            for index, self_us, _ in flat(track) if track.device else nested(track):
                name, kind = self.ops[index][0], self._counted_kind(index, track.device, has_device)
                cost = costs.setdefault((name, kind), OpCost(name, kind))
                cost.calls += 1
                cost.self_us += self_us
        idle = self.device_idle()
        if idle is not None:
            costs["(device idle)", "idle"] = idle
        return sorted(costs.values(), key=lambda cost: (-cost.self_us, cost.op))

    def _counted_kind(self, index: int, on_device: bool, has_device: bool) -> str:
        name, kind = self.ops[index]
        if kind == "host" and not has_device and not _STEP.match(name):
            return "compute"
        # A library's host-side annotation around a kernel that is counted itself is not communication twice.
        return "host" if kind == "comm" and has_device and not on_device else kind

    def busy_us(self) -> dict[str, float]:
        """Return by kind the time (us) in which at least one thread or stream worked on an op of that kind.

        Work that overlaps on several threads or streams counts once, unlike in the sums of `costs`. Different
        kinds may overlap (that is what hides communication), so that their times may add up to more than the step.
        """
        has_device = self.has_device
        busy: dict[str, float] = {}
        reached: dict[str, float] = {}
        by_track = (self._kind_spans(track, has_device) for track in self.tracks.values())
        for start, end, kind in heapq.merge(*by_track, key=lambda span: span[0]):
            covered = max(start, reached.get(kind, start))
            if end > covered:
                busy[kind] = busy.get(kind, 0.0) + end - covered
            reached[kind] = max(end, covered)
        return busy

    def _kind_spans(self, track: Track, has_device: bool) -> Iterator[tuple[float, float, str]]:
        for start, end, index in _device_spans(track) if track.device else _host_spans(track):
            yield start, end, self._counted_kind(index, track.device, has_device)

    def device_idle(self) -> OpCost | None:
        """Return time in which no stream of the device worked, between its first and last work; None without device."""
        by_track = (_device_spans(track) for track in self.tracks.values() if track.device)
        spans = heapq.merge(*by_track, key=lambda span: span[0])
        first = next(spans, None)
        if first is None:
            return None
        idle = OpCost("(device idle)", "idle")
        reached = first[1]
        for start, end, _ in spans:
            if start > reached:
                idle.calls += 1
                idle.self_us += start - reached
            reached = max(reached, end)
        return idle


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 1e18 else None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def flat(track: Track) -> Iterator[tuple[int, float, tuple[int, ...]]]:
    """Yield (name index, self time, stack) of a device stream: its own duration each."""
    for name, duration in zip(track.names, track.durations, strict=True):
        yield name, duration, (name,)


def nested(track: Track) -> Iterator[tuple[int, float, tuple[int, ...]]]:
    """Yield (name index, self time in us, stack of name indices, outermost first) of a host thread.

    An event that ends after its parent (clock rounding, asynchronous spans) counts only up to the parent's end.
    """
    ends: list[float] = []
    rest: list[float] = []
    stack: list[int] = []
    for i in track.ordered():
        start, end = track.starts[i], track.starts[i] + track.durations[i]
        while ends and ends[-1] <= start:
            ends.pop()
            yield stack[-1], max(0.0, rest.pop()), tuple(stack)
            stack.pop()
        if ends:
            end = min(end, ends[-1])
            rest[-1] -= end - start
        ends.append(end)
        rest.append(end - start)
        stack.append(track.names[i])
    while ends:
        ends.pop()
        yield stack[-1], max(0.0, rest.pop()), tuple(stack)
        stack.pop()


def _device_spans(track: Track) -> Iterator[tuple[float, float, int]]:
    """Yield (start, end, name index) of a device stream, by start."""
    for i in track.ordered():
        yield track.starts[i], track.starts[i] + track.durations[i], track.names[i]


def _host_spans(track: Track) -> Iterator[tuple[float, float, int]]:
    """Yield (start, end, name index) of the stretches in which each op itself ran, none of its children; by start."""
    open_ops: list[tuple[float, int]] = []
    reached = 0.0
    for i in track.ordered():
        start, end = track.starts[i], track.starts[i] + track.durations[i]
        while open_ops and open_ops[-1][0] <= start:
            closed, name = open_ops.pop()
            yield reached, closed, name
            reached = closed
        if open_ops:
            yield reached, start, open_ops[-1][1]
            end = min(end, open_ops[-1][0])
        reached = start
        open_ops.append((end, track.names[i]))
    while open_ops:
        closed, name = open_ops.pop()
        yield reached, closed, name
        reached = closed


def difference(a: Iterable[OpCost], b: Iterable[OpCost]) -> list[dict[str, Any]]:
    """Compare two ranks (or sets of ranks) op by op; the largest change in time first.

    Returns dictionaries op, a_self_us, b_self_us, delta_us (b - a), ratio (b / a; None where a has none).
    """
    first, second = _by_op(a), _by_op(b)
    rows = []
    for op in first.keys() | second.keys():
        before, after = first.get(op, 0.0), second.get(op, 0.0)
        rows.append(
            {
                "op": op,
                "a_self_us": round(before, 3),
                "b_self_us": round(after, 3),
                "delta_us": round(after - before, 3),
                "ratio": round(after / before, 4) if before > 0 else None,
            }
        )
    return sorted(rows, key=lambda row: (-abs(row["delta_us"]), row["op"]))


def _by_op(costs: Iterable[OpCost]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for cost in costs:
        sums[cost.op] = sums.get(cost.op, 0.0) + cost.self_us
    return sums
