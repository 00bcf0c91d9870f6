"""AMD devices: amdsmi where its Python library and driver are, else the amd-smi or rocm-smi command."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from flightwatch.collectors.captures.amd_smi import AMD_SMI_CARRIES
from flightwatch.collectors.captures.device_rows import Device, total
from flightwatch.collectors.captures.quantities import NOT_SUPPORTED, scaled
from flightwatch.collectors.environment import Environment
from flightwatch.collectors.vendors.library import LibraryCollector
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import CaptureContext, Note, Row

_MB = 2**20
#: Largest values of the library's integers, which stand for "not supported".
_UNKNOWN = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}


def load_amdsmi() -> Any:
    """Return the amdsmi module. Raises NoData when it, or the library below it, is not installed."""
    try:
        return importlib.import_module("amdsmi")
    except ImportError as error:
        raise NoData("the Python package amdsmi is not installed (pip install 'flightwatch[amd]')") from error
    except (OSError, KeyError, AttributeError) as error:
        # The package is there and libamd_smi.so is not, or is of another release.
        raise NoData(f"amdsmi finds no matching driver library: {error}") from error


class AmdCollector(LibraryCollector):
    """All AMD devices through amdsmi (written against its release 7 interface), else `amd-smi` or `rocm-smi`."""

    name = "amd"
    COMMANDS: ClassVar[tuple[tuple[tuple[str, ...], str], ...]] = (
        (("amd-smi", "metric", "--json"), "amd_smi:AmdSmiJson"),
        (("rocm-smi", "-a", "--json"), "rocm:RocmSmi"),
    )

    def __init__(
        self,
        environment: Environment,
        load: Callable[[], Any] = load_amdsmi,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(environment, load, monotonic_s)
        self._handles: list[Any] = []
        self._names: dict[int, dict[str, str]] = {}

    def start(self, library: Any) -> None:
        """Start amdsmi and find devices."""
        self._names = {}
        try:
            library.amdsmi_init()
            self._handles = list(library.amdsmi_get_processor_handles())
        except library.AmdSmiException as error:
            raise NoData(f"amdsmi does not start: {error}") from error
        if not self._handles:
            self.stop(library)
            raise NoData("amdsmi finds no device")

    def stop(self, library: Any) -> None:
        """Let go of amdsmi."""
        self._ask(library, library.amdsmi_shut_down)

    def read(self, library: Any, now_ms: int) -> Iterator[Row | Note]:
        """Yield the rows of every device."""
        for index, handle in enumerate(self._handles):
            yield from self._device(library, index, handle, now_ms)

    def _ask(self, library: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the library; None where it says that it does not know."""
        try:
            return function(*arguments)
        except library.AmdSmiException:
            return None

    def _device(self, library: Any, index: int, handle: Any, now_ms: int) -> Iterator[Row | Note]:
        device = Device(AMD_SMI_CARRIES, CaptureContext("amdsmi", now_ms), "amd", f"gpu {index}")
        device.put("device", index)
        names = self._names.setdefault(index, self._identity(library, handle))
        for column in ("model", "serial", "uuid"):
            device.put(column, names.get(column) or None)
        device.config("driver.amd", names.get("driver"))
        device.inventory({"pci_bus_id": names.get("pci_bus_id", ""), "uuid": names.get("uuid", "")})
        self._temperatures(library, device, handle)
        self._power(library, device, handle)
        self._activity(library, device, handle)
        self._errors(library, device, handle)
        self._links(library, device, handle)
        return device.rows(now_ms, zoned=True)

    def _identity(self, library: Any, handle: Any) -> dict[str, str]:
        asic = self._ask(library, library.amdsmi_get_gpu_asic_info, handle) or {}
        driver = self._ask(library, library.amdsmi_get_gpu_driver_info, handle) or {}
        uuid = self._ask(library, library.amdsmi_get_gpu_device_uuid, handle)
        address = self._ask(library, library.amdsmi_get_gpu_device_bdf, handle)
        found = {"model": asic.get("market_name"), "serial": asic.get("asic_serial"), "uuid": uuid,
                 "driver": driver.get("driver_version"), "pci_bus_id": address}  # fmt: skip
        return {name: str(text) for name, text in found.items() if text not in (None, "", "N/A")}

    def _temperatures(self, library: Any, device: Device, handle: Any) -> None:
        kinds, current = library.AmdSmiTemperatureType, library.AmdSmiTemperatureMetric.CURRENT
        for column, kind in (("temp_c", kinds.EDGE), ("hotspot_c", kinds.HOTSPOT), ("mem_temp_c", kinds.VRAM)):
            _put(device, column, self._ask(library, library.amdsmi_get_temp_metric, handle, kind, current))

    def _power(self, library: Any, device: Device, handle: Any) -> None:
        power = self._ask(library, library.amdsmi_get_power_info, handle) or {}
        average, now = _number(power.get("average_socket_power")), _number(power.get("current_socket_power"))
        _put(device, "power_w", average or _number(power.get("socket_power")) or now)
        _put(device, "power_instant_w", now)
        _put(device, "voltage_mv", power.get("gfx_voltage"))
        cap = _number((self._ask(library, library.amdsmi_get_power_cap_info, handle) or {}).get("power_cap"))
        # Releases give microwatts or watts; no device has a cap of 10 kW.
        _put(device, "power_limit_w", scaled(cap, 1e-6) if cap is not None and cap >= 10_000 else cap)
        energy = self._ask(library, library.amdsmi_get_energy_count, handle) or {}
        ticks, microjoules = _number(energy.get("energy_accumulator")), _number(energy.get("counter_resolution"))
        _put(device, "energy_j_total", ticks * microjoules * 1e-6 if ticks is not None and microjoules else None)

    def _activity(self, library: Any, device: Device, handle: Any) -> None:
        activity = self._ask(library, library.amdsmi_get_gpu_activity, handle) or {}
        _put(device, "util_pct", activity.get("gfx_activity"))
        _put(device, "mem_util_pct", activity.get("umc_activity"))
        for column, kind in (("sm_clock_mhz", library.AmdSmiClkType.GFX), ("mem_clock_mhz", library.AmdSmiClkType.MEM)):
            clock = self._ask(library, library.amdsmi_get_clock_info, handle, kind) or {}
            _put(device, column, clock.get("clk"))
        memory = self._ask(library, library.amdsmi_get_gpu_vram_usage, handle) or {}
        for column, key in (("mem_used_bytes", "vram_used"), ("mem_total_bytes", "vram_total")):
            size = _number(memory.get(key))
            _put(device, column, size * _MB if size is not None else None)

    def _errors(self, library: Any, device: Device, handle: Any) -> None:
        errors = self._ask(library, library.amdsmi_get_gpu_total_ecc_count, handle) or {}
        _put(device, "ecc_corrected_total", errors.get("correctable_count"))
        _put(device, "ecc_uncorrected_total", errors.get("uncorrectable_count"))
        metric = (self._ask(library, library.amdsmi_get_pcie_info, handle) or {}).get("pcie_metric") or {}
        _put(device, "pcie_replay_total", metric.get("pcie_replay_count"))
        _put(device, "pcie_width", metric.get("pcie_width"))
        speed = _number(metric.get("pcie_speed"))
        _put(device, "pcie_gen", _GENERATIONS.get(int(speed)) if speed is not None else None)

    def _links(self, library: Any, device: Device, handle: Any) -> None:
        metrics = self._ask(library, library.amdsmi_get_link_metrics, handle) or {}
        sums: dict[str, list[int]] = {"rx_bytes": [], "tx_bytes": []}
        for number, link in enumerate(list(metrics.get("links") or [])[: int(metrics.get("num_links") or 0)]):
            for key, which in (("read", "rx_bytes"), ("write", "tx_bytes")):
                kilobytes = _number(link.get(key))
                if kilobytes is not None:
                    device.sensor("xgmi", str(number), which, "bytes", counter=int(kilobytes) * 1024)
                    sums[which].append(int(kilobytes) * 1024)
        device.put("link_rx_bytes_total", total(sums["rx_bytes"]))
        device.put("link_tx_bytes_total", total(sums["tx_bytes"]))


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in _UNKNOWN:
        return None
    return value


def _put(device: Device, column: str, value: Any) -> None:
    number = _number(value)
    if number is None:
        device.unknown(column, NOT_SUPPORTED)
    else:
        device.put(column, number)
