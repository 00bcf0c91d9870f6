"""A probe's message into rows: only listed tables and columns, values of the catalogue's types, bounded names.

Nothing in a message is trusted: what does not fit is left out and counted, and the rest of it is kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flightwatch.core.catalogue import TABLES
from flightwatch.core.catalogue.model import Column
from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource, OpKind, OpLevel, RunPhase

MOST_ROWS = 4096
_LONGEST_NAME = 200
_LONGEST_TEXT = 1000
_MOST_ENTRIES = 64
_MOST_MEMBERS = 200_000
_OLDEST_MS = 24 * 3600 * 1000
_FURTHEST_MS = 60_000
_BY_AGENT = {"cluster", "node", "received_at", "src_partition", "src_offset", "job", "run", "rank"}
#: Tables a probe may fill, and columns it may not.
_REFUSED: Mapping[str, frozenset[str]] = {
    "rank_steps": frozenset({"wait_us", "transfer_us"}),
    "op_timings": frozenset(),
    "training_scalars": frozenset(),
    "process_groups": frozenset(),
    "placements": frozenset({"valid_until"}),
    "runs": frozenset(),
    "events": frozenset({"source"}),
    "self_metrics": frozenset({"component", "instance"}),
}
#: Elements of a message besides rows: names of ops, a step's ops, the end of a process's training, where the process
#: looks for requests, its answers to them.
OTHERS = ("names", "detail", "left", "listens", "asked")
_WORDS: Mapping[tuple[str, str], frozenset[str]] = {
    ("op_timings", "level"): frozenset(word.value for word in OpLevel),
    ("op_timings", "kind"): frozenset(word.value for word in OpKind),
    ("runs", "phase"): frozenset(word.value for word in RunPhase),
    ("events", "severity"): frozenset(word.value for word in EventSeverity),
    ("rank_steps", "mode"): frozenset(("sync", "async")),
}
_CODE = re.compile(r"(?:nonfinite|probe|user):[a-z0-9_.-]{1,60}")
#: Integer types and the time: smallest value and the first that is too large.
_RANGES = {
    "u8": (0, 2**8), "u16": (0, 2**16), "u32": (0, 2**32), "u64": (0, 2**64),
    "i16": (-(2**15), 2**15), "i32": (-(2**31), 2**31), "i64": (-(2**63), 2**63), "time": (1, 2**42),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Message:
    """A message whose head is in order.

    Attributes
    ----------
    pid: what the sender says; the kernel's word counts where there is one.
    """

    job: str
    run: str
    rank: int
    pid: int
    rows: list[Any]


@dataclass(slots=True)
class Read:
    """What became of one message's rows.

    Attributes
    ----------
    groups: communication by group of each row of rank_steps, by its position in `rows`.
    others: elements that are no rows of a table, unchecked: one of OTHERS.
    refused: rows or cells that were left out.
    """

    rows: list[Row] = field(default_factory=list)
    groups: dict[int, dict[str, float]] = field(default_factory=dict)
    others: list[tuple[str, object]] = field(default_factory=list)
    refused: int = 0


def read_message(data: bytes) -> Message:
    """Decode a datagram. Raises BadRecord when it is none of a probe."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRecord("not JSON") from error
    if not isinstance(document, dict) or document.get("v") != 1:
        raise BadRecord("not a message of version 1")
    job, run, rank, pid = (document.get(name) for name in ("job", "run", "rank", "pid"))
    if not (_is_name(job) and _is_name(run)):
        raise BadRecord("job or run is no name")
    if not (isinstance(rank, int) and 0 <= rank < 2**31 and isinstance(pid, int)):
        raise BadRecord("rank or pid is no number")
    rows = document.get("rows")
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        raise BadRecord("no list of rows")
    return Message(str(job), str(run), int(rank), int(pid), rows)


def read_rows(message: Message, job: str, now_ms: int, may_name: Callable[[str], bool]) -> Read:
    """Return the rows of a message.

    Parameters
    ----------
    job: the job they are stored under.
    may_name: says whether the sender may bring in a name.
    """
    read = Read()
    for one in message.rows:
        if isinstance(one, list) and len(one) == 2 and one[0] in OTHERS:
            read.others.append((one[0], one[1]))
            continue
        row = _row(one, message, job, now_ms, may_name, read)
        if row is None:
            read.refused += 1
        else:
            read.rows.append(row)
    return read


