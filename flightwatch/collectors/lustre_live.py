"""Lustre client statistics of this machine: time per operation and load of every target since the last sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flightwatch.collectors.environment import Environment
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Row, Value

if TYPE_CHECKING:
    from flightwatch.collectors.captures.lustre import Target

#: The folders in which `captures.lustre` looks, known here so that it is imported only where one exists.
_ROOTS = ("proc/fs/lustre", "sys/kernel/debug/lustre", "sys/fs/lustre")
_TIMES = {"read": ("ost_read", "read"), "write": ("ost_write", "write")}


class LustreCollector:
    """Reads every OSC below /proc/fs/lustre and /sys/kernel/debug/lustre; the slowest goes to the node's row."""

    name = "lustre"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.sysfs_interval_seconds
        self._environment = environment
        self._last: dict[str, dict[str, tuple[int, int]]] = {}

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read all targets once. Raises NoData when no Lustre file system is mounted."""
        tree = self._environment.tree
        if not any(tree.listdir(f"{root}/osc") or tree.listdir(f"{root}/llite") for root in _ROOTS):
            raise NoData("no Lustre file system is mounted")
        from flightwatch.collectors.captures.lustre import targets_of

        rows: list[Row] = []
        slowest: dict[str, float] = {}
        for target in targets_of(tree):
            values = {"ts": now_ms, **target.storage_values(), **self._since_last(target)}
            rows.append(Row("storage_samples", values))
            for direction in _TIMES:
                time_ms = values.get(f"{direction}_ms")
                if target.device == "osc" and isinstance(time_ms, float):
                    slowest[f"fs_{direction}_ms"] = max(time_ms, slowest.get(f"fs_{direction}_ms", 0.0))
        self._environment.summary.offer(self.name, now_ms, slowest)
        return rows

    def _since_last(self, target: Target) -> dict[str, Value]:
        """Return times and queue since the last sample; unknown on the first, which has none before it."""
        name = f"{target.device}.{target.name}"
        now = {key: (count, total) for key, (count, _, _, total) in target.statistics.items() if total is not None}
        before = self._last.get(name, {})
        self._last[name] = now
        values: dict[str, Value] = {"queue_depth": _mean(now, before, "req_active")}
        for direction, names in _TIMES.items():
            micros = next((_mean(now, before, key) for key in names if key in now), None)
            values[f"{direction}_ms"] = None if micros is None else micros / 1000
        return values


def _mean(now: dict[str, tuple[int, int]], before: dict[str, tuple[int, int]], key: str) -> float | None:
    if key not in now or key not in before:
        return None
    count, total = now[key][0] - before[key][0], now[key][1] - before[key][1]
    return total / count if count > 0 and total >= 0 else None
