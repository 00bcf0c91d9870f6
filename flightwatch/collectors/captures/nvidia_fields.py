"""What the fields of `nvidia-smi -q` mean, whatever the driver called them and however it printed them.

The text and the XML form of one report are both read into a flat mapping from a path of lower-case words
("gpu_power_readings/average_power_draw") to the printed text; this module turns such a mapping into rows.
Names are those of drivers 418 to 610: sections were renamed (clocks throttle reasons / clocks event reasons,
power_readings / gpu_power_readings) and some moved apart (module and memory power have sections of their own,
which are never the GPU's power).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flightwatch.collectors.captures.device_rows import Device, stated_time, total, utc_note
from flightwatch.collectors.captures.nvidia_names import ALARMS, CELLS, ECC, EXTRAS, REASONS, REMAP, SUMS
from flightwatch.collectors.captures.quantities import (
    ABSENT,
    DEPRECATED,
    NOT_READABLE,
    quantity,
    reason_for,
    text_or_none,
    yes_no,
)
from flightwatch.core.protocols import CaptureContext, Note, Row

Fields = dict[str, str]

_WORD = re.compile(r"[^a-z0-9]+")
_XML_REASON = re.compile(r"^clocks_(?:throttle|event)_reasons?_(?:counters_)?")
_SECTIONS = {
    "clocks_throttle_reasons": "reasons",
    "clocks_event_reasons": "reasons",
    "clocks_event_reasons_counters": "reason_counters",
    "clocks_throttle_reasons_counters": "reason_counters",
    "gpu_virtualization_mode": "virtualization",
}


@dataclass
class Gpu:
    """One GPU of a report: its PCI address, its fields and those of its MIG children."""

    address: str
    fields: Fields = field(default_factory=dict)
    children: list[Fields] = field(default_factory=list)
    partial: bool = False


@dataclass
class Report:
    """One report: what stands above the GPUs."""

    fields: Fields = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)


def path_word(name: str) -> str:
    """Spell a section, element or key as a path word; the two generations of clock reasons become one."""
    word = _WORD.sub("_", name.lower()).strip("_")
    word = _SECTIONS.get(word, word)
    return _XML_REASON.sub("", word)


def report_rows(
    report: Report, carries: Mapping[str, tuple[str, ...]], context: CaptureContext
) -> Iterator[Row | Note]:
    """Yield the rows of one report.

    The index of a device is its place in the report when the report holds all attached GPUs, else its
    minor number, else unknown.
    """
    stamp = report.fields.get("timestamp")
    ts = stated_time(stamp) if stamp else None
    if ts is not None:
        yield utc_note("timestamp")
    attached = quantity(report.fields.get("attached_gpus", ""), "count").value
    whole = attached is None or attached <= len(report.gpus)
    if attached is not None and attached != len(report.gpus):
        yield Note("warning", "attached gpus", f"the report says {attached} GPUs are attached and shows "
                   f"{len(report.gpus)}")  # fmt: skip
    for place, gpu in enumerate(report.gpus):
        index = place if whole else _minor_number(gpu.fields)
        yield from _gpu_rows(gpu, index, report.fields, carries, context, ts)


def _minor_number(fields: Fields) -> int | None:
    value = quantity(fields.get("minor_number", ""), "count").value
    return int(value) if value is not None else None


def _gpu_rows(
    gpu: Gpu,
    index: int | None,
    head: Fields,
    carries: Mapping[str, tuple[str, ...]],
    context: CaptureContext,
    ts: int | None,
) -> Iterator[Row | Note]:
    device = Device(carries, context, "nvidia", f"gpu {gpu.address}")
    if index is None:
        device.note("warning", "its index is unknown: only a part of the attached GPUs is in the report")
    _fill(device, gpu)
    _ecc(device, gpu.fields, gpu.address)
    _alarms(device, gpu)
    _facts(device, gpu, head)
    if gpu.partial:
        device.flag("partial", "the report ends inside this GPU")
    yield from device.rows(ts, index)
    for place, fields in enumerate(gpu.children):
        yield from _child(gpu, place, fields, index, carries, context, device).rows(ts, index)


def _child(
    gpu: Gpu,
    place: int,
    fields: Fields,
    index: int | None,
    carries: Mapping[str, tuple[str, ...]],
    context: CaptureContext,
    parent: Device,
) -> Device:
    mig_id = quantity(fields.get("index", str(place)), "count").value
    child = Device(carries, context, "nvidia", f"gpu {gpu.address} mig {mig_id}")
    child.put("parent_device", index)
    child.put("mig_id", mig_id)
    child.put("model", parent.value("model"))
    for column in ("mem_used_bytes", "mem_total_bytes"):
        child.set(column, first(fields, CELLS[column])[0], bare=False)
    errors = total(
        quantity(text, "count").value for path, text in fields.items() if path.endswith("sram_uncorrectable")
    )
    child.put("ecc_uncorrected_total", errors)
    for name in ("gpu_instance_id", "compute_instance_id"):
        child.extra(f"nvidia_smi.{name}", fields.get(name), "count")
    return child


def first(fields: Mapping[str, str], paths: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the first path with a readable value, else the first that is there at all: (text, path)."""
    present = [path for path in paths if path in fields]
    for path in present:
        if reason_for(fields[path]) is None:
            return fields[path], path
    return (fields[present[0]], present[0]) if present else (None, None)


