"""Kernel lines of NVIDIA's drivers: Xid, SXid, other NVRM trouble, fabric manager, peer memory."""

from __future__ import annotations

import re

from flightwatch.collectors.captures.kernel_event import KernelEvent, KernelState, first_group, words
from flightwatch.core.vocabulary import EventSeverity
from flightwatch.core.xid import RECOVERY_ACTIONS, recovery_action, sxid, xid

_XID = re.compile(r"NVRM:?\s{0,4}Xid\s{0,4}\(([^)\n]{1,120})\)\s{0,4}:\s{0,4}(\d{1,5})(?![\w.])\s{0,4},?\s{0,4}(.*)")
_PCI = re.compile(r"(?:PCI:)?\s?((?:[0-9a-fA-F]{2,8}:){1,2}[0-9a-fA-F]{2}(?:\.[0-7])?)(?![0-9a-fA-F:])(.*)")
_PID = re.compile(r"pid='?(\d{1,10})'?(?=\D|$)")
_NAME = re.compile(r"name='?([^,'<\n]{1,128})'?(?=,|$)")
_CHANNEL = re.compile(r"\bCh(?:annel)?(?: ID)? ([0-9a-fA-F]{4,8})\b")
_CAUSE = re.compile(r"caused by previous Xid (\d{1,4})")
_RECOVERY = re.compile(
    r"recovery action changed from 0x([0-9a-fA-F]{1,4})(?: \(([^)]{0,60})\))?"
    r" to 0x([0-9a-fA-F]{1,4})(?: \(([^)]{0,60})\))?"
)
_NVLINK4 = re.compile(r"on link (\d{1,3})\s?\((0x[0-9a-fA-F]{1,16}(?:, ?0x[0-9a-fA-F]{1,16}){0,15}),? ?\)")
_NVLINK5 = re.compile(r"\b([A-Z][A-Z0-9_]{3,40})\s{1,4}(Fatal|Non-?fatal)\b.{0,40}?\bLink (-?\d{1,3})", re.IGNORECASE)
_CONTAINED = re.compile(r"(Contained|Uncontained): ([A-Z0-9/_ ]{1,40}?)(?: \(|\.|,|$)")
_RESET = re.compile(r"(?<!-)\bRST: (Yes|No)")
_DRAIN = re.compile(r"D-RST?L?:? (Yes|No)")
_GSP = re.compile(r"from GPU(\d{1,3}) GSP")
_MIG = re.compile(r"GPU-I:0?(\d{1,2})")
_SXID = re.compile(
    r"nvidia-nvswitch(\d{1,3}):? SXid \(PCI:([0-9a-fA-F:.]{5,20})\): (\d{4,6})(?!\d),?\s{0,3}"
    r"(?:(Non-fatal|Fatal|Correctable),?\s{0,3})?(?:Link (\d{1,3})\s{0,3})?(.*)",
    re.IGNORECASE,
)
_FABRIC = re.compile(
    r"detected NVSwitch (non-fatal|fatal) error (\d{4,6}) on fid (\d{1,4}) on NVSwitch pci bus id ([0-9a-fA-F:.]{5,20})"
    r"(?: physical id (\d{1,4}))?(?: port (\d{1,4}))?"
)
_FABRIC_FAULTS = (
    ("failed to find the GPU handle", "fabric:gpu_missing", EventSeverity.ERROR),
    ("don't match with any supported system topology", "fabric:topology", EventSeverity.CRITICAL),
    ("aborting fabric manager", "fabric:abort", EventSeverity.CRITICAL),
)
_AT_PCI = re.compile(r"GPU at PCI:([0-9a-fA-F:.]{4,19}[0-9a-fA-F]):?(?: (GPU-[0-9a-fA-F\-]{8,40}))?")
_GPU_ADDRESS = re.compile(r"\bGPU ((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_THE_GPU = re.compile(r"The NVIDIA GPU ((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_NVRM_FAULTS: tuple[tuple[re.Pattern[str], str, EventSeverity], ...] = (
    (re.compile(r"fallen off the bus"), "nvrm:off_bus", EventSeverity.CRITICAL),
    (
        re.compile(r"GSP RPC timeout|rpcRecvPoll timedout|Rate limiting GSP RPC"),
        "nvrm:gsp_timeout",
        EventSeverity.ERROR,
    ),
    (re.compile(r"RmInitAdapter failed|rm_init_adapter failed"), "nvrm:init_failed", EventSeverity.CRITICAL),
    (re.compile(r"Reset required|NV_ERR_RESET_REQUIRED"), "nvrm:reset_required", EventSeverity.ERROR),
)
_PEERMEM = re.compile(r"nvidia-peermem.{0,80}(ERROR|invalid context|failed)")


class NvidiaMatcher:
    """Reads NVRM, nvidia-nvswitch, fabric manager and nvidia-peermem messages."""

    TRIGGER = r"NVRM|SXid|NVSwitch|fabric manager|nvidia-peermem|GPU handle"

    def __init__(self) -> None:
        self._switch_event: KernelEvent | None = None
        self._named_address: str | None = None

    def match(self, message: str, state: KernelState) -> KernelEvent | bool | None:
        """Return the event of one line."""
        if "Xid" in message and "SXid" not in message and "NVRM" in message:
            return self._xid(message, state)
        if "SXid" in message:
            return self._sxid(message, state)
        if "NVSwitch" in message or "abric" in message or "GPU handle" in message:
            return _fabric(message)
        if "nvidia-peermem" in message:
            if _PEERMEM.search(message):
                return KernelEvent("peermem:error", EventSeverity.WARNING, words(message))
            return None
        return self._nvrm(message, state)

    def _nvrm(self, message: str, state: KernelState) -> KernelEvent | None:
        event = _nvrm(message, state)
        lost = event is not None and event.code == "nvrm:off_bus" and "pci_bus_id" not in event.attrs
        if event is not None and lost and self._named_address is not None:
            # One sentence over three lines; the first names the device.
            event.attrs["pci_bus_id"] = self._named_address
            event.device = state.device_of.get(self._named_address)
        # "(PCI ID: 10de:2330) installed in this system has" is the line between.
        if "installed in this system has" not in message:
            named = first_group(_THE_GPU, message)
            self._named_address = named.lower() if named else None
        return event

    def _xid(self, message: str, state: KernelState) -> KernelEvent | None:
        found = _XID.search(message)
        place = _PCI.match(found[1].strip()) if found else None
        if found is None or place is None:
            state.rejected = "names an Xid without a valid device address or code"
            return None
        number, rest = int(found[2]), found[3]
        pci = place[1].lower()
        code = xid(number)
        attrs = {"xid": str(number), "pci_bus_id": pci, "kind": code.kind, "meaning": code.name}
        event = KernelEvent(f"xid:{number}", code.severity, words(message[found.start() :]), attrs)
        mig = first_group(_MIG, place[2])
        if mig is not None:
            attrs["mig_gpu_instance"] = mig
        for name, pattern in (("pid", _PID), ("process", _NAME), ("channel", _CHANNEL), ("caused_by_xid", _CAUSE)):
            value = first_group(pattern, rest)
            if value is not None:
                attrs[name] = value
        _details(number, rest, event)
        gpu = first_group(_GSP, rest)
        if gpu is not None:
            state.learn_device(pci, int(gpu))
        event.device = state.device_of.get(pci)
        if pci in state.uuid_of:
            attrs["uuid"] = state.uuid_of[pci]
        return event

    def _sxid(self, message: str, state: KernelState) -> KernelEvent | bool | None:
        found = _SXID.search(message)
        if found is None:
            state.rejected = "names an SXid without a valid device address or code"
            return None
        switch, pci, number, word, link, rest = found.groups()
        last = self._switch_event
        if (
            word is None
            and last is not None
            and last.attrs.get("sxid") == number
            and ("Severity" in rest or "Data" in rest)
        ):
            last.attrs["detail"] = words(f"{last.attrs.get('detail', '')} {rest}")
            return True
        fatal = None if word is None else word.lower() == "fatal"
        code = sxid(int(number), fatal)
        attrs = {"sxid": number, "pci_bus_id": pci.lower(), "nvswitch": switch, "kind": code.kind, "meaning": code.name}
        if fatal is not None:
            attrs["fatal"] = str(fatal).lower()
        if link is not None:
            attrs["link"] = str(int(link))
        self._switch_event = KernelEvent(f"sxid:{number}", code.severity, words(message[found.start() :]), attrs)
        return self._switch_event


def _details(number: int, rest: str, event: KernelEvent) -> None:
    attrs = event.attrs
    if number == 154 and (change := _RECOVERY.search(rest)):
        old, new = int(change[1], 16), int(change[3], 16)
        attrs["recovery_from"] = change[2] or RECOVERY_ACTIONS.get(old, (str(old), ""))[0]
        attrs["recovery_to"] = change[4] or RECOVERY_ACTIONS.get(new, (str(new), ""))[0]
        attrs["action"] = recovery_action(new)
        event.severity = EventSeverity.INFO if new == 0 else EventSeverity.CRITICAL
    if registers := _NVLINK4.search(rest):
        attrs["link"] = registers[1]
        values = [value.strip() for value in registers[2].split(",") if value.strip()]
        attrs["registers"] = ",".join(values)
        attrs.update({f"reg[{index}]": value for index, value in enumerate(values) if int(value, 16)})
    if 144 <= number <= 150 and (part := _NVLINK5.search(rest)):
        fatal = part[2].lower() == "fatal"
        attrs.update(subcode=part[1], link=part[3], fatal=str(fatal).lower())
        event.severity = EventSeverity.CRITICAL if fatal else EventSeverity.WARNING
    if unit := _CONTAINED.search(rest):
        attrs["unit"] = unit[2].strip()
    for name, pattern in (("reset_required", _RESET), ("drain_required", _DRAIN)):
        value = first_group(pattern, rest)
        if value is not None:
            attrs[name] = value.lower()


def _fabric(message: str) -> KernelEvent | None:
    found = _FABRIC.search(message)
    if found:
        code = sxid(int(found[2]), found[1] == "fatal")
        attrs = {"sxid": found[2], "pci_bus_id": found[4].lower(), "fatal": str(found[1] == "fatal").lower(),
                 "kind": code.kind, "meaning": code.name}  # fmt: skip
        if found[5] is not None:
            attrs["nvswitch"] = found[5]
        if found[6] is not None:
            attrs["port"] = found[6]
        return KernelEvent(f"sxid:{found[2]}", code.severity, words(message), attrs)
    for text, name, severity in _FABRIC_FAULTS:
        if text in message:
            return KernelEvent(name, severity, words(message))
    return None


def _nvrm(message: str, state: KernelState) -> KernelEvent | None:
    at = _AT_PCI.search(message)
    if at and at[2] and len(state.uuid_of) < 4096:
        state.uuid_of[at[1].lower()] = at[2]
    for pattern, name, severity in _NVRM_FAULTS:
        if pattern.search(message):
            address = (at[1] if at else None) or first_group(_GPU_ADDRESS, message)
            attrs = {"pci_bus_id": address.lower()} if address else {}
            device = state.device_of.get(attrs.get("pci_bus_id", ""))
            return KernelEvent(name, severity, words(message), attrs, device)
    return None
