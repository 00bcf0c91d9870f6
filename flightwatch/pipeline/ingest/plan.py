"""What one range puts into the store: a pure function of its messages and of the lanes before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flightwatch.core.catalogue import TABLES, Table
from flightwatch.core.errors import BadRecord
from flightwatch.pipeline.batch import BatchHeader
from flightwatch.pipeline.bus.base import Message
from flightwatch.pipeline.codec.columns import Merged, Part, RefusedRow, merge
from flightwatch.pipeline.codec.read import LaneKey, Opened, Section, block_of, open_message, signature_of, text_fault
from flightwatch.pipeline.dead import Letter, some_rows, whole_message
from flightwatch.pipeline.ingest import notices
from flightwatch.pipeline.ingest.lanes import Gap, Sequences
from flightwatch.pipeline.ingest.ranges import Range

#: Limits of one block: what was tried with one part per partition and one token.
MAX_BLOCK_ROWS = 500_000
MAX_BLOCK_BYTES = 128_000_000
#: An insert spans at most this many days, far below the engine's limit of partitions per insert.
SPAN_DAYS = 8
_DAY_MS = 86_400_000
_FOR_EVER_DAYS = 3_650
#: Letters of single rows per message; what is beyond shares one letter per table.
_MAX_ROW_LETTERS = 1_000

#: Checks a batch's signature against its node; raises BadRecord with the reason.
Verify = Callable[[BatchHeader, bytes, bytes | None], None]


@dataclass(slots=True)
class Block:
    """One insert.

    Attributes
    ----------
    message: for each row the number of its message in the range.
    """

    table: str
    rows: pa.Table
    message: npt.NDArray[np.int64]
    token: str

    @property
    def days(self) -> int:
        """Days the rows lie in: the engine makes one part, and remembers one block, for each."""
        return len(np.unique(self.rows.column("ts").cast(pa.int64()).to_numpy() // _DAY_MS))


@dataclass(slots=True)
class Plan:
    """Everything one range leads to.

    Attributes
    ----------
    blocks: in the order of insertion; `done` of them are in the store, `letters[:sent]` on the bus.
    lanes: last number and offset of every lane that moved.
    dropped: (table, column) of unknown columns that fit nowhere, with rows counted.
    """

    range: Range
    messages: Sequence[Message]
    blocks: list[Block] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    lanes: dict[LaneKey, tuple[int, int]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    agents: dict[str, set[str]] = field(default_factory=dict)
    duplicates: int = 0
    done: int = 0
    sent: int = 0

    @property
    def rows(self) -> Counter[str]:
        """Rows per table."""
        return Counter({table: sum(b.rows.num_rows for b in self.blocks if b.table == table) for table in self._names})

    @property
    def _names(self) -> set[str]:
        return {block.table for block in self.blocks}

    @property
    def bytes(self) -> int:
        """Bytes of the messages."""
        return sum(len(message.value) for message in self.messages)


class Planner:
    """Builds plans.

    Parameters
    ----------
    late_days: rows of every table may be at least this much older than broker time; more where its rows live longer.
    future_seconds: how far ts may lie ahead of broker time.
    verify: checks signatures of agents' batches; None accepts all.
    unverified_topics: topics that only the pipeline itself may write.
    """

    def __init__(
        self, late_days: float, future_seconds: float, verify: Verify | None, unverified_topics: frozenset[str]
    ) -> None:
        self._late_days = late_days
        self._future_ms = round(future_seconds * 1000)
        self._verify = verify
        self._unverified = unverified_topics

    def build(self, rng: Range, messages: Sequence[Message], known: Mapping[LaneKey, int]) -> Plan:
        """Decode a range. Equal arguments give equal blocks under equal tokens.

        Parameters
        ----------
        messages: all messages of the range, in order.
        known: last numbers of the lanes as of `rng.start`.
        """
        plan = Plan(rng, messages)
        sequences = Sequences(known)
        parts: dict[str, list[Part]] = {}
        for number, message in enumerate(messages):
            self._open(plan, number, message, sequences, parts)
        for name, members in parts.items():
            merged = merge(TABLES[name], members, (self._oldest_ms(TABLES[name]), self._future_ms))
            self._put_aside(plan, name, merged)
            plan.blocks += _blocks(rng, name, merged.table, merged.message)
        plan.lanes, plan.gaps = sequences.changed, sequences.gaps
        for table, rows in notices.of_holes(rng, messages, plan.gaps):
            plan.blocks.append(Block(table, rows, np.zeros(rows.num_rows, np.int64), rng.token(f"{table}:holes")))
        return plan

    def _open(
        self, plan: Plan, number: int, message: Message, sequences: Sequences, parts: dict[str, list[Part]]
    ) -> None:
        try:
            opened = open_message(message.value)
        except BadRecord as error:
            plan.letters.append(whole_message(message, error.reason))
            return
        identity = opened.identity
        try:
            if self._verify is not None and message.partition.topic not in self._unverified:
                self._verify(opened.header, *signature_of(message.value))
        except BadRecord as error:
            # Its number does not count: a stranger must not be able to make the real agent's batches look old.
            plan.letters.append(whole_message(message, error.reason, identity.node, identity.cluster))
            return
        if not sequences.admit(opened, message.offset, message.timestamp_ms):
            plan.duplicates += 1
            return
        agents = plan.agents.get(identity.node)
        if agents is None:
            agents = plan.agents[identity.node] = set()
        agents.add(identity.agent_id)
        for section in opened.sections:
            reason = _unreadable(section)
            if reason:
                plan.letters.append(_section_letter(message, opened, section, reason))
                continue
            parts.setdefault(section.table, []).append(
                Part(
                    section, number, identity.node, identity.cluster, message.timestamp_ms, message.partition.number,
                    message.offset,
                )
            )  # fmt: skip

    def _oldest_ms(self, table: Table) -> int:
        kept_days = _FOR_EVER_DAYS if table.ttl_days is None else table.ttl_days
        return round(max(self._late_days, kept_days) * _DAY_MS)

    def _put_aside(self, plan: Plan, table: str, merged: Merged) -> None:
        by_message: dict[int, list[RefusedRow]] = {}
        for row in merged.refused:
            by_message.setdefault(row.message, []).append(row)
        for number, rows in by_message.items():
            plan.letters += _row_letters(plan.messages[number], table, rows)
        for column, count in merged.dropped.items():
            plan.dropped[table, column] += count


def _unreadable(section: Section) -> str:
    table = TABLES.get(section.table)
    if table is None:
        return f"table {section.table} is unknown to this program ({section.count} rows): upgrade, then replay"
    if not _ingested(table):
        return f"table {section.table} is not filled through the bus"
    return text_fault(section.schema, section.text)


def _ingested(table: Table) -> bool:
    return table.lane is not None or table.name in ("findings", "dead_letters")


def _section_letter(message: Message, opened: Opened, section: Section, reason: str) -> Letter:
    identity = opened.identity
    try:
        columns = block_of(section).columns
        rows = [{name: cells[at] for name, cells in columns.items()} for at in range(section.count)]
    except BadRecord:
        # The rows cannot be told apart: the letter carries the message.
        whole = whole_message(message, reason, identity.node, identity.cluster)
        return Letter(
            whole.partition, whole.offset, section.first_row, reason, "", whole.ts_ms, whole.node, whole.cluster
        )
    return some_rows(message, section.first_row, reason, section.table, rows, identity.node, identity.cluster)


def _row_letters(message: Message, table: str, refused: Sequence[RefusedRow]) -> list[Letter]:
    opened = open_message(message.value)
    identity = opened.identity
    values: dict[int, dict[str, object]] = {}
    for section in opened.sections:
        if section.table == table:
            columns = block_of(section).columns
            for at in range(section.count):
                values[section.first_row + at] = {name: cells[at] for name, cells in columns.items()}
    single, rest = refused[:_MAX_ROW_LETTERS], refused[_MAX_ROW_LETTERS:]
    letters = [
        some_rows(message, row.index, row.reason, table, [values[row.index]], identity.node, identity.cluster)
        for row in single
    ]
    if rest:
        rows = [values[row.index] for row in rest]
        reason = f"{rest[0].reason} (and {len(rest) - 1} more rows)"
        letters.append(some_rows(message, rest[0].index, reason, table, rows, identity.node, identity.cluster))
    return letters


def _blocks(rng: Range, name: str, rows: pa.Table, message: npt.NDArray[np.int64]) -> list[Block]:
    """Cut rows into blocks by days and size; blocks end between messages."""
    if rows.num_rows == 0:
        return []
    spans = rows.column("ts").cast(pa.int64()).to_numpy() // (SPAN_DAYS * _DAY_MS)
    blocks = []
    for span in np.unique(spans):
        inside = spans == span
        part, number = (rows, message) if inside.all() else (rows.filter(pa.array(inside)), message[inside])
        for at, (piece, of) in enumerate(_pieces(part, number)):
            blocks.append(Block(name, piece, of, rng.token(f"{name}:{span}:{at}")))
    return blocks


def _pieces(rows: pa.Table, message: npt.NDArray[np.int64]) -> list[tuple[pa.Table, npt.NDArray[np.int64]]]:
    limit = min(MAX_BLOCK_ROWS, max(1, int(MAX_BLOCK_BYTES / (rows.nbytes / rows.num_rows))))
    if rows.num_rows <= limit:
        return [(rows, message)]
    order = np.argsort(message, kind="stable")
    rows, message = rows.take(pa.array(order)), message[order]
    ends = np.append(np.flatnonzero(np.diff(message)) + 1, rows.num_rows)
    pieces = []
    start = 0
    while start < rows.num_rows:
        fitting = ends[(ends > start) & (ends <= start + limit)]
        # A single message beyond the limit is one block all the same: it must not be cut.
        end = int(fitting[-1]) if len(fitting) else int(ends[ends > start][0])
        pieces.append((rows.slice(start, end - start), message[start:end]))
        start = end
    return pieces
