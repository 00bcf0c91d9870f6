"""Hang evidence other than dumps: RAS reports, watchdog lines, reported failures, stacks."""

from __future__ import annotations

from flightwatch.core.hang_evidence import HangEvidence
from flightwatch.detectors.hang_verdict import SUSPECT_LIMIT, HangVerdict

#: Innermost frames that mean "waiting for input data".
INPUT_FRAMES = ("dataloader", "data/iterators", "_next_data", "queue.get", "datasets/", "prefetch", "data_loader")


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


def judge_progress(evidence: HangEvidence, verdict: HangVerdict) -> None:
    """Judge watchdog lines: the rank whose number is lower than the others' is behind; equal numbers name nobody."""
    stuck: dict[int, int] = {}
    for report in evidence.progress:
        seq = report.stuck_seq if report.stuck_seq is not None else report.completed_seq
        if seq is not None:
            stuck[report.rank] = min(seq, stuck.get(report.rank, seq))
    if not stuck:
        return
    verdict.op = next((report.op for report in evidence.progress if report.op), None)
    verdict.process_group = next((report.group for report in evidence.progress if report.group), None)
    world = evidence.world_size or max(stuck) + 1
    verdict.no_log = [rank for rank in range(world) if rank not in stuck]
    highest, lowest = max(stuck.values()), min(stuck.values())
    behind = sorted(rank for rank, seq in stuck.items() if seq == lowest)
    # Neighbouring numbers are operations in flight on several streams, not a rank left behind.
    if highest - lowest > _in_flight(evidence) and len(behind) < len(stuck):
        verdict.verdict, verdict.root_ranks, verdict.seq = "missing_rank", behind, lowest
        verdict.waiting = sorted(set(stuck) - set(behind))
        verdict.confidence = 0.8
        for rank in behind:
            verdict.suspect(rank, 0.8, f"is at {lowest} while others are at {highest}")
        return
    verdict.seq, verdict.waiting, verdict.confidence = lowest, sorted(stuck), 0.3
    for rank in verdict.no_log:
        verdict.suspect(rank, 0.3, "logged nothing while other ranks timed out")


def _in_flight(evidence: HangEvidence) -> int:
    """Return how many operations a rank had enqueued beyond the finished one, at least 64."""
    spans = [
        report.enqueued_seq - report.completed_seq
        for report in evidence.progress
        if report.enqueued_seq is not None and report.completed_seq is not None
    ]
    return max([64, *spans])


def apply_faults(evidence: HangEvidence, verdict: HangVerdict) -> None:
    """Let a reported device, host or link failure decide or support the verdict."""
    by_kind = {"device": "device_error", "host": "host_stuck", "link": "transfer_stuck"}
    for fault in sorted(evidence.faults, key=lambda one: list(by_kind).index(one.kind)):
        if fault.rank is not None:
            verdict.suspect(fault.rank, 0.8, fault.text)
        if verdict.verdict not in ("undetermined", "not_hung"):
            if fault.kind != "link" and fault.rank is not None and fault.rank in verdict.root_ranks:
                verdict.verdict, verdict.confidence = by_kind[fault.kind], 0.95
            continue
        verdict.verdict = by_kind[fault.kind]
        verdict.root_ranks = [fault.rank] if fault.rank is not None and fault.kind != "link" else []
        verdict.confidence = 0.8 if fault.rank is not None else 0.6
        verdict.stack = verdict.stack or fault.text


def apply_stacks(evidence: HangEvidence, verdict: HangVerdict) -> None:
    """Take the stack of a root; a stack in the data loader turns a missing rank into an input stall."""
    for stack in evidence.stacks:
        if not stack.frames:
            continue
        relevant = stack.rank in verdict.root_ranks or not verdict.root_ranks
        if not relevant:
            continue
        if verdict.stack is None or stack.rank in verdict.root_ranks:
            verdict.stack = " < ".join(stack.frames[:4])
        waits_for_input = any(word in frame.lower() for frame in stack.frames[:6] for word in INPUT_FRAMES)
        if waits_for_input and verdict.verdict in ("undetermined", "missing_rank"):
            verdict.verdict = "input_stall"
            verdict.root_ranks = verdict.root_ranks or ([stack.rank] if stack.rank is not None else [])
            verdict.confidence = max(verdict.confidence, 0.7)
            if stack.rank is not None:
                verdict.suspect(stack.rank, verdict.confidence, "its main thread waits for input data")
        elif stack.holds_gil and verdict.verdict == "missing_rank":
            verdict.verdict = "host_stuck"