def _fill(device: Device, gpu: Gpu) -> None:
    fields = gpu.fields
    for column, paths in CELLS.items():
        device.set(column, first(fields, paths)[0], bare=False)
    rows_missing = fields.get("remapped_rows")
    for column, paths in REMAP.items():
        device.set(column, first(fields, paths)[0] or rows_missing)
    for column, parts in SUMS.items():
        _put_sum(device, column, fields, parts, rows_missing if column.startswith("remapped") else None)
    ends_in_reasons = any(path.startswith("reasons/") for path in list(fields)[-1:])
    _throttle(device, fields, cut=gpu.partial and ends_in_reasons)
    for path, unit, name in EXTRAS:
        device.extra(name, fields.get(path), unit)


def _put_sum(
    device: Device, column: str, fields: Fields, parts: Sequence[Sequence[str]], fallback: str | None = None
) -> None:
    unit = "us" if column.endswith("_us_total") else "count"
    printed = [any(path in fields for path in paths) for paths in parts]
    if any(printed) and not printed[-1]:
        # The last part is printed whenever another one is: without it the report was cut, and there is no sum.
        device.unknown(column, ABSENT)
        return
    reads = [quantity(text, unit) for text in (first(fields, paths)[0] for paths in parts) if text is not None]
    if reads:
        device.put_total(column, reads)
    else:
        device.unknown(column, (reason_for(fallback) if fallback else None) or ABSENT)


def _ecc(device: Device, fields: Fields, address: str) -> None:
    mode = first(fields, ("ecc_mode/current", "ecc_mode/current_ecc"))[0]
    if mode is None:
        device.unknown("ecc_mode", ABSENT)
    elif mode.strip().lower() in ("enabled", "disabled"):
        device.put("ecc_mode", mode.strip().lower())
        device.config("ecc_mode", mode.strip().lower())
    else:
        reason = reason_for(mode) or NOT_READABLE
        device.unknown("ecc_mode", reason)
        if reason == NOT_READABLE:
            device.note("warning", f"the ECC mode reads {mode.strip()!r}: ECC state of the device is unknown")
            device.event("ecc:unreadable", "warning", f"the ECC mode reads {mode.strip()!r}", {"pci_bus_id": address})
    for column, (scope, old, parts) in ECC.items():
        prefix = f"ecc_errors/{scope}/"
        total_path = f"{prefix}{old}/total"
        if total_path in fields:
            device.set(column, fields[total_path])
        else:
            _put_sum(device, column, fields, [[prefix + name for name in names] for names in parts])


def _throttle(device: Device, fields: Fields, *, cut: bool) -> None:
    bits, known = 0, False
    unreadable: str | None = None
    for path, text in fields.items():
        if not path.startswith("reasons/"):
            continue
        bit = REASONS.get(path.removeprefix("reasons/"))
        active, reason = yes_no(text)
        if bit is None:
            continue
        if active is None:
            unreadable = unreadable or reason
        else:
            known = True
            bits |= bit if active else 0
    if known and not cut:
        device.put("throttle_reasons", bits)
    else:
        whole = reason_for(fields["reasons"]) if "reasons" in fields else None
        device.unknown("throttle_reasons", unreadable or whole or ABSENT)


def _alarms(device: Device, gpu: Gpu) -> None:
    where = {"pci_bus_id": gpu.address}
    if device.value("remap_pending") is True:
        device.event("remap:pending", "error", "a row remap waits for a reset: drain the node and reset the GPU", where)
    if device.value("remap_failure") is True:
        device.event("remap:failure", "critical", "a row remap failed: isolate the device and replace it", where)
    for paths, code, severity, message in ALARMS:
        if any(yes_no(gpu.fields.get(path, ""))[0] is True for path in paths):
            device.event(code, severity, message, where)
    action = text_or_none(gpu.fields.get("gpu_recovery_action"))
    if action and reason_for(action) is None and action.lower() != "none":
        device.event("recovery_action", "error", f"the driver asks for: {action}", {**where, "action": action})


def _facts(device: Device, gpu: Gpu, head: Fields) -> None:
    for name, paths in (
        ("driver", ("kmd_version", "driver_version")), ("cuda", ("cuda_umd_version", "cuda_version")),
        ("vbios", ("vbios_version",)),
        ("gsp_firmware", ("gsp_firmware_version",)), ("mig_mode", ("mig_mode/current", "mig_mode/current_mig")),
        ("persistence_mode", ("persistence_mode",)), ("compute_mode", ("compute_mode",)),
    ):  # fmt: skip
        text = text_or_none(first(gpu.fields, paths)[0] or first(head, paths)[0])
        device.config(name, text if text and reason_for(text) not in (NOT_READABLE, DEPRECATED) else None)
    limit = device.value("power_limit_w")
    device.config("power_limit", f"{limit:g} W" if isinstance(limit, float) else None)
    device.inventory({"pci_bus_id": gpu.address, "uuid": text_or_none(first(gpu.fields, CELLS["uuid"])[0]) or ""})
