"""Flight-recorder dumps as rows: one dump, its groups, its unfinished collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import DOCUMENT_LIMIT, make_row
from flightwatch.collectors.captures.flight_recorder import parse_dump, rank_of_name, recognise
from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import CaptureContext, Note, Row

_STATES = {True: "started", False: "scheduled"}


class FlightRecorderDump:
    """Parser of one rank's dump (pickle or JSON); `flightwatch hang` judges all of them together."""

    name: ClassVar[str] = "flight-recorder"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "dumps": ("capture_id", "rank", "status", "entries"),
        "process_groups": ("process_group", "desc", "members"),
        "collectives": ("capture_id", "rank", "process_group", "seq", "op", "is_p2p", "peer", "state", "created_at"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "dumps.rank": "the rank stands in the file's name only",
        "dumps.entries": "only unfinished entries are kept; their number is not the dump's",
        "collectives.rank": "the rank stands in the file's name only",
        "collectives.peer": "only for a send or receive between known ranks",
        "collectives.created_at": "the recorder kept no time",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether this is a dump."""
        return recognise(head)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield the dump, its process groups, and the collectives that had not finished, oldest first."""
        data = stream.read(DOCUMENT_LIMIT + 1)
        rank = rank_of_name(context.source)
        if rank is None:
            yield Note("warning", "", "the file's name does not say which rank wrote the dump")
        try:
            if len(data) > DOCUMENT_LIMIT:
                raise BadRecord(f"the dump is larger than {DOCUMENT_LIMIT} bytes")
            dump = parse_dump(data, rank if rank is not None else -1)
        except BadRecord as error:
            yield self._dump(context, rank, "unreadable")
            yield Note("error", error.where, error.reason)
            return
        yield self._dump(context, rank, dump.status)
        for name, members in dump.members.items():
            yield make_row("process_groups", self.CARRIES, context, {
                "process_group": name, "desc": name.rsplit(":", 1)[0], "members": list(members),
            })  # fmt: skip
        for record in dump.pending:
            yield make_row("collectives", self.CARRIES, context, {
                "capture_id": context.source, "rank": rank, "process_group": record.group, "seq": record.seq,
                "op": record.op, "is_p2p": record.is_p2p, "peer": record.peer, "state": _STATES[record.started],
                "created_at": record.created_ns // 1_000_000 if record.created_ns is not None else None,
            })  # fmt: skip

    def _dump(self, context: CaptureContext, rank: int | None, status: str) -> Row:
        return make_row("dumps", self.CARRIES, context, {
            "capture_id": context.source, "rank": rank, "status": status,
            "entries": 0 if status == "empty" else None,
        })  # fmt: skip
