"""Machine check lines of the kernel log: bank, status bits, address, processor.

A status of 0 has its valid bit clear: the record says that something was logged and not what, so the
event is kept and its severity is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import EventSeverity, EventSource

_CHECK = re.compile(
    r"\[Hardware Error\]:.{0,40}?"
    r"CPU (\d+):? Machine Check(?: Exception)?: *([0-9a-fA-F]+) Bank (\d+): ([0-9a-fA-F]{1,16})"
)
_PAIR = re.compile(r"\b(ADDR|MISC|SYND|IPID|TIME|SOCKET|PROCESSOR|microcode) ([0-9A-Fa-f:x]+)")
_VALID, _UNCORRECTED, _CORRUPT = 1 << 63, 1 << 61, 1 << 57
#: A TIME before 2010 comes from a machine whose clock was not set.
_EARLIEST_S = 1_262_304_000


class MceParser:
    """Reads logs that are mostly machine check lines; whole kernel logs have a parser of their own."""

    name: ClassVar[str] = "mce"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "events": ("source", "code", "severity", "message", "attrs"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "events.ts": "the lines have no TIME, or one from before the machine's clock was set",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether a machine check stands in the head and at least half of its lines are hardware errors."""
        lines = [line for line in head_text(head).split("\n")[:200] if line.strip()]
        errors = sum("[Hardware Error]" in line for line in lines)
        return errors * 2 >= len(lines) and any(_CHECK.search(line) for line in lines)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one event per machine check, with the details of the lines that follow it."""
        lines = Lines(stream)
        message, attrs = "", {}  # type: str, dict[str, str]
        for _, line in lines:
            if match := _CHECK.search(line):
                if attrs:
                    yield self._event(message, attrs, context)
                message = line.strip()
                attrs = {"cpu": match[1], "mcgstatus": match[2], "bank": match[3], "status": match[4].lower()}
            elif attrs and "[Hardware Error]" in line:
                attrs.update((name.lower(), value) for name, value in _PAIR.findall(line))
        if attrs:
            yield self._event(message, attrs, context)
        yield from lines.notes

    def _event(self, message: str, attrs: dict[str, str], context: CaptureContext) -> Row:
        code, severity = classify(int(attrs["status"], 16))
        if severity is EventSeverity.DEBUG:
            attrs["severity"] = "unknown"
        seconds = int(attrs["time"]) if attrs.get("time", "").isdecimal() and len(attrs["time"]) < 12 else 0
        return make_row(
            "events", self.CARRIES, context,
            {"ts": seconds * 1000 if seconds >= _EARLIEST_S else None, "source": EventSource.KERNEL.value,
             "code": code, "severity": severity.value, "message": message[:2000], "attrs": attrs},
        )  # fmt: skip


def classify(status: int) -> tuple[str, EventSeverity]:
    """Return the event code and severity of an MCi_STATUS register (Intel SDM vol. 3B ch. 16, AMD APM vol. 2 ch. 9)."""
    if not status & _VALID:
        return "mce:unknown", EventSeverity.DEBUG
    if status & (_UNCORRECTED | _CORRUPT):
        return "mce:uncorrected", EventSeverity.CRITICAL
    return "mce:corrected", EventSeverity.WARNING
