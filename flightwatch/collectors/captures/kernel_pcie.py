"""Kernel lines of the platform: PCIe advanced error reporting, firmware-first errors (APEI), machine checks, EDAC."""

from __future__ import annotations

import re

from flightwatch.collectors.captures.kernel_event import PCI, KernelEvent, KernelState, words
from flightwatch.core.vocabulary import EventSeverity

_I, _W, _E, _C = EventSeverity.INFO, EventSeverity.WARNING, EventSeverity.ERROR, EventSeverity.CRITICAL
_AER = re.compile(
    rf"(?:\S{{1,40}} )?({PCI}): (?:AER: )?PCIe Bus Error: severity=([\w\- ()]{{3,40}}?),? type=([\w ]{{1,40}}?),?"
    r" (?:\(([\w ]{1,40})\)|id=|$)"
)
_AER_SUMMARY = re.compile(
    rf"AER: (?:Multiple )?Uncorrect(?:ed|able) \((Non-Fatal|Fatal)\) error (?:message )?received(?:: | from )({PCI})"
)
_DPC = re.compile(rf"({PCI}): (?:pciehp: )?DPC: (?:containment event|unmasked uncorrectable error detected)")
_AER_LAYER = re.compile(rf"({PCI}): (?:AER: )?aer_layer=([\w ]{{1,40}}), aer_agent=([\w ]{{1,40}})")
_AER_STATUS = re.compile(
    rf"({PCI}):\s{{1,6}}device \[([0-9a-f:]{{9}})\] error status/mask=([0-9a-f]{{8}})/([0-9a-f]{{8}})"
)
_AER_BIT = re.compile(rf"({PCI}):\s{{1,6}}\[\s?(\d{{1,2}})\] (\w{{1,40}})")
_GHES = re.compile(r"\{(\d{1,10})\}\[Hardware Error\]:\s{0,8}(.*)")
_GHES_FIELD = re.compile(
    r"(event severity|section_type|section type|device_id|error_type|node|card|module|DIMM location): {0,2}(.{1,200})"
)
_MCE = re.compile(
    r"CPU:? ?(\d{1,5}):? (?:Machine Check(?: Exception)?: )?([0-9a-f]{1,16}) Bank (\d{1,3}): ([0-9a-fA-F]{1,16})"
)
_AMD_MCE = re.compile(r"CPU:(\d{1,5}) \([0-9a-f:]{3,12}\) MC(\d{1,3})_STATUS\[([^\]]{0,80})\]: (0x[0-9a-fA-F]{1,16})")
_EDAC = re.compile(r"EDAC (\S{1,20}): (\d{1,10}) (CE|UE) (.{0,120}?)on (\S{1,80})")
_THERMAL = re.compile(r"CPU(\d{1,5}): (?:Core|Package) temperature(?:/speed)? above threshold")


