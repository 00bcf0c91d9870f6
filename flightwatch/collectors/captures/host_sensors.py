"""Sensors of one host or switch: a row for each, the worst ones in one node_samples row, faults as events.

Names that repeat within a chip get #1, #2 in the order of the output, so that two readings called
"Temp" stay two series.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from flightwatch.collectors.captures.base import make_row
from flightwatch.core.protocols import CaptureContext, Note, Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource

#: What formats built on this module can carry.
SENSOR_CARRIES: Mapping[str, tuple[str, ...]] = {
    "sensor_samples": ("device", "chip", "label", "quantity", "unit", "value", "status"),
    "node_samples": ("psu_w", "inlet_c", "outlet_c", "coolant_c", "coolant_lpm", "fan_rpm_min"),
    "events": ("device", "source", "code", "severity", "message", "attrs"),
}
#: Suffixes of quantities that are a sensor's limits, not its reading. Live collectors leave them out: a limit
#: never changes, and would look like a stuck sensor.
LIMIT_SUFFIXES = ("_max", "_crit", "_min", "_peak")

_INLET = re.compile(r"inlet|ambient|intake|front.?panel.?temp", re.IGNORECASE)
_OUTLET = re.compile(r"outlet|exhaust|outtake", re.IGNORECASE)
_COOLANT = re.compile(r"coolant|liquid|water|\bCDU\b", re.IGNORECASE)
_WHOLE_POWER = re.compile(
    r"pwr consumption|power consumption|system level|avg power|total[ _]?power|system power|sys(?:tem)?[ _]input|"
    r"power meter|instantaneous power|host power|current power|node power|chassis power",
    re.IGNORECASE,
)
_SUPPLY = re.compile(r"(?:power supply|psu?)[ _-]?\d", re.IGNORECASE)
_SUPPLY_OUTPUT = re.compile(r"out(?:put)?\b|output ?power|pout|capacity|last", re.IGNORECASE)
#: Beyond these a reading is a register's "unset" or a broken sensor.
_LARGEST = 1e12
_PLAUSIBLE = {"temperature": (-100.0, 300.0), "fan": (0.0, 200_000.0), "power": (0.0, 1e6), "humidity": (0.0, 100.0)}


@dataclass
class Sensor:
    """One reading. `value` None is unknown; `status` is the source's own verdict."""

    chip: str
    label: str
    quantity: str
    unit: str
    value: float | None
    status: str | None = None
    context: str = ""


