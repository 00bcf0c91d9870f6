"""Flame graphs of a trace: folded lines and speedscope JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from flightwatch.collectors.captures.kineto.ops import RankTrace, flat, nested


def folded(trace: RankTrace) -> Counter[tuple[str, ...]]:
    """Return stacks (rank, thread or stream, ops outermost first) and their self time in microseconds."""
    weights: Counter[tuple[str, ...]] = Counter()
    rank = "rank ?" if trace.rank is None else f"rank {trace.rank}"
    for track in trace.tracks.values():
        for _, self_us, stack in flat(track) if track.device else nested(track):
            weights[(rank, track.label, *(trace.ops[index][0] for index in stack))] += round(self_us)
    return weights


def folded_lines(weights: Counter[tuple[str, ...]]) -> Iterable[str]:
    """Render `frame;frame;frame microseconds`, as flamegraph.pl and speedscope read it; empty stacks are left out."""
    for stack, weight in sorted(weights.items()):
        if weight > 0:
            yield f"{';'.join(_frame(frame) for frame in stack)} {weight}"


def _frame(text: str) -> str:
    return "".join(" " if ord(c) < 32 or ord(c) == 127 else c for c in text).replace(";", ":")


def speedscope(weights: Counter[tuple[str, ...]], name: str) -> dict[str, Any]:
    """Return a speedscope file (sampled profile, microseconds)."""
    frames: dict[str, int] = {}
    samples, values = [], []
    for stack, weight in sorted(weights.items()):
        if weight > 0:
            samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
            values.append(weight)
    profile = {"type": "sampled", "name": name, "unit": "microseconds", "startValue": 0, "endValue": sum(values)}
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [profile | {"samples": samples, "weights": values}],
    }
