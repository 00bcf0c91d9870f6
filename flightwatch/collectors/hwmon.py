"""Temperatures, voltages, fans, currents, power, humidity, energy and clocks from /sys/class/hwmon.

One `sensor_samples` row a sensor. Labels are unique within a chip name: where two chips share a name
(one coretemp a socket) or two sensors share a label, each gets #1, #2 in the order of the kernel's
numbers. Limits outside what a sensor can mean are the drivers' "unset" (65,261 C) and are not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.tree import Tree, text, whole_number
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row, Value

ROOT = "sys/class/hwmon"
REFRESH_EVERY = 60

#: Prefix of the file to (quantity, unit, units in the file per unit, largest plausible limit).
KINDS: dict[str, tuple[str, str, float, float]] = {
    "temp": ("temperature", "C", 1000.0, 300.0),
    "in": ("voltage", "mV", 1.0, 1e6),
    "fan": ("fan", "rpm", 1.0, 200_000.0),
    "power": ("power", "W", 1e6, 1e6),
    "curr": ("current", "A", 1000.0, 1e5),
    "humidity": ("humidity", "%", 1000.0, 100.0),
    "freq": ("clock", "MHz", 1e6, 1e6),
    "energy": ("energy", "uJ", 1.0, 0.0),
}
_INPUT = re.compile(r"(temp|in|fan|power|curr|humidity|freq|energy)(\d{1,4})_(?:input|average)")
_INLET = re.compile(r"inlet|intake|ambient", re.IGNORECASE)
_OUTLET = re.compile(r"outlet|exhaust", re.IGNORECASE)
_COOLANT = re.compile(r"coolant|water|liquid", re.IGNORECASE)
#: Chips and labels that measure what the whole host draws.
_HOST_POWER_CHIPS = ("power_meter",)
_SUPPLY_INPUT = re.compile(r"p(?:ower)?[ _]?in\d*", re.IGNORECASE)


class Sensor:
    """Where one sensor's values are; made once, read many times."""

    def __init__(
        self, tree: Tree, folder: str, kind: str, number: str, input_name: str, present: frozenset[str]
    ) -> None:
        self.kind = kind
        self.quantity, self.unit, self.scale, self.largest = KINDS[kind]
        stem = f"{kind}{number}"
        self.path = f"{folder}/{input_name}"
        self.label = text(tree.read(f"{folder}/{stem}_label")) or stem
        self.chip = ""
        self.critical = self._limit(tree, folder, f"{stem}_crit", present)
        self.high = self._limit(tree, folder, f"{stem}_max", present)
        self.low = self._limit(tree, folder, f"{stem}_min", present)
        self.fault_path = f"{folder}/{stem}_fault" if f"{stem}_fault" in present else None
        self.alarm_paths = [
            (f"{folder}/{stem}_{name}", status)
            for name, status in (("crit_alarm", "critical"), ("emergency_alarm", "critical"), ("alarm", "warning"),
                                 ("max_alarm", "warning"), ("min_alarm", "warning"))
            if f"{stem}_{name}" in present
        ]  # fmt: skip
        self.template: dict[str, Value] = {}

    def name(self, chip: str, label: str) -> None:
        """Fix the names under which rows are written."""
        self.chip, self.label = chip, label
        self.template = {"chip": chip, "label": label, "quantity": self.quantity, "unit": self.unit}

    def read(self, tree: Tree, ts: int | None) -> Row:
        """Return the sensor's row; value NULL when the driver gives no number."""
        raw = whole_number(tree.read(self.path))
        values = self.template.copy()
        values["ts"] = ts
        if self.fault_path is not None and whole_number(tree.read(self.fault_path)) == 1:
            values["value"], values["status"] = None, "absent"
        elif raw is None or abs(raw) >= 1 << 63:
            values["value"] = None
        elif self.kind == "energy":
            values["counter"] = raw if raw >= 0 else None
        else:
            value = raw / self.scale if self.scale != 1.0 else raw
            values["value"] = value
            values["status"] = self._status(tree, value)
        return Row("sensor_samples", values)

    def _status(self, tree: Tree, value: float) -> str | None:
        """Return the driver's own verdict, else the reading against the driver's limits, else None."""
        for path, status in self.alarm_paths:
            if whole_number(tree.read(path)) == 1:
                return status
        if self.critical is not None and value >= self.critical:
            return "critical"
        if self.kind == "temp" and self.high is not None and value >= self.high:
            return "warning"
        return "ok" if self.alarm_paths or self.critical is not None else None

    def _limit(self, tree: Tree, folder: str, name: str, present: frozenset[str]) -> float | None:
        raw = whole_number(tree.read(f"{folder}/{name}")) if name in present else None
        if raw is None:
            return None
        value = raw / self.scale
        return value if -100 <= value <= self.largest and value != 0 else None


