"""`ras-mc-ctl --summary` and `--errors` (rasdaemon's database): memory, PCIe AER, MCE and disk errors.

Counts come in lifetimes, so a summary is state, not news. One address that is corrected again and
again is a DIMM on its way out, and says so. Errors of disks with major number 0 (`0:2048`) are noise
of a kernel tracepoint: they have been seen on healthy machines and raise nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.core.protocols import CaptureContext, Note, Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource

#: So many corrected errors on one address or DIMM make it a precursor.
REPEATS = 3

_SECTION = re.compile(
    r"(Memory controller|Memory|PCIe AER|PCIE AER|MCE|Extlog|Disk|disk|ARM processor|ARM|devlink|Devlink|CXL \w+|"
    r"Memory failure|Signal)\s+(?:events?|errors?)?\s*(?:events?|errors?|records)?\s*(summary)?:\s*$"
)
_NONE = re.compile(r"No (.+?) errors?\.?\s*$")
_AER = re.compile(r"\s*(\d{1,18})\s+(Corrected|Uncorrected \(Fatal\)|Uncorrected \(Non-Fatal\)|Fatal|Non-Fatal|"
                  r"Uncorrected)\s+errors?:\s*(.*)", re.IGNORECASE)  # fmt: skip
_MEMORY = re.compile(
    r"\s*(Corrected|Uncorrected|Fatal|Deferred|Info) on DIMM Label\(s\): '([^']*)' location: (\S+) errors: (\d{1,18})",
    re.IGNORECASE,
)
_DISK = re.compile(r"\s*(\d{1,18}):(\d{1,18}) has (\d{1,18}) errors")
_COUNT = re.compile(r"\s*(\d{1,18})\s+(.+?)(?: errors?)?\s*$")
_RECORD = re.compile(r"(\d{1,18}) (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [+-]\d{4})?)\s+(.*)")
_ADDRESS = re.compile(r"\baddr(?:ess)?[=:]? ?(0x[0-9a-fA-F]+)")
_PLACE = re.compile(r"(memory_channel|csrow|channel|dimm|slot|bank|location|label)[=:]\s*([^,\s]+)")


class RasdaemonParser:
    """Reads both pages of ras-mc-ctl."""

    name: ClassVar[str] = "rasdaemon"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "events": ("device", "source", "code", "severity", "message", "attrs"),
        "node_samples": ("edac_corrected_total", "edac_uncorrected_total"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "events.ts": "a summary has counts and no times; `--errors` prints the time of each",
        "node_samples.edac_corrected_total": "the page lists no memory errors by severity",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has ras-mc-ctl's section lines."""
        text = head_text(head)
        known = re.findall(
            r"^(?:No (?:Memory|PCI[eE] AER|MCE|Extlog|devlink|disk|ARM processor|Memory failure|CXL [\w ]+) errors\."
            r"|(?:Memory controller|PCIe AER|PCIE AER|Disk|MCE|Extlog|ARM processor|Devlink) (?:events|errors|records)"
            r"(?: summary)?:)",
            text, re.MULTILINE,
        )  # fmt: skip
        return len(known) >= 1

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one event per kind of error (summary) or per error, an event for a repeating address, totals."""
        lines, section = Lines(stream), ""
        places: Counter[str] = Counter()
        example: dict[str, str] = {}
        totals: dict[str, int] = {}
        for number, line in lines:
            if not line.strip() or _NONE.match(line):
                continue
            if heading := _SECTION.match(line):
                section = heading[1].lower()
            elif not section:
                yield Note("error", f"line {number}", f"not a line of ras-mc-ctl: {shown(line)}")
            elif record := _RECORD.match(line):
                place = _place(record[3]) if "orrected" in record[3] and "ncorrected" not in record[3] else None
                if place:
                    places[place] += 1
                    example[place] = record[2]
                yield self._record(section, record[2], record[3], context)
            else:
                yield from self._summary(section, line, f"line {number}", totals, context)
        for place, count in places.items():
            if count >= REPEATS:
                yield self._repeating(place, count, example[place], context)
        if totals:
            yield make_row("node_samples", self.CARRIES, context, dict(totals))
        yield from lines.notes

    def _event(
        self, code: str, severity: EventSeverity, message: str, attrs: dict[str, str], context: CaptureContext,
        ts: int | None = None,
    ) -> Row:  # fmt: skip
        values: dict[str, Value] = {
            "ts": ts, "source": EventSource.KERNEL.value, "code": code, "severity": severity.value,
            "message": message[:2000], "attrs": attrs,
        }  # fmt: skip
        return make_row("events", self.CARRIES, context, values)

    def _summary(
        self, section: str, line: str, where: str, totals: dict[str, int], context: CaptureContext
    ) -> Iterator[Row | Note]:
        if aer := _AER.match(line):
            code, severity = _aer_class(aer[2])
            kind = re.sub(r"\s*TLP Header:.*", "", aer[3]).strip()
            attrs = {"count": str(int(aer[1])), "type": kind}
            yield self._event(code, severity, line.strip(), attrs, context)
        elif memory := _MEMORY.match(line):
            corrected = memory[1].lower() in ("corrected", "info", "deferred")
            column = "edac_corrected_total" if corrected else "edac_uncorrected_total"
            totals[column] = totals.get(column, 0) + int(memory[4])
            severity = EventSeverity.WARNING if corrected else EventSeverity.CRITICAL
            attrs = {"count": memory[4], "dimm": memory[2], "location": memory[3]}
            yield self._event("ras:ce" if corrected else "ras:ue", severity, line.strip(), attrs, context)
        elif disk := _DISK.match(line):
            if int(disk[1]) == 0:
                yield Note("info", where, f"{disk[0].strip()}: a device with major number 0 is not a disk; no fault")
                return
            attrs = {"count": disk[3], "device": f"{disk[1]}:{disk[2]}"}
            yield self._event("ras:disk", EventSeverity.WARNING, line.strip(), attrs, context)
        elif count := _COUNT.match(line):
            code = "ras:mce" if section == "mce" else f"ras:{section.split()[0]}"
            bad = re.search(r"uncorrected|fatal", count[2], re.IGNORECASE)
            severity = EventSeverity.ERROR if bad else EventSeverity.WARNING
            yield self._event(code, severity, line.strip(), {"count": count[1], "type": count[2]}, context)
        else:
            yield Note("error", where, f"not a line of the {section} section: {shown(line)}")

    def _record(self, section: str, when: str, text: str, context: CaptureContext) -> Row:
        attrs = dict(_PLACE.findall(text)[:16])
        if address := _ADDRESS.search(text):
            attrs["addr"] = address[1]
        code, severity = _record_class(section, text)
        return self._event(code, severity, text, attrs, context, _time(when))

    def _repeating(self, place: str, count: int, last: str, context: CaptureContext) -> Row:
        message = f"{count} corrected errors on the same place ({place}): a failing DIMM repeats"
        attrs = {"place": place, "count": str(count)}
        return self._event("ras:ce_repeating", EventSeverity.WARNING, message, attrs, context, _time(last))


def _aer_class(text: str) -> tuple[str, EventSeverity]:
    lower = text.lower()
    if "non-fatal" in lower:
        return "aer:nonfatal", EventSeverity.ERROR
    if "fatal" in lower:
        return "aer:fatal", EventSeverity.CRITICAL
    return ("aer:corrected", EventSeverity.INFO) if lower == "corrected" else ("aer:nonfatal", EventSeverity.ERROR)


def _record_class(section: str, text: str) -> tuple[str, EventSeverity]:
    lower = text.lower()
    if "aer" in section:
        name = "Fatal" if re.search(r"(?<!non-)fatal", lower) else "Non-Fatal" if "non-fatal" in lower else "Corrected"
        return _aer_class(name)
    if section == "disk":
        return "ras:disk", EventSeverity.INFO
    if "uncorrected" in lower or "fatal" in lower:
        return "ras:ue", EventSeverity.CRITICAL
    if "corrected" in lower:
        return "ras:ce", EventSeverity.WARNING
    return f"ras:{section.split()[0]}", EventSeverity.WARNING


def _place(text: str) -> str | None:
    """Name where an error is: its address, else its DIMM."""
    address = _ADDRESS.search(text)
    parts = dict(_PLACE.findall(text))
    place = [f"{key}={parts[key]}" for key in ("memory_channel", "csrow", "dimm", "label", "location") if key in parts]
    if address and int(address[1], 16):
        place.insert(0, f"addr={address[1]}")
    return " ".join(place) or None


def _time(text: str) -> int | None:
    for layout in ("%Y-%m-%d %H:%M:%S %z", "%Y-%m-%d %H:%M:%S"):
        try:
            moment = datetime.strptime(text, layout)
        except ValueError:
            continue
        # Without an offset the time is the machine's local one, which is not known here.
        return round(moment.timestamp() * 1000) if moment.tzinfo else None
    return None
