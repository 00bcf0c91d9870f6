"""Flight-recorder dumps of torch's process groups (pickle or JSON), reduced to what a verdict needs.

One file is one rank. The rank stands in the file name, not in the dump (`_dump_9`, `nccl_trace_rank_9`,
`rank9.json`), or in the name of its folder. Facts that shape the code: on gloo `state` stays "scheduled", so
`retired` decides; `pg_config` ranks can be a string; send and receive name group-local ranks ("send 0->3"); the
operations of a coalesced batch never leave "scheduled", the entry that closes the batch speaks for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from flightwatch.collectors.captures.pickle_scan import load_plain
from flightwatch.core.errors import BadRecord
from flightwatch.core.hang_evidence import CollectiveRecord, RankDump
from flightwatch.core.vocabulary import process_group_name

#: Unfinished records kept per rank: the oldest decide.
PENDING_LIMIT = 64
#: Where a rank stands in a file name, the surest first ("dump_rank_12_attempt_1" is rank 12).
_RANK_IN_NAME = (
    re.compile(r"rank[_\-.=]?(\d{1,7})(?!\d)", re.I),
    re.compile(r"(?:dump|trace)[_\-.]?(\d{1,7})(?!\d)", re.I),
    re.compile(r"(?<![0-9a-z])(\d{1,7})(?=(?:\.(?:json|pkl|pickle|pt|bin|gz|xz|zst))*$)", re.I),
)
_RANK_OF_FOLDER = re.compile(r"(?<!node_)(?<!local_)rank[_\-.=]?(\d{1,7})", re.I)
_P2P = re.compile(r"(send|recv)\s+(\d+)\s*(?:->|<-)\s*(\d+)")
#: Releases before 2.4 have no groups and call the sequence number seq_id.
_KEYS = (b"pg_config", b"collective_seq_id", b"pg_status", b"time_discovered_started_ns")
#: How torch and its users name dumps: nccl_trace_rank_3, comm_lib_trace_rank_3, _dump_3, fr_rank3.
_NAME_OF_DUMP = re.compile(r"(?:[nhrm]ccl|trace|dump|comm_lib|flight|fr)[\w.-]*?rank[_\-.=]?\d|_dump_\d", re.I)


def named_as_dump(name: str, head: bytes) -> bool:
    """Say whether a pickle that shows no key of a dump bears the name of one: damaged, or made to harm."""
    return head[:1] == b"\x80" and _NAME_OF_DUMP.search(re.split(r"[!\\/]", name)[-1]) is not None


def recognise(head: bytes) -> bool:
    """Say whether a file's first 64 KiB look like a dump, pickled or as JSON."""
    # The membership of a large job's groups alone can fill the head, so one of the keys is enough.
    if head[:1] == b"\x80":
        return any(key in head for key in _KEYS)
    return head.lstrip()[:1] == b"{" and any(b'"' + key + b'"' in head for key in _KEYS)


def rank_of_name(name: str) -> int | None:
    """Return the rank in a dump's file name; None when there is none."""
    folder, _, base = re.sub(r"[!\\]", "/", name).rpartition("/")
    for pattern in _RANK_IN_NAME:
        found = pattern.findall(base)
        if found:
            return int(found[-1])
    in_folder = next(filter(None, map(_RANK_OF_FOLDER.fullmatch, reversed(folder.split("/")))), None)
    return int(in_folder.group(1)) if in_folder else None


def parse_dump(data: bytes, rank: int) -> RankDump:
    """Read one dump.

    Parameters
    ----------
    data: the whole file.
    rank: the rank that wrote it.

    Raises
    ------
    BadRecord: it is not a dump, or damaged; the caller keeps the rank as "unreadable".
    """
    document = load_plain(data) if data[:1] == b"\x80" else _json(data)
    if not isinstance(document, dict) or not isinstance(document.get("entries", []), list):
        raise BadRecord("not a flight-recorder dump: no list of entries")
    groups = _Groups(document.get("pg_config"), rank)
    dump = RankDump(rank, "ok" if document.get("entries") else "empty")
    dump.members = groups.members
    ids: dict[str, str] = {}
    entries = [entry for entry in document.get("entries") or () if isinstance(entry, dict)]
    if document.get("entries") and not entries:
        raise BadRecord("not a flight-recorder dump: none of its entries is a record")
    closed = _closed_batches(entries)
    for entry in entries:
        _add(dump, groups, entry, ids, closed)
    _add_status(dump, document.get("pg_status"), ids)
    del dump.pending[PENDING_LIMIT:]  # a dump lists its entries oldest first
    return dump


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise BadRecord("the JSON is nested too deeply") from error
    except ValueError as error:
        raise BadRecord(f"not valid JSON: {error}") from error


