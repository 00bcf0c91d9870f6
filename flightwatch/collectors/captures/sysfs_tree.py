"""Recorded /sys trees: RDMA ports, hwmon sensors, thermal zones, EDAC counters, read by the live collectors' readers.

An archive drops the links below /sys/class, so hwmon folders are also looked for where the devices are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from flightwatch.collectors import edac, hwmon, infiniband, thermal
from flightwatch.collectors.captures.base import make_row
from flightwatch.collectors.captures.port_counters import IDENTITY, MAPS
from flightwatch.collectors.tree import Tree, whole_number
from flightwatch.core.protocols import CaptureContext, Note, Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource

#: Most folders searched for sensor files, and how deep.
FOLDER_LIMIT, DEPTH_LIMIT = 20_000, 14
_SENSOR_COLUMNS = ("chip", "label", "quantity", "unit", "value", "counter", "status")
_HWMON_FILE = re.compile(
    r"(?:^|/)sys/(?:class|devices)/(?:.+/)?(?:temp|in|fan|power|curr|humidity)\d+_(?:input|average)$"
)
_INPUT = re.compile(r"(?:temp|in|fan|power|curr|humidity|freq|energy)\d{1,4}_(?:input|average)")


def _complete(
    items: Iterable[Row | Note], carries: Mapping[str, tuple[str, ...]], context: CaptureContext
) -> Iterator[Row | Note]:
    """Fill the columns that a reader leaves out and set the capture's time and node."""
    for item in items:
        if isinstance(item, Row):
            values = {name: value for name, value in item.values.items() if value is not None}
            yield make_row(item.table, carries, context, values)
        else:
            yield item


