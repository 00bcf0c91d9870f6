"""The node's own row: CPU, memory, load, clock offset and pressure, joined with what other collectors found worst.

Registered last of its interval, so that the parts of one row come from one round (see `summary`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.tree import Tree
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Row

#: Fields of the "cpu" line that are not work: idle and waiting for I/O.
_IDLE_FIELDS = (3, 4)


def cpu_ticks(content: bytes | None) -> tuple[int, int] | None:
    """Return (busy, all) ticks of all CPUs from /proc/stat; guest time is part of user time."""
    if content is None or not content.startswith(b"cpu "):
        return None
    words = content.split(b"\n", 1)[0].split()[1:9]
    if len(words) < 4 or not all(word.isdigit() and len(word) <= 20 for word in words):
        return None
    ticks = [int(word) for word in words]
    idle = sum(ticks[index] for index in _IDLE_FIELDS if index < len(ticks))
    return sum(ticks) - idle, sum(ticks)


def memory_used_bytes(content: bytes | None) -> int | None:
    """Return total - available from /proc/meminfo, None when either is missing."""
    found: dict[bytes, int] = {}
    for line in (content or b"").split(b"\n")[:8]:
        words = line.split()
        if len(words) == 3 and words[2] == b"kB" and words[1].isdigit() and len(words[1]) <= 16:
            found[words[0]] = int(words[1]) * 1024
    total, available = found.get(b"MemTotal:"), found.get(b"MemAvailable:")
    if total is None or available is None or available > total:
        return None
    return total - available


def load1(content: bytes | None) -> float | None:
    """Return the one-minute load average from /proc/loadavg."""
    words = (content or b"").split()
    try:
        load = float(words[0])
    except (IndexError, ValueError):
        return None
    return load if 0 <= load < 1e9 else None


def stall_us(content: bytes | None) -> int | None:
    """Return the microseconds in which some task waited, from a /proc/pressure file."""
    line = (content or b"").split(b"\n", 1)[0]
    digits = line.rpartition(b"total=")[2].strip()
    return int(digits) if line.startswith(b"some ") and digits.isdigit() and len(digits) <= 19 else None


class HostCollector:
    """CPU, memory, load, clock offset, pressure, and the merged parts of the other host collectors."""

    name = "host"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.sysfs_interval_seconds
        self._environment = environment
        self._ticks: tuple[int, int] | None = None
        self._offset_us: Callable[[], float | None] = lambda: None
        if environment.live:
            from flightwatch.collectors.clock_offset import kernel_clock

            self._offset_us = kernel_clock()

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Return the node's row. Raises NoData when nothing about the node is readable."""
        tree = self._environment.tree
        # A part may be one round old when its collector runs on a thread of its own.
        values = self._environment.summary.merged(now_ms, int(self.interval_seconds * 2000))
        values["cpu_pct"] = self._cpu_pct(tree)
        values["load1"] = load1(tree.read("proc/loadavg"))
        values["mem_used_bytes"] = memory_used_bytes(tree.read("proc/meminfo"))
        values["clock_offset_us"] = self._offset_us()
        pressure = self._pressure(tree)
        if pressure:
            values["extra_counters"] = pressure
        if all(value is None for value in values.values()) and self._ticks is None:
            raise NoData("/proc shows no CPU, memory or load")
        values["ts"] = now_ms
        return [Row("node_samples", values)]

    def _cpu_pct(self, tree: Tree) -> float | None:
        now, before = cpu_ticks(tree.read("proc/stat")), self._ticks
        self._ticks = now
        if now is None or before is None or now[1] <= before[1] or now[0] < before[0]:
            return None
        return min(100.0, 100.0 * (now[0] - before[0]) / (now[1] - before[1]))

    def _pressure(self, tree: Tree) -> dict[str, int]:
        found = {}
        for resource in ("cpu", "io", "memory"):
            waited = stall_us(tree.read(f"proc/pressure/{resource}"))
            if waited is not None:
                found[f"pressure.{resource}_some_us"] = waited
        return found
