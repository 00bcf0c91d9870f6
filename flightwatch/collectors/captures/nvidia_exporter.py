"""nvidia_gpu_exporter: `nvidia_smi_*` metrics, which are the query fields with base units in their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from flightwatch.collectors.captures.dcgm import xid_severity
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    EVENT_COLUMNS,
    INVENTORY_COLUMNS,
    Device,
    extra_name,
    total,
)
from flightwatch.collectors.captures.exporter_map import DeviceSet
from flightwatch.collectors.captures.nvidia_names import QUERY_COLUMNS
from flightwatch.collectors.captures.nvidia_smi_csv import CELLS, SUMS
from flightwatch.collectors.captures.openmetrics_text import Family, Sample
from flightwatch.collectors.captures.quantities import NOT_READABLE, scaled, text_or_none
from flightwatch.core.protocols import CaptureContext, Note, Row

_PREFIX = "nvidia_smi_"
#: Unit suffix of a metric name to the factor towards the column's unit.
_SUFFIXES: dict[str, float] = {
    "_hz": 1e-6, "_bytes": 1, "_ratio": 100, "_watts": 1, "_seconds": 1e6, "_joules": 1, "_celsius": 1,
}  # fmt: skip
_COLUMN_OF = {field.replace(".", "_"): column for column, fields in CELLS.items() for field in reversed(fields)}
_COLUMN_OF |= {
    "clocks_current_sm_clock": "sm_clock_mhz", "clocks_sm_clock": "sm_clock_mhz",
    "clocks_current_memory_clock": "mem_clock_mhz", "clocks_mem_clock": "mem_clock_mhz",
}  # fmt: skip
_PART_OF = {name.replace(".", "_"): column for column, parts in SUMS.items() for fields in parts for name in fields}
_PREFERRED = {"power_draw_average": "power_draw", "enforced_power_limit": "power_limit"}
_SKIPPED = ("command_exit_code", "failed_scrapes_total", "last_collect_success", "compute_apps_last_collect_success")
_INFO_FACTS = {"driver_version": "driver", "cuda_version": "cuda", "vbios_version": "vbios"}


class NvidiaExporterMap:
    """Maps `nvidia_smi_*` samples; devices are told apart by uuid, the index is a metric of its own."""

    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            *(c for c in QUERY_COLUMNS if c not in ("voltage_mv", "pcie_replay_total")),
            "energy_j_total",
        ),
        "config_facts": CONFIG_COLUMNS,
        "events": EVENT_COLUMNS,
        "inventory": INVENTORY_COLUMNS,
    }

    def __init__(self, context: CaptureContext, now_ms: int) -> None:
        self._set = DeviceSet(self.CARRIES, context, "nvidia", now_ms)
        self._parts: dict[str, dict[str, dict[str, float]]] = {}
        self._by_name: dict[str, set[str]] = {}
        self._notes: list[Note] = []

    @staticmethod
    def owns(name: str) -> bool:
        """Say whether the metric is the exporter's."""
        return name.startswith(_PREFIX)

    def take(self, sample: Sample, family: Family) -> None:
        """Take one sample."""
        name = sample.name.removeprefix(_PREFIX)
        uuid = sample.labels.get("uuid") or sample.labels.get("UUID")
        if not uuid:
            if name == "command_exit_code" and sample.value:
                self._notes.append(Note("warning", f"line {sample.line}", f"nvidia-smi ended with code {sample.value}"))
            return
        device = self._set.get(uuid, sample, f"gpu {uuid}")
        if device is None:
            return
        device.put("uuid", uuid)
        if name == "gpu_info":
            self._info(device, sample.labels)
        elif name == "xid_errors_total":
            self._xid(device, sample)
        elif not name.startswith("compute_app"):
            self._reading(device, uuid, name, sample.value)

    def finish(self) -> Iterator[Row | Note]:
        """Yield the rows of all devices."""
        for uuid, device in self._set.devices.items():
            for column, parts in self._parts.get(uuid, {}).items():
                device.put(column, total(parts.values()))
        yield from self._set.rows()
        yield from self._notes

    def _reading(self, device: Device, uuid: str, name: str, value: float | None) -> None:
        base, factor = name, 1.0
        for suffix, candidate in _SUFFIXES.items():
            if name.endswith(suffix):
                base, factor = name.removesuffix(suffix), candidate
                break
        if base in ("clocks_event_reasons_active", "clocks_throttle_reasons_active"):
            device.put("throttle_reasons", value)
        elif base == "index":
            device.put("device", value)
        elif name == "energy_joules_total":
            device.put("energy_j_total", value)
        elif base == "ecc_mode_current" and value is not None:
            device.put("ecc_mode", "enabled" if value else "disabled")
        elif base in _COLUMN_OF:
            self._column(device, uuid, base, value, factor)
        elif value is not None:
            if base in _PART_OF:
                self._parts.setdefault(uuid, {}).setdefault(_PART_OF[base], {})[base] = scaled(value, factor)
            if name not in _SKIPPED and base not in ("name", "serial", "count"):
                device.extra_value(extra_name("nvidia_smi", name), value)

    def _column(self, device: Device, uuid: str, base: str, value: float | None, factor: float) -> None:
        column = _COLUMN_OF[base]
        if column in ("model", "serial"):
            return  # the exporter turns texts into meaningless numbers
        if value is None:
            device.unknown(column, NOT_READABLE)
        elif column in ("remap_pending", "remap_failure"):
            device.put(column, bool(value))
            if value:
                severity = "error" if column == "remap_pending" else "critical"
                device.event(column.replace("_", ":"), severity, f"{column.replace('_', ' ')} is set")
        elif base in _PREFERRED or not any(
            better in self._by_name.get(uuid, ()) for better, worse in _PREFERRED.items() if worse == base
        ):
            device.put(column, scaled(value, factor))
            self._by_name.setdefault(uuid, set()).add(base)

    def _info(self, device: Device, labels: Mapping[str, str]) -> None:
        device.put("model", text_or_none(labels.get("name")))
        index = labels.get("index", "")
        if index.isascii() and index.isdigit() and len(index) <= 4:
            device.put("device", int(index))
        for label, fact in _INFO_FACTS.items():
            device.config(fact, text_or_none(labels.get(label)))
        device.inventory({"pci_bus_id": labels.get("pci_bus_id", ""), "uuid": labels.get("uuid", "")})

    def _xid(self, device: Device, sample: Sample) -> None:
        code = sample.labels.get("xid", "")
        if code and sample.value:
            attrs = {"state": "total", "count": f"{sample.value:g}"}
            message = f"Xid {code} was counted {sample.value:g} times"
            device.event(f"xid:{code}", xid_severity(code), message, attrs)
