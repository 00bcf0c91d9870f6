"""Eight devices behind the calls of pynvml, and the collector that reads them.

Every call does what the binding does around the driver (ctypes values, one foreign function call), so that
its cost is in the measurement. The driver's own time is not: it needs the hardware.
"""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import pynvml

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.nvml import NvmlCollector
from flightwatch.collectors.nvml_device import Library

DEVICES, LINKS = 8, 18
_FOREIGN = ctypes.CDLL(None).abs
_ANSWERS: dict[str, Any] = {
    "Name": "NVIDIA H200", "Serial": "1650000000000", "Temperature": 52, "MarginTemperature": 35, "ClockInfo": 1980,
    "UtilizationRates": SimpleNamespace(gpu=100, memory=40), "CurrentClocksEventReasons": 4, "EccMode": [1, 1],
    "MemoryInfo": SimpleNamespace(used=100 << 30, total=141 << 30), "EnforcedPowerLimit": 700_000, "MigMode": [0, 0],
    "PowerManagementLimit": 700_000, "CurrPcieLinkGeneration": 5, "CurrPcieLinkWidth": 16, "VbiosVersion": "96.00",
    "PersistenceMode": 1,
}  # fmt: skip


class Devices:
    """Stands where the pynvml module stands."""

    NVMLError = pynvml.NVMLError

    def __init__(self) -> None:
        self._filled: dict[int, bytes] = {}

    def nvmlInit(self) -> None:  # noqa: N802
        """Start."""

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Stop."""

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "590.48.01"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return DEVICES

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        if link >= LINKS:
            raise self.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(_FOREIGN(1))

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, counter: int) -> int:  # noqa: N802
        return int(_FOREIGN(0))

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle:08d}-0000-0000-0000-000000000000"

    def field_values(self, handle: int, count: int, buffer: Any) -> int:
        """Fill the buffer as the C function does: the driver's part is one copy here."""
        if count not in self._filled:
            filled = bytearray(buffer.raw)
            for place in range(count):
                field, scope = struct.unpack_from("=II", filled, 40 * place)
                struct.pack_into("=IIqqIIQ", filled, 40 * place, field, scope, 0, 0, 3, 0, 1000 * field)
            self._filled[count] = bytes(filled)
        ctypes.memmove(buffer, self._filled[count], 40 * count)
        return 0

    def __getattr__(self, name: str) -> Any:
        what = name.removeprefix("nvmlDeviceGet")
        if what == name:
            raise AttributeError(name)

        def ask(*arguments: Any) -> Any:
            answer = ctypes.c_uint()
            _FOREIGN(ctypes.byref(answer) and 5)
            if what not in _ANSWERS:
                raise self.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return _ANSWERS[what]

        setattr(self, name, ask)
        return ask


def devices() -> Library:
    """Return the eight devices as NVML."""
    stand_in = Devices()
    return Library(stand_in, stand_in.field_values)


class DevicesCollector(NvmlCollector):
    """NVML's collector over the eight devices; announced through an entry point."""

    name = "eight-devices"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment, load=devices)
