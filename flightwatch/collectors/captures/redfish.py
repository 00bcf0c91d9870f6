"""Redfish JSON: Thermal, Power, ThermalMetrics, PowerSupplyMetrics, EnvironmentMetrics, Sensor(s), fans.

One document or several (a list, JSON lines, a `Members` collection expanded in place). What a reading
is comes from its units (`ReadingUnits`, `Units` in old firmware, `ReadingType`), never from its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, make_row
from flightwatch.collectors.captures.host_sensors import SENSOR_CARRIES, Sensor, SensorSheet
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.collectors.captures.two_forms import objects, read_json_or_text
from flightwatch.core.protocols import CaptureContext, Note, Row

#: ReadingUnits (UCUM and the old spellings) to (quantity, unit).
UNITS: Mapping[str, tuple[str, str]] = {
    "cel": ("temperature", "C"), "c": ("temperature", "C"), "celsius": ("temperature", "C"), "rpm": ("fan", "rpm"),
    "{rev}/min": ("fan", "rpm"), "percent": ("ratio", "%"), "%": ("ratio", "%"), "w": ("power", "W"),
    "watts": ("power", "W"), "v": ("voltage", "V"), "a": ("current", "A"), "va": ("apparent_power", "VA"),
    "hz": ("frequency", "Hz"), "kpa": ("pressure", "kPa"), "pa": ("pressure", "Pa"), "l/min": ("flow", "l/min"),
    "m3/h": ("airflow", "m3/h"), "[ft_i]3/min": ("airflow", "cfm"), "j": ("energy", "J"), "kw.h": ("energy", "kWh"),
    "g": ("mass", "g"), "s": ("time", "s"), "m": ("length", "m"),
}  # fmt: skip
_READING_TYPES: Mapping[str, tuple[str, str]] = {
    "temperature": ("temperature", "C"), "power": ("power", "W"), "voltage": ("voltage", "V"),
    "current": ("current", "A"), "rotational": ("fan", "rpm"), "humidity": ("humidity", "%"),
    "liquidflow": ("flow", "l/min"), "liquidflowlpm": ("flow", "l/min"), "pressurekpa": ("pressure", "kPa"),
    "percent": ("utilisation", "%"), "energykwh": ("energy", "kWh"), "energyjoules": ("energy", "J"),
    "frequency": ("frequency", "Hz"), "airflow": ("airflow", "cfm"),
}  # fmt: skip
_HEALTH = {"OK": "ok", "WARNING": "warning", "CRITICAL": "critical"}
_LIMITS = (("UpperThresholdNonCritical", "max"), ("UpperThresholdCritical", "crit"))
#: PowerSupplies fields: label, quantity, unit.
_SUPPLY_FIELDS = (
    ("PowerInputWatts", "input", "power", "W"), ("PowerOutputWatts", "output", "power", "W"),
    ("LastPowerOutputWatts", "last output", "power", "W"), ("LineInputVoltage", "input", "voltage", "V"),
    ("InputCurrentAmps", "input", "current", "A"),
)  # fmt: skip
#: Fields of metrics resources that hold {"Reading": ...} excerpts.
_EXCERPTS: Mapping[str, tuple[str, str]] = {
    "PowerWatts": ("power", "W"), "TemperatureCelsius": ("temperature", "C"), "InputPowerWatts": ("power", "W"),
    "OutputPowerWatts": ("power", "W"), "InputVoltage": ("voltage", "V"), "InputCurrentAmps": ("current", "A"),
    "FanSpeedPercent": ("fan", "%"), "SpeedPercent": ("fan", "%"), "HumidityPercent": ("humidity", "%"),
    "FlowLitersPerMinute": ("flow", "l/min"), "PumpSpeedPercent": ("pump", "%"), "EnergykWh": ("energy", "kWh"),
    "SupplyTemperatureCelsius": ("temperature", "C"), "ReturnTemperatureCelsius": ("temperature", "C"),
    "DeltaTemperatureCelsius": ("temperature_delta", "C"), "SupplyPressurekPa": ("pressure", "kPa"),
    "ReturnPressurekPa": ("pressure", "kPa"), "DeltaPressurekPa": ("pressure_delta", "kPa"),
    "HeatRemovedkW": ("heat_removed", "kW"), "RoomTemperature": ("temperature", "C"),
}  # fmt: skip
#: Keys of which a resource with readings has one.
_KEYS = ("Temperatures", "Fans", "PowerControl", "PowerSupplies", "ReadingCelsius", "ReadingType", "ReadingUnits",
         "TemperatureReadingsCelsius", "TemperatureSummaryCelsius")  # fmt: skip
#: A supply wastes at most this share of its input: a larger gap is a wrong reading (a rating, for example).
_LARGEST_LOSS = 0.5


class RedfishParser:
    """Reads chassis telemetry of any vendor's Redfish service."""

    name: ClassVar[str] = "redfish"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **SENSOR_CARRIES,
        "inventory": ("model", "serial", "slot", "attrs"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "sensor_samples.value": "the service answers null, or the part's State is Absent or Disabled",
        "node_samples.fan_rpm_min": "the service prints fan speeds in percent, which is not rpm",
        "node_samples.psu_w": "no PowerConsumedWatts and not every supply has an input reading",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head is JSON that names a Redfish resource with readings."""
        text = head_text(head).lstrip()
        if text[:1] not in ("{", "["):
            return False
        named = any(f'"{key}"' in text for key in (*_KEYS, *_EXCERPTS))
        return named and ("@odata" in text or '"MemberId"' in text or "/redfish/" in text)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield sensors with their limits, the node's row, faults, and serial numbers of supplies."""
        documents, text, notes = read_json_or_text(stream)
        yield from notes
        if text.strip():
            yield Note("error", "offset 0", f"not JSON: {shown(text[:60])}")
        sheet, known = SensorSheet(), False
        for document in documents:
            for resource in resources_of(document):
                known = True
                yield from take_resource(sheet, resource, self.CARRIES, context)
        if documents and not known:
            yield Note("error", "", "the document holds no Redfish resource with readings")
        elif known and not sheet.sensors:
            yield Note("info", "", "only links to other resources, no readings")
        yield from sheet.rows(context, self.CARRIES)


def resources_of(document: object) -> Iterator[dict[str, Any]]:
    """Yield the resources of a document: itself, the members of a list or collection, answers wrapped by path."""
    for value in objects(document):
        members = value.get("Members")
        if isinstance(members, list) and any(len(member) > 1 for member in objects(members)):
            yield from objects(members)
        elif any(isinstance(key, str) and key.startswith("/redfish/") for key in value):
            for inner in value.values():
                yield from objects(inner)
        else:
            yield value


def take_resource(
    sheet: SensorSheet,
    resource: Mapping[str, Any],
    carries: Mapping[str, tuple[str, ...]] | None,
    context: CaptureContext,
) -> Iterator[Row]:
    """Put a resource's readings into `sheet`; yield inventory rows of supplies (none without `carries`)."""
    for index, entry in enumerate(_entries(resource.get("Temperatures"))):
        _reading(sheet, entry, "ReadingCelsius", ("temperature", "C"), f"Temperatures[{index}]")
    for index, entry in enumerate(_entries(resource.get("Fans"))):
        units = entry.get("ReadingUnits", entry.get("Units"))
        field = "Reading" if "Reading" in entry else "CurrentReading" if "CurrentReading" in entry else "ReadingRPM"
        default = "RPM" if field == "ReadingRPM" else "Percent" if field == "CurrentReading" else ""
        quantity, unit = UNITS.get(str(units or default).lower(), ("ratio", "%") if units else ("fan", ""))
        _reading(sheet, entry, field, ("fan", unit) if quantity == "ratio" else (quantity, unit), f"Fans[{index}]")
    for index, entry in enumerate(_entries(resource.get("Voltages"))):
        _reading(sheet, entry, "ReadingVolts", ("voltage", "V"), f"Voltages[{index}]")
    for index, given in enumerate(_entries(resource.get("PowerControl"))):
        # A member number ("0") is no name.
        entry = {key: value for key, value in given.items() if key != "MemberId"}
        _reading(sheet, entry, "PowerConsumedWatts", ("power", "W"), f"PowerControl[{index}]", "System Power")
        limit = (
            (entry.get("PowerLimit") or {}).get("LimitInWatts") if isinstance(entry.get("PowerLimit"), dict) else None
        )
        if (watts := _number(limit)) is not None:
            sheet.add(
                Sensor("redfish", _name(entry) or "System Power", "power_max", "W", watts), f"PowerControl[{index}]"
            )
    for index, entry in enumerate(_entries(resource.get("PowerSupplies"))):
        yield from _supply(sheet, entry, f"PowerSupplies[{index}]", carries, context)
    if "ReadingType" in resource or ("Reading" in resource and "ReadingUnits" in resource):
        _sensor(sheet, resource)
    for index, entry in enumerate(_entries(resource.get("TemperatureReadingsCelsius"))):
        _reading(sheet, entry, "Reading", ("temperature", "C"), f"TemperatureReadingsCelsius[{index}]")
    summary = resource.get("TemperatureSummaryCelsius")
    for name, entry in summary.items() if isinstance(summary, dict) else ():
        if isinstance(entry, dict):
            _reading(sheet, {"PhysicalContext": name, **entry}, "Reading", ("temperature", "C"), name, name)
    for name, kind in _EXCERPTS.items():
        for entry in _entries(resource.get(name)):
            label = f"{_name(resource) or ''} {name}".strip()
            _reading(sheet, {**entry, "Name": label}, "Reading", kind, name, label)
            if (rpm := _number(entry.get("SpeedRPM"))) is not None:
                sheet.add(Sensor("redfish", label, "fan", "rpm", rpm, _status(entry)), name)
    if any(name in resource for name in ("InputPowerWatts", "OutputPowerWatts")):
        # The metrics of one supply are not the power of the host.
        sheet.partial_power = True


def _entries(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list without those that only point at another resource."""
    return [entry for entry in objects(value) if entry.keys() - {"@odata.id"}]


def _reading(
    sheet: SensorSheet, entry: Mapping[str, Any], field: str, kind: tuple[str, str], where: str, default: str = ""
) -> None:
    quantity, unit = kind
    value, status = _number(entry.get(field)), _status(entry)
    if field in entry and value is None and entry[field] is not None:
        sheet.notes.append(Note("warning", where, f"{field} is not a number: {shown(entry[field])}"))
    if quantity == "fan" and not unit:
        sheet.notes.append(Note("warning", where, "the fan's reading has no unit and is left out"))
        value = None
    label = _name(entry) or default or where
    context = entry.get("PhysicalContext")
    sheet.add(Sensor("redfish", label, quantity, unit, None if status == "absent" else value, status,
                     context if isinstance(context, str) else ""), where)  # fmt: skip
    thresholds = entry.get("Thresholds")
    for name, suffix in _LIMITS:
        limit = _number(entry.get(name))
        if limit is None and isinstance(thresholds, dict):
            inner = thresholds.get({"max": "UpperCaution", "crit": "UpperCritical"}[suffix])
            limit = _number(inner.get("Reading")) if isinstance(inner, dict) else None
        if limit is not None:
            sheet.add(Sensor("redfish", label, f"{quantity}_{suffix}", unit, limit), where)


def _sensor(sheet: SensorSheet, resource: Mapping[str, Any]) -> None:
    """Take a Sensor resource, whose ReadingType or ReadingUnits say what it is."""
    name = _name(resource) or "sensor"
    units = str(resource.get("ReadingUnits") or "").lower()
    kind = _READING_TYPES.get(str(resource.get("ReadingType") or "").lower()) or UNITS.get(units) or ("reading", units)
    if units in UNITS and UNITS[units][0] == kind[0]:
        kind = UNITS[units]
    elif (kind[0] == "fan" and units in ("%", "percent")) or (kind[0] == "utilisation" and "fan" in name.lower()):
        kind = ("fan", "%")
    _reading(sheet, resource, "Reading", kind, name)


def _supply(
    sheet: SensorSheet,
    entry: Mapping[str, Any],
    where: str,
    carries: Mapping[str, tuple[str, ...]] | None,
    context: CaptureContext,
) -> Iterator[Row]:
    name = _name(entry) or where
    status = _status(entry)
    chip = f"psu.{entry.get('MemberId') or name}"[:100]
    sheet.add(Sensor(chip, name, "state", "", None, status), where)
    for field, label, quantity, unit in _SUPPLY_FIELDS:
        if field not in entry:
            continue
        value = _number(entry[field])
        sheet.add(
            Sensor(chip, f"{name} {label}", quantity, unit, None if status == "absent" else value), f"{where}.{field}"
        )
    given, got = _number(entry.get("PowerInputWatts")), _number(entry.get("PowerOutputWatts"))
    if given and got is not None and (got > given * 1.05 or got < given * (1 - _LARGEST_LOSS)):
        sheet.partial_power = True
        sheet.notes.append(
            Note("warning", where, f"{name}: {given:g} W in and {got:g} W out cannot both be right; kept as printed")
        )
    serial, model = entry.get("SerialNumber"), entry.get("Model")
    if carries is not None and isinstance(serial, str) and serial.strip():
        attrs = {"part": "power supply", "name": name}
        if isinstance(entry.get("FirmwareVersion"), str):
            attrs["firmware"] = entry["FirmwareVersion"]
        yield make_row("inventory", carries, context, {"serial": serial.strip(), "slot": name, "attrs": attrs,
                       "model": model.strip() if isinstance(model, str) else None})  # fmt: skip


def _name(entry: Mapping[str, Any]) -> str | None:
    for key in ("Name", "FanName", "DeviceName", "DataSourceUri", "MemberId", "Id"):
        value = entry.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip().rsplit("/", 1)[-1] if key == "DataSourceUri" else value.strip()[:200]
    return None


def _status(entry: Mapping[str, Any]) -> str | None:
    status = entry.get("Status")
    if not isinstance(status, dict):
        return None
    if str(status.get("State", "")).lower() in ("absent", "disabled", "unavailableoffline"):
        return "absent"
    return _HEALTH.get(str(status.get("Health", "")).upper())


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    number = float(value) if abs(value) < 1e300 else float("nan")
    return number if number == number else None
