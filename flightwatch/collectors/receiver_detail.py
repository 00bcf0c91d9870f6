"""Full detail of one step of one rank: every op on its own, as the probe sends it and as rows of `op_timings`.

A probe's message may hold `["names", {"ts", "table", "first", "keys"}]` and `["detail", {"ts", "step", "table",
"ops"}]`. `keys` are [level, kind, op, process_group, axis] ("" where there is none), a process's table of them only
grows; `ops` are [key, start_us, dur_us, bytes, seq, span_us] with the start counted from `ts`; `dur_us` is -1 where
it is unknown, `seq` where there is none, `span_us` where the op held no communication.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flightwatch.collectors.receiver_rows import Message, read_rows
from flightwatch.core.protocols import Row

#: Levels of single ops: phases have their own columns in rank_steps and would be counted twice.
LEVELS = ("block", "op")
MOST_KEYS = 1024
MOST_OPS = 8192
MOST_TABLES = 1024
#: One step in so many is stored in full detail unasked.
KEPT_EVERY = 100


@dataclass(frozen=True, slots=True)
class Detail:
    """Ops of one step of one rank; `keys` and `ops` as in the message, checked when they become rows."""

    uid: int
    job: str
    run: str
    rank: int
    ts: int
    step: int
    keys: list[Any]
    ops: list[Any]

    def line(self) -> bytes:
        """Return it as one line of a file."""
        fields = [self.uid, self.job, self.run, self.rank, self.ts, self.step, self.keys, self.ops]
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Detail | None:
        """Read a line; None when it is damaged (the end of a file of an agent that was killed)."""
        try:
            uid, job, run, rank, ts, step, keys, ops = json.loads(line)
        except ValueError:
            return None
        return cls(uid, job, run, rank, ts, step, keys, ops)


class Names:
    """Tables of names by (job, run, rank), as processes told them."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, str, int], tuple[int, list[Any]]] = OrderedDict()

    def learn(self, one: object, message: Message, job: str) -> bool:
        """Take a part of a table; False when it is malformed or the part before it is missing."""
        if not isinstance(one, dict):
            return False
        table, first, keys = (one.get(name) for name in ("table", "first", "keys"))
        if type(table) is not int or type(first) is not int or not isinstance(keys, list):
            return False
        place = (job, message.run, message.rank)
        known = self._tables.get(place)
        have = known[1] if known is not None and known[0] == table else []
        if not 0 <= first <= len(have) or first + len(keys) > MOST_KEYS:
            return False
        if first + len(keys) >= len(have):
            # A new list: details that were read before keep the one they were read with.
            self._tables[place] = (table, [*have[:first], *keys])
        self._tables.move_to_end(place)
        while len(self._tables) > MOST_TABLES:
            self._tables.popitem(last=False)
        return True

    def detail(self, one: object, message: Message, job: str, uid: int, now_ms: int) -> Detail | None:
        """Return the detail of one element of a message; None when it is malformed, of another time or its names
        are not known (the agent has just started; they are told again within a minute).
        """
        if not isinstance(one, dict):
            return None
        ts, step, table, ops = (one.get(name) for name in ("ts", "step", "table", "ops"))
        if type(ts) is not int or type(step) is not int or not now_ms - 3_600_000 <= ts <= now_ms + 60_000 or step < 0:
            return None
        known = self._tables.get((job, message.run, message.rank))
        if known is None or known[0] != table or not (isinstance(ops, list) and len(ops) <= MOST_OPS):
            return None
        return Detail(uid, job, message.run, message.rank, ts, step, known[1], ops)


def rows_of(detail: Detail, may_name: Callable[[str], bool]) -> list[Row]:
    """Return one row of `op_timings` for each op; ops that are malformed are left out.

    Parameters
    ----------
    may_name: says whether a name may be stored.
    """
    given = [["op_timings", values] for values in (_values(op, detail) for op in detail.ops) if values is not None]
    message = Message(detail.job, detail.run, detail.rank, 0, given)
    return read_rows(message, detail.job, detail.ts, may_name).rows


def _values(op: Any, detail: Detail) -> dict[str, Any] | None:
    if not (isinstance(op, list) and len(op) == 6 and all(type(part) in (int, float) for part in op)):
        return None
    index, start_us, dur_us, size, seq, span_us = op
    key = detail.keys[index] if type(index) is int and 0 <= index < len(detail.keys) else None
    if not (isinstance(key, list) and len(key) == 5) or key[0] not in LEVELS:
        return None
    if not (0 <= start_us < 3.6e9 and (dur_us == -1 or 0 <= dur_us < 3.6e9)):
        return None
    level, kind, name, group, axis = key
    values = {
        "ts": min(detail.ts + int(start_us / 1000), detail.ts + 3_600_000), "level": level, "kind": kind, "op": name,
        "step": detail.step, "steps": 1, "count": 1,
    }  # fmt: skip
    if dur_us >= 0:
        values |= {"dur_us": dur_us, "min_us": dur_us, "max_us": dur_us, "dur_sq_us2": round(dur_us * dur_us, 1)}
    known = {"process_group": group or None, "axis": axis or None, "bytes": size if size > 0 else None,
             "seq": seq if seq >= 0 else None, "span_us": span_us if span_us >= 0 else None}  # fmt: skip
    return values | {name: value for name, value in known.items() if value is not None}
