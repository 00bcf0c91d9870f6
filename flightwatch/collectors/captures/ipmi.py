"""ipmitool (`sensor`, `sdr`, `sdr elist`, `-c`, `dcmi power reading`) and FreeIPMI (`ipmi-sensors`, `ipmi-dcmi`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, to_float
from flightwatch.collectors.captures.host_sensors import SENSOR_CARRIES, Sensor, SensorSheet
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.core.protocols import CaptureContext, Note, Row

#: Unit as printed, lower case, to (quantity, unit).
UNITS: Mapping[str, tuple[str, str]] = {
    "degrees c": ("temperature", "C"), "c": ("temperature", "C"), "volts": ("voltage", "V"), "v": ("voltage", "V"),
    "rpm": ("fan", "rpm"), "watts": ("power", "W"), "w": ("power", "W"), "amps": ("current", "A"),
    "a": ("current", "A"), "percent": ("ratio", "%"), "%": ("ratio", "%"), "feet": ("altitude", "ft"),
    "cfm": ("airflow", "cfm"), "hz": ("frequency", "Hz"), "joules": ("energy", "J"), "hours": ("time", "h"),
    "minutes": ("time", "min"), "seconds": ("time", "s"), "unspecified": ("reading", ""), "l/min": ("flow", "l/min"),
    "lpm": ("flow", "l/min"), "degrees f": ("temperature", "F"),
}  # fmt: skip
_STATUS = {"ok": "ok", "nominal": "ok", "nc": "warning", "warning": "warning", "cr": "critical", "critical": "critical",
           "nr": "critical", "ns": "absent", "na": "absent", "n/a": "absent",
           "lnc": "warning", "unc": "warning", "lcr": "critical", "ucr": "critical", "lnr": "critical",
           "unr": "critical"}  # fmt: skip
_READING = re.compile(r"(-?\d+(?:\.\d+)?)\s*([A-Za-z%][A-Za-z/ %]*)?(?:\s+\(.*\))?(?:,.*)?")
#: A list of fewer sensors may hold the same name twice; of a longer text only the beginning is compared.
_FEWEST_SENSORS, _LISTED_LIMIT = 3, 5000
_NO_NUMBER = frozenset(("", "na", "n/a", "no reading", "not readable", "disabled", "not available", "0x0"))
_LIMITS = ((4, "min"), (5, None), (6, None), (7, "max"), (8, "crit"))
_DCMI = re.compile(
    r"\s*(Instantaneous power reading|Minimum during sampling period|Maximum during sampling period"
    r"|Average power reading over sample period|Current Power|Minimum Power over sampling duration"
    r"|Maximum Power over sampling duration|Average Power over sampling duration|Power reading state is"
    r"|Power Measurement)\s*:\s*(.*)",
    re.IGNORECASE,
)
_DCMI_NAMES = {"min": ("power minimum", "power_min"), "max": ("power maximum", "power_peak"),
               "ave": ("power average", "power_average"), "ins": ("instantaneous power", "power"),
               "cur": ("instantaneous power", "power")}  # fmt: skip
_ERROR = re.compile(
    r"(?:Unable to|Error\b|Invalid|Unknown|Could not|Failed|No such)|(?=.{0,200}(?:fail|error|timeout))[^|]*$",
    re.IGNORECASE,
)
_DISCRETE = re.compile(r"0x[0-9a-f]{1,6}|unknown|")
_ENTITY = re.compile(r"\d{1,3}\.\d{1,3}")


class IpmiParser:
    """Reads every table that ipmitool and FreeIPMI print about sensors, told apart by their columns."""

    name: ClassVar[str] = "ipmi"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = SENSOR_CARRIES
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "sensor_samples.value": "na, No Reading, Not Readable, and discrete sensors (0x00), which have no number",
        "node_samples.inlet_c": "no sensor is named inlet, ambient or intake",
        "node_samples.psu_w": "neither the host's power nor all supplies are readable",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether most lines have the columns of an IPMI table, or the page is a DCMI power reading."""
        lines = [line for line in head_text(head).split("\n")[:80] if line.strip()][:40]
        if any(_DCMI.match(line) for line in lines):
            return True
        shapes = [_shape(line) for line in lines[:-1] or lines]
        table = sum(shape is not None for shape in shapes)
        return "header" in shapes or (table >= 1 and table * 2 >= len(shapes))

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield sensors, limits (`temperature_max`, `temperature_crit`), the node's row, events and notes."""
        lines, sheet, header = Lines(stream), SensorSheet(), None  # type: Lines, SensorSheet, list[str] | None
        errors = 0
        listed: list[str] = []
        for number, line in lines:
            if not line or line.isspace():
                continue
            where = f"line {number}"
            if dcmi := _DCMI.match(line):
                _take_dcmi(sheet, dcmi[1], dcmi[2], where)
                continue
            cells = _cells(line)
            shape = _shape(line)
            if shape == "header":
                header = [cell.lower() for cell in cells]
            elif header is not None and len(cells) == len(header):
                _take_named(sheet, dict(zip(header, cells, strict=True)), where)
            elif shape is not None:
                _TAKERS[shape](sheet, cells, where)
                if len(listed) < _LISTED_LIMIT:
                    listed.append("|".join(cells[: 2 if shape == "elist" else 1]))
            elif _ERROR.match(line[:300].strip()):
                errors += 1
                if errors <= 5:
                    yield Note("warning", where, f"the tool reported: {shown(line.strip())}")
            elif line.strip() and "|" in line:
                yield Note("error", where, f"not a row of an IPMI table: {shown(line)}")
        if not sheet.sensors:
            yield Note("error", "", "no sensor was found")
        times = _times_listed(listed)
        for what in sheet.rows(context, self.CARRIES):
            if times == 1 or not isinstance(what, Row) or what.table != "node_samples":
                yield what
        if times > 1:
            yield Note("warning", "", f"the same sensors are listed {times} times: several hosts or times in one text, "
                       "of which no figures of one node were made")  # fmt: skip
        if errors > 5:
            yield Note("warning", "", f"the tool reported {errors} errors in all")
        yield from lines.notes


