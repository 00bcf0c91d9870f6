"""NVIDIA devices through NVML: `device_samples` (devices and MIG children), links as `sensor_samples`.

The library is loaded only where it is installed, and the nvidia-ml-py module (3 MB) only then.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.nvml_device import DeviceLost, Fields, Library, NvmlDevice, words
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import Row, Value

#: Seconds between two looks for devices that came or went.
REFRESH_SECONDS = 60.0
_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED = 12, 9
_MAX_LINKS = 36
#: Throughput fields of NVML (KiB, scope = link): id, quantity.
_LINK_BYTES = ((138, "tx_bytes"), (139, "rx_bytes"))
#: Error counters of NVML per link: number, quantity, unit.
_LINK_ERRORS = ((2, "crc_errors", "errors"), (0, "replays", "replays"))


def load_nvml() -> Library:
    """Return NVML. Raises NoData when the driver's library or the Python package is absent."""
    try:
        # The same library that pynvml opens: its start and its handles are shared.
        field_values = ctypes.CDLL("libnvidia-ml.so.1").nvmlDeviceGetFieldValues
    except (OSError, AttributeError) as error:
        raise NoData("no NVIDIA driver library (libnvidia-ml.so.1)") from error
    try:
        import pynvml
    except ImportError as error:
        raise NoData("the Python package nvidia-ml-py is not installed (pip install 'flightwatch[nvidia]')") from error
    return Library(pynvml, field_values)


