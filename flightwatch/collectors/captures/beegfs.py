"""`beegfs-ctl --clientstats` and `--serverstats`: operations and bytes by client, queue length by server.

BeeGFS counts operations, it does not time them: read_ms and write_ms stay unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row, to_float
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.collectors.captures.storage_files import STORAGE_COLUMNS
from flightwatch.core.protocols import CaptureContext, Note, Row, Value
from flightwatch.core.vocabulary import StorageKind

_FIELD = re.compile(r"(?<!\S)(-?[\d.]{1,30}(?:[eE][+-]?\d{1,3})?)\s{1,20}\[([A-Za-z/-]{1,20})\]")
_OPS = {"ops-rd": "read_ops_total", "opRd": "read_ops_total", "ops-wr": "write_ops_total", "opWr": "write_ops_total"}
_MIB = {"MiB-rd": "read_bytes_total", "MiB-wr": "write_bytes_total"}
_SERVER = re.compile(r"=+ (?:total )?results? for (.+?)\s*=+")
_SERVER_HEADING = ("time_index", "reqs", "qlen", "bsy")


class BeegfsParser:
    """Reads both statistics pages; rates (MiB-rd/s) are not counters and are left out."""

    name: ClassVar[str] = "beegfs"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"storage_samples": STORAGE_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "storage_samples.read_ms": "BeeGFS prints no time per operation",
        "storage_samples.read_bytes_total": "the page prints rates since the last one, not totals",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has BeeGFS's bracketed fields or its server table."""
        text = head_text(head)
        fields = {name for _, name in _FIELD.findall(text[:8000])}
        return ("sum" in fields and len(fields) >= 2) or all(word in text[:2000] for word in _SERVER_HEADING)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one storage_samples row a client (and one for the sum), or one a server."""
        lines, server, heading = Lines(stream), "all servers", None  # type: Lines, str, list[str] | None
        last: tuple[str, dict[str, str], str] | None = None
        for number, line in lines:
            where = f"line {number}"
            words = line.split()
            fields = _FIELD.findall(line)
            if fields:
                yield from self._client(line, fields, where, context)
            elif match := _SERVER.match(line.strip()):
                if last:
                    yield from self._server(*last, context)
                server, heading, last = match[1], None, None
            elif words[:1] == ["time_index"]:
                heading = words
            elif heading and words and words[0].isdecimal():
                if len(words) != len(heading):
                    yield Note("error", where, f"{len(heading)} figures expected: {shown(line)}")
                else:
                    last = server, dict(zip(heading, words, strict=True)), where
        if last:
            yield from self._server(*last, context)
        yield from lines.notes

    def _client(
        self, line: str, fields: list[tuple[str, str]], where: str, context: CaptureContext
    ) -> Iterator[Row | Note]:
        values: dict[str, Value] = {"target": line.split()[0].rstrip(":"), "kind": StorageKind.BEEGFS.value}
        for text, name in fields:
            number = to_float(text)
            column = _OPS.get(name) or _MIB.get(name)
            if column is None:
                continue
            if number is None or not 0 <= number < 2**63:
                yield Note("warning", where, f"{name} is not a count: {shown(text)}")
            else:
                values[column] = round(number * 2**20) if name in _MIB else round(number)
        yield make_row("storage_samples", self.CARRIES, context, values)

    def _server(self, server: str, row: Mapping[str, str], where: str, context: CaptureContext) -> Iterator[Row | Note]:
        queue, seconds = to_float(row.get("qlen", "")), to_float(row["time_index"])
        if queue is None:
            yield Note("warning", where, "qlen is not a number")
        ts = round(seconds * 1000) if seconds and 1e9 < seconds < 1e11 else None
        yield make_row(
            "storage_samples", self.CARRIES, context,
            {"ts": ts, "target": server, "kind": StorageKind.BEEGFS.value, "queue_depth": queue},
        )  # fmt: skip
