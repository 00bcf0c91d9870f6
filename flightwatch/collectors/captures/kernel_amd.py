"""Kernel lines of amdgpu: RAS errors, resets, hangs."""

from __future__ import annotations

import re

from flightwatch.collectors.captures.kernel_event import PCI, KernelEvent, KernelState, words
from flightwatch.core.vocabulary import EventSeverity

#: A count of hardware errors at or above this is a reporting fault of the driver, not a count.
IMPLAUSIBLE_COUNT = 1_000_000

_HEAD = re.compile(rf"amdgpu(?: ({PCI}))?:?\s(?:amdgpu: )?(?:\{{(\d{{1,10}})\}})?(.*)")
_COUNT = re.compile(
    r"(?:socket:? (\d{1,4}),? die:? (\d{1,4}),?\s{1,3})?\b(no|\d{1,20})\s{1,2}(?:new )?"
    r"(correctable|uncorrectable|deferred) hardware errors?(?: \w{1,20})? detected(?: in total)? in\s{1,3}(\w{1,20})"
)
_FATAL = re.compile(r"uncorrectable hardware error\s?\((\w{1,60})\) detected|RAS event of type (\w{1,60}) detected")
_BLOCK = re.compile(r"ERREVENT_([A-Z0-9]{1,20})_")
_ACA = re.compile(r"Accelerator Check Architecture|aca entry\[(\d{1,4})\]\.(\w{1,20})=(0x[0-9a-fA-F]{1,16})|"
                  r"ACA\[(\d{1,4})/\d{1,4}\]\.(\w{1,20})=(0x[0-9a-fA-F]{1,16})")  # fmt: skip
_RET = re.compile(r"ret(?:urn)?\s?[=:]\s?(-?\d{1,6})")
_RING = re.compile(r"ring (\S{1,40}) timeout")
_E, _C, _W, _I = EventSeverity.ERROR, EventSeverity.CRITICAL, EventSeverity.WARNING, EventSeverity.INFO
_OTHERS: tuple[tuple[re.Pattern[str], str, EventSeverity], ...] = (
    (re.compile(r"GPU reset.{0,40}(?:failed|end with ret = -)|reset failed|Failed to reset", re.I),
     "amdgpu:reset_failed", _C),
    (re.compile(r"GPU reset.{0,20}succe|GPU reset end with ret = 0"), "amdgpu:reset_done", _I),
    (re.compile(r"GPU reset begin"), "amdgpu:reset", _W),
    (re.compile(r"device lost from bus|fallen off the bus", re.I), "amdgpu:off_bus", _C),
    (re.compile(r"PSP .{0,60}failed|PSP resume failed", re.I), "amdgpu:psp_failed", _E),
    (_RING, "amdgpu:ring_timeout", _E),
    (re.compile(r"page fault \(|no-retry page fault|GPU fault detected"), "amdgpu:page_fault", _W),
    (re.compile(r"[Pp]oison (?:is )?(?:consum|creat)"), "ras:poison", _E),
    (re.compile(r"bad pages.{0,60}(?:reach|exceed).{0,20}threshold|RMA", re.I), "ras:bad_page_limit", _C),
    (re.compile(r"Fatal error during GPU init|qcm fence wait loop timeout|hws? hang", re.I), "amdgpu:hang", _E),
)  # fmt: skip


class AmdMatcher:
    """Reads amdgpu messages; "no ... errors" and zero counts are no events."""

    TRIGGER = r"amdgpu"

    def __init__(self) -> None:
        self._aca: dict[str, KernelEvent] = {}

    def match(self, message: str, state: KernelState) -> KernelEvent | bool | None:
        """Return the event of one line."""
        head = _HEAD.search(message)
        if head is None:
            return None
        pci, sequence, rest = (head[1] or "").lower(), head[2], head[3]
        attrs = {name: value for name, value in (("pci_bus_id", pci), ("record", sequence or "")) if value}
        if fatal := _FATAL.search(rest):
            source = fatal[1] or fatal[2]
            block = _BLOCK.search(source)
            attrs.update(error=source, block=block[1].lower() if block else "")
            return KernelEvent("ras:ue", _C, words(message), attrs)
        if counted := _COUNT.search(rest):
            return _counted(message, counted, attrs, state)
        if aca := _ACA.search(rest):
            return self._aca_line(message, aca, pci, attrs)
        return _other(message, rest, attrs)

    def _aca_line(self, message: str, aca: re.Match[str], pci: str, attrs: dict[str, str]) -> KernelEvent | bool:
        key = f"{pci} {attrs.get('record', '')}"
        event = self._aca.get(key)
        fresh = event is None
        if event is None:
            if len(self._aca) > 256:
                self._aca.clear()
            event = self._aca[key] = KernelEvent("ras:aca", _W, words(message), attrs)
        field, value = aca[2] or aca[5], aca[3] or aca[6]
        if field:
            event.attrs.setdefault(f"aca_{field.lower()}", value)
        return event if fresh else True


def _counted(message: str, counted: re.Match[str], attrs: dict[str, str], state: KernelState) -> KernelEvent | bool:
    socket, die, number, kind, block = counted.groups()
    count = 0 if number == "no" else int(number)
    if count == 0:
        return True
    attrs.update(block=block.lower(), count=str(count))
    if socket is not None:
        attrs.update(socket=socket, die=die)
    code, severity = {
        "correctable": ("ras:ce", _I), "uncorrectable": ("ras:ue", _C), "deferred": ("ras:de", _W),
    }[kind]  # fmt: skip
    if count >= IMPLAUSIBLE_COUNT:
        attrs["implausible"] = "true"
        severity = _I
        state.rejected = f"reports {count} errors at once, which is a fault of the reporting, not a count"
    return KernelEvent(code, severity, words(message), attrs)


def _other(message: str, rest: str, attrs: dict[str, str]) -> KernelEvent | None:
    for pattern, name, severity in _OTHERS:
        if pattern.search(rest):
            if ret := _RET.search(rest):
                attrs["ret"] = ret[1]
            if ring := _RING.search(rest):
                attrs["ring"] = ring[1]
            return KernelEvent(name, severity, words(message), attrs)
    return None
