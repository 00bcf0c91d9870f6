"""Thermal zones of the firmware from /sys/class/thermal: `sensor_samples`, chip "thermal"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.tree import Tree, text, whole_number
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row

ROOT = "sys/class/thermal"
REFRESH_EVERY = 60


class Zone:
    """One thermal zone: where its temperature is, and at which temperature it shuts the machine down."""

    def __init__(self, tree: Tree, entry: str) -> None:
        self.path = f"{ROOT}/{entry}/temp"
        self.label = text(tree.read(f"{ROOT}/{entry}/type")) or entry
        self.critical_mc: int | None = None
        for name in tree.listdir(f"{ROOT}/{entry}"):
            if name.startswith("trip_point_") and name.endswith("_type"):
                stem = f"{ROOT}/{entry}/{name.removesuffix('_type')}"
                if text(tree.read(stem + "_type")) == "critical":
                    limit = whole_number(tree.read(stem + "_temp"))
                    self.critical_mc = limit if limit is not None and 0 < limit < 300_000 else None

    def read(self, tree: Tree, ts: int | None) -> Row:
        """Return the zone's row; value NULL when the firmware gives no number."""
        raw = whole_number(tree.read(self.path))
        status = None
        if raw is not None and self.critical_mc is not None:
            status = "critical" if raw >= self.critical_mc else "ok"
        return Row(
            "sensor_samples",
            {
                "ts": ts,
                "chip": "thermal",
                "label": self.label,
                "quantity": "temperature",
                "unit": "C",
                "value": None if raw is None else raw / 1000,
                "status": status,
            },
        )


def find_zones(tree: Tree) -> list[Zone]:
    """Return all zones; a type that several zones share gets #1, #2."""
    zones = [Zone(tree, entry) for entry in tree.listdir(ROOT) if entry.startswith("thermal_zone")]
    names = [zone.label for zone in zones]
    seen: dict[str, int] = {}
    for zone, name in zip(zones, names, strict=True):
        seen[name] = seen.get(name, 0) + 1
        if names.count(name) > 1:
            zone.label = f"{name}#{seen[name]}"
    return zones


def read_thermal(tree: Tree, ts: int | None = None) -> Iterator[Row | Note]:
    """Yield one row a thermal zone."""
    for zone in find_zones(tree):
        row = zone.read(tree, ts)
        yield row
        if row.values["value"] is None:
            yield Note("info", zone.path, f"thermal zone {zone.label} gives no reading")


class ThermalCollector:
    """Thermal zones of this machine."""

    name = "thermal"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.sysfs_interval_seconds
        self._tree = environment.tree
        self._zones: list[Zone] = []
        self._reads = 0

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read every zone once. Raises NoData when there is none."""
        if not self._zones or self._reads % REFRESH_EVERY == 0:
            self._zones = find_zones(self._tree)
        self._reads += 1
        if not self._zones:
            raise NoData(f"no thermal zone in /{ROOT}")
        return [zone.read(self._tree, now_ms) for zone in self._zones]
