"""Intel `xpu-smi`: the CSV of `dump`, the JSON of `stats` and `discovery`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, json_documents, read_document, to_int
from flightwatch.collectors.captures.device_csv import DeviceCsv
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    IDENTITY,
    INVENTORY_COLUMNS,
    Device,
    extra_name,
)
from flightwatch.collectors.captures.quantities import NOT_READABLE, scaled, text_or_none
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.throttle import ThrottleReason

_THROTTLE = {
    "not throttled": 0, "ave_pwr_cap": ThrottleReason.SW_POWER_CAP, "burst_pwr_cap": ThrottleReason.SW_POWER_CAP,
    "current_limit": ThrottleReason.HW_POWER_BRAKE, "thermal_limit": ThrottleReason.HW_THERMAL,
    "psu_alert": ThrottleReason.HW_POWER_BRAKE, "sw_range": ThrottleReason.APPLICATION_CLOCKS,
    "hw_range": ThrottleReason.HW_SLOWDOWN,
}  # fmt: skip


class XpuSmiDump(DeviceCsv):
    """Reads `xpu-smi dump` (and xpumcli) CSV; times of day without a date give no time."""

    name = "xpu-smi-dump"
    VENDOR = "intel"
    INDEX: ClassVar[tuple[str, ...]] = ("deviceid",)
    CHILD: ClassVar[tuple[str, ...]] = ("tileid",)
    UNITS: ClassVar[Mapping[str, str]] = {
        "celsius degree": "C", "celsius": "C", "kb/s": "", "mib": "MiB", "mhz": "MHz", "w": "W", "j": "J", "%": "%",
        "c": "C",
    }  # fmt: skip
    NAMES: ClassVar[Mapping[str, str]] = {
        "gpu utilization": "util_pct", "gpu power": "power_w", "gpu frequency": "sm_clock_mhz",
        "gpu core temperature": "temp_c", "gpu memory temperature": "mem_temp_c",
        "gpu memory bandwidth utilization": "mem_util_pct", "gpu energy consumed": "energy_j_total",
        "gpu memory used": "mem_used_bytes", "gpu memory errors correctable": "ecc_corrected_total",
        "gpu memory errors uncorrectable": "ecc_uncorrected_total",
    }  # fmt: skip
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": ("device", "parent_device", "mig_id", "vendor", *NAMES.values(), "sm_active_ratio",
                           "throttle_reasons", "quality", "extra"),
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "ts": "the tool prints the time of day without a date unless --date is given",
        "temp_c": "N/A without root or on client boards",
        "mem_used_bytes": "a bare number under nounits is MiB",
    }

    def _device(self, row: Mapping[str, tuple[str, str]], number: int, context: CaptureContext) -> Device:
        sized = {
            name: (text, unit or ("MiB" if name == "gpu memory used" else "")) for name, (text, unit) in row.items()
        }
        return super()._device(sized, number, context)

    def further(self, device: Device, row: Mapping[str, tuple[str, str]]) -> None:
        """Read the array activity and the throttle reason."""
        active = row.get("gpu eu array active")
        if active is not None:
            device.set("sm_active_ratio", active[0], "%")
        reason = row.get("throttle reason")
        if reason is not None:
            words = [word.strip().lower() for word in re.split(r"[|;&]", reason[0]) if word.strip()]
            if words and all(word in _THROTTLE for word in words):
                device.put("throttle_reasons", sum({int(_THROTTLE[word]) for word in words}))
            else:
                device.unknown("throttle_reasons", NOT_READABLE)


class XpuSmiJson:
    """Reads `xpu-smi stats -j` (metrics by name) and `xpu-smi discovery -j` (what exists)."""

    name = "xpu-smi-json"
    _METRICS: ClassVar[Mapping[str, tuple[str, float]]] = {
        "XPUM_STATS_GPU_UTILIZATION": ("util_pct", 1), "XPUM_STATS_POWER": ("power_w", 1),
        "XPUM_STATS_GPU_FREQUENCY": ("sm_clock_mhz", 1), "XPUM_STATS_GPU_CORE_TEMPERATURE": ("temp_c", 1),
        "XPUM_STATS_MEMORY_TEMPERATURE": ("mem_temp_c", 1), "XPUM_STATS_MEMORY_USED": ("mem_used_bytes", 2**20),
        "XPUM_STATS_ENERGY": ("energy_j_total", 1e-3), "XPUM_STATS_MEMORY_BANDWIDTH": ("mem_util_pct", 1),
        "XPUM_STATS_RAS_ERROR_CAT_NON_COMPUTE_ERRORS_CORRECTABLE": ("ecc_corrected_total", 1),
        "XPUM_STATS_RAS_ERROR_CAT_NON_COMPUTE_ERRORS_UNCORRECTABLE": ("ecc_uncorrected_total", 1),
    }  # fmt: skip
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            *IDENTITY,
            *(column for column, _ in _METRICS.values()),
            "mem_total_bytes",
            "quality",
            "extra",
        ),
        "config_facts": CONFIG_COLUMNS,
        "inventory": INVENTORY_COLUMNS,
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"temp_c": "discovery prints what exists, stats the readings"}

    def recognise(self, head: bytes) -> bool:
        """Recognise xpu-smi's metric names or its device list."""
        text = head_text(head)
        return "XPUM_STATS_" in text or (re.search(r'"device_list"\s*:', text) is not None and '"device_id"' in text)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per device."""
        text, notes = read_document(stream)
        yield from notes
        for _, document, error in json_documents(text):
            if error is not None:
                yield error
            elif isinstance(document, dict):
                yield from self._document(document, context)

    def _document(self, document: Mapping[str, Any], context: CaptureContext) -> Iterator[Row | Note]:
        devices = document.get("device_list")
        for item in devices if isinstance(devices, list) else [document]:
            if not isinstance(item, dict):
                continue
            device = Device(self.CARRIES, context, "intel", f"device {item.get('device_id')}")
            device.put("device", to_int(str(item.get("device_id", ""))))
            device.put("model", text_or_none(_text(item.get("device_name"))))
            device.put("uuid", text_or_none(_text(item.get("uuid"))))
            device.put("serial", text_or_none(_text(item.get("serial_number"))))
            size = to_int(_text(item.get("memory_physical_size_byte")))
            device.put("mem_total_bytes", size)
            device.config("driver", text_or_none(_text(item.get("driver_version"))))
            device.inventory({"pci_bus_id": _text(item.get("pci_bdf_address"))})
            levels = item.get("device_level")
            for metric in levels if isinstance(levels, list) else []:
                self._metric(device, metric)
            yield from device.rows()

    def _metric(self, device: Device, metric: Any) -> None:
        if not isinstance(metric, dict):
            return
        name, value = metric.get("metrics_type"), metric.get("value")
        if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, (int, float)):
            return
        if name in self._METRICS:
            column, factor = self._METRICS[name]
            device.put(column, scaled(value, factor))
        else:
            device.extra_value(extra_name("xpum", name.removeprefix("XPUM_STATS_")), value)


def _text(value: Any) -> str:
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
