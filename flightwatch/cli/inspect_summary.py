"""What a person needs to know about inspected captures: devices, incidents, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flightwatch.collectors.capture_walk import Item
from flightwatch.collectors.inspect import Inspection
from flightwatch.core.clock import iso_utc
from flightwatch.core.protocols import Note, Row, Value
from flightwatch.detectors.device_signs import signs_of
from flightwatch.detectors.kernel_events import Incident, group_events

#: Event rows kept for the JSON summary; all are counted and grouped.
EVENT_LIMIT = 100_000
#: Devices listed one by one in the text; more are listed only when something is wrong with them.
LISTED_DEVICES = 16
#: Different notes told in the text; the others are counted.
LISTED_NOTES = 10

_MAXIMA = ("temp_c", "mem_temp_c", "hotspot_c", "power_w", "power_limit_w", "util_pct", "ecc_corrected_total",
           "ecc_uncorrected_total", "ecc_corrected_lifetime_total", "ecc_uncorrected_lifetime_total",
           "retired_pages_total", "remapped_rows_total", "pcie_replay_total", "link_errors_total", "mem_used_bytes",
           "mem_total_bytes", "fan_pct", "throttle_reasons")  # fmt: skip
_MINIMA = ("temp_headroom_c", "sm_clock_mhz", "voltage_mv")
_FLAGS = ("remap_pending", "remap_failure")
_WORDS = ("vendor", "model", "uuid", "serial", "ecc_mode", "quality", "parent_device", "mig_id")
_SEVERITY_WORDS = {"critical": "CRITICAL", "error": "ERROR", "warning": "warning", "info": "info", "debug": "info"}


@dataclass(slots=True)
class Summary:
    """Devices with their worst values, events, incidents.

    Attributes
    ----------
    devices: one dict a device, in the order in which they appeared.
    events: event rows with their source, times rendered.
    incidents: the worst first.
    notes: warnings and errors about captures: (source, note).
    tables: rows by table.
    """

    devices: list[dict[str, Value]] = field(default_factory=list)
    events: list[dict[str, object]] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    notes: list[tuple[str, Note]] = field(default_factory=list)
    tables: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return the contract's object: devices, events, incidents."""
        return {
            "devices": self.devices,
            "events": self.events,
            "incidents": [incident.as_json(iso_utc(incident.first_ts)) for incident in self.incidents],
        }


def summarise(items: Iterable[Item]) -> Summary:
    """Read all items and group what they say."""
    summary = Summary()
    devices: dict[tuple[object, ...], dict[str, Value]] = {}
    happened: list[tuple[str, Mapping[str, Value]]] = []
    signs: dict[tuple[object, ...], tuple[str, Mapping[str, Value]]] = {}
    for item in items:
        if isinstance(item.what, Note):
            if item.what.level != "info":
                summary.notes.append((item.source, item.what))
            continue
        row = item.what
        summary.tables[row.table] = summary.tables.get(row.table, 0) + 1
        if row.table == "events":
            happened.append((item.source, row.values))
            if len(summary.events) < EVENT_LIMIT:
                summary.events.append({"source": item.source, **row.values, "ts": _time(row.values.get("ts"))})
        elif row.table == "device_samples":
            _worst(devices, item.source, row)
        for sign in signs_of(row.table, row.values):
            attrs = sign["attrs"]
            sensor = attrs.get("sensor") if isinstance(attrs, dict) else None
            key = (sign["code"], sign["node"], sign["device"], sensor, None if sign["node"] else item.source)
            signs[key] = (item.source, sign)
    summary.devices = list(devices.values())
    told = {(source, values.get("code"), values.get("device")) for source, values in happened}
    silent = [(at, sign) for at, sign in signs.values() if (at, sign["code"], sign["device"]) not in told]
    summary.incidents = group_events([*happened, *silent])
    return summary


def _time(value: Value) -> str | None:
    return iso_utc(value) if isinstance(value, int) else None


