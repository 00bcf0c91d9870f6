"""What a vendor's tool prints instead of devices: no driver, no device, a device that no longer answers.

Such a text is short and is all there is of the capture. That there is no reading is itself the news.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import NOTE_LIMIT, Lines, head_text, make_row
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import EventSeverity, EventSource

#: A capture that is longer holds something else.
_LINES_LIMIT = 60
_TEXT_LIMIT = 300
_TOOL = (
    r"(?:nvidia-smi|dcgmi|rocm-smi|amd-smi|npu-smi|mthreads-gmi|mx-smi|cnmon|ixsmi|hy-smi|xpu-smi|ipmitool|ethtool"
    r"|perfquery|ibnetdiscover|ibswinfo|mlxlink|rdma|nicctl|hccn_tool)"
)
#: Nothing but words of a level or a tool stand before the complaint ("WARNING: No AMD GPUs specified").
_START = r"^\W{0,3}(?:\w{1,10}:\s{0,3}){0,3}"
#: Text to the event's code. The first group, where there is one, is the device's PCI address.
_FAILURES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), code)
    for pattern, code in (
        (r"unable to determine the device handle for GPU\s*([0-9a-f:.]{7,16})?.{0,200}", "device:unreadable"),
        (r"^GPU ?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?:? ?(?:GPU )?is lost", "device:unreadable"),
        (_START + r"no (?:supported |amd )?(?:devices?|[gn]pus?|cards?) (?:were |was )?(?:found|discovered|specified)",
         "device:none_found"),
        (r"NVIDIA-SMI has failed because", "device:no_driver"),
        (r"(?:failed|unable) to initiali[sz]e (?:NVML|MTML|MXSML|CNDEV|IXML|RSMI|AMDSMI|HSMI|ROCm|Level Zero)\b",
         "device:no_driver"),
        (r"(?:rsmi_init|amdsmi_init|nvmlInit|cndevInit|zesInit)\w*\(?\)? (?:failed|error)", "device:no_driver"),
        (r"driver not (?:initiali[sz]ed|loaded|found)|AMDSMI_STATUS_NO_DRV|Level Zero initiali[sz]ation error",
         "device:no_driver"),
        (r"dcmi (?:model|module) initiali[sz]ed? fail", "device:no_driver"),
        (r"could not open device at /dev/ipmi|can't open UMAD port|unable to establish a connection to the specified",
         "tool:no_access"),
        (_TOOL + r":? ?(?:command )?not found", "tool:not_installed"),
    )
)  # fmt: skip
_MEANINGS: Mapping[str, str] = {
    "device:none_found": "the tool found no device",
    "device:no_driver": "the tool did not reach the driver",
    "tool:no_access": "the tool had no access",
    "tool:not_installed": "the tool is not installed",
}


def failure_of(line: str) -> tuple[str, str | None] | None:
    """Return the code and the PCI address of a tool's complaint; None for other lines."""
    for pattern, code in _FAILURES:
        if (found := pattern.search(line)) is not None:
            return code, found[1].rstrip(".:") if found.groups() and found[1] else None
    return None


class ToolFailure:
    """Reads the few lines of a tool that could not do its work."""

    name = "tool-failure"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"events": ("source", "code", "severity", "message", "attrs")}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"ts": "the tool prints no time with its complaint"}

    def recognise(self, head: bytes) -> bool:
        """Recognise a short text with one of the known complaints."""
        lines = [line for line in head_text(head).split("\n") if line.strip()]
        return len(lines) <= _LINES_LIMIT and any(failure_of(line[:_TEXT_LIMIT]) for line in lines)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield an event a complaint; every other line is a note."""
        lines, others = Lines(stream), 0
        for number, line in lines:
            text = "".join(char if char.isprintable() else "?" for char in line.strip()[:_TEXT_LIMIT])
            found = failure_of(text)
            if found is not None:
                yield self._event(found, text, number, context)
            elif text:
                others += 1
                if others <= NOTE_LIMIT:
                    yield Note("info", f"line {number}", f"the tool says: {text}")
        yield from lines.notes

    def _event(self, found: tuple[str, str | None], text: str, number: int, context: CaptureContext) -> Row:
        code, address = found
        severity = EventSeverity.CRITICAL if code == "device:unreadable" else EventSeverity.ERROR
        attrs = {"meaning": _MEANINGS.get(code), "line": str(number), "pci_bus_id": address}
        values = {"source": EventSource.AGENT.value, "code": code, "severity": severity.value, "message": text}
        return make_row("events", self.CARRIES, context, {
            **values, "attrs": {name: text for name, text in attrs.items() if text},
        })  # fmt: skip