def hwmon_folders(tree: Tree) -> list[str]:
    """Return the folders that hold sensor files, in the order of the kernel's numbers."""
    folders = []
    for entry in sorted(tree.listdir(ROOT), key=_number):
        folder = f"{ROOT}/{entry}"
        if not _has_sensors(tree.listdir(folder)):
            # Old drivers put the files beside the class folder's device link.
            folder += "/device"
        if _has_sensors(tree.listdir(folder)):
            folders.append(folder)
    return folders


def find_sensors(tree: Tree, folders: Sequence[str]) -> list[Sensor]:
    """Return every sensor of these folders with its final chip name and label."""
    sensors: list[Sensor] = []
    for folder in folders:
        present = frozenset(tree.listdir(folder))
        chip = text(tree.read(f"{folder}/name")) or folder.removesuffix("/device").rsplit("/", 1)[-1]
        for sensor in _sensors_of(tree, folder, present):
            sensor.chip = chip
            sensors.append(sensor)
    totals: dict[tuple[str, str], int] = {}
    for sensor in sensors:
        totals[sensor.chip, sensor.label] = totals.get((sensor.chip, sensor.label), 0) + 1
    seen: dict[tuple[str, str], int] = {}
    for sensor in sensors:
        key = (sensor.chip, sensor.label)
        seen[key] = seen.get(key, 0) + 1
        sensor.name(sensor.chip, f"{sensor.label}#{seen[key]}" if totals[key] > 1 else sensor.label)
    return sensors


def read_hwmon(tree: Tree, ts: int | None = None, folders: Sequence[str] | None = None) -> Iterator[Row | Note]:
    """Yield one row a sensor, and a note for each that gives no number.

    Parameters
    ----------
    folders: folders with sensor files, where a recorded tree lacks the links of /sys/class/hwmon.
    """
    for sensor in find_sensors(tree, hwmon_folders(tree) if folders is None else folders):
        row = sensor.read(tree, ts)
        yield row
        if row.values.get("value") is None and row.values.get("counter") is None:
            yield Note("info", sensor.path, f"{sensor.chip} {sensor.label} gives no reading")


class HwmonCollector:
    """Hardware monitoring sensors of this machine; the worst ones also go to the node's row."""

    name = "hwmon"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.sysfs_interval_seconds
        self._environment = environment
        self._sensors: list[Sensor] = []
        self._reads = 0
        self._turning: set[str] = set()

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read every sensor once. Raises NoData when the machine has none."""
        tree = self._environment.tree
        if not self._sensors or self._reads % REFRESH_EVERY == 0:
            self._sensors = find_sensors(tree, hwmon_folders(tree))
        self._reads += 1
        if not self._sensors:
            raise NoData(f"no sensor in /{ROOT}")
        rows = [sensor.read(tree, now_ms) for sensor in self._sensors]
        self._environment.summary.offer(self.name, now_ms, self._node_part(rows))
        return rows

    def _node_part(self, rows: Sequence[Row]) -> Mapping[str, Value]:
        part: dict[str, Value] = {}
        fans: list[float] = []
        watts = 0.0
        for sensor, row in zip(self._sensors, rows, strict=True):
            value = row.values.get("value")
            if not isinstance(value, (int, float)):
                continue
            if sensor.kind == "fan":
                # 0 rpm is an empty header unless this fan has turned before or has a minimum speed.
                if value > 0:
                    self._turning.add(sensor.path)
                if sensor.path in self._turning or sensor.low is not None:
                    fans.append(value)
            elif sensor.kind == "power" and _is_supply(sensor):
                watts += value
            elif sensor.kind == "temp":
                _offer_temperature(part, sensor.label, value)
        if fans:
            part["fan_rpm_min"] = min(fans)
        if watts:
            part["psu_w"] = watts
        return part


def _is_supply(sensor: Sensor) -> bool:
    return sensor.chip in _HOST_POWER_CHIPS or _SUPPLY_INPUT.fullmatch(sensor.label.split("#")[0]) is not None


def _offer_temperature(part: dict[str, Value], label: str, value: float) -> None:
    for column, pattern in (("inlet_c", _INLET), ("outlet_c", _OUTLET), ("coolant_c", _COOLANT)):
        if pattern.search(label):
            known = part.get(column)
            part[column] = max(value, known) if isinstance(known, (int, float)) else value
            return


def _sensors_of(tree: Tree, folder: str, present: frozenset[str]) -> Iterator[Sensor]:
    found: dict[tuple[str, int], tuple[str, str]] = {}
    for name in sorted(present):
        match = _INPUT.fullmatch(name)
        if match:
            # "_average" sorts before "_input", which replaces it where both exist.
            found[match[1], int(match[2])] = (match[2], name)
    for (kind, _), (number, name) in sorted(found.items()):
        yield Sensor(tree, folder, kind, number, name, present)


def _has_sensors(names: Iterable[str]) -> bool:
    return any(_INPUT.fullmatch(name) for name in names)


def _number(entry: str) -> tuple[int, str]:
    digits = entry.removeprefix("hwmon")
    return (int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 1 << 30, entry)