class PlatformMatcher:
    """Reads AER, APEI, machine-check and EDAC messages; several lines of one error become one event."""

    TRIGGER = (
        r"Bus Error|AER|DPC: |Hardware Error|EDAC|\]: ?device \[|device \[[0-9a-f]{4}:|\[ ?\d{1,2}\] \w|temperature"
    )

    def __init__(self) -> None:
        self._aer: dict[str, KernelEvent] = {}
        self._announced: set[str] = set()
        self._record: tuple[str, KernelEvent] | None = None

    def match(self, message: str, state: KernelState) -> KernelEvent | bool | None:
        """Return the event of one line."""
        if "Hardware Error]" in message:
            return self._hardware_error(message)
        if "EDAC" in message:
            return _edac(message)
        if "temperature" in message:
            if throttled := _THERMAL.search(message):
                return KernelEvent("cpu:throttled", _W, words(message), {"cpu": throttled[1]})
            return None
        return self._pcie(message)

    def _pcie(self, message: str) -> KernelEvent | bool | None:
        if found := _AER.search(message):
            pci, severity, layer, agent = found[1].lower(), found[2].lower(), found[3], found[4]
            code, level = _aer_class(severity)
            attrs = {"pci_bus_id": pci, "layer": layer}
            if agent:
                attrs["agent"] = agent
            if len(self._aer) > 256:
                self._aer.clear()
                self._announced.clear()
            if pci in self._announced and self._aer[pci].code == code:
                self._announced.discard(pci)
                self._aer[pci].attrs.update(attrs)
                return True
            event = self._aer[pci] = KernelEvent(code, level, words(message), attrs)
            return event
        if summary := _AER_SUMMARY.search(message):
            # The device's own lines follow, unless it no longer answers.
            code, level = _aer_class(summary[1].lower())
            pci = summary[2].lower()
            event = self._aer[pci] = KernelEvent(code, level, words(message), {"pci_bus_id": pci})
            self._announced.add(pci)
            return event
        if contained := _DPC.search(message):
            return KernelEvent("pcie:dpc", _E, words(message), {"pci_bus_id": contained[1].lower()})
        if layered := _AER_LAYER.search(message):
            attrs = {"pci_bus_id": layered[1].lower(), "layer": layered[2], "agent": layered[3]}
            return KernelEvent("pcie:aer", _I, words(message), attrs)
        if (status := _AER_STATUS.search(message)) and (event2 := self._aer.get(status[1].lower())):
            event2.attrs.update(pci_id=status[2], status=status[3], mask=status[4])
            return True
        if (bit := _AER_BIT.search(message)) and (event3 := self._aer.get(bit[1].lower())):
            event3.attrs["errors"] = " ".join(filter(None, (event3.attrs.get("errors"), bit[3])))
            return True
        return None

    def _hardware_error(self, message: str) -> KernelEvent | bool | None:
        if found := _GHES.search(message):
            return self._ghes(message, found[1], found[2])
        if mce := _MCE.search(message):
            return _mce(message, mce[1], mce[3], int(mce[4], 16))
        if amd := _AMD_MCE.search(message):
            event = _mce(message, amd[1], amd[2], int(amd[4], 16))
            if "CE" in amd[3].split("|"):
                event.code, event.severity = "mce:corrected", _W
            return event
        return None

    def _ghes(self, message: str, number: str, text: str) -> KernelEvent | bool:
        if self._record is not None and self._record[0] == number:
            event, fresh = self._record[1], False
        else:
            # "unknown" until a line of the record names its severity.
            event, fresh = KernelEvent("apei:unknown", _W, words(text), {"record": number}), True
            self._record = (number, event)
        if field := _GHES_FIELD.match(text):
            name, value = field[1].replace(" ", "_"), field[2].strip()
            event.attrs["pci_bus_id" if name == "device_id" and ":" in value else name] = value
            if name == "event_severity":
                event.code, event.severity = _ghes_class(value)
        return event if fresh else True


def _aer_class(severity: str) -> tuple[str, EventSeverity]:
    if severity.startswith(("corrected", "correctable")):
        return "pcie:aer_correctable", _W
    if "non-fatal" in severity or "nonfatal" in severity:
        return "pcie:aer_nonfatal", _E
    return "pcie:aer_fatal", _C


def _ghes_class(value: str) -> tuple[str, EventSeverity]:
    return {
        "corrected": ("apei:corrected", _W),
        "info": ("apei:info", _I),
        "recoverable": ("apei:recoverable", _E),
        "fatal": ("apei:fatal", _C),
    }.get(value.lower(), ("apei:unknown", _W))


def _mce(message: str, cpu: str, bank: str, status: int) -> KernelEvent:
    attrs = {"cpu": cpu, "bank": bank, "status": f"0x{status:016x}"}
    if not status >> 63:
        # Without the valid bit the register says nothing about how bad it was.
        attrs["severity"] = "unknown"
        return KernelEvent("mce:unknown", _W, words(message), attrs)
    # Uncorrected, or processor context corrupt.
    if status >> 61 & 1 or status >> 57 & 1:
        return KernelEvent("mce:uncorrected", _C, words(message), attrs)
    return KernelEvent("mce:corrected", _W, words(message), attrs)


def _edac(message: str) -> KernelEvent | None:
    found = _EDAC.search(message)
    if found is None or int(found[2]) == 0:
        return None
    attrs = {"controller": found[1], "count": found[2], "location": found[5]}
    if found[3] == "UE":
        return KernelEvent("edac:ue", _C, words(message), attrs)
    return KernelEvent("edac:ce", _W, words(message), attrs)
