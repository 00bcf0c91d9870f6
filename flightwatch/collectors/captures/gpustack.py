"""JSON of generic device detectors: GPUStack's `detect` and `topology`, gpustat, and lists of that kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, json_documents, make_row, read_document, to_int
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    EVENT_COLUMNS,
    IDENTITY,
    INVENTORY_COLUMNS,
    LINK_COLUMNS,
    Device,
    stated_time,
)
from flightwatch.collectors.captures.quantities import NOT_SUPPORTED, text_or_none
from flightwatch.core.protocols import CaptureContext, Note, Row, Value

#: Column to the keys detectors use, and the unit of a bare number.
_KEYS: dict[str, tuple[tuple[str, ...], str]] = {
    "temp_c": (("temperature", "temperature.gpu", "temp", "temperature_c"), ""),
    "power_w": (("power_used", "power.draw", "power_draw", "power_usage"), ""),
    "power_limit_w": (("power", "enforced.power.limit", "power_cap", "power_limit"), ""),
    "util_pct": (("cores_utilization", "utilization.gpu", "utilization", "gpu_util"), ""),
    "mem_used_bytes": (("memory_used", "memory.used"), "MiB"),
    "mem_total_bytes": (("memory", "memory.total", "memory_total"), "MiB"),
    "fan_pct": (("fan.speed", "fan_speed"), ""),
}
#: Devices of one node a topology may name.
_DEVICES_LIMIT = 512
_VENDORS = {
    "nvidia": "nvidia", "amd": "amd", "ascend": "ascend", "huawei": "ascend", "mthreads": "mthreads",
    "moore_threads": "mthreads", "metax": "metax", "cambricon": "cambricon", "iluvatar": "iluvatar", "hygon": "hygon",
    "intel": "intel",
}  # fmt: skip


class DetectorJson:
    """Reads a list of device objects (alone, or as `devices` or `gpus` of an object).

    A value of null is unknown: a detector that does not know the power cap prints null, not 0.
    """

    name = "detector-json"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (*IDENTITY, *_KEYS, "quality", "extra"),
        "config_facts": CONFIG_COLUMNS,
        "events": EVENT_COLUMNS,
        "inventory": INVENTORY_COLUMNS,
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "power_limit_w": "null where the detector cannot read the cap",
        "hotspot_c": "detectors print one temperature",
    }

    def recognise(self, head: bytes) -> bool:
        """Recognise device objects with an index and a name, of a named manufacturer or a gpustat list."""
        text = head_text(head)
        listed = re.match(r'\s*(?:\[|\{[^{]{0,4000}"(?:gpus|devices)"\s*:\s*\[)\s*\{', text) is not None
        named = '"manufacturer"' in text or '"temperature.gpu"' in text or '"vendor"' in text
        return listed and named and '"index"' in text and '"name"' in text

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per device."""
        text, notes = read_document(stream)
        yield from notes
        for _, document, error in json_documents(text):
            if error is not None:
                yield error
                continue
            ts = None
            if isinstance(document, dict):
                ts = stated_time(str(document.get("query_time", "")))
                document = document.get("gpus", document.get("devices"))
            if not isinstance(document, list):
                yield Note("error", "", "the document holds no list of devices")
                continue
            for place, item in enumerate(document):
                if isinstance(item, dict):
                    yield from self._device(item, place, context).rows(ts)
                else:
                    yield Note("warning", f"item {place}", "not a device object; skipped")

    def _device(self, item: Mapping[str, Any], place: int, context: CaptureContext) -> Device:
        maker = str(item.get("manufacturer") or item.get("vendor") or "")
        vendor = _VENDORS.get(maker.lower(), maker.lower() or ("nvidia" if "temperature.gpu" in item else "unknown"))
        device = Device(self.CARRIES, context, vendor, f"item {place}")
        index = item.get("index")
        device.put("device", index if isinstance(index, int) and not isinstance(index, bool) else None)
        for column, key in (("model", "name"), ("uuid", "uuid"), ("serial", "serial")):
            device.put(column, text_or_none(item[key]) if isinstance(item.get(key), str) else None)
        for column, (keys, unit) in _KEYS.items():
            present = [key for key in keys if key in item]
            value = item[present[0]] if present else None
            if present and value is None:
                device.unknown(column, NOT_SUPPORTED)
            elif isinstance(value, bool) or not isinstance(value, (int, float, str)):
                device.set(column, None)
            else:
                device.set(column, str(value), unit)
        for key, fact in (("driver_version", "driver"), ("runtime_version_original", "runtime"),
                          ("compute_capability", "compute_capability")):  # fmt: skip
            device.config(fact, text_or_none(item[key]) if isinstance(item.get(key), str) else None)
        self._status(device, item)
        return device

    def _status(self, device: Device, item: Mapping[str, Any]) -> None:
        status = item.get("memory_status")
        if (
            isinstance(status, str)
            and text_or_none(status)
            and status.lower() not in ("healthy", "ok", "good", "unknown")
        ):
            device.event("memory:status", "warning", f"the detector reports the memory as {status}", {"status": status})
        more = item.get("appendix")
        attrs = {"uuid": str(item.get("uuid") or "")}
        if isinstance(more, dict):
            attrs["pci_bus_id"] = str(more.get("bdf") or "")
            attrs["numa_node"] = str(more.get("numa") or "")
        device.inventory(attrs)


