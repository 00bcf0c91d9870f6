"""Memory error counters of the EDAC drivers: one `sensor_samples` row a counter, chip "edac.mcN".

Labels: "total" (the controller, which includes errors without a place), "noinfo" (errors without a
place), then csrows, their channels, and DIMMs or ranks where the driver has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.tree import Tree, whole_number
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row, Value

ROOT = "sys/devices/system/edac/mc"
REFRESH_EVERY = 60
_QUANTITY = {"ce": "corrected", "ue": "uncorrected"}
_CONTROLLER = re.compile(r"mc\d+")
_PART = re.compile(r"(?:csrow|dimm|rank)\d+")
_COUNT = re.compile(r"(?:dimm_|(ch\d+)_)?(ce|ue)_(noinfo_)?count")


class Counter:
    """One error counter."""

    def __init__(self, controller: str, part: str, path: str, kind: str) -> None:
        self.path = path
        self.is_total = part == "total"
        self.quantity = _QUANTITY[kind]
        self.template: dict[str, Value] = {
            "chip": f"edac.{controller}",
            "label": part,
            "quantity": self.quantity,
            "unit": "errors",
        }

    def read(self, tree: Tree, ts: int | None) -> Row:
        """Return the counter's row; NULL when the driver gives no number."""
        count = whole_number(tree.read(self.path))
        values = self.template.copy()
        values["ts"] = ts
        values["counter"] = count if count is not None and 0 <= count < 1 << 64 else None
        return Row("sensor_samples", values)


def find_counters(tree: Tree) -> list[Counter]:
    """Return the counters of all memory controllers."""
    counters: list[Counter] = []
    for controller in tree.listdir(ROOT):
        if not _CONTROLLER.fullmatch(controller):
            continue
        folder = f"{ROOT}/{controller}"
        names = tree.listdir(folder)
        for part, names_below in [("", names)] + [
            (name, tree.listdir(f"{folder}/{name}")) for name in names if _PART.fullmatch(name)
        ]:
            counters += _counters_in(controller, f"{folder}/{part}".rstrip("/"), part, names_below)
    return counters


def _counters_in(controller: str, folder: str, part: str, names: Sequence[str]) -> Iterator[Counter]:
    for name in names:
        match = _COUNT.fullmatch(name)
        if match is None:
            continue
        channel, kind, without_place = match.groups()
        if part:
            label = f"{part}.{channel}" if channel else part
        else:
            label = "noinfo" if without_place else "total"
        yield Counter(controller, label, f"{folder}/{name}", kind)


def totals(rows: Iterable[Row]) -> Mapping[str, Value]:
    """Return the node's part: corrected and uncorrected errors summed over controllers (label "total")."""
    part: dict[str, Value] = {}
    for row in rows:
        count = row.values.get("counter")
        if row.values["label"] == "total" and isinstance(count, int):
            column = f"edac_{row.values['quantity']}_total"
            known = part.get(column, 0)
            part[column] = count + known if isinstance(known, int) else count
    return part


def read_edac(tree: Tree, ts: int | None = None) -> Iterator[Row | Note]:
    """Yield one row a counter."""
    for counter in find_counters(tree):
        row = counter.read(tree, ts)
        yield row
        if row.values["counter"] is None:
            yield Note("info", counter.path, "the counter is not readable")


class EdacCollector:
    """Memory error counters of this machine; the sums go to the node's row."""

    name = "edac"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.sysfs_interval_seconds
        self._environment = environment
        self._counters: list[Counter] = []
        self._reads = 0

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read every counter once. Raises NoData when no EDAC driver is loaded."""
        tree = self._environment.tree
        if not self._counters or self._reads % REFRESH_EVERY == 0:
            self._counters = find_counters(tree)
        self._reads += 1
        if not self._counters:
            raise NoData(f"no memory controller in /{ROOT}")
        rows = [counter.read(tree, now_ms) for counter in self._counters]
        self._environment.summary.offer(self.name, now_ms, totals(rows))
        return rows