def _times_listed(names: list[str]) -> int:
    """Return how often a list of sensors repeats itself from its first to its last; 1 for a single list."""
    count = len(names)
    for length in range(_FEWEST_SENSORS, count // 2 + 1):
        if count % length == 0 and names == names[:length] * (count // length):
            return count // length
    return 1


def _cells(line: str) -> list[str]:
    if "|" in line:
        return [cell.strip() for cell in line.split("|")]
    return [cell.strip() for cell in line.split(",")]


def _shape(line: str) -> str | None:
    """Name the table a line belongs to: sensor (10 columns), elist (5), sdr (3), csv, header (FreeIPMI)."""
    cells = _cells(line)
    lower = [cell.lower() for cell in cells]
    if "|" not in line:
        if lower[:3] == ["id", "name", "type"] and "reading" in lower:
            return "header"
        return "csv" if len(cells) in (4, 5) and cells[3].lower() in _STATUS and cells[0] else None
    if lower[:3] == ["id", "name", "type"] and "reading" in lower:
        return "header"
    if (
        10 <= len(cells) <= 11
        and cells[0]
        and (lower[3] in _STATUS or _DISCRETE.fullmatch(lower[3]))
        and "=" not in line
    ):
        return "sensor"
    if len(cells) == 5 and re.fullmatch(r"[0-9A-Fa-f]{2}h", cells[1]) and _ENTITY.fullmatch(cells[3]):
        return "elist"
    if len(cells) == 3 and cells[0] and cells[2].lower() in _STATUS:
        return "sdr"
    return None


def _add(sheet: SensorSheet, label: str, text: str, unit_text: str, status: str | None, where: str) -> Sensor:
    quantity, unit = UNITS.get(unit_text.strip().lower(), ("reading", unit_text.strip()))
    if quantity == "ratio":
        lower = label.lower()
        quantity = "fan" if "fan" in lower else "humidity" if "humid" in lower else "utilisation"
    value = to_float(text)
    if unit == "F" and value is not None:
        value, unit = round((value - 32) / 1.8, 3), "C"
    sensor = Sensor("ipmi", label, quantity, unit, value, status)
    if value is None and text.strip().lower() not in _NO_NUMBER:
        sheet.notes.append(Note("warning", where, f"{label} is not a number: {shown(text)}"))
    sheet.add(sensor, where)
    return sensor


def _take_sensor(sheet: SensorSheet, cells: list[str], where: str) -> None:
    label, text, unit, status = cells[:4]
    if unit.lower() == "discrete":
        sheet.add(Sensor("ipmi", label, "state", "", None, "absent" if text.lower() in ("na", "") else None), where)
        return
    sensor = _add(sheet, label, text, unit, _STATUS.get(status.lower()), where)
    if sensor.quantity == "reading":
        return
    for index, suffix in _LIMITS:
        limit = to_float(cells[index]) if suffix else None
        if suffix and limit is not None:
            sheet.add(Sensor("ipmi", label, f"{sensor.quantity}_{suffix}", sensor.unit, limit), where)


def _take_reading(sheet: SensorSheet, label: str, text: str, status: str, where: str) -> None:
    """Take a cell that holds number and unit together ("20 degrees C"), a state, or nothing."""
    match = _READING.fullmatch(text)
    known = _STATUS.get(status.lower())
    if match and (match[2] or "").strip().lower() in UNITS:
        _add(sheet, label, match[1], match[2] or "", known, where)
    elif text.lower() in _NO_NUMBER and text:
        sheet.add(Sensor("ipmi", label, "reading", "", None, "absent"), where)
    else:
        # "0x00", "Connected", "Presence detected": a discrete sensor has states, not a number.
        sheet.add(Sensor("ipmi", label, "state", "", None, known), where)


def _take_sdr(sheet: SensorSheet, cells: list[str], where: str) -> None:
    _take_reading(sheet, cells[0], cells[1], cells[2], where)


def _take_elist(sheet: SensorSheet, cells: list[str], where: str) -> None:
    _take_reading(sheet, cells[0], cells[4], cells[2], where)


def _take_csv(sheet: SensorSheet, cells: list[str], where: str) -> None:
    if cells[2].lower() in UNITS:
        _add(sheet, cells[0], cells[1], cells[2], _STATUS.get(cells[3].lower()), where)
    else:
        sheet.add(Sensor("ipmi", cells[0], "state", "", None, _STATUS.get(cells[3].lower())), where)


def _take_named(sheet: SensorSheet, row: Mapping[str, str], where: str) -> None:
    """Take a row of FreeIPMI's table, whose columns are named."""
    unit, reading = row.get("units", ""), row.get("reading", "")
    status = _STATUS.get(row.get("state", "").lower())
    if unit.lower() in UNITS and reading.lower() not in ("n/a", "na", ""):
        _add(sheet, row["name"], reading, unit, status, where)
    else:
        quantity = UNITS[unit.lower()][0] if unit.lower() in UNITS else "state"
        sheet.add(Sensor("ipmi", row["name"], quantity, "", None, status), where)


def _take_dcmi(sheet: SensorSheet, name: str, text: str, where: str) -> None:
    names = _DCMI_NAMES.get(name[:3].lower())
    if names is None:
        if name.lower().startswith("power reading state") and text.strip().lower() != "activated":
            sheet.notes.append(Note("warning", where, f"power measurement is {shown(text.strip())}"))
        return
    match = _READING.fullmatch(text.strip())
    value = to_float(match[1]) if match else None
    if value is None:
        sheet.notes.append(Note("warning", where, f"{names[0]} is not a number: {shown(text)}"))
    sheet.add(Sensor("dcmi", names[0], names[1], "W", value), where)


_TAKERS = {"sensor": _take_sensor, "elist": _take_elist, "sdr": _take_sdr, "csv": _take_csv}
