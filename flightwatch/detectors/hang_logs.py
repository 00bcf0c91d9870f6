"""Hang evidence other than dumps: RAS reports, watchdog lines, reported failures, stacks."""

from __future__ import annotations

from collections import Counter

from flightwatch.core.hang_evidence import HangEvidence
from flightwatch.detectors.hang_verdict import SUSPECT_LIMIT, HangVerdict


def judge_ras(evidence: HangEvidence, verdict: HangVerdict) -> None:
    """Judge by the communicator with the widest gap: the ranks with the lower count are behind."""
    report = max(evidence.ras, key=lambda one: abs(one.listed_seq - one.other_seq))
    others = [rank for rank in range(report.total) if rank not in report.listed]
    ahead, behind = (
        (list(report.listed), others) if report.listed_seq > report.other_seq else (others, list(report.listed))
    )
    verdict.verdict, verdict.root_ranks, verdict.waiting = "missing_rank", behind, ahead
    verdict.op, verdict.process_group = report.op, report.communicator
    verdict.seq = max(report.listed_seq, report.other_seq)
    verdict.confidence = 0.8 if len(behind) <= len(ahead) else 0.4
    for rank in behind[:SUSPECT_LIMIT]:
        verdict.suspect(
            rank, verdict.confidence, f"launched {min(report.listed_seq, report.other_seq)}, others {verdict.seq}"
        )


def judge_absent(evidence: HangEvidence, verdict: HangVerdict) -> None:
    """Judge by ranks that a library names as absent."""
    verdict.verdict, verdict.confidence = "missing_rank", 0.85
    verdict.root_ranks = sorted({absent.rank for absent in evidence.absent})
    verdict.waiting = sorted({rank for absent in evidence.absent for rank in absent.waiting} - set(verdict.root_ranks))
    verdict.seq = next((absent.seq for absent in evidence.absent if absent.seq is not None), None)
    verdict.op = next((report.op for report in evidence.progress if report.op), None)
    for absent in evidence.absent:
        verdict.suspect(absent.rank, 0.85, absent.source)


def judge_mismatches(evidence: HangEvidence, verdict: HangVerdict) -> None:
    """Judge by torch's own comparison of calls: the call that fewer ranks made is the odd one."""
    calls = {rank: (op, shape) for one in evidence.mismatches for rank, op, shape in (one.first, one.second)}
    kind, part = ("op_mismatch", 0) if len({op for op, _ in calls.values()}) > 1 else ("size_mismatch", 1)
    counts = Counter(call[part] for call in calls.values()).most_common(2)
    tied = len(counts) > 1 and counts[0][1] == counts[1][1]
    odd = sorted(rank for rank, call in calls.items() if tied or call[part] != counts[0][0])
    verdict.verdict, verdict.root_ranks, verdict.confidence = kind, odd, 0.6 if tied else 0.85
    verdict.waiting = sorted(set(calls) - set(odd))
    verdict.op = counts[0][0] if part == 0 else next(op for op, _ in calls.values())
    verdict.seq = next((one.seq for one in evidence.mismatches if one.seq is not None), None)
    for rank in odd:
        verdict.suspect(rank, verdict.confidence, f"torch's own check: it calls {' '.join(calls[rank]).strip()}")


def judge_progress(evidence: HangEvidence, verdict: HangVerdict) -> None:
    """Judge watchdog lines: in one group, the rank whose number is lower than the others' is behind.

    A rank that has enqueued less than what the others wait in has not come. Equal numbers name nobody. Numbers of
    different groups are never compared.
    """
    by_group = _stuck_by_group(evidence)
    if not by_group:
        return
    if _not_enqueued(evidence, verdict, by_group):
        return
    gap = _in_flight(evidence)
    group = max(by_group, key=lambda name: (_spread(by_group[name]) > gap, len(by_group[name]), name))
    stuck = by_group[group]
    verdict.op = next((one.op for one in evidence.progress if one.op and one.stuck_seq in stuck.values()), None)
    verdict.process_group = group or None
    _note_silent(evidence, verdict)
    lowest, highest = min(stuck.values()), max(stuck.values())
    behind = sorted(rank for rank, seq in stuck.items() if seq == lowest)
    # Neighbouring numbers are operations in flight on several streams, not a rank left behind.
    if highest - lowest > gap:
        verdict.verdict, verdict.root_ranks, verdict.seq = "missing_rank", behind, lowest
        verdict.waiting = sorted(set(stuck) - set(behind))
        verdict.confidence = 0.8
        for rank in behind:
            verdict.suspect(rank, 0.8, f"is at {lowest} while others are at {highest}")
        return
    verdict.seq, verdict.waiting, verdict.confidence = lowest, sorted(stuck), 0.3
    if group and lowest == highest and _other_operation(evidence, verdict, stuck):
        return
    if group and _few_behind(stuck, evidence, verdict):
        return
    for rank in verdict.no_log:
        verdict.suspect(rank, 0.3, "logged nothing while other ranks timed out")


