"""One Moore Threads device read through MTML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flightwatch.collectors.captures.box_reports import BOX_COLUMNS
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    INVENTORY_COLUMNS,
    SENSOR_COLUMNS,
    Device,
    total,
)
from flightwatch.collectors.captures.quantities import NOT_SUPPORTED, scaled
from flightwatch.core.protocols import CaptureContext, Note, Row

#: What MTML tells, table by table.
MTML_CARRIES = {
    "device_samples": (
        *BOX_COLUMNS, "uuid", "serial", "mem_util_pct", "pcie_gen", "ecc_corrected_lifetime_total",
        "ecc_uncorrected_lifetime_total", "retired_pages_total",
    ),
    "sensor_samples": SENSOR_COLUMNS,
    "config_facts": CONFIG_COLUMNS,
    "inventory": INVENTORY_COLUMNS,
}  # fmt: skip
_MAX_LINKS = 64
_LINK_STATES = {0: "down", 1: "up", 2: "downgraded"}


class MthreadsDevice:
    """One device.

    Parameters
    ----------
    library: the pymtml module, started.
    index: place of the device in the library's list.
    handle, memory: the library's handles of the device and its memory.
    """

    def __init__(self, library: Any, index: int, handle: Any, memory: Any) -> None:
        self._library = library
        self._index = index
        self._handle = handle
        self._memory = memory

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the library; None where it says that it does not know."""
        try:
            return function(*arguments)
        except self._library.MTMLError:
            return None

    def rows(self, now_ms: int) -> Iterator[Row | Note]:
        """Read the device once."""
        library = self._library
        device = Device(MTML_CARRIES, CaptureContext("mtml", now_ms), "mthreads", f"gpu {self._index}")
        device.put("device", self._index)
        for column, function in (("model", library.mtmlDeviceGetName), ("uuid", library.mtmlDeviceGetUUID),
                                 ("serial", library.mtmlDeviceGetSerialNumber)):  # fmt: skip
            device.put(column, _words(self._ask(function, self._handle)))
        for column, function, factor in (
            ("temp_c", library.mtmlGpuGetTemperature, 1), ("power_w", library.mtmlDeviceGetPowerUsage, 1e-3),
            ("util_pct", library.mtmlGpuGetUtilization, 1), ("mem_util_pct", library.mtmlMemoryGetUtilization, 1),
            ("sm_clock_mhz", library.mtmlGpuGetClock, 1), ("mem_clock_mhz", library.mtmlMemoryGetClock, 1),
            ("mem_used_bytes", library.mtmlMemoryGetUsed, 1), ("mem_total_bytes", library.mtmlMemoryGetTotal, 1),
        ):  # fmt: skip
            value = self._ask(function, self._memory if column.endswith("_bytes") else self._handle)
            if value is None:
                device.unknown(column, NOT_SUPPORTED)
            else:
                device.put(column, scaled(value, factor))
        self._pcie(device)
        self._ecc(device)
        self._links(device)
        return device.rows(now_ms, zoned=True)

    def _pcie(self, device: Device) -> None:
        library = self._library
        info = self._ask(library.mtmlDeviceGetPciInfo, self._handle)
        if info is not None:
            device.put("pcie_gen", info.pciCurGen)
            device.put("pcie_width", info.pciCurWidth)
            device.inventory({"pci_bus_id": _words(info.busId) or ""})

    def _ecc(self, device: Device) -> None:
        library = self._library
        mode = self._ask(library.mtmlMemoryGetEccMode, self._memory)
        if mode is None:
            device.unknown("ecc_mode", NOT_SUPPORTED)
        else:
            device.put("ecc_mode", "enabled" if mode[0] == library.MTML_MEMORY_ECC_ENABLE else "disabled")
        place = library.MTML_MEMORY_LOCATION_DRAM
        kinds = {"corrected": library.MTML_MEMORY_ERROR_TYPE_CORRECTED,
                 "uncorrected": library.MTML_MEMORY_ERROR_TYPE_UNCORRECTED}  # fmt: skip
        for suffix, counter in (("_total", library.MTML_VOLATILE_ECC), ("_lifetime_total", library.MTML_AGGREGATE_ECC)):
            for word, kind in kinds.items():
                value = self._ask(library.mtmlMemoryGetEccErrorCounter, self._memory, kind, counter, place)
                device.put(f"ecc_{word}{suffix}", value)
        pages = self._ask(library.mtmlMemoryGetRetiredPagesCount, self._memory)
        if pages is not None:
            device.put("retired_pages_total", total((pages.singleBitEcc, pages.doubleBitEcc)))

    def _links(self, device: Device) -> None:
        library = self._library
        spec = self._ask(library.mtmlDeviceGetMtLinkSpec, self._handle)
        for number in range(min(spec.linkNum, _MAX_LINKS) if spec is not None else 0):
            state = self._ask(library.mtmlDeviceGetMtLinkState, self._handle, number)
            if state is not None:
                up = 1.0 if state == library.MTML_MTLINK_STATE_UP else 0.0
                device.sensor("mtlink", str(number), "state", "", up, status=_LINK_STATES.get(state, str(state)))


def _words(value: Any) -> str | None:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) if value is not None else ""
    return text.strip("\0 ") or None
