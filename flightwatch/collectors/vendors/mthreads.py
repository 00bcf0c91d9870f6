"""Moore Threads devices: mthreads-ml-py (module `pymtml`) where it is installed, else mthreads-gmi.

The distribution is called mthreads-ml-py. A distribution that is *named* pymtml is a stranger's.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from flightwatch.collectors.captures.box_reports import BOX_COLUMNS
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    INVENTORY_COLUMNS,
    SENSOR_COLUMNS,
    Device,
    total,
)
from flightwatch.collectors.captures.quantities import NOT_SUPPORTED, scaled
from flightwatch.collectors.environment import Environment
from flightwatch.collectors.vendors.library import LibraryCollector
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import CaptureContext, Note, Row

_CARRIES = {
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


def load_mtml() -> Any:
    """Return the module of mthreads-ml-py. Raises NoData when it is absent or not Moore Threads' own."""
    absent = NoData("the Python package mthreads-ml-py is not installed (pip install 'flightwatch[mthreads]')")
    # Asking for the distribution costs 1.4 MB, so the module is looked for first.
    if importlib.util.find_spec("pymtml") is None:
        raise absent
    try:
        from importlib.metadata import PackageNotFoundError, version

        version("mthreads-ml-py")
        return importlib.import_module("pymtml")
    except (ImportError, PackageNotFoundError) as error:
        raise absent from error


class MthreadsCollector(LibraryCollector):
    """All Moore Threads devices through MTML, else `mthreads-gmi`."""

    name = "mthreads"
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = ((("mthreads-gmi",), "mthreads:MthreadsGmi"),)

    def __init__(
        self,
        environment: Environment,
        load: Callable[[], Any] = load_mtml,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(environment, load, monotonic_s)
        self._devices: list[tuple[Any, Any]] = []

    def start(self, library: Any) -> None:
        """Start MTML and open the devices."""
        try:
            library.mtmlLibraryInit()
            devices = [library.mtmlLibraryInitDeviceByIndex(i) for i in range(library.mtmlLibraryCountDevice())]
            self._devices = [(device, library.mtmlDeviceInitMemory(device)) for device in devices]
        except library.MTMLError as error:
            raise NoData(f"MTML does not start: {error}") from error
        except OSError as error:
            raise NoData(f"MTML's driver library is absent: {error}") from error
        if not self._devices:
            self.stop(library)
            raise NoData("MTML finds no device")

    def stop(self, library: Any) -> None:
        """Let go of MTML."""
        self._ask(library, library.mtmlLibraryShutDown)

    def read(self, library: Any, now_ms: int) -> Iterator[Row | Note]:
        """Yield the rows of every device."""
        for index, (device, memory) in enumerate(self._devices):
            yield from self._device(library, index, device, memory, now_ms)

    def _ask(self, library: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the library; None where it says that it does not know."""
        try:
            return function(*arguments)
        except library.MTMLError:
            return None

    def _device(self, library: Any, index: int, handle: Any, memory: Any, now_ms: int) -> Iterator[Row | Note]:
        device = Device(_CARRIES, CaptureContext("mtml", now_ms), "mthreads", f"gpu {index}")
        device.put("device", index)
        for column, function in (("model", library.mtmlDeviceGetName), ("uuid", library.mtmlDeviceGetUUID),
                                 ("serial", library.mtmlDeviceGetSerialNumber)):  # fmt: skip
            device.put(column, _words(self._ask(library, function, handle)))
        for column, function, factor in (
            ("temp_c", library.mtmlGpuGetTemperature, 1), ("power_w", library.mtmlDeviceGetPowerUsage, 1e-3),
            ("util_pct", library.mtmlGpuGetUtilization, 1), ("mem_util_pct", library.mtmlMemoryGetUtilization, 1),
            ("sm_clock_mhz", library.mtmlGpuGetClock, 1), ("mem_clock_mhz", library.mtmlMemoryGetClock, 1),
            ("mem_used_bytes", library.mtmlMemoryGetUsed, 1), ("mem_total_bytes", library.mtmlMemoryGetTotal, 1),
        ):  # fmt: skip
            value = self._ask(library, function, memory if column.endswith("_bytes") else handle)
            if value is None:
                device.unknown(column, NOT_SUPPORTED)
            else:
                device.put(column, scaled(value, factor))
        self._pcie(library, device, handle)
        self._ecc(library, device, memory)
        self._links(library, device, handle)
        return device.rows(now_ms, zoned=True)

    def _pcie(self, library: Any, device: Device, handle: Any) -> None:
        info = self._ask(library, library.mtmlDeviceGetPciInfo, handle)
        if info is not None:
            device.put("pcie_gen", info.pciCurGen)
            device.put("pcie_width", info.pciCurWidth)
            device.inventory({"pci_bus_id": _words(info.busId) or ""})

    def _ecc(self, library: Any, device: Device, memory: Any) -> None:
        mode = self._ask(library, library.mtmlMemoryGetEccMode, memory)
        if mode is None:
            device.unknown("ecc_mode", NOT_SUPPORTED)
        else:
            device.put("ecc_mode", "enabled" if mode[0] == library.MTML_MEMORY_ECC_ENABLE else "disabled")
        place = library.MTML_MEMORY_LOCATION_DRAM
        kinds = {"corrected": library.MTML_MEMORY_ERROR_TYPE_CORRECTED,
                 "uncorrected": library.MTML_MEMORY_ERROR_TYPE_UNCORRECTED}  # fmt: skip
        for suffix, counter in (("_total", library.MTML_VOLATILE_ECC), ("_lifetime_total", library.MTML_AGGREGATE_ECC)):
            for word, kind in kinds.items():
                value = self._ask(library, library.mtmlMemoryGetEccErrorCounter, memory, kind, counter, place)
                device.put(f"ecc_{word}{suffix}", value)
        pages = self._ask(library, library.mtmlMemoryGetRetiredPagesCount, memory)
        if pages is not None:
            device.put("retired_pages_total", total((pages.singleBitEcc, pages.doubleBitEcc)))

    def _links(self, library: Any, device: Device, handle: Any) -> None:
        spec = self._ask(library, library.mtmlDeviceGetMtLinkSpec, handle)
        for number in range(min(spec.linkNum, _MAX_LINKS) if spec is not None else 0):
            state = self._ask(library, library.mtmlDeviceGetMtLinkState, handle, number)
            if state is not None:
                up = 1.0 if state == library.MTML_MTLINK_STATE_UP else 0.0
                device.sensor("mtlink", str(number), "state", "", up, status=_LINK_STATES.get(state, str(state)))


def _words(value: Any) -> str | None:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) if value is not None else ""
    return text.strip("\0 ") or None
