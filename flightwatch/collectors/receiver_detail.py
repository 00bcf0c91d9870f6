"""Full detail of one step of one rank: every op on its own, as the probe sends it and as rows of `op_timings`.

A probe's message may hold `["detail", {"ts", "step", "keys", "ops"}]`. `keys` are [level, kind, op, process_group,
axis] ("" where there is none), `ops` are [key, start_us, dur_us, bytes, seq, span_us] with the start counted from
`ts`; `seq` is -1 where there is none, `span_us` -1 where the op held no communication.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flightwatch.collectors.receiver_rows import Message, read_rows
from flightwatch.core.protocols import Row

#: Levels of single ops: phases have their own columns in rank_steps and would be counted twice.
LEVELS = ("block", "op")
MOST_KEYS = 1024
MOST_OPS = 8192
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


def detail_of(one: object, message: Message, job: str, uid: int, now_ms: int) -> Detail | None:
    """Return the detail of one element of a message; None when it is malformed or of another time."""
    if not isinstance(one, dict):
        return None
    ts, step, keys, ops = (one.get(name) for name in ("ts", "step", "keys", "ops"))
    if type(ts) is not int or type(step) is not int or not now_ms - 3_600_000 <= ts <= now_ms + 60_000 or step < 0:
        return None
    if not (isinstance(keys, list) and len(keys) <= MOST_KEYS and isinstance(ops, list) and len(ops) <= MOST_OPS):
        return None
    return Detail(uid, job, message.run, message.rank, ts, step, keys, ops)


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
    if not (0 <= start_us < 3.6e9 and 0 <= dur_us < 3.6e9):
        return None
    level, kind, name, group, axis = key
    values = {
        "ts": min(detail.ts + int(start_us / 1000), detail.ts + 3_600_000), "level": level, "kind": kind, "op": name,
        "step": detail.step, "steps": 1, "dur_us": dur_us, "min_us": dur_us, "max_us": dur_us,
        "dur_sq_us2": round(dur_us * dur_us, 1), "count": 1,
    }  # fmt: skip
    known = {"process_group": group or None, "axis": axis or None, "bytes": size if size > 0 else None,
             "seq": seq if seq >= 0 else None, "span_us": span_us if span_us >= 0 else None}  # fmt: skip
    return values | {name: value for name, value in known.items() if value is not None}
