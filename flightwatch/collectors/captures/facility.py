"""Facility readings (CDU, PDU, CRAC): CSV in long or wide form, any exporter's text, Redfish equipment resources.

A reading keeps its zone, label and unit as the source gives them; the quantity is read from the unit
and the name. What cannot be classified keeps the quantity "reading".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row, to_float
from flightwatch.collectors.captures.exporter_map import clamp_ms
from flightwatch.collectors.captures.host_sensors import LIMIT_SUFFIXES, SensorSheet
from flightwatch.collectors.captures.openmetrics_text import Family, Sample
from flightwatch.collectors.captures.port_counters import ABSENT_WORDS, shown
from flightwatch.collectors.captures.redfish import resources_of, take_resource
from flightwatch.collectors.captures.two_forms import read_json_or_text
from flightwatch.core.clock import parse_iso_utc
from flightwatch.core.protocols import CaptureContext, Note, Row, Value

FACILITY_COLUMNS = ("zone", "label", "quantity", "unit", "value")
#: Name ending (after the last underscore or in brackets) to (quantity, unit, factor into that unit).
UNITS: Mapping[str, tuple[str, str, float]] = {
    "celsius": ("temperature", "C", 1), "c": ("temperature", "C", 1), "degc": ("temperature", "C", 1),
    "°c": ("temperature", "C", 1), "watts": ("power", "W", 1), "w": ("power", "W", 1), "kw": ("power", "W", 1000),
    "kilowatts": ("power", "W", 1000), "lpm": ("flow", "l/min", 1), "l/min": ("flow", "l/min", 1),
    "liters_per_minute": ("flow", "l/min", 1), "litres_per_minute": ("flow", "l/min", 1),
    "gpm": ("flow", "l/min", 3.785411784),
    "m3/h": ("flow", "l/min", 1000 / 60), "bar": ("pressure", "kPa", 100), "kpa": ("pressure", "kPa", 1),
    "pascals": ("pressure", "kPa", 0.001), "pa": ("pressure", "kPa", 0.001), "psi": ("pressure", "kPa", 6.894757),
    "volts": ("voltage", "V", 1), "v": ("voltage", "V", 1), "amperes": ("current", "A", 1), "amps": ("current", "A", 1),
    "a": ("current", "A", 1), "hertz": ("frequency", "Hz", 1), "hz": ("frequency", "Hz", 1),
    "kwh": ("energy", "kWh", 1),
    "joules": ("energy", "J", 1), "percent": ("ratio", "%", 1), "pct": ("ratio", "%", 1), "%": ("ratio", "%", 1),
    "ratio": ("ratio", "ratio", 1), "rpm": ("fan", "rpm", 1), "va": ("apparent_power", "VA", 1),
    "us/cm": ("conductivity", "uS/cm", 1), "ph": ("ph", "", 1),
}  # fmt: skip
_ZONE_LABELS = (
    "zone", "cooling_zone", "power_zone", "cdu", "crac", "crah", "pdu", "ups", "unit", "device", "rack", "target",
    "instance", "id", "name",
)  # fmt: skip
_METRIC = re.compile(
    r"(?:facility|cdu|crac|crah|pdu|ups|chiller|cooling|coolant|bms|pump)_\w+|\w+_(?:cdu|crac|pdu)_\w+"
)
_KINDS = (("humid", "humidity"), ("valve", "valve"), ("pump", "pump"), ("fan", "fan"), ("temp", "temperature"),
          ("flow", "flow"), ("pressure", "pressure"), ("power", "power"), ("level", "level"),
          ("load", "load"))  # fmt: skip
_CELL = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(\S.*)?")
#: A reading outside these is an unset register.
_PLAUSIBLE = {"temperature": (-60.0, 200.0), "humidity": (0.0, 100.0), "flow": (0.0, 1e6)}


def classify(name: str, unit: str) -> tuple[str, str, float]:
    """Return quantity, unit and factor of a reading from its unit, else from its name's ending."""
    key = unit.strip().lower()
    if key not in UNITS:
        lower = name.lower().removesuffix("_total")
        endings = [ending for ending in UNITS if lower.endswith((f"_{ending}", f"({ending})"))]
        key = max(endings, key=len) if endings and not unit.strip() else key
    quantity, shown_unit, factor = UNITS.get(key, ("reading", unit.strip(), 1.0))
    if quantity in ("ratio", "reading"):
        quantity = next((kind for word, kind in _KINDS if word in name.lower()), quantity)
    return quantity, shown_unit, factor