class _Groups:
    """Names and members of the groups of one dump."""

    def __init__(self, config: Any, rank: int) -> None:
        self.members: dict[str, tuple[int, ...]] = {}
        self._by_id: dict[str, str] = {}
        self._rank = rank
        for key, group in config.items() if isinstance(config, dict) else ():
            if isinstance(group, dict):
                ranks, desc = _ranks(group.get("ranks")), _word(group.get("desc")) or "undefined"
                name = _group_name(desc, ranks) if ranks else f"{desc}:{key}"
                if name in self.members:  # two groups of the same ranks count apart; every rank lists them in one order
                    name = f"{name}#{sum(other.split('#')[0] == name for other in self.members) + 1}"
                if ranks:
                    self.members[name] = ranks
                self._by_id[_word(group.get("name", key))] = name

    def name(self, group: Any) -> str:
        """Return the name of the group an entry belongs to; entries carry (id, description)."""
        first = group[0] if isinstance(group, (list, tuple)) and group else None
        if isinstance(first, str) and first in self._by_id:
            return self._by_id[first]
        parts = [_word(part) for part in group[:2]] if isinstance(group, (list, tuple)) and group else [_word(group)]
        known = self._by_id.get(parts[0])
        return known if known is not None else f"{parts[-1]}:{parts[0]}"

    def global_rank(self, group: str, local: int) -> int | None:
        """Translate a group-local rank."""
        members = self.members.get(group)
        if members is None:
            return None
        return members[local] if local < len(members) else None


