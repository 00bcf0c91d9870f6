"""Where a slow collector leaves a port's columns for the collector that sends the port's row."""

from __future__ import annotations

from collections.abc import Mapping

from flightwatch.core.protocols import Row, Value

#: A part older than this is dropped instead of being sent as if it were new.
LONGEST_WAIT_MS = 30_000


class PortBoard:
    """Parts of port rows, each sent once: a counter that was read once must not look like several readings."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], tuple[int, Mapping[str, Value]]] = {}

    def offer(self, hca: str, port: int, now_ms: int, values: Mapping[str, Value]) -> None:
        """Leave values for a port; they join the ones that still wait."""
        waiting = self._parts.get((hca, port))
        self._parts[hca, port] = (now_ms, {**waiting[1], **values} if waiting else values)

    def complete(self, row: Row, now_ms: int) -> None:
        """Put waiting values into a port's row where it has none, and forget them."""
        hca, port = row.values.get("hca"), row.values.get("port")
        part = self._parts.pop((str(hca), port if isinstance(port, int) else -1), None)
        if part is None or abs(now_ms - part[0]) > LONGEST_WAIT_MS:
            return
        for name, value in part[1].items():
            held = row.values.get(name)
            if held is None:
                row.values[name] = value
            elif isinstance(held, dict) and isinstance(value, dict):
                row.values[name] = {**value, **held}
