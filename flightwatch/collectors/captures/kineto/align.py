"""Several ranks on one time axis, aligned by the ends of collectives, and who was late to each.

A barrier-like collective ends on all its members at once, so the differences of ends are the differences of
clocks. The k-th collective of a name on a rank is matched with the k-th on the others. No clock of two nodes
is ever compared directly.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, TextIO

from flightwatch.collectors.captures.kineto.ops import RankTrace
from flightwatch.collectors.captures.kineto.stream import TraceReader
from flightwatch.core.protocols import Note

#: Fewer matched collectives than this give no alignment.
MATCHES_NEEDED = 2
#: A send or a receive alone; NCCL's kernel "SendRecv" also carries all-to-all, which does end together.
_POINT_TO_POINT = re.compile(r"(?<![a-z])i?(?:send|recv)(?![a-z])", re.I)
Collective = tuple[str, int]


def collectives(trace: RankTrace) -> dict[Collective, tuple[float, float]]:
    """Return (name, k-th of that name) to (start, end) in microseconds since the epoch; send and receive left out."""
    found: dict[Collective, tuple[float, float]] = {}
    has_device = trace.has_device
    counts: dict[str, int] = defaultdict(int)
    events = sorted(
        (track.starts[i], track.durations[i], trace.ops[track.names[i]][0])
        for track in trace.tracks.values()
        if track.device == has_device
        for i in range(len(track.starts))
        if trace.ops[track.names[i]][1] == "comm"
    )
    for start, duration, name in events:
        if _POINT_TO_POINT.search(name):
            continue
        found[name, counts[name]] = (trace.base_us + start, trace.base_us + start + duration)
        counts[name] += 1
    return found


def offsets(traces: Sequence[RankTrace]) -> tuple[dict[int, float], list[str]]:
    """Return, per trace index, microseconds to add so that collectives end together, and what could not be aligned.

    The first trace is the reference.
    """
    if not traces:
        return {}, []
    reference = collectives(traces[0])
    shifts, notes = {0: 0.0}, []
    for index, trace in enumerate(traces[1:], start=1):
        own = collectives(trace)
        gaps = [reference[key][1] - own[key][1] for key in own.keys() & reference.keys()]
        if len(gaps) < MATCHES_NEEDED:
            shifts[index] = 0.0
            notes.append(
                f"{trace.source}: too few common collectives with {traces[0].source}; its clock is taken as it is"
            )
        else:
            shifts[index] = median(gaps)
    return shifts, notes


def critical_ranks(traces: Sequence[RankTrace]) -> list[dict[str, Any]]:
    """Return, per collective that at least two ranks share, the rank that arrived last and what the others waited.

    Transfer is the shortest duration in the group; wait = own duration - transfer. Whoever waited least is critical.
    """
    durations: dict[Collective, dict[int, float]] = defaultdict(dict)
    for trace in traces:
        if trace.rank is not None:
            for key, (start, end) in collectives(trace).items():
                durations[key][trace.rank] = end - start
    rows = []
    for (name, index), by_rank in durations.items():
        if len(by_rank) < 2:
            continue
        transfer = min(by_rank.values())
        waits = {rank: round(own - transfer, 3) for rank, own in sorted(by_rank.items())}
        critical = min(by_rank, key=lambda rank: (by_rank[rank], rank))
        rows.append({"op": name, "index": index, "critical_rank": critical, "transfer_us": transfer, "wait_us": waits})
    return sorted(rows, key=lambda row: -max(row["wait_us"].values()))


def write_merged(
    out: TextIO, sources: Sequence[tuple[RankTrace, TraceReader]], shifts: Mapping[int, float]
) -> Iterator[Note]:
    """Write one Perfetto-readable trace of several ranks; yields notes about damaged inputs.

    Times become microseconds since the earliest base; process ids are kept apart by rank and named after it.
    """
    origin = min((trace.base_us + _first(trace) for trace, _ in sources), default=0.0)
    out.write('{"traceEvents":[\n')
    separator = ""
    for index, (trace, reader) in enumerate(sources):
        label = f"rank {trace.rank}" if trace.rank is not None else trace.source
        processes: dict[str, int] = {}
        move = trace.base_us + shifts.get(index, 0.0) - origin
        for event in reader:
            if isinstance(event, Note):
                yield event
                continue
            moved = _moved(event, move, processes, index)
            if moved is not None:
                out.write(separator + json.dumps(moved, ensure_ascii=False))
                separator = ",\n"
        for name, number in processes.items():
            title = {"ph": "M", "name": "process_name", "pid": number, "args": {"name": f"{label}: {name}"}}
            out.write(separator + json.dumps(title, ensure_ascii=False))
            separator = ",\n"
    out.write(f'\n],"displayTimeUnit":"ms","baseTimeNanoseconds":{int(origin * 1000)}}}\n')


def _first(trace: RankTrace) -> float:
    return min((min(track.starts) for track in trace.tracks.values() if track.starts), default=0.0)


def _moved(event: dict[str, Any], move: float, processes: dict[str, int], index: int) -> dict[str, Any] | None:
    start = event.get("ts")
    if event.get("ph") == "M" and event.get("name") in ("process_name", "process_labels", "process_sort_index"):
        return None
    if not isinstance(start, (int, float)) and event.get("ph") != "M":
        return None
    name = str(event.get("pid"))
    number = processes.setdefault(name, (index + 1) * 1000 + len(processes))
    moved = dict(event, pid=number)
    if isinstance(start, (int, float)):
        moved["ts"] = round(start + move, 3)
    if "id" in moved:  # flow arrows must not join two ranks
        moved["id"] = f"{index}.{moved['id']}"
    return moved
