"""Traces of a profile as the page shows them: flame graph, difference to a peer, ops across ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flightwatch.collectors.captures.kineto.ops import OpCost, RankTrace, difference, flat, nested
from flightwatch.collectors.captures.kineto.stream import TraceReader, open_trace
from flightwatch.core.errors import NotFound
from flightwatch.dashboard.components.canvas import packed
from flightwatch.dashboard.components.remembered import Remembered

#: Frames below this share of the whole are left out: they are thinner than a pixel.
THINNEST_SHARE = 0.0003
MOST_FRAMES = 8000
_READ = Remembered(600.0)
#: The step's number is in the name of its span: without it, steps and ranks fall on one another.
_STEP = re.compile(r"(ProfilerStep)#\d+")

Stack = tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    """One rank's trace, read: self time (us) by stack below "host" or "device", costs by op, notes about damage."""

    rank: int
    stacks: Mapping[Stack, float]
    costs: Sequence[OpCost]
    notes: Sequence[str]


def read_trace(artifact: str, sha256: str, rank: int) -> Trace:
    """Read a stored trace; it is kept for some minutes.

    Raises
    ------
    NotFound: the file is not on this machine.
    """

    def read() -> Trace:
        path = Path(artifact)
        if path.is_symlink() or not path.is_file():
            raise NotFound(f"the trace of rank {rank} is not on this machine")
        with path.open("rb") as stream:
            found = RankTrace(str(path), rank).read(TraceReader(open_trace(stream)))
        names = [_STEP.sub(r"\1", name) for name, _ in found.ops]
        stacks: dict[Stack, float] = defaultdict(float)
        for track in found.tracks.values():
            side = "device" if track.device else "host"
            for _, self_us, stack in flat(track) if track.device else nested(track):
                stacks[(side, *(names[index] for index in stack))] += self_us
        return Trace(rank, stacks, _merged(found.costs()), [note.text for note in found.notes])

    return _READ.get((artifact, sha256), read)


def _merged(costs: Sequence[OpCost]) -> list[OpCost]:
    """Return costs with the numbers of steps taken out of names, those below a nanosecond left out."""
    sums: dict[tuple[str, str], OpCost] = {}
    for cost in costs:
        name = _STEP.sub(r"\1", cost.op)
        total = sums.setdefault((name, cost.kind), OpCost(name, cost.kind))
        total.calls += cost.calls
        total.self_us += cost.self_us
    return [cost for cost in sums.values() if cost.self_us > 1e-3]


def frames(trace: Trace, peer: Trace | None = None) -> dict[str, Any]:
    """Return the property `frames` of a FlameGraph; coloured by the difference to `peer` where one is given."""
    totals = _totals(trace.stacks)
    others = _totals(peer.stacks) if peer is not None else {}
    whole = sum(total for path, total in totals.items() if len(path) == 1)
    kept = [path for path, total in totals.items() if total >= whole * THINNEST_SHARE]
    if len(kept) > MOST_FRAMES:
        kept = sorted(kept, key=lambda path: -totals[path])[:MOST_FRAMES]
    names: list[str] = []
    parents: list[int] = []
    total: list[float] = []
    own: list[float] = []
    delta: list[float] = []
    place: dict[Stack, int] = {}
    for path in _tree_order(kept, totals):
        if len(path) > 1 and path[:-1] not in place:
            continue
        place[path] = len(names)
        names.append(path[-1])
        parents.append(place[path[:-1]] if len(path) > 1 else -1)
        total.append(totals[path])
        own.append(trace.stacks.get(path, 0.0))
        if peer is not None:
            other = others.get(path)
            delta.append(np.nan if not other else (totals[path] - other) / max(totals[path], other))
    return {
        "names": names,
        "parent": packed(parents, "<i4"),
        "total": packed(total, "<f4"),
        "self": packed(own, "<f4"),
        **({"delta": packed(delta, "<f4")} if peer is not None else {}),
    }


def _totals(stacks: Mapping[Stack, float]) -> dict[Stack, float]:
    totals: dict[Stack, float] = defaultdict(float)
    for stack, self_us in stacks.items():
        for depth in range(1, len(stack) + 1):
            totals[stack[:depth]] += self_us
    return totals


def _tree_order(paths: Sequence[Stack], totals: Mapping[Stack, float]) -> list[Stack]:
    """Return paths so that a parent stands before its children, the largest child first."""
    children: dict[Stack, list[Stack]] = defaultdict(list)
    for path in paths:
        children[path[:-1]].append(path)
    ordered: list[Stack] = []
    waiting = sorted(children[()], key=lambda path: totals[path])
    while waiting:
        path = waiting.pop()
        ordered.append(path)
        waiting.extend(sorted(children.get(path, ()), key=lambda one: totals[one]))
    return ordered


def top_ops(traces: Sequence[Trace], limit: int) -> list[dict[str, Any]]:
    """Return the ops that cost most over all ranks: op, kind, and self time (us) of each rank by its number."""
    sums: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for trace in traces:
        for cost in trace.costs:
            by_rank = sums[cost.op, cost.kind]
            by_rank[trace.rank] = by_rank.get(trace.rank, 0.0) + cost.self_us
    order = sorted(sums.items(), key=lambda item: -sum(item[1].values()))[:limit]
    return [{"op": op, "kind": kind, "ranks": by_rank} for (op, kind), by_rank in order]


def changed_ops(trace: Trace, peer: Trace, limit: int) -> list[dict[str, Any]]:
    """Return the ops that differ most from the peer: op, a_self_us (peer), b_self_us (trace), delta_us, ratio."""
    return difference(peer.costs, trace.costs)[:limit]