def _ranks(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        return _ranks_of_text(value)
    if isinstance(value, (list, tuple)):
        return tuple(sorted({int(rank) for rank in value if isinstance(rank, int) or _is_number(rank)}))
    return ()


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10


@lru_cache(maxsize=4096)
def _ranks_of_text(text: str) -> tuple[int, ...]:
    return tuple(sorted(int(word) for word in re.findall(r"\d{1,9}", text)))


@lru_cache(maxsize=65536)
def _group_name(desc: str, ranks: tuple[int, ...]) -> str:
    return process_group_name(desc, ranks)


def _batch_of(entry: Mapping[str, Any]) -> tuple[str, bool, int] | None:
    """Return what the entries of one coalesced batch share: group, kind and sequence number."""
    p2p = bool(entry.get("is_p2p"))
    seq = _whole(entry.get("p2p_seq_id" if p2p else "collective_seq_id"))
    place = entry.get("process_group", entry.get("pg_id"))
    return None if seq is None else (_word(place[0] if isinstance(place, (list, tuple)) and place else place), p2p, seq)


def _closed_batches(entries: Iterable[Mapping[str, Any]]) -> dict[tuple[str, bool, int], bool]:
    """Return the batches that an entry "coalesced" closes, and whether that one has finished."""
    closed: dict[tuple[str, bool, int], bool] = {}
    for entry in entries:
        name = entry.get("profiling_name")
        if isinstance(name, str) and name.endswith("coalesced"):
            batch = _batch_of(entry)
            if batch is not None:
                closed[batch] = _is_done(entry)
    return closed


def _is_done(entry: Mapping[str, Any]) -> bool:
    return entry.get("retired") is True or entry.get("state") == "completed"


def _add(
    dump: RankDump,
    groups: _Groups,
    entry: Mapping[str, Any],
    ids: dict[str, str],
    closed: Mapping[tuple[str, bool, int], bool],
) -> None:
    place = entry.get("process_group", entry.get("pg_name"))
    op = (_word(entry.get("profiling_name")) or "unknown").split(":", 1)[-1]
    p2p = bool(entry.get("is_p2p")) or op.startswith(("send ", "recv "))
    if place is None:
        place = entry.get("pg_id", 0)
        if place not in (0, "0") or p2p:
            # Each rank numbers its groups itself; only the first, the whole job, is the same everywhere.
            place = (f"rank {dump.rank}", f"group {_word(place)}")
    group = groups.name(place)
    if "pg_id" in entry:
        ids[_word(entry["pg_id"])] = group
    seq = _whole(entry.get("p2p_seq_id" if p2p else "collective_seq_id", entry.get("seq_id")))
    if seq is None:
        return
    done = _is_done(entry)
    if closed and not done:
        batch = _batch_of(entry)
        done = batch is not None and closed.get(batch, False)
    created_ns = _whole(entry.get("time_created_ns"))
    if created_ns is not None:
        dump.newest_ns = max(created_ns, dump.newest_ns or 0)
    if not p2p:
        dump.reached[group] = max(seq, dump.reached.get(group, seq))
        if done:
            dump.completed[group] = max(seq, dump.completed.get(group, seq))
    if not done:
        dump.pending.append(_record(groups, entry, group, seq, op, p2p))


def _record(groups: _Groups, entry: Mapping[str, Any], group: str, seq: int, op: str, p2p: bool) -> CollectiveRecord:
    peer = None
    match = _P2P.match(op)
    if match:
        op, peer = match.group(1), groups.global_rank(group, int(match.group(3)))
    frames = entry.get("frames")
    return CollectiveRecord(
        group=group,
        seq=seq,
        op=op,
        is_p2p=p2p,
        peer=peer,
        shape=f"{_sizes(entry.get('input_sizes'))} {_sizes(entry.get('input_dtypes'))}",
        bytes=_bytes(entry.get("input_sizes"), entry.get("input_dtypes")),
        dtype=_sizes(entry.get("input_dtypes"))[:64],
        started=entry.get("state") == "started",
        created_ns=_whole(entry.get("time_created_ns")),
        frame=_frame(frames[0]) if isinstance(frames, list) and frames and isinstance(frames[0], dict) else "",
    )


def _frame(frame: Mapping[str, Any]) -> str:
    return f"{_word(frame.get('name'))} ({_word(frame.get('filename'))}:{_word(frame.get('line'))})"[:300]


def _word(value: Any) -> str:
    """Render a string or number; anything else could be a tree of 2**60 shared leaves and is never rendered."""
    return str(value)[:200] if isinstance(value, (str, int)) else ""


def _sizes(value: Any) -> str:
    """Render lists of sizes or element types, two levels deep."""
    if not isinstance(value, (list, tuple)):
        return _word(value)
    parts = [
        "x".join(_word(cell) for cell in part[:16]) if isinstance(part, (list, tuple)) else _word(part)
        for part in value[:16]
    ]
    return ",".join(parts)


#: Element types as torch names them, to bytes.
_ELEMENT_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip


def _bytes(sizes: Any, dtypes: Any) -> int | None:
    """Return the bytes of all inputs, None where a size or an element type is not known."""
    if not isinstance(sizes, (list, tuple)) or not isinstance(dtypes, (list, tuple)) or not 0 < len(sizes) <= 1024:
        return None
    total = 0
    for index, size in enumerate(sizes):
        element = _ELEMENT_BYTES.get(_word(dtypes[min(index, len(dtypes) - 1)])) if dtypes else None
        cells = [_whole(cell) for cell in size[:16]] if isinstance(size, (list, tuple)) else [None]
        if element is None or None in cells:
            return None
        for cell in cells:
            element *= cell or 0
        total += element
    return total if total < 2**63 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _add_status(dump: RankDump, status: Any, ids: Mapping[str, str]) -> None:
    """Take the counters of groups whose numeric id an entry has tied to a name."""
    for key, counters in status.items() if isinstance(status, dict) else ():
        group = ids.get(str(key))
        if group is None or not isinstance(counters, dict):
            continue
        enqueued = _whole(counters.get("last_enqueued_collective"))
        completed = _whole(counters.get("last_completed_collective"))
        # Groups that mix collectives and send/recv count both here; the entries' own numbers rule where they exist.
        if enqueued is not None and group not in dump.reached:
            dump.reached[group] = enqueued
        if completed is not None and group in dump.reached and completed <= dump.reached[group]:
            dump.completed[group] = max(completed, dump.completed.get(group, 0))
