"""systemd journal: the export format (`journalctl -o export`) and JSON lines (`-o json`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, StreamEnded, head_text, rejoin, to_int
from flightwatch.collectors.captures.log_prefix import Prefix, split
from flightwatch.collectors.captures.text_log import LogLines, TextLog
from flightwatch.core.protocols import CaptureContext, Note, Row

#: Largest binary field kept, in bytes; a larger one is skipped.
FIELD_LIMIT = 1_000_000
_LEVELS = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_WANTED = frozenset(
    {"MESSAGE", "__REALTIME_TIMESTAMP", "_SOURCE_REALTIME_TIMESTAMP", "_HOSTNAME", "PRIORITY", "_TRANSPORT",
     "SYSLOG_IDENTIFIER", "__MONOTONIC_TIMESTAMP"}
)  # fmt: skip


class JournalExport:
    """Parser of journal exports; entries newest first are read as they stand."""

    name: ClassVar[str] = "journal"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = TextLog.CARRIES
    NULL_NOTES: ClassVar[Mapping[str, str]] = TextLog.NULL_NOTES

    def recognise(self, head: bytes) -> bool:
        """Say whether this is a journal export."""
        text = head_text(head[:8192]).lstrip()
        if text.startswith("{"):
            return '"__REALTIME_TIMESTAMP"' in text and '"MESSAGE"' in text
        return text.startswith("__CURSOR=") or "\n__REALTIME_TIMESTAMP=" in text[:4096]

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield what the messages say, with the journal's own time and host."""
        readers = LogLines(context)
        head = stream.read(1)
        whole = rejoin(head, stream)
        try:
            for number, entry in _json_entries(whole) if head == b"{" else _export_entries(whole):
                if isinstance(entry, Note):
                    yield entry
                    continue
                for line in entry.get("MESSAGE", "").split("\n")[:1000]:
                    yield from readers.feed(number, _prefix(entry, line, context))
        except StreamEnded:
            yield from readers.flush()
            raise
        yield from readers.flush()


def _prefix(entry: Mapping[str, str], line: str, context: CaptureContext) -> Prefix:
    prefix = split(line, context.at_ms)
    micro = to_int(entry.get("_SOURCE_REALTIME_TIMESTAMP") or entry.get("__REALTIME_TIMESTAMP") or "")
    if micro is not None and 0 < micro < 4_102_444_800_000_000:
        prefix.ts_ms, prefix.zone_known = micro // 1000, True
    prefix.host = entry.get("_HOSTNAME") or prefix.host
    level = to_int(entry.get("PRIORITY") or "")
    if level is not None and 0 <= level < 8:
        prefix.level = _LEVELS[level]
    prefix.is_kernel = prefix.is_kernel or entry.get("_TRANSPORT") == "kernel"
    return prefix


def _json_entries(stream: BinaryIO) -> Iterator[tuple[int, Mapping[str, str] | Note]]:
    lines = Lines(stream)
    bad = 0
    for number, text in lines:
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            bad += 1
            if bad <= 20:
                yield number, Note("info", f"line {number}", "the line is not a JSON journal entry and was skipped")
            continue
        if isinstance(value, dict):
            yield number, {name: _text(item) for name, item in value.items() if name in _WANTED}
    for note in lines.notes:
        yield 0, note


def _text(item: object) -> str:
    if isinstance(item, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in item):
        # journalctl writes text that is not UTF-8 as a list of bytes.
        return bytes(item).decode("utf-8", "replace")
    return item if isinstance(item, str) else ""


def _export_entries(stream: BinaryIO) -> Iterator[tuple[int, Mapping[str, str] | Note]]:
    number = 0
    entry: dict[str, str] = {}
    while True:
        line = stream.readline(FIELD_LIMIT)
        number += 1
        if not line.strip():
            if entry:
                yield number, entry
                entry = {}
            if not line:
                return
            continue
        name, equals, value = line.rstrip(b"\n").partition(b"=")
        if equals:
            _keep(entry, name, value)
            continue
        size = int.from_bytes(stream.read(8), "little")
        if size > FIELD_LIMIT:
            yield (
                number,
                Note("error", f"line {number}", "a binary field is longer than allowed; the rest was not read"),
            )
            return
        data = stream.read(size)
        if len(data) < size:
            yield number, Note("error", f"line {number}", "the export is truncated inside a binary field")
            return
        _keep(entry, name, data)
        stream.read(1)


def _keep(entry: dict[str, str], name: bytes, value: bytes) -> None:
    key = name.decode("ascii", "replace")
    if key in _WANTED:
        entry[key] = value.decode("utf-8", "replace")