#: GPUStack's distance of two devices joined by the vendor's own link (NVLink, XGMI, HCCS, MTLink).
_OWN_LINK = 5


class DetectorTopologyJson:
    """Reads GPUStack's `topology`: a matrix of distances; devices at the smallest distance form a group."""

    name = "detector-topology-json"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "inventory": INVENTORY_COLUMNS,
        "links": LINK_COLUMNS,
        "config_facts": CONFIG_COLUMNS,
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"inventory.model": "a topology names no models"}

    def recognise(self, head: bytes) -> bool:
        """Recognise the matrix."""
        return '"devices_distances"' in head_text(head)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one inventory row per device with its group, and the links inside groups."""
        text, notes = read_document(stream)
        yield from notes
        for _, document, error in json_documents(text):
            if error is not None:
                yield error
                continue
            for item in document if isinstance(document, list) else [document]:
                if isinstance(item, dict):
                    yield from self._topology(item, context)

    def _topology(self, item: Mapping[str, Any], context: CaptureContext) -> Iterator[Row | Note]:
        matrix = item.get("devices_distances")
        if not isinstance(matrix, list) or not all(isinstance(row, list) and len(row) == len(matrix) for row in matrix):
            yield Note("error", "devices_distances", "the matrix of distances is not square")
            return
        if len(matrix) > _DEVICES_LIMIT:
            yield Note("error", "devices_distances", f"more than {_DEVICES_LIMIT} devices; not read")
            return
        near, groups = groups_at_smallest_distance(matrix)
        distance = min((int(matrix[left][right]) for left, right in near), default=None)
        # GPUStack's scale: 5 is the vendor's own link, PCIe paths begin at 10.
        kind = "scale_up" if distance == _OWN_LINK else "pcie"
        numa = item.get("devices_numa_affinities")
        for index, group in enumerate(groups):
            attrs = {"vendor": str(item.get("manufacturer", "")), "topology_group": str(group)}
            values: dict[str, Value] = {"device": index, "scale_up_domain": f"group{group}", "attrs": attrs}
            yield make_row("inventory", self.CARRIES, context, values)
            if isinstance(numa, list) and index < len(numa) and isinstance(numa[index], str):
                fact: dict[str, Value] = {"device": index, "name": "numa_node", "value": numa[index]}
                yield make_row("config_facts", self.CARRIES, context, fact)
        for left, right in near:
            ends = {"from_target": f"gpu{left}", "to_target": f"gpu{right}", "kind": kind}
            yield make_row("links", self.CARRIES, context, ends)
        yield Note("info", "", f"{len(groups)} devices in {len(set(groups))} groups by their smallest distance")


def groups_at_smallest_distance(matrix: Sequence[Sequence[Any]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Group devices that are connected by pairs at the smallest distance above 0.

    Returns the pairs (i < j) at that distance and the group number of every device, counted from 0 in order
    of the first member.
    """
    size = len(matrix)
    cells = {(i, j): to_int(str(matrix[i][j])) for i in range(size) for j in range(i + 1, size)}
    smallest = min((value for value in cells.values() if value is not None and value > 0), default=None)
    near = [pair for pair, value in cells.items() if smallest is not None and value == smallest]
    root = list(range(size))

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for left, right in near:
        first, second = sorted((find(left), find(right)))
        root[second] = first
    order: dict[int, int] = {}
    return near, [order.setdefault(find(node), len(order)) for node in range(size)]
