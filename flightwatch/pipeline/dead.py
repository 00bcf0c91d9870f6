"""Dead letters: what could not be stored, put aside with its place, its reason and its content.

They travel as rows of `dead_letters` on the topic `flightwatch.dead` and reach the table on the ordinary
path. A replay travels on the same topic, so that it needs no agent's key; its batch carries a number of its
own, so that a second replay of the same letter is dropped like any duplicate.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flightwatch import __version__
from flightwatch.core.errors import BadRecord, Refused
from flightwatch.core.protocols import Row, Value
from flightwatch.core.vocabulary import Lane, Topic
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.bus.base import Bus, Message, Partition
from flightwatch.pipeline.codec import decode, encode

WHOLE_MESSAGE = -1
#: A larger message stays on the bus only: the letter then has no payload, and a replay reads it there.
MAX_PAYLOAD_BYTES = 2_000_000
_LETTER_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Letter:
    """One message, or one or more rows of it, that could not be stored.

    Attributes
    ----------
    index: row in the message, the first one where the letter holds several, WHOLE_MESSAGE for all of it.
    payload: base64 of the message, or JSON `{"table":, "rows": [...]}`; empty when too large.
    """

    partition: Partition
    offset: int
    index: int
    reason: str
    payload: str
    ts_ms: int
    node: str | None
    cluster: str

    @property
    def id(self) -> str:
        """Deterministic id: topic, partition, offset, index."""
        return f"{self.partition.topic}/{self.partition.number}/{self.offset}/{self.index}"

    def row(self, *, replayed: bool = False) -> Row:
        """Return the letter as a row of `dead_letters`."""
        values: dict[str, Value] = {
            "ts": self.ts_ms,
            "cluster": self.cluster,
            "id": self.id,
            "node": self.node,
            "topic": self.partition.topic,
            "partition": self.partition.number,
            "offset": self.offset,
            "index": self.index,
            "reason": self.reason,
            "payload": self.payload,
            "replayed": replayed,
        }
        return Row("dead_letters", values)


def whole_message(message: Message, reason: str, node: str | None = None, cluster: str = "") -> Letter:
    """Return the letter of a message that cannot be read or may not be stored."""
    payload = base64.b64encode(message.value).decode() if len(message.value) <= MAX_PAYLOAD_BYTES else ""
    return Letter(
        message.partition, message.offset, WHOLE_MESSAGE, reason, payload, message.timestamp_ms, _clean(node),
        _clean(cluster) or "",
    )  # fmt: skip


def some_rows(message: Message, index: int, reason: str, table: str, rows: Sequence[Mapping[str, Any]], node: str,
              cluster: str) -> Letter:  # fmt: skip
    """Return the letter of rows of one table; `index` is the first one's place in the message."""
    # ASCII escapes keep text that is not valid UTF-8.
    payload = json.dumps({"table": table, "rows": list(rows)}, default=repr, separators=(",", ":"))
    if len(payload) > MAX_PAYLOAD_BYTES:
        payload = ""
    return Letter(
        message.partition, message.offset, index, reason, payload, message.timestamp_ms, _clean(node),
        _clean(cluster) or "",
    )  # fmt: skip


def _clean(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def batches(letters: Sequence[Letter], agent_id: str, spool_id: str) -> Iterator[bytes]:
    """Yield messages of at most about 1 MB that carry the letters; equal arguments give equal numbers."""
    rows: list[Row] = []
    size = seq = 0
    for letter in letters:
        if rows and size + len(letter.payload) > _LETTER_BYTES:
            seq += 1
            yield encode(Batch(_header(agent_id, spool_id, seq, letter.ts_ms), rows))
            rows, size = [], 0
        rows.append(letter.row())
        size += len(letter.payload) + 500
    if rows:
        yield encode(Batch(_header(agent_id, spool_id, seq + 1, letters[-1].ts_ms), rows))


def _header(agent_id: str, spool_id: str, seq: int, now_ms: int, node: str = "", cluster: str = "") -> BatchHeader:
    return BatchHeader(agent_id, spool_id, Lane.EVENTS.value, seq, node, cluster, now_ms, __version__)


def replay(bus: Bus, letter: Mapping[str, Any], now_ms: int, timeout_seconds: float = 30.0) -> int:
    """Send the rows of one letter through ingest once more; return how many.

    Twice is once: the second batch has the number of the first. Rows that still cannot be stored become
    a new letter, whose place is the replay's.

    Raises
    ------
    Refused: the content is gone, or still not readable by this program.
    TransientError: the bus did not acknowledge; replay again.
    """
    header, rows = _content(bus, letter)
    identity = _header(f"replay:{letter['id']}", "1", 1, now_ms, header.node, header.cluster)
    message = encode(Batch(identity, rows))
    bus.publish(Topic.DEAD.value, str(letter["id"]), message).result(timeout_seconds)
    done = Letter(
        Partition(letter["topic"], letter["partition"]), letter["offset"], letter["index"], letter["reason"],
        "", letter["ts"], letter["node"], letter["cluster"],
    )  # fmt: skip
    mark = encode(Batch(_header(f"replayed:{letter['id']}", "1", 1, now_ms), [done.row(replayed=True)]))
    bus.publish(Topic.DEAD.value, str(letter["id"]), mark).result(timeout_seconds)
    return len(rows)


def _content(bus: Bus, letter: Mapping[str, Any]) -> tuple[BatchHeader, Sequence[Row]]:
    place = f"{letter['topic']}/{letter['partition']} offset {letter['offset']}"
    if letter["payload"] and letter["index"] != WHOLE_MESSAGE:
        content = json.loads(letter["payload"])
        node, cluster = letter["node"] or "", letter["cluster"]
        return _header("", "", 1, 0, node, cluster), [Row(content["table"], values) for values in content["rows"]]
    value = base64.b64decode(letter["payload"]) if letter["payload"] else _read_back(bus, letter, place)
    try:
        batch = decode(value)
    except BadRecord as error:
        raise Refused(f"the message of {place} is still unreadable: {error.reason}") from error
    if letter["index"] == WHOLE_MESSAGE:
        return batch.header, batch.rows
    # Rows too large for a payload: those of the same table from the first one on.
    table = batch.rows[letter["index"]].table
    return batch.header, [row for row in batch.rows[letter["index"] :] if row.table == table]


def _read_back(bus: Bus, letter: Mapping[str, Any], place: str) -> bytes:
    for message in bus.read(Partition(letter["topic"], letter["partition"]), letter["offset"], 1):
        if message.offset == letter["offset"]:
            return message.value
    raise Refused(f"the message of {place} was too large for its letter and is no longer on the bus")
