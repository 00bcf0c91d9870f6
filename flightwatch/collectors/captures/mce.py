"""Machine check lines of the kernel log: bank, status bits, address, processor.

A status of 0 has its valid bit clear: the record says that something was logged and not what, so the
event is kept and its severity is unknown. Other lines between (a storm of machine checks often stands before
the Xid that it caused) are read as in any log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row
from flightwatch.collectors.captures.log_prefix import Prefix, split
from flightwatch.collectors.captures.text_log import LogLines, TextLog
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import EventSeverity, EventSource

_CHECK = re.compile(
    r"\[Hardware Error\]:.{0,40}?"
    r"CPU (\d+):? Machine Check(?: Exception)?: *([0-9a-fA-F]+) Bank (\d+): ([0-9a-fA-F]{1,16})"
)
#: What belongs to the check before it; records of the platform's firmware and of amdgpu look alike and do not.
_DETAIL = re.compile(r"mce: \[Hardware Error\]|^\[Hardware Error\]:")
_PAIR = re.compile(r"\b(ADDR|MISC|SYND|IPID|TIME|SOCKET|PROCESSOR|microcode) ([0-9A-Fa-f:x]+)")
_VALID, _UNCORRECTED, _CORRUPT = 1 << 63, 1 << 61, 1 << 57
#: A TIME before 2010 comes from a machine whose clock was not set.
_EARLIEST_S = 1_262_304_000


class MceParser:
    """Reads logs that are mostly machine check lines; whole kernel logs have a parser of their own."""

    name: ClassVar[str] = "mce"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = TextLog.CARRIES
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        **TextLog.NULL_NOTES,
        "events.ts": "the lines have no TIME, or one from before the machine's clock was set",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether a machine check stands in the head and at least half of its lines are hardware errors."""
        lines = [line for line in head_text(head).split("\n")[:200] if line.strip()]
        errors = sum("[Hardware Error]" in line for line in lines)
        return errors * 2 >= len(lines) and any(_CHECK.search(line) for line in lines)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one event per machine check, with the details of the lines that follow it, and what else is said."""
        lines, others = Lines(stream), LogLines(context)
        check: tuple[Prefix, dict[str, str]] | None = None
        for number, line in lines:
            prefix = split(line, context.at_ms)
            if match := _CHECK.search(prefix.message):
                if check is not None:
                    yield self._event(*check, context)
                check = prefix, {
                    "cpu": match[1], "mcgstatus": match[2], "bank": match[3], "status": match[4].lower(),
                }  # fmt: skip
            elif _DETAIL.search(prefix.message):
                if check is not None:
                    check[1].update((name.lower(), value) for name, value in _PAIR.findall(prefix.message))
            else:
                yield from others.feed(number, prefix)
        if check is not None:
            yield self._event(*check, context)
        yield from others.flush()
        yield from lines.notes

    def _event(self, prefix: Prefix, attrs: dict[str, str], context: CaptureContext) -> Row:
        code, severity = classify(int(attrs["status"], 16))
        if severity is EventSeverity.DEBUG:
            attrs["severity"] = "unknown"
        seconds = int(attrs["time"]) if attrs.get("time", "").isdecimal() and len(attrs["time"]) < 12 else 0
        if prefix.uptime_s is not None:
            attrs["uptime_s"] = f"{prefix.uptime_s:.6f}".rstrip("0").rstrip(".")
        if prefix.clock is not None:
            attrs["clock"] = prefix.clock
        return make_row(
            "events", self.CARRIES, context,
            {"ts": seconds * 1000 if seconds >= _EARLIEST_S else prefix.ts_ms, "node": prefix.host,
             "source": EventSource.KERNEL.value, "code": code, "severity": severity.value,
             "message": prefix.message[:2000].strip(), "attrs": attrs},
        )  # fmt: skip


def classify(status: int) -> tuple[str, EventSeverity]:
    """Return the event code and severity of an MCi_STATUS register (Intel SDM vol. 3B ch. 16, AMD APM vol. 2 ch. 9)."""
    if not status & _VALID:
        return "mce:unknown", EventSeverity.DEBUG
    if status & (_UNCORRECTED | _CORRUPT):
        return "mce:uncorrected", EventSeverity.CRITICAL
    return "mce:corrected", EventSeverity.WARNING