def _worst(devices: dict[tuple[object, ...], dict[str, Value]], source: str, row: Row) -> None:
    values = row.values
    node, uuid = values.get("node"), values.get("uuid")
    key = (
        ("uuid", uuid)
        if uuid
        else (node or source, values.get("device"), values.get("parent_device"), values.get("mig_id"))
    )
    known = devices.get(key)
    if known is None:
        known = devices[key] = {"node": node, "device": values.get("device")}
    for name in (*_WORDS, *_MAXIMA, *_MINIMA, *_FLAGS):
        new, old = values.get(name), known.get(name)
        if new is None:
            known.setdefault(name, None)
        elif name in _FLAGS:
            known[name] = bool(new) or bool(old)
        elif isinstance(new, (int, float)) and isinstance(old, (int, float)) and name in (*_MAXIMA, *_MINIMA):
            known[name] = min(new, old) if name in _MINIMA else max(new, old)
        elif old is None:
            known[name] = new


def clean(text: str) -> str:
    """Escape control characters, and a first character that a spreadsheet would take for a formula."""
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@") and not _is_number(shown) else shown


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def render(summary: Summary, inspection: Inspection) -> list[str]:
    """Return the text form, short enough for a tired person."""
    read = sum(inspection.recognised.values())
    lines = [
        f"{read} capture{'' if read == 1 else 's'} read"
        + (f", {len(inspection.unrecognised)} not recognised" if inspection.unrecognised else "")
        + (f" ({len(inspection.empty)} empty)" if inspection.empty else "")
        + (f", {len(inspection.malformed)} malformed" if inspection.malformed else "")
    ]
    if inspection.recognised:
        lines += _incidents(summary.incidents)
    else:
        lines += ["", "Nothing was recognised, so nothing can be said."]
    lines += _devices(summary.devices, summary.incidents)
    if summary.tables:
        counts = ", ".join(f"{count} {table}" for table, count in sorted(summary.tables.items()))
        lines += ["", f"Rows: {counts}"]
    return lines + _notes(summary.notes, frozenset(inspection.unrecognised))


def _notes(notes: list[tuple[str, Note]], unrecognised: frozenset[str]) -> list[str]:
    """Tell errors, then warnings, alike ones once; captures that were not recognised are counted elsewhere."""
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for source, note in notes:
        if note.level == "error" or source not in unrecognised:
            alike.setdefault((note.level, note.text), []).append((source, note.where))
    if not alike:
        return []
    lines = ["", "Notes on the captures:"]
    told = sorted(alike.items(), key=lambda entry: entry[0][0] != "error")
    for (level, text), places in told[:LISTED_NOTES]:
        source, where = places[0]
        others = f" (and {len(places) - 1} more like it)" if len(places) > 1 else ""
        head = f"{_SEVERITY_WORDS.get(level, level)}  {source}{f', {where}' if where else ''}"
        lines.append(f"  {clean(f'{head}: {text}{others}')}")
    if len(told) > LISTED_NOTES:
        lines.append(f"  and {len(told) - LISTED_NOTES} more")
    return lines


def _incidents(incidents: list[Incident]) -> list[str]:
    if not incidents:
        return ["", "No incidents."]
    groups: dict[tuple[object, ...], list[Incident]] = {}
    for incident in incidents:
        where = incident.node or incident.sources[:1]
        key = (str(where), incident.root, tuple(incident.consequences), incident.action, incident.severity)
        groups.setdefault(key, []).append(incident)
    entries = f" in {len(groups)} entries, alike ones together" if len(groups) < len(incidents) else ""
    lines = ["", f"Incidents ({len(incidents)}{entries}), the worst first:"]
    for number, alike in enumerate(groups.values(), 1):
        lines += _one(number, alike)
    return lines