def _note_silent(evidence: HangEvidence, verdict: HangVerdict) -> None:
    heard = {one.rank for one in evidence.progress if one.global_rank}
    world = evidence.world_size or max(heard, default=-1) + 1
    verdict.no_log = [rank for rank in range(world) if rank not in heard]


def _not_enqueued(evidence: HangEvidence, verdict: HangVerdict, by_group: dict[str, dict[int, int]]) -> bool:
    """Judge groups in which some ranks have enqueued less than the number that others wait in."""
    for group, stuck in sorted(by_group.items(), key=lambda item: (-len(item[1]), item[0])):
        reports = [one for one in evidence.progress if one.group == group and group and one.global_rank]
        enqueued: dict[int, int] = {}
        for one in reports:
            if one.enqueued_seq is not None:
                enqueued[one.rank] = max(one.enqueued_seq, enqueued.get(one.rank, 0))
        waited_in = Counter(seq for rank, seq in stuck.items() if enqueued.get(rank, seq) >= seq)
        behind: list[int] = []
        for seq in sorted(waited_in):
            behind = sorted(rank for rank, last in enqueued.items() if last < seq)
            if behind:
                break
        waiting = sorted(rank for rank, own in stuck.items() if rank not in behind and own >= seq) if behind else []
        if not behind or not waiting:
            continue
        verdict.verdict, verdict.root_ranks, verdict.waiting = "missing_rank", behind, waiting
        verdict.process_group, verdict.seq, verdict.confidence = group, seq, 0.85
        verdict.op = next((one.op for one in reports if one.op and one.stuck_seq == seq), None)
        _note_silent(evidence, verdict)
        for rank in behind:
            verdict.suspect(rank, 0.85, f"has enqueued only {enqueued[rank]} while others wait in {seq}")
        return True
    return False


def _few_behind(stuck: dict[int, int], evidence: HangEvidence, verdict: HangVerdict) -> bool:
    """Judge the few ranks of a named group that stand a little before the number in which all others stand."""
    counts = Counter(stuck.values())
    common, most = counts.most_common(1)[0]
    few = sorted(rank for rank, seq in stuck.items() if seq < common)
    if not few or most < 2 or 2 * len(few) >= len(stuck) or any(seq > common for seq in stuck.values()):
        return False
    verdict.verdict, verdict.root_ranks, verdict.seq, verdict.confidence = "missing_rank", few, common, 0.6
    verdict.waiting = sorted(set(stuck) - set(few))
    verdict.op = next((one.op for one in evidence.progress if one.op and one.stuck_seq == common), verdict.op)
    for rank in few:
        verdict.suspect(rank, 0.6, f"stands at {stuck[rank]}, the others at {common}")
    return True


def _other_operation(evidence: HangEvidence, verdict: HangVerdict, stuck: dict[int, int]) -> bool:
    """Judge ranks that are stuck at one number of one group in different operations."""
    ops = {one.rank: one.op for one in evidence.progress if one.op and stuck.get(one.rank) == one.stuck_seq}
    counts = Counter(ops.values()).most_common(2)
    if len(counts) < 2:
        return False
    common, tied = counts[0][0], counts[0][1] == counts[1][1]
    verdict.verdict, verdict.confidence, verdict.op = "op_mismatch", 0.5 if tied else 0.7, common
    verdict.root_ranks = [] if tied else sorted(rank for rank, op in ops.items() if op != common)
    verdict.waiting = sorted(set(stuck) - set(verdict.root_ranks))
    for rank in sorted(ops) if tied else verdict.root_ranks:
        verdict.suspect(rank, verdict.confidence, f"is in {ops[rank]} {verdict.seq}")
    return True