class InfinibandTreeParser:
    """Reads /sys/class/infiniband."""

    name: ClassVar[str] = "sysfs-infiniband"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "port_samples": tuple(
            dict.fromkeys(
                (
                    *IDENTITY,
                    *(column for column, _ in infiniband.COUNTERS.values()),
                    *infiniband.HW_COUNTERS.values(),
                    *MAPS,
                )
            )
        ),
        "inventory": ("hca", "model", "attrs"),
        "config_facts": ("name", "value"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "port_samples.rx_bytes_total": "the port has no performance agent (N/A (no PMA)), or the file is missing",
        "port_samples.pfc_rx_pause_total": "sysfs has no pause counters; `ethtool -S` has",
    }

    def recognise_tree(self, names: Sequence[str]) -> bool:
        """Say whether a port's file is among the names."""
        return any(re.search(r"(?:^|/)sys/class/infiniband/[^/]+/ports/\d+/", name) for name in names)

    def claims(self, name: str) -> bool:
        """Say whether a file lies below /sys/class/infiniband."""
        return re.search(r"(?:^|/)sys/class/infiniband/", name) is not None

    def parse_tree(self, tree: Tree, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one port_samples row a port, and each adapter's type and firmware."""
        yield from _complete(infiniband.read_infiniband(tree, context.at_ms), self.CARRIES, context)
        for hca in list(tree.listdir(infiniband.ROOT))[:1000]:
            folder = f"{infiniband.ROOT}/{hca}"
            model, board = _text(tree, f"{folder}/hca_type"), _text(tree, f"{folder}/board_id")
            guid, firmware = _text(tree, f"{folder}/node_guid"), _text(tree, f"{folder}/fw_ver")
            attrs = {key: value for key, value in (("board_id", board), ("guid", guid)) if value}
            if model or attrs:
                yield make_row("inventory", self.CARRIES, context, {"hca": hca, "model": model, "attrs": attrs or None})
            if firmware:
                yield make_row("config_facts", self.CARRIES, context, {"name": f"{hca}.firmware", "value": firmware})


class HwmonTreeParser:
    """Reads hwmon chips and thermal zones."""

    name: ClassVar[str] = "sysfs-hwmon"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"sensor_samples": _SENSOR_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "sensor_samples.value": "the driver gives no number; a limit that no sensor can reach (65261.85 C) means unset",
    }

    def recognise_tree(self, names: Sequence[str]) -> bool:
        """Say whether a sensor's input file is among the names."""
        return any(_HWMON_FILE.search(name) or "sys/class/thermal/thermal_zone" in name for name in names)

    def claims(self, name: str) -> bool:
        """Say whether a file belongs to a chip or a thermal zone."""
        return bool(re.search(r"(?:^|/)sys/class/(?:hwmon|thermal)/", name)) or bool(
            re.search(r"(?:^|/)sys/devices/(?!system/).*", name)
        )

    def parse_tree(self, tree: Tree, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one row a sensor, its limits as `<quantity>_max` and `_crit`, and notes on what is NULL."""
        folders = _hwmon_folders(tree)
        yield from _complete(hwmon.read_hwmon(tree, context.at_ms, folders), self.CARRIES, context)
        for sensor in hwmon.find_sensors(tree, folders):
            yield from self._limits(tree, sensor, context)
        yield from _complete(thermal.read_thermal(tree, context.at_ms), self.CARRIES, context)

    def _limits(self, tree: Tree, sensor: hwmon.Sensor, context: CaptureContext) -> Iterator[Row | Note]:
        stem = re.sub(r"_(?:input|average)$", "", sensor.path)
        for suffix, known in (("max", sensor.high), ("crit", sensor.critical)):
            raw = whole_number(tree.read(f"{stem}_{suffix}"))
            if raw is None:
                continue
            values: dict[str, Value] = {
                "chip": sensor.chip, "label": sensor.label, "quantity": f"{sensor.quantity}_{suffix}",
                "unit": sensor.unit, "value": known,
            }  # fmt: skip
            yield make_row("sensor_samples", self.CARRIES, context, values)
            if known is None:
                yield Note("info", f"{stem}_{suffix}", f"the limit {raw / sensor.scale:g} {sensor.unit} means unset")


class EdacTreeParser:
    """Reads memory error counters; an uncorrected error is an event."""

    name: ClassVar[str] = "sysfs-edac"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sensor_samples": _SENSOR_COLUMNS,
        "node_samples": ("edac_corrected_total", "edac_uncorrected_total"),
        "events": ("source", "code", "severity", "message", "attrs"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"sensor_samples.counter": "the driver has no such counter"}

    def recognise_tree(self, names: Sequence[str]) -> bool:
        """Say whether a memory controller's counter is among the names."""
        return any(re.search(r"(?:^|/)sys/devices/system/edac/mc/mc\d+/", name) for name in names)

    def claims(self, name: str) -> bool:
        """Say whether a file lies below the EDAC folder."""
        return re.search(r"(?:^|/)sys/devices/system/edac/", name) is not None

    def parse_tree(self, tree: Tree, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one row a counter, the node's totals, and an event a controller with uncorrected errors."""
        rows: list[Row] = []
        for item in _complete(edac.read_edac(tree, context.at_ms), self.CARRIES, context):
            if isinstance(item, Row):
                rows.append(item)
            yield item
        if rows:
            yield make_row("node_samples", self.CARRIES, context, dict(edac.totals(rows)))
        yield from edac_events(rows, lambda values: make_row("events", self.CARRIES, context, values))


def edac_events(rows: Sequence[Row], make: Callable[[Mapping[str, Value]], Row]) -> Iterator[Row]:
    """Yield one event a controller whose uncorrected counters are above 0.

    Parameters
    ----------
    rows: sensor_samples rows of EDAC counters.
    make: builds the event from its values.
    """
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        count = row.values.get("counter")
        if row.values.get("quantity") == "uncorrected" and isinstance(count, int) and count > 0:
            found.setdefault(str(row.values["chip"]), {})[str(row.values["label"])] = count
    for chip, parts in found.items():
        # The controller's count includes errors without a place ("noinfo") and those of its rows.
        total = parts.get("total") or max(parts.values())
        places = ", ".join(f"{label} {count}" for label, count in parts.items() if label not in ("total", "noinfo"))
        yield make({
            "source": EventSource.KERNEL.value, "code": "edac:ue", "severity": EventSeverity.CRITICAL.value,
            "message": f"{chip}: {total} uncorrected memory errors" + (f" ({places})" if places else ""),
            "attrs": {"chip": chip, "count": str(total), **{label: str(count) for label, count in parts.items()}},
        })  # fmt: skip


def _hwmon_folders(tree: Tree) -> list[str]:
    """Return folders with sensor files: those below the class folder, then those where the devices are."""
    folders = hwmon.hwmon_folders(tree)
    waiting = [("sys/devices", 0)]
    visited = 0
    while waiting and visited < FOLDER_LIMIT:
        folder, depth = waiting.pop()
        visited += 1
        names = tree.listdir(folder)
        if any(_INPUT.fullmatch(name) for name in names):
            folders.append(folder)
        if depth < DEPTH_LIMIT:
            waiting.extend((f"{folder}/{name}", depth + 1) for name in reversed(names) if not _is_leaf(folder, name))
    # Sorted by the kernel's number, so that #1 and #2 are the same on every machine of a kind.
    return sorted(
        dict.fromkeys(folders), key=lambda path: ([int(n) for n in re.findall(r"hwmon(\d{1,6})$", path)], path)
    )


def _is_leaf(folder: str, name: str) -> bool:
    """Say whether a name is surely a file, or a folder without sensors, so that it need not be listed."""
    return bool(_INPUT.fullmatch(name)) or name in ("uevent", "name", "power", "edac", "cpu") or (
        "_" in name and folder.rsplit("/", 1)[-1].startswith("hwmon")
    )  # fmt: skip


def _text(tree: Tree, path: str) -> str | None:
    content = tree.read(path)
    text = content.decode("utf-8", "replace").strip() if content else ""
    return text[:200] if text and text.isprintable() else None
