"""`nvidia-smi --query-gpu=... --format=csv`: one line a device, read by its header."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row, to_int
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    EVENT_COLUMNS,
    INVENTORY_COLUMNS,
    Device,
    extra_name,
    stated_time,
    utc_note,
)
from flightwatch.collectors.captures.nvidia_names import QUERY_COLUMNS, QUERY_NULL_NOTES
from flightwatch.collectors.captures.quantities import (
    ABSENT,
    NOT_READABLE,
    quantity,
    reason_for,
    text_or_none,
    yes_no,
)
from flightwatch.collectors.captures.tool_failures import failure_of
from flightwatch.core.protocols import CaptureContext, Note, Row

Cells = dict[str, tuple[str, str]]

#: Column to the query fields that hold it, the preferred one first.
CELLS: dict[str, tuple[str, ...]] = {
    "model": ("name", "gpu_name"),
    "uuid": ("uuid", "gpu_uuid"),
    "serial": ("serial", "gpu_serial"),
    "temp_c": ("temperature.gpu",),
    "mem_temp_c": ("temperature.memory",),
    "temp_headroom_c": ("temperature.gpu.tlimit",),
    "power_w": ("power.draw.average", "power.draw", "power.draw.instant"),
    "power_instant_w": ("power.draw.instant",),
    "power_limit_w": ("enforced.power.limit", "power.limit"),
    "sm_clock_mhz": ("clocks.current.sm", "clocks.sm"),
    "mem_clock_mhz": ("clocks.current.memory", "clocks.mem"),
    "util_pct": ("utilization.gpu",),
    "mem_util_pct": ("utilization.memory",),
    "mem_used_bytes": ("memory.used",),
    "mem_total_bytes": ("memory.total",),
    "fan_pct": ("fan.speed",),
    "pcie_gen": ("pcie.link.gen.current", "pcie.link.gen.gpucurrent"),
    "pcie_width": ("pcie.link.width.current",),
    "remap_pending": ("remapped_rows.pending",),
    "remap_failure": ("remapped_rows.failure",),
    "ecc_corrected_total": ("ecc.errors.corrected.volatile.total",),
    "ecc_uncorrected_total": ("ecc.errors.uncorrected.volatile.total",),
    "ecc_corrected_lifetime_total": ("ecc.errors.corrected.aggregate.total",),
    "ecc_uncorrected_lifetime_total": ("ecc.errors.uncorrected.aggregate.total",),
}
#: Unit of a bare number where neither header nor cell shows one (`nounits`, old drivers).
BARE_UNITS = {"mem_used_bytes": "MiB", "mem_total_bytes": "MiB"}
SUMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "retired_pages_total": (
        ("retired_pages.single_bit_ecc.count", "retired_pages.sbe"),
        ("retired_pages.double_bit.count", "retired_pages.dbe"),
    ),
    "remapped_rows_total": (("remapped_rows.correctable",), ("remapped_rows.uncorrectable",)),
    "throttle_power_us_total": (
        ("clocks_event_reasons_counters.sw_power_cap",),
        ("clocks_event_reasons_counters.hw_power_brake_slowdown",),
    ),
    "throttle_thermal_us_total": (
        ("clocks_event_reasons_counters.sw_thermal_slowdown",),
        ("clocks_event_reasons_counters.hw_thermal_slowdown",),
    ),
}
THROTTLE = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_CONFIG = {
    "driver_version": "driver", "kmd_version": "driver", "vbios_version": "vbios",
    "persistence_mode": "persistence_mode",
    "compute_mode": "compute_mode", "mig.mode.current": "mig_mode",
}  # fmt: skip
#: Fields that are names or settings, not readings.
_NOT_READINGS = re.compile(
    r"(?:timestamp|.*version|count|index|name|serial|uuid|pci\..*|.*\.mode.*|.*_mode|inforom.*|platform.*|fabric.*"
    r"|vgpu.*|compute_cap|display.*|hostname|accounting.*|minor_number|board_id|.*\.supported)"
)
_HEADER = re.compile(r"\s*(.*?)\s*(?:\[([^\]]*)\])?\s*")
#: Queries about processes and pages have other columns besides the device's name.
_OTHER_QUERIES = frozenset(("pid", "used_gpu_memory", "retired_pages.address", "gpu_instance_id", "max_memory_usage"))
_HEADER_LIMIT = 40_000
_COMMA = re.compile(r"^(\s*-?\d{1,15}),(\d{1,15})(?=\s*[A-Za-z%]*\s*$)", re.ASCII)
_VALUE = re.compile(r"\[|.{0,80}\d")
_FIELD = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
_IDENTITY_ONLY = frozenset(("name", "gpu_name", "uuid", "gpu_uuid", "serial", "gpu_serial", "pci.bus_id", "gpu_bus_id",
                            "timestamp", "driver_version", "index"))  # fmt: skip
_IDENTITY_FIELDS = frozenset(("index", "driver_version", "vbios_version", "pstate"))
_KNOWN_FIELDS = frozenset(
    [field for fields in CELLS.values() for field in fields]
    + [field for parts in SUMS.values() for fields in parts for field in fields]
    + ["driver_version", "pci.bus_id", "gpu_bus_id", "pstate", "index", "timestamp", "ecc.mode.current", *THROTTLE]
)


class NvidiaSmiCsv:
    """Reads `--query-gpu` CSV with a header; units stand in the header or in the cells, or nowhere (`nounits`)."""

    name = "nvidia-smi-csv"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": tuple(name for name in QUERY_COLUMNS if name not in ("voltage_mv", "pcie_replay_total")),
        "config_facts": CONFIG_COLUMNS,
        "events": EVENT_COLUMNS,
        "inventory": INVENTORY_COLUMNS,
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        **QUERY_NULL_NOTES,
        "device": "the query did not ask for the index field",
    }

    def recognise(self, head: bytes) -> bool:
        """Recognise a header of query fields."""
        return _find_header(head_text(head).split("\n")[:40]) is not None

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a device row per line."""
        lines = Lines(stream)
        header: list[tuple[str, str]] | None = None
        delimiter = ","
        told_utc = False
        counted = 0
        for number, line in lines:
            found = _find_header([line])
            if found is not None:
                header, delimiter = found
                continue
            if header is None or not line.strip():
                continue
            row = _cells(line, delimiter)
            if len(row) < len(header) and (failure := failure_of(line[:300])) is not None:
                yield from self._failed(failure, line, number, context)
                continue
            if len(row) < len(header):
                yield Note("error", f"line {number}", f"{len(row)} cells under a header of {len(header)}: the line is "
                           "cut off; its last cell was not used")  # fmt: skip
                row = row[:-1]
                if not row:
                    continue
            elif len(row) > len(header):
                yield Note("error", f"line {number}", f"{len(row)} cells under a header of {len(header)}: skipped")
                continue
            cells: Cells = {name: (text.strip(), unit) for (name, unit), text in zip(header, row, strict=False)}
            ts = stated_time(cells["timestamp"][0]) if "timestamp" in cells else None
            if ts is not None and not told_utc:
                told_utc = True
                yield utc_note(f"line {number}")
            counted += 1
            yield from _device(cells, number, self.CARRIES, context).rows(ts)
        if header is not None and not counted:
            yield Note("warning", "", "the table holds no device")
        yield from lines.notes

    def _failed(
        self, failure: tuple[str, str | None], line: str, number: int, context: CaptureContext
    ) -> Iterator[Row | Note]:
        """Tell of a device that stands in the table only as the tool's complaint."""
        code, address = failure
        text = "".join(char if char.isprintable() else "?" for char in line.strip()[:300])
        yield Note("error", f"line {number}", f"the tool says: {text}")
        attrs = {"pci_bus_id": address} if address else {}
        values = {"source": "agent", "code": code, "severity": "critical", "message": text}
        yield make_row("events", self.CARRIES, context, {**values, "attrs": attrs})


