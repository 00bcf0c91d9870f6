"""NCCL topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): which adapter is near which accelerator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from flightwatch.collectors.captures.base import DEPTH_LIMIT, head_text, make_row, read_document, to_int
from flightwatch.core.protocols import CaptureContext, Note, Row

_NEAR = "pcie"


@dataclass
class Machine:
    """What a topology file says about one machine."""

    devices: list[dict[str, str]] = field(default_factory=list)
    adapters: list[dict[str, str]] = field(default_factory=list)
    nvlinks: list[tuple[int, str]] = field(default_factory=list)


class NcclTopoParser:
    """Reads system files with or without the `gpu` and `net` elements that NCCL adds when it dumps one."""

    name: ClassVar[str] = "nccl-topo"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "inventory": ("device", "hca", "port", "scale_up_domain", "attrs"),
        "links": ("from_target", "to_target", "kind"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "inventory.hca": "the file lists adapters by PCI address only; they are numbered in attrs.nic",
        "inventory.scale_up_domain": "NVLink switches stand in the file without a name",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head is a `system` element with cpu or pci children."""
        text = head_text(head)
        return bool(re.search(r"<system\b", text)) and bool(re.search(r"<(?:cpu|pci)\b", text))

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one inventory row a device and adapter, links device to adapter below the same PCI switch."""
        text, notes = read_document(stream)
        yield from notes
        machine = Machine()
        yield from _walk(text, machine)
        if not machine.devices and not machine.adapters:
            yield Note("error", "", "the file lists no accelerator and no network adapter")
        yield from self._rows(machine, context)

    def _rows(self, machine: Machine, context: CaptureContext) -> Iterator[Row]:
        prefix = f"{context.node}/" if context.node else ""
        for index, device in enumerate(machine.devices):
            near = [nic["nic"] for nic in machine.adapters if nic["pci_switch"] == device["pci_switch"] != ""]
            attrs = {key: value for key, value in device.items() if value}
            if near:
                attrs["near_nic"] = ",".join(near)
            number = to_int(device.get("dev", ""))
            yield make_row(
                "inventory",
                self.CARRIES,
                context,
                {"device": index if number is None or not 0 <= number < 65536 else number, "attrs": attrs},
            )
            for nic in near:
                yield self._link(f"{prefix}gpu{index}", f"{prefix}{nic}", _NEAR, context)
        for adapter in machine.adapters:
            attrs = {key: value for key, value in adapter.items() if value and key != "name"}
            port = to_int(adapter.get("port", ""))
            yield make_row("inventory", self.CARRIES, context,
                           {"hca": adapter.get("name") or None, "port": port, "attrs": attrs})  # fmt: skip
        for index, target in machine.nvlinks:
            peer = next((i for i, device in enumerate(machine.devices) if device["pci_bus_id"] == target), None)
            if peer is None or peer > index:
                name = f"nvswitch {target}" if peer is None else f"gpu{peer}"
                yield self._link(f"{prefix}gpu{index}", f"{prefix}{name}", "nvlink", context)

    def _link(self, low: str, high: str, kind: str, context: CaptureContext) -> Row:
        return make_row("links", self.CARRIES, context, {"from_target": low, "to_target": high, "kind": kind})


def _walk(text: str, machine: Machine) -> Iterator[Note]:
    """Read the elements in order, keeping what came before damage; entities are refused."""
    if "<!ENTITY" in text or "<!DOCTYPE" in text:
        yield Note("error", "", "a document type or entities do not belong in a topology file")
        return
    parser: Any = XMLPullParser(("start", "end"))
    path: list[Element] = []
    try:
        parser.feed(text)
        parser.close()
        error = ""
    except ParseError as problem:
        error = str(problem)
    except ValueError as problem:
        error = str(problem)
    try:
        for event, element in parser.read_events():
            if event == "end":
                path.pop()
                continue
            path.append(element)
            if len(path) > DEPTH_LIMIT:
                yield Note("error", "", f"elements nested deeper than {DEPTH_LIMIT} levels")
                return
            _take(element, path, machine)
    except ParseError as problem:
        error = str(problem)
    if error:
        yield Note("error", error.rpartition(": ")[2], f"not valid XML: {error.partition(':')[0]}")


def _take(element: Element, path: list[Element], machine: Machine) -> None:
    bridges = [item for item in path[:-1] if item.tag == "pci"]
    numa = next((item.get("numaid", "") for item in path if item.tag == "cpu"), "")
    if element.tag == "pci":
        kind = element.get("class", "")
        about = {"pci_bus_id": element.get("busid", ""), "numa": numa,
                 "pci_switch": bridges[-1].get("busid", "") if bridges else ""}  # fmt: skip
        if kind.startswith(("0x0302", "0x0300", "0x0380", "0x1200")):
            machine.devices.append(about)
        elif kind.startswith(("0x0207", "0x0200")):
            machine.adapters.append({**about, "nic": f"nic{len(machine.adapters)}"})
    elif element.tag == "gpu" and machine.devices:
        machine.devices[-1].update({key: element.get(key, "") for key in ("dev", "rank", "sm") if element.get(key)})
    elif element.tag == "net" and machine.adapters:
        adapter = machine.adapters[-1]
        adapter.update({key: element.get(key, "") for key in ("name", "speed", "port", "guid") if element.get(key)})
        adapter["nic"] = element.get("name") or adapter["nic"]
    elif element.tag in ("nvlink", "xgmi") and machine.devices:
        machine.nvlinks.append((len(machine.devices) - 1, element.get("target", "")))
