"""Who stopped a hung job: a wait-for graph over process groups.

Every rank waits in its oldest unfinished operation for the members of that group that neither hold nor
finished its sequence number, and for those that have called it and still stand in an older operation (devices
work in order, hosts call ahead). Roots are the ranks somebody waits for that wait for nobody themselves. A
rank with no dump or an empty dump counts as behind: it never got there, or could not even write.
Graph of (rank, (group, sequence)) rather than rank pairs: linear in group sizes, so 10,000 ranks take
seconds. Method: per-group sequence comparison as in torch's flight-recorder analysis and NVRx, with
behind-by-absence added.

Does not detect: a culprit that only a log of equal sequence numbers from some ranks could show (verdict
"undetermined"), and it never compares clocks of two nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from flightwatch.core.hang_evidence import CollectiveRecord, HangEvidence, RankDump
from flightwatch.detectors.hang_graph import Wait, finished, members_of, roots_of, waits_of
from flightwatch.detectors.hang_logs import (
    apply_faults,
    apply_stacks,
    judge_absent,
    judge_mismatches,
    judge_progress,
    judge_ras,
    judge_stacks,
)
from flightwatch.detectors.hang_verdict import HangVerdict, sentence

#: Operations whose members may pass different sizes.
UNEVEN_OPS = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced", "broadcast", "barrier")


def judge(evidence: HangEvidence) -> HangVerdict:
    """Return the verdict of everything found.

    Flight-recorder dumps decide where they exist; otherwise ranks a library names, RAS reports, watchdog
    lines and stacks, in that order. Reported failures and stacks then refine the verdict.
    """
    verdict = HangVerdict()
    if evidence.dumps:
        _judge_dumps(evidence, verdict)
    elif evidence.mismatches:
        judge_mismatches(evidence, verdict)
    elif evidence.absent:
        judge_absent(evidence, verdict)
    elif evidence.ras:
        judge_ras(evidence, verdict)
    elif evidence.progress:
        judge_progress(evidence, verdict)
    else:
        judge_stacks(evidence, verdict)
    apply_faults(evidence, verdict)
    apply_stacks(evidence, verdict)
    verdict.root_ranks.sort()
    verdict.waiting.sort()
    verdict.sentence = sentence(verdict)
    return verdict


def _judge_dumps(evidence: HangEvidence, verdict: HangVerdict) -> None:
    dumps = evidence.dumps
    members = members_of(dumps, evidence.world_size)
    world = _world(evidence, members)
    verdict.no_log = sorted(rank for rank in world if rank not in dumps or dumps[rank].status != "ok")
    waits = waits_of(dumps, members)
    if not waits:
        absent = [rank for rank in verdict.no_log if rank not in dumps]
        verdict.verdict, verdict.confidence = ("undetermined", 0.3) if absent else ("not_hung", 0.7)
        return
    if _mismatch(waits, verdict):
        return
    roots = roots_of(waits, dumps)
    if roots and not _stuck_below(verdict, waits, roots, dumps, members):
        _name_roots(verdict, waits, roots, dumps)
    if roots:
        return
    _all_joined(verdict, waits, dumps)


def _world(evidence: HangEvidence, members: Mapping[str, Sequence[int]]) -> set[int]:
    world = set(evidence.dumps)
    for ranks in members.values():
        world.update(ranks)
    if evidence.world_size:
        world.update(range(evidence.world_size))
    return world


def _name_roots(
    verdict: HangVerdict, waits: Sequence[Wait], roots: Mapping[int, list[Wait]], dumps: Mapping[int, RankDump]
) -> None:
    by_wait: Counter[int] = Counter(id(wait) for found in roots.values() for wait in found)
    candidates = {id(wait): wait for found in roots.values() for wait in found}
    main = max(
        candidates.values(), key=lambda wait: (by_wait[id(wait)] > 0, len(wait.waiting), -(wait.created_ns or 0))
    )
    verdict.verdict = "missing_rank"
    verdict.root_ranks = sorted(roots)
    _describe(verdict, main, waits)
    seen = sum(1 for rank in roots if rank in dumps)
    verdict.confidence = 0.95 if seen == len(roots) else (0.8 if len(roots) <= len(dumps) else 0.5)
    for rank in sorted(roots):
        verdict.suspect(rank, verdict.confidence, _why_root(rank, roots[rank], dumps))
    for rank in _self_stuck(waits, dumps):
        verdict.suspect(rank, 0.5, "its own operation is unfinished although every other member has moved on")
    for rank in sorted({late for wait in waits for late in wait.behind if late not in dumps}):
        verdict.suspect(rank, 0.4, "is waited for and left no dump")
    for rank in _behind_an_absent_rank(waits, dumps):
        verdict.suspect(rank, 0.4, "is waited for, and itself waits only for ranks that left no dump")
    root_dump = dumps.get(verdict.root_ranks[0])
    if root_dump and root_dump.pending and root_dump.pending[0].frame:
        verdict.stack = root_dump.pending[0].frame


def _stuck_below(
    verdict: HangVerdict,
    waits: Sequence[Wait],
    roots: Mapping[int, list[Wait]],
    dumps: Mapping[int, RankDump],
    members: Mapping[str, Sequence[int]],
) -> bool:
    """Judge roots that all stand in operations that every member has joined: those transfers hold up everybody."""
    joined = [wait for wait in waits if not wait.behind and _joined_by_all(wait, dumps, members)]
    inside = {rank for wait in joined for rank in wait.waiting}
    if not set(roots) <= inside:
        return False
    main = max((wait for wait in joined if set(wait.waiting) & set(roots)), key=lambda wait: len(wait.waiting))
    verdict.verdict, verdict.confidence = "transfer_stuck", 0.7
    verdict.root_ranks = sorted({rank for wait in joined if set(wait.waiting) & set(roots) for rank in wait.waiting})
    _describe(verdict, main, waits)
    for rank in verdict.root_ranks:
        verdict.suspect(rank, 0.6, "has joined an operation that does not finish, and others wait for it elsewhere")
    return True


def _joined_by_all(wait: Wait, dumps: Mapping[int, RankDump], members: Mapping[str, Sequence[int]]) -> bool:
    """Say whether the oldest unfinished operation of every member is this one."""
    if not wait.is_p2p:
        return len(wait.waiting) > 1 and set(members.get(wait.group, ())) == set(wait.waiting)
    rank = wait.waiting[0]
    peer = wait.records[rank].peer
    other = dumps[peer].pending[:1] if peer is not None and peer in dumps else []
    return any(one.is_p2p and one.peer == rank for one in other)


def _why_root(rank: int, waits: Sequence[Wait], dumps: Mapping[int, RankDump]) -> str:
    waiting = sum(len(wait.waiting) for wait in waits)
    main = max(waits, key=lambda wait: (len(wait.waiting), not wait.is_p2p))
    dump = dumps.get(rank)
    if dump is None:
        state = "left no dump"
    elif rank in main.held and dump.pending:
        state = f"has called that and stands in {dump.pending[0].op} {dump.pending[0].seq}"
    elif dump.status == "ok":
        reached = dump.reached.get(main.group)
        state = "shows no call of that group" if reached is None else f"reached only {reached} there"
    else:
        state = "left an empty dump" if dump.status == "empty" else "left an unreadable dump"
    return f"{waiting} rank{'s wait' if waiting != 1 else ' waits'} for it in {main.op} {main.seq}; it {state}"


def _behind_an_absent_rank(waits: Iterable[Wait], dumps: Mapping[int, RankDump]) -> list[int]:
    """Return ranks that are waited for and whose own wait only names ranks without a dump."""
    excused = {
        rank
        for wait in waits
        if wait.behind and not any(late in dumps for late in wait.behind)
        for rank in wait.waiting
    }
    return sorted({rank for wait in waits for rank in wait.behind if rank in excused})


def _self_stuck(waits: Iterable[Wait], dumps: Mapping[int, RankDump]) -> list[int]:
    """Return the few ranks in an operation that all other members finished: their own devices do not move."""
    found: set[int] = set()
    for wait in waits:
        if wait.is_p2p or wait.behind:
            continue
        others = [dump for dump in dumps.values() if dump.rank not in wait.waiting and wait.group in dump.reached]
        few = len(wait.waiting) == 1 or len(wait.waiting) < len(others)
        if few and others and all(finished(dump, wait) for dump in others):
            found.update(wait.waiting)
    return sorted(found)


def _mismatch(waits: Sequence[Wait], verdict: HangVerdict) -> bool:
    """Judge operations whose members called different things, or passed different sizes, at one number."""
    for wait in sorted(waits, key=lambda one: -len(one.waiting)):
        if wait.is_p2p or len(wait.waiting) < 2:
            continue
        for kind, value_of in (("op_mismatch", _op_of), ("size_mismatch", _shape_of)):
            counts = Counter(value_of(record) for record in wait.records.values())
            if kind == "size_mismatch" and any(word in wait.op for word in UNEVEN_OPS):
                continue
            if len(counts) > 1:
                (usual, most), (_, next_most) = counts.most_common(2)
                # Halves of equal size: nobody can say which of them is wrong.
                odd = sorted(r for r, record in wait.records.items() if most == next_most or value_of(record) != usual)
                verdict.verdict, verdict.root_ranks = kind, odd
                verdict.confidence = 0.6 if most == next_most else 0.9
                _describe(verdict, wait, waits)
                if kind == "op_mismatch" and most != next_most:
                    verdict.op = usual
                for rank in odd:
                    text = (
                        f"calls {value_of(wait.records[rank])} where others call {_other(counts, wait, rank, value_of)}"
                    )
                    verdict.suspect(rank, verdict.confidence, text)
                return True
    return False


def _other(counts: Counter[str], wait: Wait, rank: int, value_of: Callable[[CollectiveRecord], str]) -> str:
    return next(value for value, _ in counts.most_common() if value != value_of(wait.records[rank]))


def _op_of(record: CollectiveRecord) -> str:
    return record.op


def _shape_of(record: CollectiveRecord) -> str:
    return record.shape


def _all_joined(verdict: HangVerdict, waits: Sequence[Wait], dumps: Mapping[int, RankDump]) -> None:
    """Judge a job in which nobody is behind, or in which ranks wait for each other in a circle."""
    circle = sorted({rank for wait in waits for rank in wait.behind})
    main = max(waits, key=lambda wait: (len(wait.waiting), -(wait.created_ns or 0)))
    _describe(verdict, main, waits)
    if circle:
        # Everybody who is waited for waits elsewhere: the groups were entered in different orders.
        smallest = min((wait for wait in waits if wait.behind), key=lambda wait: len(wait.waiting))
        verdict.verdict, verdict.root_ranks, verdict.confidence = "op_mismatch", sorted(smallest.waiting), 0.6
        for rank in verdict.root_ranks:
            verdict.suspect(
                rank, 0.6, f"waits in {smallest.op} {smallest.seq} while the others are in {main.op} {main.seq}"
            )
        return
    alone = _self_stuck(waits, dumps)
    if not alone and all(_alone_in_evidence(wait) for wait in waits):
        # Dumps that do not say who the other members are: nothing can be said of whom it waits for.
        verdict.verdict, verdict.confidence = "undetermined", 0.3
        return
    verdict.verdict, verdict.root_ranks, verdict.confidence = "transfer_stuck", alone, 0.7
    for rank in alone:
        verdict.suspect(rank, 0.7, "its own operation is unfinished although every other member has moved on")
    started = {rank for rank, record in main.records.items() if record.started}
    held = sorted(set(main.records) - started)
    if started and held:
        if not alone and 2 * len(held) < len(main.records):
            # The others' devices wait inside the operation; this one has not come out of what it did before.
            verdict.root_ranks = held
            verdict.waiting = sorted({rank for one in waits for rank in one.waiting} - set(held))
        for rank in held:
            verdict.suspect(rank, 0.6, "has enqueued the operation but its device has not started it")


def _alone_in_evidence(wait: Wait) -> bool:
    """Say whether one rank waits with no other member or peer known."""
    return len(wait.waiting) == 1 and (not wait.is_p2p or wait.records[wait.waiting[0]].peer is None)


def _describe(verdict: HangVerdict, wait: Wait, waits: Iterable[Wait]) -> None:
    verdict.process_group, verdict.op, verdict.seq = wait.group, wait.op, wait.seq
    verdict.since_ms = None if wait.created_ns is None else wait.created_ns // 1_000_000
    roots = set(verdict.root_ranks)
    verdict.waiting = sorted({rank for one in waits for rank in one.waiting if rank not in roots})
