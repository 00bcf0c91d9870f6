"""One rank's evidence as rows: what a verdict over thousands of ranks needs and no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flightwatch.collectors.captures.flight_recorder import parse_dump
from flightwatch.core.errors import BadRecord
from flightwatch.core.hang_evidence import RankDump
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import EventSeverity, EventSource

if TYPE_CHECKING:
    from flightwatch.collectors.hang.evidence import RankEvidence

#: Members at each end of a group that tell who is in it.
TELLERS = 2


def rows_of(evidence: RankEvidence, capture: str, now_ms: int, folder: str) -> Iterator[Row]:
    """Yield the rows of one rank: `dumps`, `process_groups`, `collectives`, and an event with the stack's digest."""
    process = evidence.process
    base: dict[str, Any] = {"ts": now_ms, "job": process.job, "run": process.run}
    dump = _read(evidence)
    known = base | {"capture_id": capture, "rank": evidence.rank}
    status = "missing" if dump is None else dump.status
    yield Row("dumps", known | {"status": status, "entries": 0 if status == "empty" else None})
    if dump is not None:
        for name, members in dump.members.items():
            # A few of the members tell it, whoever of them is lost: all of 10,000 would tell 10,000 names each.
            if evidence.rank not in (*members[:TELLERS], *members[-TELLERS:]):
                continue
            values = {"process_group": name, "desc": name.rsplit(":", 1)[0], "members": list(members)}
            yield Row("process_groups", base | values)
        yield from _collectives(dump, known)
    yield _event(evidence, base, capture, folder)


def _read(evidence: RankEvidence) -> RankDump | None:
    if evidence.dump is None:
        return None
    try:
        return parse_dump(evidence.dump, evidence.rank)
    except BadRecord:
        return RankDump(evidence.rank, "unreadable")


def _collectives(dump: RankDump, known: dict[str, Any]) -> Iterator[Row]:
    for group, seq in dump.completed.items():
        done = {"process_group": group, "seq": seq, "op": "unknown", "state": "completed", "retired": True}
        yield Row("collectives", known | done | {"is_p2p": False})
    for order, record in enumerate(dump.pending):
        values = {
            "record_id": order,
            "bytes": record.bytes,
            "dtype": record.dtype or None,
            "process_group": record.group,
            "seq": record.seq,
            "op": record.op,
            "is_p2p": record.is_p2p,
            "peer": record.peer,
            "state": "started" if record.started else "scheduled",
            "retired": False,
            "created_at": record.created_ns // 1_000_000 if record.created_ns is not None else None,
        }
        yield Row("collectives", known | values)
    shown = {(record.group, record.seq) for record in dump.pending if not record.is_p2p}
    for group, seq in dump.reached.items():
        # How far the rank has called ahead, where its oldest unfinished calls do not show it.
        if seq != dump.completed.get(group) and (group, seq) not in shown:
            last = {"process_group": group, "seq": seq, "op": "unknown", "is_p2p": False}
            yield Row("collectives", known | last | {"state": "scheduled", "retired": False})


def _event(evidence: RankEvidence, base: dict[str, Any], capture: str, folder: str) -> Row:
    stack = evidence.stack
    attrs = {"capture_id": capture, "folder": folder}
    if evidence.problem:
        attrs["no_dump"] = evidence.problem
    if stack is not None and stack.main is not None:
        main = stack.main
        attrs |= {"stack_digest": main.digest, "stack_source": stack.source, "waits_for": main.waits_for}
    message = f"stack: {stack.message}" if stack is not None and stack.message else "stack: unknown"
    return Row(
        "events",
        base
        | {
            "rank": evidence.rank,
            "source": EventSource.AGENT.value,
            "code": "hang:evidence",
            "severity": EventSeverity.WARNING.value,
            "message": message,
            "attrs": attrs,
        },
    )