def facility_values(zone: str, label: str, unit: str, value: float | None, quantity: str = "") -> dict[str, Value]:
    """Return the columns of one reading, converted into the unit of its quantity."""
    kind, shown_unit, factor = classify(label, unit)
    low, high = _PLAUSIBLE.get(kind, (-1e12, 1e12))
    number = None if value is None else value * factor
    if number is not None and not low <= number <= high:
        number = None
    return {"zone": zone, "label": label, "quantity": quantity or kind, "unit": shown_unit, "value": number}


class FacilityCsvParser:
    """Reads CSV: long (zone, label, value, unit, quantity, ts) or wide (zone and one column a reading)."""

    name: ClassVar[str] = "facility-csv"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"facility_samples": FACILITY_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "facility_samples.value": "the cell is empty, N/A, or outside what the quantity can be",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the header names a zone (or a CDU, PDU, CRAC) and readings with units."""
        header = _header(head_text(head).lstrip("\n").split("\n")[0])
        zone = _zone_column(header)
        if zone is None or "node" in header or len(header) < 2:
            return False
        if "value" in header:
            return "label" in header or "quantity" in header
        return zone in ("zone", "cdu", "pdu", "crac", "crah") and any(
            classify(name, "")[1] for name in header if name != zone
        )

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one facility_samples row a reading."""
        lines, header, delimiter = Lines(stream), [], ","  # type: Lines, list[str], str
        for number, line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            if not header:
                header, delimiter = _header(line), max(",;\t", key=line.count)
                continue
            try:
                cells = next(csv.reader([line], delimiter=delimiter, strict=True), [])
            except csv.Error as error:
                yield Note("error", f"line {number}", f"not a CSV line: {error}")
                continue
            if len(cells) != len(header):
                yield Note(
                    "error", f"line {number}", f"{len(header)} cells expected, {len(cells)} found: {shown(line)}"
                )
                continue
            yield from self._line(dict(zip(header, cells, strict=True)), f"line {number}", context)
        if not header:
            yield Note("error", "offset 0", "the file is empty")
        yield from lines.notes

    def _line(self, cells: Mapping[str, str], where: str, context: CaptureContext) -> Iterator[Row | Note]:
        time_name = next((name for name in ("ts", "time", "timestamp") if name in cells), None)
        at: dict[str, Value] = {}
        if time_name and cells[time_name].strip():
            try:
                at["ts"] = parse_iso_utc(cells[time_name])
            except (ValueError, OverflowError):
                yield Note("error", where, f"not a time: {shown(cells[time_name])}")
                return
        zone_name = _zone_column(list(cells)) or "zone"
        zone = cells.get(zone_name, "").strip()
        if not zone:
            yield Note("error", where, "the line names no zone")
            return
        if "value" in cells:
            label = cells.get("label", "").strip() or cells.get("quantity", "").strip()
            readings = [(label, cells.get("unit", ""), cells["value"], cells.get("quantity", "").strip())]
        else:
            readings = [(name, "", text, "") for name, text in cells.items() if name not in (time_name, zone_name)]
        for label, unit, text, quantity in readings:
            match = _CELL.fullmatch(text.strip())
            if match is None and text.strip().lower() not in ABSENT_WORDS:
                yield Note("warning", where, f"{label} is not a number: {shown(text)}")
            number = to_float(match[1]) if match else None
            values = facility_values(zone, label, unit or (match[2] or "" if match else ""), number, quantity)
            if number is not None and values["value"] is None:
                yield Note("warning", where, f"{label} = {number:g} is impossible and left out")
            yield make_row("facility_samples", self.CARRIES, context, {**values, **at})


