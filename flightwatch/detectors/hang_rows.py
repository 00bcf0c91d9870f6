"""Hang evidence out of stored rows: what agents sent of flight recorders and stacks, back into dumps.

A collection of one node is several captures a few seconds apart (`NAME`, `NAME.2`, ...). The captures of all
nodes of a job that lie close together are one episode; of each rank the last capture counts, and the one before
tells whether it still waits in the same place.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from flightwatch.core.hang_evidence import CollectiveRecord, HangEvidence, RankDump, RankStack
from flightwatch.detectors.contract import Frames
from flightwatch.detectors.hang import judge
from flightwatch.detectors.hang_verdict import HangVerdict

#: Captures of a job further apart than this are two hangs, or one looked at again.
EPISODE_MS = 120_000.0
#: Two captures of a rank at least so far apart show that it stands still.
APART_MS = 4_000.0
_STACK = re.compile(r"stack: (.*)", re.S)
_LEFT_DUMP = ("ok", "empty", "unreadable")


@dataclass(slots=True)
class Episode:
    """Everything that was collected of one job around one standstill.

    Attributes
    ----------
    first_ms, last_ms: times of the first and last capture, on the nodes' clocks.
    nodes: rank to the node that collected it.
    evidence: the last capture of each rank.
    asked: ranks that agents looked at, with a dump or without.
    seen_twice: ranks captured twice with time between.
    still: ranks whose last two captures show them in the same place.
    moved: ranks that went on between their captures.
    captures: names of the collections.
    """

    job: str
    run: str
    cluster: str | None
    first_ms: float
    last_ms: float
    nodes: dict[int, str] = field(default_factory=dict)
    evidence: HangEvidence = field(default_factory=HangEvidence)
    asked: set[int] = field(default_factory=set)
    seen_twice: set[int] = field(default_factory=set)
    still: set[int] = field(default_factory=set)
    moved: set[int] = field(default_factory=set)
    captures: set[str] = field(default_factory=set)


def episodes_of(frames: Frames, captures: Collection[str] | None = None) -> list[Episode]:
    """Return the episodes in `dumps`, `collectives`, `process_groups` and `events` (code hang:evidence), by time.

    Parameters
    ----------
    captures: names of collections; others are passed over. None takes all.
    """
    dumps = _rows(frames, "dumps", ("ts", "capture_id", "job", "run", "rank", "status"))
    if captures is not None:
        dumps = [row for row in dumps if str(row["capture_id"]).rsplit(".", 1)[0] in captures]
    by_job: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(dumps, key=lambda row: (row["ts"], row["rank"], str(row["capture_id"]))):
        by_job[str(row["job"]), str(row["run"])].append(row)
    if not by_job:
        return []
    entries = _entries(frames)
    stacks = _stacks(frames)
    members = _members(frames)
    found = [
        _episode(part, entries, stacks, members) for rows in by_job.values() for part in _parts(rows)
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.first_ms, one.job, one.run))


def verdict_of(episode: Episode) -> HangVerdict:
    """Return the verdict about an episode; a job whose waiting ranks all went on between captures is not hung."""
    verdict = judge(episode.evidence)
    waiting = set(verdict.waiting) or episode.asked
    if waiting <= episode.moved:
        return HangVerdict("not_hung", confidence=0.9, sentence="Its ranks went on while they were looked at: the job"
                           " does not hang (confidence 90%).")  # fmt: skip
    return verdict


def _rows(frames: Frames, table: str, needed: tuple[str, ...]) -> list[dict[str, Any]]:
    frame = frames.get(table)
    if frame is None or frame.empty or not set(needed) <= set(frame.columns):
        return []
    rows: list[dict[str, Any]] = frame.dropna(subset=list(needed)).to_dict("records")  # type: ignore[assignment]
    return rows


def _parts(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield rows (sorted by time) in stretches without a long gap."""
    part: list[dict[str, Any]] = []
    for row in rows:
        if part and row["ts"] - part[-1]["ts"] > EPISODE_MS:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _episode(
    rows: list[dict[str, Any]],
    entries: dict[tuple[str, int], list[dict[str, Any]]],
    stacks: dict[tuple[str, int], tuple[RankStack, str]],
    members: dict[tuple[str, str], dict[str, tuple[int, ...]]],
) -> Episode:
    job, run = str(rows[0]["job"]), str(rows[0]["run"])
    episode = Episode(job, run, _word(rows[0].get("cluster")), rows[0]["ts"], rows[-1]["ts"])
    groups = members.get((job, run), {})
    by_rank: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_rank[int(row["rank"])].append(row)
        episode.captures.add(re.sub(r"\.\d$", "", str(row["capture_id"])))
    dumps: dict[int, RankDump] = {}
    for rank, seen in sorted(by_rank.items()):
        last = seen[-1]
        before = next((row for row in reversed(seen) if last["ts"] - row["ts"] >= APART_MS), None)
        episode.asked.add(rank)
        node = _word(last.get("node"))
        if node is not None:
            episode.nodes[rank] = node
        key = (str(last["capture_id"]), rank)
        if last["status"] in _LEFT_DUMP:
            dumps[rank] = _dump(rank, str(last["status"]), entries.get(key, ()), groups)
        stack = stacks.get(key)
        if stack is not None:
            episode.evidence.stacks.append(stack[0])
        if before is not None:
            episode.seen_twice.add(rank)
            _compare(episode, rank, key, (str(before["capture_id"]), rank), entries, stacks)
    episode.evidence.dumps = dumps
    episode.evidence.world_size = max(episode.asked) + 1
    return episode