def _stuck_by_group(evidence: HangEvidence) -> dict[str, dict[int, int]]:
    """Return group to rank to the lowest number it is stuck at; a line without group joins the group of its number."""
    named = {one.stuck_seq: one.group for one in evidence.progress if one.group}
    stuck: dict[str, dict[int, int]] = {}
    for one in evidence.progress:
        if not one.global_rank:
            continue  # a number inside a group is no rank of the job
        seq = one.stuck_seq if one.stuck_seq is not None else one.completed_seq
        if seq is not None:
            ranks = stuck.setdefault(one.group or named.get(seq, ""), {})
            ranks[one.rank] = min(seq, ranks.get(one.rank, seq))
    return stuck


def _spread(stuck: dict[int, int]) -> int:
    return max(stuck.values()) - min(stuck.values())


def _in_flight(evidence: HangEvidence) -> int:
    """Return how many operations a rank had enqueued beyond the finished one, at least 64."""
    spans = [
        report.enqueued_seq - report.completed_seq
        for report in evidence.progress
        if report.enqueued_seq is not None and report.completed_seq is not None
    ]
    return max([64, *spans])


def judge_stacks(evidence: HangEvidence, verdict: HangVerdict) -> None:
    """Judge stacks alone: while some ranks stand in a collective, those that stand elsewhere hold them up."""
    waiting = sorted(one.rank for one in evidence.stacks if one.rank is not None and one.waits_for == "collective")
    others = [one for one in evidence.stacks if one.rank is not None and one.waits_for not in ("collective", "device")]
    if waiting and others:
        verdict.verdict, verdict.confidence = "missing_rank", 0.6
        verdict.waiting = waiting
        verdict.root_ranks = sorted({one.rank for one in others if one.rank is not None})
        for rank in verdict.root_ranks:
            verdict.suspect(rank, 0.6, "its main thread is not in the collective that the others wait in")


def apply_faults(evidence: HangEvidence, verdict: HangVerdict) -> None:
    """Let a reported device, host or link failure decide or support the verdict."""
    by_kind = {"device": "device_error", "host": "host_stuck", "process": "missing_rank", "link": "transfer_stuck"}
    for fault in sorted(evidence.faults, key=lambda one: list(by_kind).index(one.kind)):
        if fault.rank is not None:
            verdict.suspect(fault.rank, 0.8, fault.text)
        if fault.kind == "process" and (fault.rank is None or fault.rank in verdict.waiting or not verdict.waiting):
            continue  # nobody is known to wait for it
        if verdict.verdict not in ("undetermined", "not_hung"):
            if fault.kind != "link" and fault.rank is not None and fault.rank in verdict.root_ranks:
                verdict.verdict, verdict.confidence = by_kind[fault.kind], 0.95
            continue
        verdict.verdict, verdict.no_log = by_kind[fault.kind], [rank for rank in verdict.no_log if rank != fault.rank]
        verdict.root_ranks = [fault.rank] if fault.rank is not None and fault.kind != "link" else []
        verdict.confidence = 0.8 if fault.rank is not None else 0.6
        verdict.reason = fault.text


def apply_stacks(evidence: HangEvidence, verdict: HangVerdict) -> None:
    """Take the stack of a root; a stack in the data loader turns a missing rank into an input stall."""
    for stack in evidence.stacks:
        if not stack.frames or (verdict.root_ranks and stack.rank not in verdict.root_ranks):
            continue
        if verdict.stack is None or stack.rank in verdict.root_ranks:
            verdict.stack = " < ".join(stack.frames[:4])
        if stack.waits_for == "input" and verdict.verdict in ("undetermined", "missing_rank"):
            verdict.verdict = "input_stall"
            verdict.root_ranks = verdict.root_ranks or ([stack.rank] if stack.rank is not None else [])
            verdict.confidence = max(verdict.confidence, 0.7)
            if stack.rank is not None:
                verdict.suspect(stack.rank, verdict.confidence, "its main thread waits for input data")
