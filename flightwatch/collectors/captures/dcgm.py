"""dcgm-exporter: fields named DCGM_FI_*, blank sentinels, units from HELP, the last Xid as a state.

Also the exporter's counter list (which fields are collected at all): a field that is not collected is
unknown, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row, to_int
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    EVENT_COLUMNS,
    IDENTITY,
    INVENTORY_COLUMNS,
    SENSOR_COLUMNS,
    Device,
    extra_name,
    total,
)
from flightwatch.collectors.captures.exporter_map import DeviceSet, device_index
from flightwatch.collectors.captures.openmetrics_text import Family, Sample
from flightwatch.collectors.captures.quantities import BLANK, NOT_READABLE, NOT_SUPPORTED, scaled
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import EventSeverity
from flightwatch.core.xid import xid

#: Field without its prefix to column and factor to the column's unit.
FIELDS: dict[str, tuple[str, float]] = {
    "SM_CLOCK": ("sm_clock_mhz", 1), "MEM_CLOCK": ("mem_clock_mhz", 1), "GPU_TEMP": ("temp_c", 1),
    "MEMORY_TEMP": ("mem_temp_c", 1), "GPU_TEMP_LIMIT": ("temp_headroom_c", 1), "POWER_USAGE": ("power_w", 1),
    "POWER_USAGE_INSTANT": ("power_instant_w", 1), "ENFORCED_POWER_LIMIT": ("power_limit_w", 1),
    "TOTAL_ENERGY_CONSUMPTION": ("energy_j_total", 1e-3), "GPU_UTIL": ("util_pct", 1),
    "MEM_COPY_UTIL": ("mem_util_pct", 1), "FB_USED": ("mem_used_bytes", 2**20), "FB_TOTAL": ("mem_total_bytes", 2**20),
    "FAN_SPEED": ("fan_pct", 1), "PCIE_REPLAY_COUNTER": ("pcie_replay_total", 1), "PCIE_LINK_GEN": ("pcie_gen", 1),
    "PCIE_LINK_WIDTH": ("pcie_width", 1), "ECC_SBE_VOL_TOTAL": ("ecc_corrected_total", 1),
    "ECC_DBE_VOL_TOTAL": ("ecc_uncorrected_total", 1), "ECC_SBE_AGG_TOTAL": ("ecc_corrected_lifetime_total", 1),
    "ECC_DBE_AGG_TOTAL": ("ecc_uncorrected_lifetime_total", 1), "CLOCK_THROTTLE_REASONS": ("throttle_reasons", 1),
    "CLOCKS_EVENT_REASONS": ("throttle_reasons", 1), "SM_ACTIVE": ("sm_active_ratio", 1),
    "PIPE_TENSOR_ACTIVE": ("tensor_active_ratio", 1), "DRAM_ACTIVE": ("dram_active_ratio", 1),
    "NVLINK_COUNT_RX_BYTES": ("link_rx_bytes_total", 1), "NVLINK_COUNT_TX_BYTES": ("link_tx_bytes_total", 1),
}  # fmt: skip
#: Fields that are parts of one column.
_PARTS = {
    "RETIRED_SBE": "retired_pages_total", "RETIRED_DBE": "retired_pages_total",
    "CORRECTABLE_REMAPPED_ROWS": "remapped_rows_total", "UNCORRECTABLE_REMAPPED_ROWS": "remapped_rows_total",
    "POWER_VIOLATION": "throttle_power_us_total", "THERMAL_VIOLATION": "throttle_thermal_us_total",
    "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": "throttle_power_us_total",
    "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": "throttle_power_us_total",
    "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS": "throttle_thermal_us_total",
    "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": "throttle_thermal_us_total",
}  # fmt: skip
_LINK_ERRORS = {
    "CRC_FLIT_ERROR_COUNT": "crc_errors", "CRC_DATA_ERROR_COUNT": "crc_data_errors",
    "REPLAY_ERROR_COUNT": "replays", "RECOVERY_ERROR_COUNT": "recoveries", "ECC_DATA_ERROR_COUNT": "ecc_errors",
}  # fmt: skip
_LINK = re.compile(r"NVLINK_([A-Z_]+?)_(TOTAL|L(\d{1,2}))")
_PREFIX = re.compile(r"DCGM_(?:FI|EXP)_(?:DEV_|PROF_)?")
_UNIT_IN_HELP = re.compile(r"\(in (\w+)\)|\bin (ns|us|ms|nanoseconds|microseconds)\b")
_TO_US = {"ns": 1e-3, "nanoseconds": 1e-3, "us": 1.0, "microseconds": 1.0, "ms": 1e3}
_DRIVER_LABELS = {"DCGM_FI_DRIVER_VERSION": "driver", "DCGM_FI_DEV_VBIOS_VERSION": "vbios",
                  "DCGM_FI_CUDA_DRIVER_VERSION": "cuda"}  # fmt: skip

DCGM_CARRIES: Mapping[str, tuple[str, ...]] = {
    "device_samples": (
        *IDENTITY, "job", *dict.fromkeys(column for column, _ in FIELDS.values()), "retired_pages_total",
        "remapped_rows_total", "remap_pending", "remap_failure", "throttle_thermal_us_total",
        "throttle_power_us_total", "ecc_mode", "pcie_rx_bytes_total", "pcie_tx_bytes_total", "link_errors_total",
        "quality", "extra", "extra_counters",
    ),
    "sensor_samples": SENSOR_COLUMNS,
    "config_facts": CONFIG_COLUMNS,
    "events": EVENT_COLUMNS,
    "inventory": INVENTORY_COLUMNS,
}  # fmt: skip
DCGM_NULL_NOTES = {
    "mem_temp_c": "blank sentinel where the board has no sensor",
    "ecc_corrected_total": "not collected by default",
    "throttle_power_us_total": "not collected by default; ns or us according to HELP",
    "mem_total_bytes": "FB_TOTAL is not collected by default; free and used are not summed up",
    "voltage_mv": "DCGM has no such field",
}


class DcgmMap:
    """Maps DCGM_FI_* and DCGM_EXP_* samples."""

    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = DCGM_CARRIES

    def __init__(self, context: CaptureContext, now_ms: int) -> None:
        self._set = DeviceSet(self.CARRIES, context, "nvidia", now_ms)
        self._parts: dict[str, dict[str, dict[str, float]]] = {}
        self._errors: dict[str, dict[str, dict[str, int]]] = {}
        self._identified: set[str] = set()

    @staticmethod
    def owns(name: str) -> bool:
        """Say whether the name is a DCGM field."""
        return name.startswith(("DCGM_FI_", "DCGM_EXP_", "dcgm_fi_", "dcgm_exp_"))

    def take(self, sample: Sample, family: Family) -> None:
        """Take one sample."""
        labels = sample.labels
        uuid = labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid")
        index = device_index(labels, "gpu", "device", "minor_number")
        mig = labels.get("GPU_I_ID", "")
        key = f"{index if index is not None else uuid} {mig}".strip()
        device = self._set.get(key, sample, f"gpu {key}")
        if device is None:
            return
        self._identify(device, key, labels, index, uuid, mig)
        name = _PREFIX.sub("", sample.name.upper())
        reason = blank_reason(sample.value)
        if reason is not None:
            device.unknown(self._column(name) or "extra", reason)
        elif sample.value is not None:
            self._store(device, key, name, sample.value, sample, family)

    def finish(self) -> Iterator[Row | Note]:
        """Yield the rows of all devices."""
        for key, device in self._set.devices.items():
            for column, parts in self._parts.get(key, {}).items():
                device.put(column, total(parts.values()))
            # A total and the links it adds up may both be collected: then the total counts.
            errors = self._errors.get(key, {}).values()
            device.put("link_errors_total", total(sums.get("total", sums.get("links")) for sums in errors))
            if device.value("remap_failure") is True:
                device.event("remap:failure", "critical", "a row remap failed: isolate the device and replace it")
            if device.value("remap_pending") is True:
                device.event("remap:pending", "error", "a row remap waits for a reset: drain the node, reset the GPU")
        yield from self._set.rows()

    def _column(self, name: str) -> str | None:
        if name in FIELDS:
            return FIELDS[name][0]
        if name in ("ROW_REMAP_FAILURE", "ROW_REMAP_PENDING"):
            return "remap_failure" if name.endswith("FAILURE") else "remap_pending"
        return "link_errors_total" if _LINK.fullmatch(name) and "ERROR" in name else _PARTS.get(name)

    def _identify(
        self, device: Device, key: str, labels: Mapping[str, str], index: int | None, uuid: str | None, mig: str
    ) -> None:
        if key in self._identified:
            return
        self._identified.add(key)
        device.put("device", index)
        # The label of a MIG instance is the UUID of its GPU.
        device.put("uuid", uuid or None if not mig else None)
        device.put("model", labels.get("modelName") or labels.get("model") or None)
        device.put("job", labels.get("hpc_job") or None)
        device.node = labels.get("Hostname") or labels.get("hostname") or None
        if mig and (mig_index := device_index(labels, "GPU_I_ID")) is not None:
            device.put("parent_device", index)
            device.put("mig_id", mig_index)
        for label, fact in _DRIVER_LABELS.items():
            device.config(fact, labels.get(label))
        owner = {
            name: labels.get(name, "") for name in ("pod", "namespace", "container", "pci_bus_id", "GPU_I_PROFILE")
        }
        if any(owner.values()):
            device.inventory({**owner, "uuid": uuid or ""})

    def _store(self, device: Device, key: str, name: str, value: float, sample: Sample, family: Family) -> None:
        if name in FIELDS:
            column, factor = FIELDS[name]
            device.put(column, scaled(value, factor))
        elif name in _PARTS:
            self._part(device, key, name, value, family)
        elif name in ("ROW_REMAP_FAILURE", "ROW_REMAP_PENDING"):
            device.put("remap_failure" if name.endswith("FAILURE") else "remap_pending", bool(value))
        elif name == "ECC_CURRENT":
            device.put("ecc_mode", "enabled" if value else "disabled")
        elif name in ("XID_ERRORS", "XID_ERRORS_COUNT"):
            self._xid(device, name, value, sample.labels)
        elif name in ("PCIE_TX_BYTES", "PCIE_RX_BYTES") and family.kind == "counter":
            device.put(f"pcie_{name[5:7].lower()}_bytes_total", value)
        elif (link := _LINK.fullmatch(name)) is not None and link[1] in _LINK_ERRORS:
            self._link_error(device, key, link, value, sample.labels)
        else:
            device.extra_value(extra_name("dcgm", name), value)

    def _part(self, device: Device, key: str, name: str, value: float, family: Family) -> None:
        column = _PARTS[name]
        parts = self._parts.setdefault(key, {}).setdefault(column, {})
        if name.endswith("_NS"):
            # The newer counters replace the violation counters, which measure the same time.
            parts.pop("POWER_VIOLATION", None)
            parts.pop("THERMAL_VIOLATION", None)
            parts[name] = scaled(value, _TO_US["ns"])
        elif name.endswith("VIOLATION"):
            if any(part.endswith("_NS") for part in parts):
                return
            unit = _UNIT_IN_HELP.search(family.help)
            factor = _TO_US.get((unit[1] or unit[2]) if unit else "")
            if factor is not None or value == 0:
                parts[name] = scaled(value, factor or 1)
            else:
                device.unknown(column, "HELP states no unit (releases differ: ns or us)")
                device.extra_value(extra_name("dcgm", name), value)
        else:
            parts[name] = value
            device.extra_value(extra_name("dcgm", name), value)

    def _xid(self, device: Device, name: str, value: float, labels: Mapping[str, str]) -> None:
        kept = ("err_msg", "window_size_in_ms", "pod", "namespace", "pci_bus_id")
        attrs = {label: labels[label] for label in kept if label in labels}
        if name == "XID_ERRORS":
            code = labels.get("err_code") or f"{value:g}"
            if value and code not in ("", "0"):
                message = f"the last Xid of the device is {code}"
                device.event(f"xid:{code}", xid_severity(code), message, {**attrs, "state": "last"})
            return
        code = labels.get("xid", "")
        if value and code:
            message = f"Xid {code} was reported {value:g} times in the exporter's window"
            device.event(
                f"xid:{code}", xid_severity(code), message, {**attrs, "state": "window", "count": f"{value:g}"}
            )

    def _link_error(
        self, device: Device, key: str, link: re.Match[str], value: float, labels: Mapping[str, str]
    ) -> None:
        if not 0 <= value < 2**64:
            return  # NaN, infinity and negative values are no count
        count = int(value)
        label = link[3] if link[3] is not None else labels.get("nvlink", labels.get("link", ""))
        if label:
            device.sensor("nvlink", label, _LINK_ERRORS[link[1]], "errors", counter=count)
        sums = self._errors.setdefault(key, {}).setdefault(link[1], {})
        scope = "links" if label else "total"
        sums[scope] = sums.get(scope, 0) + count


def xid_severity(code: str) -> str:
    """Return the severity of an Xid printed as text; a warning for one that the catalogue does not know."""
    number = to_int(code)
    return xid(number).severity.value if number is not None and number >= 0 else EventSeverity.WARNING.value


def blank_reason(value: float | None) -> str | None:
    """Say why a DCGM value is blank; None when it is a value.

    DCGM marks unknowns with the last 16 values below 2^63 (int64), 2^31 (int32) and from 2^47 (double).
    """
    if value is None:
        return NOT_READABLE
    for base in (0x7FFFFFFFFFFFFFF0, 0x7FFFFFF0, 140737488355328):
        if 0 <= value - base <= 15:
            return {2: f"{BLANK}: {NOT_SUPPORTED}", 3: f"{BLANK}: no permission"}.get(int(value - base), BLANK)
    return BLANK if 9.2e18 < value < 9.3e18 else None


class DcgmCounterList:
    """Reads a dcgm-exporter counter list (default-counters.csv) or a plain list of field names."""

    name = "dcgm-counter-list"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"config_facts": CONFIG_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"config_facts.device": "the list holds for the whole node"}
    _ENTRY: ClassVar[re.Pattern[str]] = re.compile(
        r"\s*(#?)\s*(DCGM_(?:FI|EXP)_\w{1,100})\s*(?:,\s*(\w+)\s*,\s*(.*))?$"
    )

    def recognise(self, head: bytes) -> bool:
        """Recognise lines of `FIELD, type, help`, or field names alone."""
        lines = [line for line in head_text(head).split("\n")[:400] if line.strip()]
        entries = [self._ENTRY.match(line) for line in lines]
        typed = sum(1 for entry in entries if entry is not None and entry[3] in ("gauge", "counter", "label"))
        plain = sum(1 for entry in entries if entry is not None and entry[3] is None)
        return typed >= 2 or (plain >= 3 and plain >= len(lines) - 2)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one fact per collected field and one note per field that is listed and not collected."""
        lines = Lines(stream)
        known = unknown = 0
        for number, line in lines:
            entry = self._ENTRY.match(line)
            if entry is None:
                if line.strip() and not line.lstrip().startswith("#"):
                    yield Note("warning", f"line {number}", "not a field line; skipped")
                continue
            name, kind = entry[2], entry[3]
            if kind is None:
                short = _PREFIX.sub("", name)
                mapped = short in FIELDS or short in _PARTS
                known, unknown = known + mapped, unknown + (not mapped)
            elif entry[1]:
                yield Note("info", f"line {number}", f"{name}: not collected, so what it tells is unknown, not 0")
            else:
                values = {"name": f"dcgm_field:{name}", "value": f"collected as {kind}"}
                yield make_row("config_facts", self.CARRIES, context, values)
        if known or unknown:
            yield Note("info", "", f"a list of field names: {known} have a column, {unknown} are kept in extra by name")
        yield from lines.notes