def _cells(line: str, delimiter: str) -> list[str]:
    """Split a line; a spreadsheet that separates by semicolons writes `250,5` for 250.5."""
    cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    return [_COMMA.sub(r"\1.\2", cell) for cell in cells] if delimiter == ";" else cells


def _find_header(lines: list[str]) -> tuple[list[tuple[str, str]], str] | None:
    """Find the line of field names; return them with their units, and what separates the cells."""
    for place, line in enumerate(lines):
        if len(line) > _HEADER_LIMIT or ("," not in line and "." not in line):
            continue
        delimiter = max(",;\t", key=line.count)
        found = [_split_header(cell) for cell in _cells(line, delimiter)]
        names = {name for name, _ in found}
        known = names & _KNOWN_FIELDS
        readings = known - _IDENTITY_ONLY
        if not all(names) or names & _OTHER_QUERIES or not (readings or names & _IDENTITY_FIELDS):
            continue
        if len(found) > 1 and len(known) >= 2:
            return found, delimiter
        # A single field: a list of field names alone, one a line, is no table.
        after = lines[place + 1].strip() if place + 1 < len(lines) else "0"
        if len(found) == 1 and known and _VALUE.match(after) and not _FIELD.fullmatch(after):
            return found, delimiter
    return None


def _split_header(cell: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(cell)
    return (match[1], match[2] or "") if match else ("", "")


def _pick(cells: Cells, names: tuple[str, ...]) -> tuple[str, str] | None:
    present = [cells[name] for name in names if name in cells]
    for cell in present:
        if reason_for(cell[0]) is None:
            return cell
    return present[0] if present else None


def _device(cells: Cells, number: int, carries: Mapping[str, tuple[str, ...]], context: CaptureContext) -> Device:
    address = cells.get("pci.bus_id", cells.get("gpu_bus_id", ("", "")))[0]
    device = Device(carries, context, "nvidia", f"line {number}" + (f" gpu {address}" if address else ""))
    index = cells.get("index")
    if index is not None and (known := to_int(index[0])) is not None:
        device.put("device", known)
    else:
        device.unknown("device", ABSENT)
    for column, names in CELLS.items():
        cell = _pick(cells, names)
        device.set(column, cell[0] if cell else None, (cell[1] if cell else "") or BARE_UNITS.get(column, ""))
    for column, parts in SUMS.items():
        _sum(device, column, [cell for cell in (_pick(cells, names) for names in parts) if cell is not None])
    _mode_and_throttle(device, cells, address)
    _alarms(device, address)
    for field, name in _CONFIG.items():
        text = text_or_none(cells.get(field, ("", ""))[0])
        device.config(name, text if text and reason_for(text) is None else None)
    limit = device.value("power_limit_w")
    device.config("power_limit", f"{limit:g} W" if isinstance(limit, float) else None)
    device.inventory({"pci_bus_id": address, "uuid": str(device.value("uuid") or "")})
    _extras(device, cells)
    return device


def _sum(device: Device, column: str, parts: list[tuple[str, str]]) -> None:
    unit = "us" if column.endswith("_us_total") else "count"
    device.put_total(column, [quantity(text, unit, header_unit) for text, header_unit in parts])


def _mode_and_throttle(device: Device, cells: Cells, address: str) -> None:
    mode = cells.get("ecc.mode.current", ("", ""))[0]
    if mode.lower() in ("enabled", "disabled"):
        device.put("ecc_mode", mode.lower())
        device.config("ecc_mode", mode.lower())
    else:
        reason = reason_for(mode) if "ecc.mode.current" in cells else ABSENT
        device.unknown("ecc_mode", reason or NOT_READABLE)
        if reason == NOT_READABLE:
            device.event("ecc:unreadable", "warning", f"the ECC mode reads {mode!r}", {"pci_bus_id": address})
    active = _pick(cells, THROTTLE)
    if active is None:
        device.unknown("throttle_reasons", ABSENT)
    else:
        device.set("throttle_reasons", active[0])


def _alarms(device: Device, address: str) -> None:
    where = {"pci_bus_id": address} if address else {}
    if device.value("remap_pending") is True:
        device.event("remap:pending", "error", "a row remap waits for a reset: drain the node and reset the GPU", where)
    if device.value("remap_failure") is True:
        device.event("remap:failure", "critical", "a row remap failed: isolate the device and replace it", where)


def _extras(device: Device, cells: Cells) -> None:
    mapped = {name for names in CELLS.values() for name in names}
    for field, (text, unit) in cells.items():
        if field in mapped or field in THROTTLE or _NOT_READINGS.fullmatch(field):
            continue
        flag, _ = yes_no(text) if not text.isdecimal() else (None, None)
        match = re.fullmatch(r"([+-]?\d{1,20}(?:\.\d{1,12})?)\s*([A-Za-z%]{0,6})", text, re.ASCII)
        if match is not None:
            printed = (match[2] or unit).lower().replace("%", "pct")
            number = int(match[1]) if match[1].lstrip("+-").isdigit() else float(match[1])
            device.extra_value(extra_name("nvidia_smi", f"{field}_{printed}" if printed else field), number)
        elif flag is not None and field.startswith("clocks_"):
            continue  # part of throttle_reasons
