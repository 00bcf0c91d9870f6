"""Exporters of other vendors, by table: AMD, Cambricon, Hygon, Iluvatar, MetaX, Moore Threads, Intel, all-smi.

A metric is looked up by its name without the exporter's prefix; what has no column is kept by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from flightwatch.collectors.captures.device_rows import CONFIG_COLUMNS, IDENTITY, SENSOR_COLUMNS, Device, extra_name
from flightwatch.collectors.captures.exporter_map import DeviceSet, device_index
from flightwatch.collectors.captures.openmetrics_text import Family, Sample
from flightwatch.collectors.captures.quantities import NOT_READABLE, scaled
from flightwatch.core.protocols import CaptureContext, Note, Row

#: Prefix of metric names to vendor; the longest prefix wins.
_VENDORS: dict[str, str] = {
    "amd_gpu_": "amd", "gpu_": "amd", "rocm_": "amd", "mlu_": "cambricon", "dcu_": "hygon", "ix_": "iluvatar",
    "mx_": "metax", "mtgpu_": "mthreads", "mt_gpu_": "mthreads", "musa_": "mthreads", "xpum_": "intel",
    "all_smi_gpu_": "", "all_smi_npu_": "",
}  # fmt: skip
_MB = 2**20
#: Name without prefix to column and factor.
_FIELDS: dict[str, tuple[str, float]] = {
    "edge_temperature": ("temp_c", 1), "junction_temperature": ("hotspot_c", 1),
    "memory_temperature": ("mem_temp_c", 1),
    "temperature": ("temp_c", 1), "temp": ("temp_c", 1), "temperature_celsius": ("temp_c", 1),
    "chip_hotspot_temp": ("hotspot_c", 1), "memory_temp": ("mem_temp_c", 1),
    "power_usage": ("power_w", 1), "power": ("power_w", 1), "power_watts": ("power_w", 1),
    "board_power": ("power_w", 1),
    "package_power": ("power_w", 1), "average_package_power": ("power_w", 1), "power_consumption_watts": ("power_w", 1),
    "powerusage": ("power_w", 1), "power_cap": ("power_limit_w", 1), "powercap": ("power_limit_w", 1),
    "energy_consumed": ("energy_j_total", 1e-6), "energy_joules_total": ("energy_j_total", 1),
    "gfx_activity": ("util_pct", 1), "umc_activity": ("mem_util_pct", 1), "utilization": ("util_pct", 1),
    "gpu_utilization": ("util_pct", 1), "utilizationrate": ("util_pct", 1), "engine_ratio": ("util_pct", 100),
    "mem_utilization": ("mem_util_pct", 1), "memory_utilization": ("mem_util_pct", 1),
    "used_vram": ("mem_used_bytes", _MB), "total_vram": ("mem_total_bytes", _MB),
    "usedmemory_bytes": ("mem_used_bytes", 1), "memorycap_bytes": ("mem_total_bytes", 1),
    "memory_used_bytes": ("mem_used_bytes", 1), "memory_total_bytes": ("mem_total_bytes", 1),
    "fan_speed": ("fan_pct", 1), "sm_clock": ("sm_clock_mhz", 1), "mem_clock": ("mem_clock_mhz", 1),
    "frequency_mhz": ("sm_clock_mhz", 1), "pcie_replay_count": ("pcie_replay_total", 1),
    "ecc_correct_total": ("ecc_corrected_total", 1), "ecc_uncorrect_total": ("ecc_uncorrected_total", 1),
}  # fmt: skip
#: Scale-up links: name without prefix to link type, quantity and unit. Equal quantities of one link are added up.
_LINKS: dict[str, tuple[str, str, str]] = {
    "mlulink_status": ("mlulink", "state", ""),
    "mlulink_cntr_read_byte_total": ("mlulink", "rx_bytes", "bytes"),
    "mlulink_cntr_write_byte_total": ("mlulink", "tx_bytes", "bytes"),
    "mlulink_err_crc24_total": ("mlulink", "crc_errors", "errors"),
    "mlulink_err_crc32_total": ("mlulink", "crc_errors", "errors"),
    "mlulink_err_replay_total": ("mlulink", "replays", "replays"),
}
_LINK_SUMS = {
    "rx_bytes": "link_rx_bytes_total", "tx_bytes": "link_tx_bytes_total", "crc_errors": "link_errors_total",
    "replays": "link_errors_total",
}  # fmt: skip
#: Counters of links kept per device.
_LINK_LIMIT = 1024
_LINK_LABELS = ("link", "port", "link_id")
_INDEX_LABELS = (
    "gpu_id", "gpu", "gpu_index", "index", "minor_number", "minor", "slot", "mlu", "dcu", "device", "dev", "id",
    "deviceId", "dev_file",
)  # fmt: skip
_MODEL_LABELS = ("card_model", "card_series", "model", "gpu_name", "name", "dcu_name", "modelName")


class VendorExportersMap:
    """Maps exporters whose metrics need no more than a table."""

    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            *IDENTITY, "job", *dict.fromkeys(column for column, _ in _FIELDS.values()),
            *dict.fromkeys(_LINK_SUMS.values()), "quality", "extra", "extra_counters",
        ),
        "sensor_samples": SENSOR_COLUMNS,
        "config_facts": CONFIG_COLUMNS,
    }  # fmt: skip

    def __init__(self, context: CaptureContext, now_ms: int) -> None:
        self._context = context
        self._now_ms = now_ms
        self._sets: dict[str, DeviceSet] = {}
        self._unplaced = 0
        self._links: dict[str, tuple[Device, dict[tuple[str, str, str, str], int]]] = {}

    @staticmethod
    def owns(name: str) -> bool:
        """Say whether a known prefix with a known or device-like name stands here."""
        return _prefix(name) is not None

    def take(self, sample: Sample, family: Family) -> None:
        """Take one sample."""
        prefix = _prefix(sample.name)
        labels = sample.labels
        index = device_index(labels, *_INDEX_LABELS)
        serial = labels.get("serial_number") or labels.get("sn") or labels.get("serial") or ""
        uuid = labels.get("uuid") or labels.get("UUID") or labels.get("device_id") or labels.get("gpu_uuid") or ""
        if prefix is None or (index is None and not uuid and not serial):
            self._unplaced += 1
            return
        vendor = _VENDORS[prefix] or _guess_vendor(labels)
        devices = self._sets.setdefault(vendor, DeviceSet(self.CARRIES, self._context, vendor, self._now_ms))
        device = devices.get(str(index if index is not None else uuid or serial), sample)
        if device is None:
            return
        self._identify(device, index, serial, uuid, labels)
        short = sample.name.removeprefix(prefix).lower()
        link = next((labels[name] for name in _LINK_LABELS if labels.get(name)), None)
        if short in _LINKS and link is not None:
            self._link(device, f"{vendor} {index} {uuid or serial}", link, _LINKS[short], sample.value)
        elif sample.value is None:
            device.unknown(_FIELDS[short][0] if short in _FIELDS else "extra", NOT_READABLE)
        elif short in _FIELDS and device.value(_FIELDS[short][0]) is None:
            column, factor = _FIELDS[short]
            scale = 1e-3 if family.unit == "milliwatts" or "milliwatt" in family.help.lower() else 1
            device.put(column, scaled(sample.value, factor * scale))
        else:
            device.extra_value(extra_name(vendor or "gpu", short), sample.value)

    def _link(
        self, device: Device, key: str, label: str, meaning: tuple[str, str, str], value: int | float | None
    ) -> None:
        chip, quantity, unit = meaning
        if value is None or value < 0 or value != int(value):
            return
        if quantity == "state":
            device.sensor(chip, label, "state", "", float(value), status="up" if value else "down")
            return
        found = self._links.setdefault(key, (device, {}))[1]
        if len(found) < _LINK_LIMIT:
            place = (chip, label, quantity, unit)
            found[place] = found.get(place, 0) + int(value)

    def _link_rows(self) -> None:
        """Add each link's counters, and their sums to the device's row."""
        for device, found in self._links.values():
            sums: dict[str, int] = {}
            for (chip, label, quantity, unit), count in found.items():
                device.sensor(chip, label, quantity, unit, counter=count)
                sums[_LINK_SUMS[quantity]] = sums.get(_LINK_SUMS[quantity], 0) + count
            for column, count in sums.items():
                device.put(column, count)

    def finish(self) -> Iterator[Row | Note]:
        """Yield the rows of all devices."""
        self._link_rows()
        for devices in self._sets.values():
            yield from devices.rows()
        if self._unplaced:
            yield Note("warning", "", f"{self._unplaced} samples name no device and were not used")

    def _identify(self, device: Device, index: int | None, serial: str, uuid: str, labels: Mapping[str, str]) -> None:
        device.put("device", index)
        device.put("serial", serial or None)
        device.put("uuid", uuid or None)
        device.put("job", labels.get("job_id") or None)
        device.put("model", next((labels[name] for name in _MODEL_LABELS if labels.get(name)), None))
        device.node = labels.get("hostname") or labels.get("Hostname") or labels.get("node") or None


def _prefix(name: str) -> str | None:
    found = [prefix for prefix in _VENDORS if name.startswith(prefix)]
    if not found:
        return None
    prefix = max(found, key=len)
    # "gpu_" and the two-letter prefixes are common words: own only names the table knows.
    short = name.removeprefix(prefix).lower()
    return prefix if len(prefix) > 4 or short in _FIELDS or short in _LINKS else None


def _guess_vendor(labels: Mapping[str, str]) -> str:
    text = " ".join(labels.values()).lower()
    for word, vendor in (("nvidia", "nvidia"), ("amd", "amd"), ("instinct", "amd"), ("ascend", "ascend"),
                         ("gaudi", "intel"), ("mlu", "cambricon"), ("mtt", "mthreads")):  # fmt: skip
        if word in text:
            return vendor
    return "unknown"