@dataclass
class SensorSheet:
    """Collects the sensors of one capture, then yields rows."""

    sensors: list[Sensor] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    partial_power: bool = False

    def add(self, sensor: Sensor, where: str) -> None:
        """Take a reading; an impossible one is replaced by None and noted."""
        low, high = _PLAUSIBLE.get(sensor.quantity.split("_")[0], (-_LARGEST, _LARGEST))
        if sensor.value is not None and not low <= sensor.value <= high:
            self.notes.append(
                Note("warning", where, f"{sensor.label}: {sensor.value:g} {sensor.unit} is impossible, taken as unset")
            )
            sensor.value = None
        if sensor.value is None and sensor.quantity != "state" and not sensor.quantity.endswith(LIMIT_SUFFIXES):
            self.unread.append(sensor.label)
        self.sensors.append(sensor)

    def rows(self, context: CaptureContext, carries: Mapping[str, tuple[str, ...]]) -> Iterator[Row | Note]:
        """Yield sensor rows, the node's row when it has a value, events of failed sensors, and notes."""
        totals = Counter((sensor.chip, sensor.label, sensor.quantity) for sensor in self.sensors)
        seen: Counter[tuple[str, str, str]] = Counter()
        for sensor in self.sensors:
            key = (sensor.chip, sensor.label, sensor.quantity)
            seen[key] += 1
            if totals[key] > 1:
                sensor.label = f"{sensor.label}#{seen[key]}"
            yield make_row(
                "sensor_samples", carries, context,
                {"chip": sensor.chip, "label": sensor.label, "quantity": sensor.quantity, "unit": sensor.unit,
                 "value": sensor.value, "status": sensor.status},
            )  # fmt: skip
        summary = self.summary()
        if any(value is not None for value in summary.values()):
            yield make_row("node_samples", carries, context, summary)
        for sensor in self.sensors:
            if sensor.status in ("warning", "critical") and not sensor.quantity.endswith(LIMIT_SUFFIXES):
                yield fault_event(sensor, context, carries)
        yield from self.notes
        if self.unread:
            names = ", ".join(sorted(set(self.unread))[:8])
            yield Note("info", "", f"{len(self.unread)} sensors gave no reading: {names}")

    def summary(self) -> dict[str, Value]:
        """Return the node's columns: hottest inlet, outlet and coolant, slowest turning fan, power of the host."""
        kinds = {"inlet_c": _INLET, "outlet_c": _OUTLET, "coolant_c": _COOLANT}
        values: dict[str, Value] = {"psu_w": self._power()}
        for column, pattern in kinds.items():
            readings = [
                sensor.value
                for sensor in self.sensors
                if sensor.quantity == "temperature" and sensor.value is not None and _matches(sensor, pattern, column)
            ]
            values[column] = max(readings) if readings else None
        # 0 rpm with an "ok" verdict is an empty fan bay.
        fans = [
            sensor.value for sensor in self.sensors
            if sensor.quantity == "fan" and sensor.unit == "rpm" and sensor.value is not None
            and (sensor.value > 0 or sensor.status in ("warning", "critical"))
        ]  # fmt: skip
        values["fan_rpm_min"] = min(fans) if fans else None
        flows = [sensor.value for sensor in self.sensors if sensor.quantity == "flow" and sensor.unit == "l/min"]
        known = [flow for flow in flows if flow is not None]
        values["coolant_lpm"] = min(known) if known else None
        return values

    def _power(self) -> float | None:
        watts = [sensor for sensor in self.sensors if sensor.quantity == "power"]
        whole = [sensor.value for sensor in watts if _WHOLE_POWER.search(sensor.label) and sensor.value is not None]
        if whole:
            return max(whole)
        supplies = [
            sensor for sensor in watts
            if (_SUPPLY.search(sensor.label) or _SUPPLY.search(sensor.chip)) and not _SUPPLY_OUTPUT.search(sensor.label)
            # IPMI says "na" of an empty slot and of a supply that does not answer alike.
            and (sensor.status != "absent" or sensor.chip == "ipmi")
        ]  # fmt: skip
        known = [sensor.value for sensor in supplies if sensor.value is not None]
        unread = any(
            sensor.quantity == "reading" and sensor.value is None and _SUPPLY.search(sensor.label)
            for sensor in self.sensors
        )
        # The sum of some supplies is not the power of the host.
        complete = len(known) == len(supplies) and not unread and not self.partial_power
        return sum(known) if known and complete else None


def _matches(sensor: Sensor, pattern: re.Pattern[str], column: str) -> bool:
    if sensor.context:
        wanted = {"inlet_c": ("intake", "inlet"), "outlet_c": ("exhaust",), "coolant_c": ("liquid", "coolant")}[column]
        if any(word in sensor.context.lower() for word in wanted):
            return True
    return bool(pattern.search(sensor.label))


def fault_event(sensor: Sensor, context: CaptureContext, carries: Mapping[str, tuple[str, ...]]) -> Row:
    """Return the event of a sensor whose source calls it warning or critical."""
    critical = sensor.status == "critical"
    if sensor.quantity == "fan" or "fan" in sensor.label.lower():
        code = "fan:failed" if critical else "fan:warning"
    elif "psu" in sensor.chip.lower() or _SUPPLY.search(sensor.label):
        code = "psu:failed" if critical else "psu:warning"
    else:
        code = f"sensor:{sensor.status}"
    reading = "" if sensor.value is None else f" at {sensor.value:g} {sensor.unit}"
    return make_row(
        "events",
        carries,
        context,
        {
            "source": EventSource.AGENT.value,
            "code": code,
            "severity": (EventSeverity.ERROR if critical else EventSeverity.WARNING).value,
            "message": f"{sensor.label}{reading} is reported as {sensor.status}",
            "attrs": {"chip": sensor.chip, "label": sensor.label, "quantity": sensor.quantity},
        },
    )