def _one(number: int, alike: list[Incident]) -> list[str]:
    """Tell incidents that differ only in the device and the time as one."""
    incident = alike[0]
    node = f"node {incident.node}" if incident.node else f"node unknown ({_short(incident.sources)})"
    devices = [words for one in alike if (words := _device_words(one))]
    device = f", device{'s' if len(devices) > 1 else ''} {', '.join(devices[:16])}" if devices else ""
    head = f"{number}. {_SEVERITY_WORDS.get(incident.severity, incident.severity)}  {node}{device}"
    root = f"   root: {clean(incident.root)}" + (f"  {clean(incident.meaning)}" if incident.meaning else "")
    if incident.details:
        root += f" ({clean(', '.join(incident.details))[:200]})"
    lines = [clean(head), root]
    if incident.consequences:
        lines.append(f"   consequences: {clean(', '.join(incident.consequences))}")
    if incident.bystanders:
        lines.append(f"   also logged by (not the source): {clean(', '.join(incident.bystanders))}")
    lines.append(f"   when: {clean(_when(alike))}")
    lines.append(f"   do: {clean(incident.action)}")
    return lines


def _short(sources: list[str]) -> str:
    return sources[0].replace("!", "/").rstrip("/").rsplit("/", 1)[-1] if sources else "no capture"


def _device_words(incident: Incident) -> str:
    if isinstance(incident.device, int):
        return f"{incident.device}" + (f" ({incident.pci_bus_id})" if incident.pci_bus_id else "")
    return incident.device or ""


def _when(alike: list[Incident]) -> str:
    count = sum(incident.count for incident in alike)
    times = "once" if count == 1 else f"{count} events"
    first = [incident.first_ts for incident in alike if incident.first_ts is not None]
    last = [incident.last_ts for incident in alike if incident.last_ts is not None]
    if not first or not last:
        return f"{times}, {alike[0].moment or 'time not in the capture'}"
    if max(last) == min(first):
        return f"{times}, {iso_utc(min(first))}"
    return f"{times}, {iso_utc(min(first))} to {iso_utc(max(last))}"


def _devices(devices: list[dict[str, Value]], incidents: list[Incident]) -> list[str]:
    if not devices:
        return []
    wrong = {(incident.node, incident.device) for incident in incidents}
    shown = devices
    lines = ["", f"Devices ({len(devices)}), worst values:"]
    if len(devices) > LISTED_DEVICES:
        shown = [device for device in devices if (device["node"], device["device"]) in wrong or _is_notable(device)]
        lines.append(f"  {_range(devices)}")
        if len(shown) > LISTED_DEVICES:
            shown = shown[:LISTED_DEVICES]
    lines += [f"  {clean(_device_line(device))}" for device in shown]
    return lines


def _is_notable(device: Mapping[str, Value]) -> bool:
    return bool(device.get("remap_pending") or device.get("remap_failure") or device.get("ecc_uncorrected_total"))


def _range(devices: list[dict[str, Value]]) -> str:
    temps = [value for device in devices if isinstance(value := device.get("temp_c"), (int, float))]
    return f"temperatures {min(temps):g} to {max(temps):g} C" if temps else "no temperatures"


_SHOWN = (
    ("temp_c", "{:g} C"), ("hotspot_c", "hotspot {:g} C"), ("mem_temp_c", "memory {:g} C"),
    ("temp_headroom_c", "{:g} C to slowdown"), ("power_w", "{:g} W"), ("util_pct", "{:g} % busy"),
    ("ecc_corrected_total", "{:g} corrected"), ("ecc_uncorrected_total", "{:g} UNCORRECTED"),
    ("remapped_rows_total", "{:g} rows remapped"), ("retired_pages_total", "{:g} pages retired"),
)  # fmt: skip


def _device_line(device: Mapping[str, Value]) -> str:
    parts = []
    for name, form in _SHOWN:
        value = device.get(name)
        quiet = value == 0 and ("ecc" in name or "rows" in name or "pages" in name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not quiet:
            parts.append(form.format(round(value, 2)))
    if device.get("remap_failure"):
        parts.append("row remap FAILED")
    elif device.get("remap_pending"):
        parts.append("row remap pending")
    name = " ".join(
        str(word) for word in (device.get("node"), device.get("device"), device.get("model")) if word is not None
    )
    if device.get("mig_id") is not None:
        name += f" (MIG {device['mig_id']} of {device['parent_device']})"
    return f"{name or 'device'}: {', '.join(parts) if parts else 'no readings'}"
