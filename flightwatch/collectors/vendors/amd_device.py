"""One AMD device read through amdsmi."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    IDENTITY,
    INVENTORY_COLUMNS,
    SENSOR_COLUMNS,
    Device,
    total,
)
from flightwatch.collectors.captures.quantities import NOT_SUPPORTED, scaled
from flightwatch.core.protocols import CaptureContext, Note, Row

#: What amdsmi tells, table by table.
AMDSMI_CARRIES = {
    "device_samples": (
        *IDENTITY, "temp_c", "hotspot_c", "mem_temp_c", "power_w", "power_instant_w", "power_limit_w", "voltage_mv",
        "energy_j_total", "util_pct", "mem_util_pct", "sm_clock_mhz", "mem_clock_mhz", "mem_used_bytes",
        "mem_total_bytes", "ecc_corrected_total", "ecc_uncorrected_total", "pcie_replay_total", "pcie_gen",
        "pcie_width", "link_rx_bytes_total", "link_tx_bytes_total", "quality", "extra",
    ),
    "sensor_samples": SENSOR_COLUMNS,
    "config_facts": CONFIG_COLUMNS,
    "inventory": INVENTORY_COLUMNS,
}  # fmt: skip
_MB = 2**20
#: Largest values of the library's integers, which stand for "not supported".
_UNKNOWN = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}


class AmdDevice:
    """One device; its names are read once.

    Parameters
    ----------
    library: the amdsmi module, started.
    index: place of the device in the library's list.
    handle: the library's handle.
    """

    def __init__(self, library: Any, index: int, handle: Any) -> None:
        self._library = library
        self._index = index
        self._handle = handle
        self._names = self._identity()

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the library; None where it says that it does not know."""
        try:
            return function(*arguments)
        except self._library.AmdSmiException:
            return None

    def rows(self, now_ms: int) -> Iterator[Row | Note]:
        """Read the device once."""
        device = Device(AMDSMI_CARRIES, CaptureContext("amdsmi", now_ms), "amd", f"gpu {self._index}")
        device.put("device", self._index)
        names = self._names
        for column in ("model", "serial", "uuid"):
            device.put(column, names.get(column) or None)
        device.config("driver.amd", names.get("driver"))
        device.inventory({"pci_bus_id": names.get("pci_bus_id", ""), "uuid": names.get("uuid", "")})
        self._temperatures(device)
        self._power(device)
        self._activity(device)
        self._errors(device)
        self._links(device)
        return device.rows(now_ms, zoned=True)

    def processes(self) -> list[int]:
        """Return the ids of the processes that run on the device; empty where the library does not say."""
        found = self._ask(self._library.amdsmi_get_gpu_process_list, self._handle) or []
        # Handles without the details of a process (release 6.0) are no process ids.
        pids = [entry.get("pid") for entry in found if isinstance(entry, dict)]
        return sorted({pid for pid in pids if isinstance(pid, int) and not isinstance(pid, bool) and pid > 0})

    def _identity(self) -> dict[str, str]:
        asic = self._ask(self._library.amdsmi_get_gpu_asic_info, self._handle) or {}
        driver = self._ask(self._library.amdsmi_get_gpu_driver_info, self._handle) or {}
        uuid = self._ask(self._library.amdsmi_get_gpu_device_uuid, self._handle)
        address = self._ask(self._library.amdsmi_get_gpu_device_bdf, self._handle)
        found = {"model": asic.get("market_name"), "serial": asic.get("asic_serial"), "uuid": uuid,
                 "driver": driver.get("driver_version"), "pci_bus_id": address}  # fmt: skip
        return {name: str(text) for name, text in found.items() if text not in (None, "", "N/A")}

    def _temperatures(self, device: Device) -> None:
        kinds, current = self._library.AmdSmiTemperatureType, self._library.AmdSmiTemperatureMetric.CURRENT
        for column, kind in (("temp_c", kinds.EDGE), ("hotspot_c", kinds.HOTSPOT), ("mem_temp_c", kinds.VRAM)):
            _put(device, column, self._ask(self._library.amdsmi_get_temp_metric, self._handle, kind, current))

    def _power(self, device: Device) -> None:
        power = self._ask(self._library.amdsmi_get_power_info, self._handle) or {}
        average, now = _number(power.get("average_socket_power")), _number(power.get("current_socket_power"))
        _put(device, "power_w", average or _number(power.get("socket_power")) or now)
        _put(device, "power_instant_w", now)
        _put(device, "voltage_mv", power.get("gfx_voltage"))
        cap = _number((self._ask(self._library.amdsmi_get_power_cap_info, self._handle) or {}).get("power_cap"))
        # Releases give microwatts or watts; no device has a cap of 10 kW.
        _put(device, "power_limit_w", scaled(cap, 1e-6) if cap is not None and cap >= 10_000 else cap)
        energy = self._ask(self._library.amdsmi_get_energy_count, self._handle) or {}
        ticks, microjoules = _number(energy.get("energy_accumulator")), _number(energy.get("counter_resolution"))
        _put(device, "energy_j_total", ticks * microjoules * 1e-6 if ticks is not None and microjoules else None)

    def _activity(self, device: Device) -> None:
        activity = self._ask(self._library.amdsmi_get_gpu_activity, self._handle) or {}
        _put(device, "util_pct", activity.get("gfx_activity"))
        _put(device, "mem_util_pct", activity.get("umc_activity"))
        for column, kind in (
            ("sm_clock_mhz", self._library.AmdSmiClkType.GFX),
            ("mem_clock_mhz", self._library.AmdSmiClkType.MEM),
        ):
            clock = self._ask(self._library.amdsmi_get_clock_info, self._handle, kind) or {}
            _put(device, column, clock.get("clk"))
        memory = self._ask(self._library.amdsmi_get_gpu_vram_usage, self._handle) or {}
        for column, key in (("mem_used_bytes", "vram_used"), ("mem_total_bytes", "vram_total")):
            size = _number(memory.get(key))
            _put(device, column, size * _MB if size is not None else None)

    def _errors(self, device: Device) -> None:
        errors = self._ask(self._library.amdsmi_get_gpu_total_ecc_count, self._handle) or {}
        _put(device, "ecc_corrected_total", errors.get("correctable_count"))
        _put(device, "ecc_uncorrected_total", errors.get("uncorrectable_count"))
        metric = (self._ask(self._library.amdsmi_get_pcie_info, self._handle) or {}).get("pcie_metric") or {}
        _put(device, "pcie_replay_total", metric.get("pcie_replay_count"))
        _put(device, "pcie_width", metric.get("pcie_width"))
        speed = _number(metric.get("pcie_speed"))
        _put(device, "pcie_gen", _GENERATIONS.get(int(speed)) if speed is not None else None)

    def _links(self, device: Device) -> None:
        metrics = self._ask(self._library.amdsmi_get_link_metrics, self._handle) or {}
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