class FacilityMap:
    """Readings of facility exporters: names that begin with cdu_, pdu_, crac_, ups_, chiller_, facility_."""

    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"facility_samples": FACILITY_COLUMNS}

    def __init__(self, context: CaptureContext, now_ms: int) -> None:
        self._context = context
        self._rows: list[Row] = []
        self._dropped = 0

    @staticmethod
    def owns(name: str) -> bool:
        """Own names of facility equipment."""
        return _METRIC.fullmatch(name) is not None

    def take(self, sample: Sample, family: Family) -> None:
        """Take one reading; its zone is the most telling label."""
        if sample.value is None or len(self._rows) >= 20_000 or sample.name.endswith(("_bucket", "_info", "_created")):
            self._dropped += 1
            return
        zone = next((sample.labels[name] for name in _ZONE_LABELS if sample.labels.get(name)), "")
        rest = [text for name, text in sorted(sample.labels.items()) if text != zone and text]
        label = " ".join([sample.name, *rest])[:300]
        values = facility_values(zone, sample.name, family.unit, float(sample.value))
        at = clamp_ms(sample.at_ms) if sample.at_ms is not None else None
        self._rows.append(
            make_row("facility_samples", self.CARRIES, self._context, {**values, "label": label, "ts": at})
        )

    def finish(self) -> Iterator[Row | Note]:
        """Yield the readings."""
        yield from self._rows
        if self._dropped:
            yield Note("info", "", f"{self._dropped} facility samples without a usable number were skipped")


class FacilityRedfishParser:
    """Reads Redfish resources of cooling and power equipment (ThermalEquipment, PowerEquipment)."""

    name: ClassVar[str] = "redfish-facility"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"facility_samples": FACILITY_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"facility_samples.value": "the service answers null"}

    def recognise(self, head: bytes) -> bool:
        """Say whether the head is JSON of a resource below ThermalEquipment, PowerEquipment or Facilities."""
        text = head_text(head).lstrip()
        return text[:1] in ("{", "[") and bool(
            re.search(r'/redfish/v1/(?:ThermalEquipment|PowerEquipment|Facilities)/', text)
        ) and ("Reading" in text or "Celsius" in text or "Watts" in text)  # fmt: skip

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one facility_samples row a reading; the zone is the equipment's id."""
        documents, _, notes = read_json_or_text(stream)
        yield from notes
        found = False
        for resource in (resource for document in documents for resource in resources_of(document)):
            sheet = SensorSheet()
            list(take_resource(sheet, resource, None, context))
            path = str(resource.get("@odata.id", ""))
            match = re.search(r"/redfish/v1/(?:ThermalEquipment|PowerEquipment|Facilities)/[^/]+/([^/]+)", path)
            zone = match[1] if match else str(resource.get("Id", ""))
            for sensor in sheet.sensors:
                if sensor.quantity == "state" or sensor.quantity.endswith(LIMIT_SUFFIXES):
                    continue
                found = True
                values = {"zone": zone, "label": sensor.label, "quantity": sensor.quantity, "unit": sensor.unit,
                          "value": sensor.value}  # fmt: skip
                yield make_row("facility_samples", self.CARRIES, context, values)
            yield from sheet.notes
        if documents and not found:
            yield Note("warning", "", "the resource holds no readings")


def _header(line: str) -> list[str]:
    try:
        cells = next(csv.reader([line], delimiter=max(",;\t", key=line.count)), [])
    except csv.Error:
        return []
    return [cell.strip().strip("\ufeff").lower().replace(" ", "_") for cell in cells]


def _zone_column(header: list[str]) -> str | None:
    return next(
        (name for name in ("zone", "cooling_zone", "power_zone", "cdu", "pdu", "crac", "crah") if name in header), None
    )
