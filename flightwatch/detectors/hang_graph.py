"""The wait-for graph of a hung job: who waits in which operation, and for whom.

A rank waits in its oldest unfinished operation: for the members of that group that have not called its sequence
number, for those that have called it and still stand in an older operation, and for the peer of a send or receive.
Linear in the sizes of groups, so 10,000 ranks take seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flightwatch.core.hang_evidence import CollectiveRecord, RankDump

#: Parsers keep so many unfinished records of a rank at most.
KEPT_RECORDS = 64
#: Names of the group of all ranks in dumps that do not describe their groups.
WHOLE_JOB = frozenset(("0:0", "default_pg:0"))


@dataclass(slots=True)
class Wait:
    """One operation that some ranks wait in: who waits, who has not called it, who called it and is held up before."""

    group: str
    seq: int
    op: str
    is_p2p: bool
    waiting: list[int]
    behind: list[int]
    created_ns: int | None
    records: dict[int, CollectiveRecord]
    held: list[int] = field(default_factory=list)


def members_of(dumps: Mapping[int, RankDump], world_size: int | None) -> dict[str, tuple[int, ...]]:
    """Return members per group: as configured, else the ranks whose dumps mention the group.

    The first group, which old releases do not describe, holds every rank: gaps in the dumps' ranks are members.
    """
    configured: dict[str, tuple[int, ...]] = {}
    mentioned: dict[str, set[int]] = defaultdict(set)
    for rank, dump in dumps.items():
        configured.update(dump.members)
        for group in dump.reached:
            mentioned[group].add(rank)
        for record in dump.pending:
            mentioned[record.group].add(rank)
    for group in WHOLE_JOB.intersection(mentioned):
        mentioned[group].update(range(max(world_size or 0, min(max(dumps) + 1, 4 * len(dumps)))))
    return {group: tuple(sorted(ranks)) for group, ranks in mentioned.items() if group not in configured} | configured


def waits_of(dumps: Mapping[int, RankDump], members: Mapping[str, Sequence[int]]) -> list[Wait]:
    """Return the operations that ranks wait in, each with the ranks it waits for."""
    waits: dict[tuple[str, int, str, int | None], Wait] = {}
    for rank, dump in dumps.items():
        if not dump.pending:
            continue
        record = dump.pending[0]
        key = (record.group, record.seq, record.op if record.is_p2p else "", rank if record.is_p2p else None)
        wait = waits.get(key)
        if wait is None:
            wait = Wait(record.group, record.seq, record.op, record.is_p2p, [], [], record.created_ns, {})
            waits[key] = wait
        wait.waiting.append(rank)
        wait.records[rank] = record
        if record.created_ns is not None and (wait.created_ns is None or record.created_ns < wait.created_ns):
            wait.created_ns = record.created_ns
    for wait in waits.values():
        wait.behind = _behind(wait, dumps, members)
        wait.held = _held(wait, dumps, members)
    return list(waits.values())


def _held(wait: Wait, dumps: Mapping[int, RankDump], members: Mapping[str, Sequence[int]]) -> list[int]:
    """Return members that have called the operation and whose oldest unfinished one is another."""
    peer = wait.records[wait.waiting[0]].peer
    others: Sequence[int] = members.get(wait.group, ()) if not wait.is_p2p else (() if peer is None else (peer,))
    held = []
    for rank in others:
        dump = dumps.get(rank)
        if dump is None or not dump.pending or rank in wait.waiting or rank in wait.behind:
            continue
        if wait.is_p2p:
            first = dump.pending[0]
            batch = (one for one in dump.pending if (one.group, one.seq, one.is_p2p) == (first.group, first.seq, True))
            if not any(one.peer == wait.waiting[0] for one in batch):
                held.append(rank)
        elif not finished(dump, wait):
            held.append(rank)
    return held


def _behind(wait: Wait, dumps: Mapping[int, RankDump], members: Mapping[str, Sequence[int]]) -> list[int]:
    if wait.is_p2p:
        rank = wait.waiting[0]
        return sorted(
            {
                one.peer
                for one in dumps[rank].pending
                if one.is_p2p and (one.group, one.seq) == (wait.group, wait.seq) and one.peer is not None
                if not _holds_mirror(dumps.get(one.peer), one.op, rank)
            }
        )
    late = []
    for rank in members.get(wait.group, ()):
        dump = dumps.get(rank)
        if dump is None or dump.reached.get(wait.group, -1) < wait.seq:
            late.append(rank)
    return late


def _holds_mirror(dump: RankDump | None, op: str, rank: int) -> bool:
    """Say whether the other side of a send or receive has posted its part."""
    if dump is None:
        return False
    mirror = "recv" if op == "send" else "send"
    return any(record.op == mirror and record.peer == rank for record in dump.pending)


def _sinks(waits: Iterable[Wait], holders: Callable[[Wait], Sequence[int]]) -> dict[int, list[Wait]]:
    """Return the ranks that hold up somebody and are held up by nobody, with the waits that name them."""
    named: dict[int, list[Wait]] = defaultdict(list)
    blocked: set[int] = set()
    for wait in waits:
        found = holders(wait)
        for rank in found:
            named[rank].append(wait)
        if found:
            blocked.update(wait.waiting)
    return {rank: found for rank, found in named.items() if rank not in blocked}


def roots_of(waits: Sequence[Wait], dumps: Mapping[int, RankDump]) -> dict[int, list[Wait]]:
    """Return ranks somebody waits for that wait for nobody, with the waits that name them."""
    roots = _sinks(waits, lambda wait: [*wait.behind, *wait.held])
    if not roots:
        # In a circle, what a rank called ahead says nothing: only those that have not called count.
        roots = _sinks(waits, lambda wait: wait.behind)
    if any(rank in dumps and dumps[rank].status == "ok" for rank in roots):
        # A dump that shows a rank behind is proof; a dump that is not there can be a victim's that was lost.
        roots = {rank: found for rank, found in roots.items() if rank in dumps and dumps[rank].status != "unreadable"}
    # A lost dump cannot show that its send or receive was posted: such a rank is a root only if nobody else is.
    sure = {rank: found for rank, found in roots.items() if rank in dumps or any(not wait.is_p2p for wait in found)}
    return sure or roots


def finished(dump: RankDump, wait: Wait) -> bool:
    """Say whether a rank's dump shows that it is through with an operation."""
    if any(record.group == wait.group and record.seq <= wait.seq and not record.is_p2p for record in dump.pending):
        return False
    # Only the oldest unfinished records are kept: with a full list, what is not in it may be unfinished too.
    known = dump.completed if len(dump.pending) >= KEPT_RECORDS else dump.reached
    return known.get(wait.group, -1) >= wait.seq