def _row(
    one: object, message: Message, job: str, now_ms: int, may_name: Callable[[str], bool], read: Read
) -> Row | None:
    if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], dict)):
        return None
    table, given = one
    if table not in _REFUSED:
        return None
    ts = given.get("ts")
    if not _is_int(ts) or not now_ms - _OLDEST_MS <= ts <= now_ms + _FURTHEST_MS:
        return None
    values: dict[str, Value] = {}
    for name, cell in given.items():
        column = _COLUMNS[table].get(name)
        if column is None:
            continue
        checked = _cell(table, column, cell, may_name)
        if checked is None:
            read.refused += cell is not None
        else:
            values[name] = checked
    if not _complete(table, values):
        return None
    values.update(_identity(table, message, job))
    groups = given.get("groups")
    if table == "rank_steps" and isinstance(groups, dict) and 0 < len(groups) <= _MOST_ENTRIES:
        read.groups[len(read.rows)] = {
            name: float(us) for name, us in groups.items() if len(name) <= _LONGEST_NAME and _is_duration(us)
        }
    return Row(table, values)


def _identity(table: str, message: Message, job: str) -> dict[str, Value]:
    if table == "self_metrics":
        return {"component": "probe", "instance": f"{job}/{message.rank}"}
    found: dict[str, Value] = {"job": job, "run": message.run}
    if table not in ("process_groups", "runs"):
        found["rank"] = message.rank
    if table == "events":
        found["source"] = EventSource.PROBE.value
    return found


def _cell(table: str, column: Column, cell: object, may_name: Callable[[str], bool]) -> Value:
    """Return a cell of the column's type, None for what is none."""
    kind = column.type
    if kind in ("word", "text"):
        return _text(table, column, cell, may_name)
    if kind == "list_i32":
        return _members(cell)
    if kind == "map_text":
        return _entries(
            cell, may_name, lambda value: _printable(value[:_LONGEST_NAME]) if isinstance(value, str) else None
        )
    if kind == "map_f64":
        return _entries(cell, may_name, lambda value: float(value) if _is_duration(value) else None)
    if kind in ("f32", "f64"):
        free = column.name in ("value", "loss", "grad_norm")
        return float(number) if (number := _number(cell)) is not None and (free or _is_duration(cell)) else None
    if not isinstance(cell, int) or isinstance(cell, bool):
        return None
    first, beyond = _RANGES.get(kind, (0, 0))
    return cell if first <= cell < beyond else None


def _text(table: str, column: Column, cell: object, may_name: Callable[[str], bool]) -> str | None:
    if not isinstance(cell, str) or not cell:
        return None
    if column.type == "text":
        return _printable(cell[:_LONGEST_TEXT])
    allowed = _WORDS.get((table, column.name))
    if allowed is not None:
        return cell if cell in allowed else None
    if column.name == "code" and not _CODE.fullmatch(cell):
        return None
    return cell if _is_name(cell) and may_name(cell) else None


def _entries(cell: object, may_name: Callable[[str], bool], read: Callable[[Any], Any]) -> dict[str, Any] | None:
    if not isinstance(cell, dict) or len(cell) > _MOST_ENTRIES:
        return None
    found = {name: read(value) for name, value in cell.items() if _is_name(name) and may_name(name)}
    return {name: value for name, value in found.items() if value is not None}


def _members(cell: object) -> list[int] | None:
    """Expand runs [first, last, stride]; a list of runs keeps a group of 10,000 ranks within a datagram."""
    if not isinstance(cell, list):
        return None
    members: list[int] = []
    for run in cell:
        if not (isinstance(run, list) and len(run) == 3 and all(_is_int(number) for number in run)):
            return None
        first, last, stride = run
        if not (0 <= first <= last < 2**31 and stride >= 1):
            return None
        if len(members) + (last - first) // stride + 1 > _MOST_MEMBERS:
            return None
        members.extend(range(first, last + 1, stride))
    return members


def _complete(table: str, values: Mapping[str, Value]) -> bool:
    """Say whether every column that cannot be unknown has a value (a map's default is empty)."""
    return all(name in values for name in _REQUIRED[table])


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable()


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> float | None:
    """Return a number that fits a double, NaN and infinities included; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if isinstance(value, float) or abs(value) < 2**63 else None


def _is_duration(value: object) -> bool:
    """Say whether a value is a finite number that is not negative, as durations, sizes and counters are."""
    number = _number(value)
    return number is not None and math.isfinite(number) and 0 <= number < 1e30


_COLUMNS = {
    table: {
        column.name: column
        for column in TABLES[table].columns
        if column.name not in refused and column.name not in _BY_AGENT
    }
    for table, refused in _REFUSED.items()
}
_REQUIRED = {
    table: tuple(name for name, column in columns.items() if not column.nullable and not column.type.startswith("map"))
    for table, columns in _COLUMNS.items()
}
