"""Huawei's npu-exporter: `npu_chip_*` metrics of Ascend devices, with the exporter's own sample times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    EVENT_COLUMNS,
    IDENTITY,
    INVENTORY_COLUMNS,
    SENSOR_COLUMNS,
    Device,
    extra_name,
)
from flightwatch.collectors.captures.exporter_map import DeviceSet, device_index
from flightwatch.collectors.captures.openmetrics_text import Family, Sample
from flightwatch.collectors.captures.quantities import NOT_READABLE, scaled
from flightwatch.core.protocols import CaptureContext, Note, Row

_MB = 2**20
#: Metric without its prefix to column and factor (voltage is printed in volt, memory in MB).
_FIELDS: dict[str, tuple[str, float]] = {
    "info_utilization": ("util_pct", 1), "info_temperature": ("temp_c", 1), "info_power": ("power_w", 1),
    "info_voltage": ("voltage_mv", 1000), "info_aicore_current_freq": ("sm_clock_mhz", 1),
    "info_hbm_temperature": ("mem_temp_c", 1), "info_hbm_bandwidth_utilization": ("mem_util_pct", 1),
    "info_hbm_ecc_single_bit_error_cnt": ("ecc_corrected_total", 1),
    "info_hbm_ecc_double_bit_error_cnt": ("ecc_uncorrected_total", 1),
    "info_hbm_ecc_total_single_bit_error_cnt": ("ecc_corrected_lifetime_total", 1),
    "info_hbm_ecc_total_double_bit_error_cnt": ("ecc_uncorrected_lifetime_total", 1),
}  # fmt: skip
_ISOLATED = ("info_hbm_ecc_single_bit_isolated_pages_cnt", "info_hbm_ecc_double_bit_isolated_pages_cnt")
_HCCS = re.compile(r"info_hccs_statistic_info_(tx_cnt|rx_cnt|crc_err_cnt|retry_cnt)_(\d{1,2})")
_ERROR_CODE = re.compile(r"info_error_code(?:_\d{1,3})?")


class NpuExporterMap:
    """Maps `npu_chip_*` samples; other npu and container metrics are kept by name."""

    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            *IDENTITY, *dict.fromkeys(column for column, _ in _FIELDS.values()), "mem_used_bytes", "mem_total_bytes",
            "retired_pages_total", "ecc_mode", "link_errors_total", "quality", "extra", "extra_counters",
        ),
        "sensor_samples": SENSOR_COLUMNS,
        "config_facts": CONFIG_COLUMNS,
        "events": EVENT_COLUMNS,
        "inventory": INVENTORY_COLUMNS,
    }  # fmt: skip

    def __init__(self, context: CaptureContext, now_ms: int) -> None:
        self._set = DeviceSet(self.CARRIES, context, "ascend", now_ms)
        self._memory: dict[str, dict[str, float]] = {}
        self._isolated: dict[str, int] = {}
        self._link_errors: dict[str, int] = {}

    @staticmethod
    def owns(name: str) -> bool:
        """Say whether the metric is the exporter's."""
        return name.startswith(("npu_", "machine_npu_", "container_npu_", "vnpu_"))

    def take(self, sample: Sample, family: Family) -> None:
        """Take one sample."""
        labels = sample.labels
        index = device_index(labels, "id", "npu_id", "npuID")
        if index is None or not sample.name.startswith("npu_chip_"):
            return
        key = str(index)
        device = self._set.get(key, sample, f"npu {index}")
        if device is None:
            return
        device.put("device", index)
        if model := labels.get("model_name") or labels.get("modelName") or labels.get("name"):
            device.put("model", model)
        if uuid := labels.get("vdie_id") or labels.get("vdieID"):
            device.put("uuid", uuid)
        name = sample.name.removeprefix("npu_chip_")
        if sample.value is None:
            device.unknown(_FIELDS[name][0] if name in _FIELDS else "extra", NOT_READABLE)
        else:
            self._store(device, key, name, sample.value, labels)

    def finish(self) -> Iterator[Row | Note]:
        """Yield the rows of all devices."""
        for key, device in self._set.devices.items():
            memory = self._memory.get(key, {})
            # Training chips have HBM and a small DDR the user never sees: HBM is the device memory.
            kind = "hbm_" if memory.get("hbm_total") else ""
            for column, name in (("mem_used_bytes", "used"), ("mem_total_bytes", "total")):
                value = memory.get(f"{kind}{name}", memory.get(f"hbm_{name}"))
                device.put(column, value * _MB if value is not None else None)
            device.put("retired_pages_total", self._isolated.get(key))
            device.put("link_errors_total", self._link_errors.get(key))
        yield from self._set.rows()

    def _store(self, device: Device, key: str, name: str, value: float, labels: Mapping[str, str]) -> None:
        hccs = _HCCS.fullmatch(name)
        if name in _FIELDS:
            column, factor = _FIELDS[name]
            device.put(column, scaled(value, factor))
        elif name in ("info_used_memory", "info_total_memory", "info_hbm_used_memory", "info_hbm_total_memory"):
            short = name.removeprefix("info_").removesuffix("_memory")
            self._memory.setdefault(key, {})[short] = value
        elif name in _ISOLATED:
            self._isolated[key] = self._isolated.get(key, 0) + int(value)
        elif name == "info_hbm_ecc_enable_flag":
            device.put("ecc_mode", "enabled" if value else "disabled")
        elif name == "info_health_status" and value == 0:
            device.event("npu:unhealthy", "error", "the exporter reports the device as unhealthy")
        elif _ERROR_CODE.fullmatch(name) and value > 0:
            device.event(f"ascend:{int(value):x}", "warning", f"the device reports error code 0x{int(value):X}",
                         {"state": "last", "decimal": f"{int(value)}"})  # fmt: skip
        elif hccs is not None:
            self._hccs(device, key, hccs, int(value))
        elif name not in ("info_name", "info_process_info", "info_process_info_num"):
            device.extra_value(extra_name("npu", name), value)

    def _hccs(self, device: Device, key: str, link: re.Match[str], value: int) -> None:
        kind = {"tx_cnt": "tx_packets", "rx_cnt": "rx_packets", "crc_err_cnt": "crc_errors", "retry_cnt": "replays"}[
            link[1]
        ]
        unit = "errors" if kind in ("crc_errors", "replays") else "packets"
        device.sensor("hccs", link[2], kind, unit, counter=value)
        if unit == "errors":
            self._link_errors[key] = self._link_errors.get(key, 0) + value