def _compare(
    episode: Episode,
    rank: int,
    last: tuple[str, int],
    before: tuple[str, int],
    entries: dict[tuple[str, int], list[dict[str, Any]]],
    stacks: dict[tuple[str, int], tuple[RankStack, str]],
) -> None:
    places = [_place(entries.get(key, ()), stacks.get(key)) for key in (before, last)]
    if places[0] is None or places[1] is None:
        return
    (episode.still if places[0] == places[1] else episode.moved).add(rank)


def _place(entries: Iterable[dict[str, Any]], stack: tuple[RankStack, str] | None) -> object | None:
    """Return where a rank stands: its oldest unfinished operation, else its stack; None when neither is known."""
    oldest = next((row for row in entries if not _true(row["retired"]) and row["op"] != "unknown"), None)
    if oldest is not None:
        return (oldest["process_group"], oldest["seq"], bool(_true(oldest.get("is_p2p"))))
    return stack[1] if stack is not None and stack[1] else None


def _entries(frames: Frames) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return the entries of each (capture, rank), unfinished ones oldest first."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in _rows(frames, "collectives", ("capture_id", "rank", "process_group", "seq", "op")):
        row.setdefault("retired", None)
        found[str(row["capture_id"]), int(row["rank"])].append(row)
    for rows in found.values():
        rows.sort(key=lambda row: (_number(row.get("record_id"), 1e18), row["seq"], str(row["process_group"])))
    return found


def _stacks(frames: Frames) -> dict[tuple[str, int], tuple[RankStack, str]]:
    """Return stack and digest of each (capture, rank)."""
    found: dict[tuple[str, int], tuple[RankStack, str]] = {}
    for row in _rows(frames, "events", ("code", "rank", "attrs.capture_id")):
        if row["code"] != "hang:evidence":
            continue
        match = _STACK.match(str(row.get("message") or ""))
        frames_text = tuple(match.group(1).split(" < ")) if match and match.group(1) != "unknown" else ()
        stack = RankStack(int(row["rank"]), frames_text, _word(row.get("attrs.waits_for")) or "unknown")
        if frames_text:
            key = (str(row["attrs.capture_id"]), int(row["rank"]))
            found[key] = (stack, _word(row.get("attrs.stack_digest")) or "")
    return found


def _members(frames: Frames) -> dict[tuple[str, str], dict[str, tuple[int, ...]]]:
    found: dict[tuple[str, str], dict[str, tuple[int, ...]]] = defaultdict(dict)
    for row in _rows(frames, "process_groups", ("job", "run", "process_group", "members")):
        ranks = row["members"]
        if not isinstance(ranks, str):
            found[str(row["job"]), str(row["run"])][str(row["process_group"])] = tuple(int(rank) for rank in ranks)
    return found


def _dump(rank: int, status: str, entries: Iterable[dict[str, Any]], groups: dict[str, tuple[int, ...]]) -> RankDump:
    dump = RankDump(rank, status)
    for row in entries:
        group, seq, p2p = str(row["process_group"]), int(row["seq"]), bool(_true(row.get("is_p2p")))
        done = _true(row["retired"])
        if not p2p:
            dump.reached[group] = max(seq, dump.reached.get(group, seq))
            if done:
                dump.completed[group] = max(seq, dump.completed.get(group, seq))
        if not done and row["op"] != "unknown":
            dump.pending.append(_record(row, group, seq, p2p))
    dump.members = {group: members for group, members in groups.items() if rank in members}
    return dump


def _record(row: dict[str, Any], group: str, seq: int, p2p: bool) -> CollectiveRecord:
    created_ms, peer = _number(row.get("created_at")), _number(row.get("peer"))
    size, kind = _number(row.get("bytes")), _word(row.get("dtype")) or ""
    return CollectiveRecord(
        group=group,
        seq=seq,
        op=str(row["op"]),
        is_p2p=p2p,
        peer=None if peer is None else int(peer),
        shape="" if size is None else f"{int(size)} bytes {kind}".strip(),
        bytes=None if size is None else int(size),
        dtype=kind,
        started=row.get("state") == "started",
        created_ns=None if created_ms is None else int(created_ms * 1e6),
    )


def _true(value: Any) -> bool:
    return value is True or (isinstance(value, (int, float)) and value == 1)


def _number(value: Any, default: float | None = None) -> float | None:
    return default if value is None or pd.isna(value) else float(value)


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