class NvmlCollector:
    """All NVIDIA devices of this machine.

    Parameters
    ----------
    load: returns NVML; injected in tests and measurements.
    """

    name = "nvml"

    def __init__(
        self,
        environment: Environment,
        load: Callable[[], Library] = load_nvml,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval_seconds = environment.settings.library_interval_seconds
        self._environment = environment
        self._link_interval_s = environment.settings.link_interval_seconds
        self._load = load
        self._monotonic_s = monotonic_s
        self._library: Library | None = None
        self._devices: list[NvmlDevice] = []
        self._found_at = float("-inf")
        self._links_at: float | None = None
        self._links_of = -1

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read every device once.

        Raises
        ------
        NoData: no library, no driver, no device, or a recorded tree.
        TransientError: NVML fails as a whole; it is started again at the next call.
        """
        if not self._environment.live and self._load is load_nvml:
            raise NoData("a recorded tree has no NVML")
        now_s = self._monotonic_s()
        library = self._open()
        nvml = library.module
        try:
            if now_s - self._found_at >= REFRESH_SECONDS:
                self._find(library, now_s)
        except nvml.NVMLError as error:
            self.close()
            raise TransientError(f"NVML: {error}") from error
        if not self._devices:
            raise NoData("NVML finds no device")
        rows = [row for device in self._devices for row in self._read(nvml, device, now_ms)]
        if all(device.lost for device in self._devices):
            # One sick device is its own fault; all of them at once is the driver's: start again.
            self._found_at = float("-inf")
        rows.extend(self._next_links(library, now_s, now_ms))
        return rows

    def _next_links(self, library: Library, now_s: float, now_ms: int) -> Iterator[Row]:
        """Yield the links of devices whose turn it is: spread over the interval, so that no second has them all."""
        everyone = len(self._devices)
        share_s = self._link_interval_s / everyone
        if self._link_interval_s < self.interval_seconds:
            turns = everyone
        elif self._links_at is None:
            turns = 1
        else:
            turns = min(everyone, int((now_s - self._links_at) / share_s))
        for _ in range(turns):
            self._links_of = (self._links_of + 1) % len(self._devices)
            yield from link_rows(library, self._devices[self._links_of], now_ms)
        if turns:
            self._links_at = now_s

    def close(self) -> None:
        """Let go of NVML; the next call starts it again."""
        library, self._library = self._library, None
        self._devices, self._found_at = [], float("-inf")
        self._environment.nvml_answers = False
        if library is not None:
            try:
                library.module.nvmlShutdown()
            except library.module.NVMLError:
                # The driver is already gone: there is nothing to let go of.
                return

    def _open(self) -> Library:
        if self._library is None:
            library = self._load()
            nvml = library.module
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                if getattr(error, "value", None) in (_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED):
                    raise NoData(f"NVML: {error}") from error
                raise TransientError(f"NVML does not start: {error}") from error
            self._library = library
            self._environment.nvml_answers = True
        return self._library

    def _find(self, library: Library, now_s: float) -> None:
        nvml = library.module
        known = {device.index: device for device in self._devices}
        devices: list[NvmlDevice] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            if index in known and not known[index].lost:
                devices.append(known[index])
                continue
            try:
                devices.append(NvmlDevice(library, index, nvml.nvmlDeviceGetHandleByIndex(index), self._monotonic_s))
            except (DeviceLost, nvml.NVMLError):
                # A device that does not even open keeps its old entry, so that its loss stays visible.
                if index in known:
                    devices.append(known[index])
        self._devices, self._found_at = devices, now_s
        facts: dict[tuple[int | None, str], str] = {}
        driver = words(nvml.nvmlSystemGetDriverVersion())
        if driver:
            facts[None, "driver.nvidia"] = driver
        for device in devices:
            try:
                facts.update(device.facts())
            except (DeviceLost, nvml.NVMLError):
                continue
        self._environment.facts.offer(self.name, facts)
        self._environment.devices.offer(self.name, {device.address: device.index for device in devices})

    def _read(self, nvml: Any, device: NvmlDevice, now_ms: int) -> Iterator[Row]:
        try:
            yield Row("device_samples", device.read(now_ms))
            yield from mig_rows(nvml, device, now_ms)
            device.lost = ""
        except (DeviceLost, nvml.NVMLError) as error:
            yield Row("device_samples", {**device.identity, "ts": now_ms, "quality": "partial"})
            if not device.lost:
                yield _lost_event(device, now_ms, error)
            device.lost = str(error)


def _lost_event(device: NvmlDevice, now_ms: int, error: Exception) -> Row:
    gone = isinstance(error, DeviceLost)
    return Row(
        "events",
        {
            "ts": now_ms,
            "device": device.index,
            "source": "agent",
            "code": "nvml:lost" if gone else "nvml:error",
            "severity": "critical" if gone else "error",
            "message": f"device {device.index}: {error}",
            "attrs": {"uuid": str(device.identity.get("uuid") or "")},
        },
    )


def mig_rows(nvml: Any, device: NvmlDevice, now_ms: int) -> Iterator[Row]:
    """Yield one row a MIG child: its memory; what NVML measures only for the whole device is NULL."""
    if not device.mig_enabled:
        return
    ask = device.questions.ask
    for number in range(ask("MaxMigDeviceCount", device.handle) or 0):
        try:
            child = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, number)
        except nvml.NVMLError:
            # Slots of the MIG table that hold no instance answer "not found".
            continue
        values: dict[str, Value] = {
            "ts": now_ms,
            "device": device.index,
            "parent_device": device.index,
            "mig_id": number,
            "vendor": "nvidia",
            "model": words(ask("Name", child)),
            "uuid": words(ask("UUID", child)),
        }
        memory = ask("MemoryInfo", child)
        if memory is not None:
            values["mem_used_bytes"], values["mem_total_bytes"] = memory.used, memory.total
        yield Row("device_samples", values)


def link_rows(library: Library, device: NvmlDevice, now_ms: int) -> list[Row]:
    """Return the NVLink rows of one device: state of each link, and its counters while it is active."""
    if device.lost:
        return []
    active: list[int] = []
    rows: list[Row] = []
    for link in range(_MAX_LINKS):
        try:
            is_active = library.module.nvmlDeviceGetNvLinkState(device.handle, link)
        except library.module.NVMLError:
            # Links are numbered without gaps: the first one refused is past the last.
            break
        rows.append(_link_row(device, now_ms, link, "state", "", 1.0 if is_active else 0.0, None))
        if is_active:
            active.append(link)
    rows.extend(
        _link_row(device, now_ms, link, quantity, unit, None, count)
        for link, quantity, unit, count in _link_counters(library, device, active)
    )
    return rows


def _link_row(
    device: NvmlDevice, now_ms: int, link: int, quantity: str, unit: str, value: float | None, counter: int | None
) -> Row:
    values: dict[str, Value] = {
        "ts": now_ms, "device": device.index, "chip": "nvlink", "label": str(link), "quantity": quantity, "unit": unit,
    }  # fmt: skip
    if counter is None:
        values["value"], values["status"] = value, "ok" if value else "absent"
    else:
        values["counter"] = counter
    return Row("sensor_samples", values)


def _link_counters(library: Library, device: NvmlDevice, links: list[int]) -> Iterator[tuple[int, str, str, int]]:
    """Yield (link, quantity, unit, count): bytes of all links in one call, then the errors of each."""
    nvml, handle = library.module, device.handle
    try:
        for field, quantity in _LINK_BYTES:
            fields = Fields([(field, link, "") for link in links])
            for link, (_, _, value) in zip(links, fields.ask(library, handle), strict=True):
                if value is not None:
                    yield link, quantity, "bytes", int(value) * 1024
        for link in links:
            for number, quantity, unit in _LINK_ERRORS:
                yield link, quantity, unit, nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, number)
    except nvml.NVMLError:
        # Newer generations count links elsewhere: what was answered so far is all there is.
        return
