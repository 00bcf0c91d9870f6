"""`ibswinfo`: health of an unmanaged InfiniBand switch: supplies, temperatures, fans, firmware."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row, to_float
from flightwatch.collectors.captures.host_sensors import SENSOR_CARRIES, Sensor, SensorSheet
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.core.protocols import CaptureContext, Note, Row

_SUPPLY = re.compile(r"PSU(\d{1,3}) status")
_FAN = re.compile(r"fan#(\d{1,3})\s*\(rpm\)")
_FACTS = {"part number": "part_number", "PSID": "psid", "GUID": "guid", "firmware version": "firmware",
          "revision": "revision", "ports": "ports"}  # fmt: skip
_STATUS = {"OK": "ok", "ERROR": "critical", "ERR": "critical", "FAIL": "critical", "FAILED": "critical",
           "WARNING": "warning", "NOT PRESENT": "absent", "N/A": "absent"}  # fmt: skip


class IbswinfoParser:
    """Reads the default page of `ibswinfo -d DEVICE`."""

    name: ClassVar[str] = "ibswinfo"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **SENSOR_CARRIES,
        "inventory": ("model", "serial", "attrs"),
        "config_facts": ("name", "value"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "sensor_samples.value": "the tool printed no number; states (OK, ERROR) have a status and no value",
        "node_samples.psu_w": "one of the supplies has no reading: a partial sum is not the power",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has ibswinfo's rows."""
        text = head_text(head)
        return bool(re.search(r"^(PSID|GUID)\s+\| ", text, re.MULTILINE)) and bool(
            re.search(r"^(PSU\d+ status|fan#?\d* ?status|fan status|temperature \(C\))\s*\|", text, re.MULTILINE)
        )

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield sensors, events of failed parts, the switch's identity and firmware."""
        lines, sheet, chip = Lines(stream), SensorSheet(), "switch"
        identity: dict[str, str] = {}
        for number, line in lines:
            left, bar, text = line.partition("|")
            name, text = left.strip(), text.strip()
            if not bar or not name:
                continue
            indent = left[:1].isspace()
            where = f"line {number}"
            if supply := _SUPPLY.fullmatch(name):
                chip = f"psu{supply[1]}"
                self._state(sheet, chip, "status", text, where)
            elif not indent:
                chip = "switch"
            if fan := _FAN.fullmatch(name):
                self._number(sheet, Sensor("switch", f"fan#{fan[1]}", "fan", "rpm", None), text, where)
            elif name == "fan status" or (indent and name == "DC power"):
                self._state(sheet, chip, name, text, where)
            elif name == "power (W)":
                self._number(sheet, Sensor(chip, f"{chip} power", "power", "W", None), text, where)
            elif name == "temperature (C)":
                self._number(sheet, Sensor("switch", "temperature", "temperature", "C", None), text, where)
            elif name == "max temp (C)":
                self._number(sheet, Sensor("switch", "temperature", "temperature_peak", "C", None), text, where)
            elif not indent and text:
                identity[name] = text[:200]
        yield from sheet.rows(context, self.CARRIES)
        yield from self._identity(identity, context)
        if not sheet.sensors:
            yield Note("error", "", "no reading was found")
        yield from lines.notes

    def _identity(self, identity: Mapping[str, str], context: CaptureContext) -> Iterable[Row]:
        serial, model = identity.get("serial number"), identity.get("product name")
        if serial or model:
            attrs = {key: identity[name] for name, key in _FACTS.items() if name in identity}
            yield make_row("inventory", self.CARRIES, context, {"model": model, "serial": serial, "attrs": attrs})
        for name, key in _FACTS.items():
            if name in identity and key in ("firmware", "psid"):
                yield make_row("config_facts", self.CARRIES, context, {"name": key, "value": identity[name]})

    def _number(self, sheet: SensorSheet, sensor: Sensor, text: str, where: str) -> None:
        sensor.value = to_float(text)
        sensor.status = None
        if sensor.value is None and text.upper() not in ("N/A", ""):
            sheet.notes.append(Note("warning", where, f"{sensor.label} is not a number: {shown(text)}"))
        sheet.add(sensor, where)

    def _state(self, sheet: SensorSheet, chip: str, label: str, text: str, where: str) -> None:
        status = _STATUS.get(text.upper())
        if status is None:
            sheet.notes.append(Note("warning", where, f"{label} has an unknown state: {shown(text)}"))
        sheet.add(Sensor(chip, label, "state", "", None, status), where)
