"""What a live BMC collector makes of a parser's output: readings, parts of the node's row, faults when they change."""

from __future__ import annotations

from collections.abc import Iterable

from flightwatch.collectors.environment import Environment
from flightwatch.core.errors import TransientError
from flightwatch.core.protocols import Note, Row

_IDENTITY = ("ts", "node")
#: Suffixes of quantities that are limits: a limit never changes, and would look like a stuck sensor.
LIMITS = ("_max", "_crit", "_min", "_peak", "_average")


class SensorPage:
    """Turns one page of sensors after another into rows.

    Parameters
    ----------
    source: name under which parts of the node's row are offered.
    """

    def __init__(self, environment: Environment, source: str) -> None:
        self._environment = environment
        self._source = source
        self._faults: frozenset[tuple[str, str]] = frozenset()

    def take(self, items: Iterable[Row | Note], now_ms: int) -> list[Row]:
        """Return the rows to send: every reading, and events only of faults that were not there the last time.

        Raises
        ------
        TransientError: the page holds no reading.
        """
        rows: list[Row] = []
        faults: dict[tuple[str, str], Row] = {}
        trouble = ""
        for item in items:
            if isinstance(item, Note):
                trouble = trouble or (item.text if item.level == "error" else "")
            elif item.table == "node_samples":
                part = {
                    name: value for name, value in item.values.items() if value is not None and name not in _IDENTITY
                }
                self._environment.summary.offer(self._source, now_ms, part)
            elif item.table == "events":
                faults[str(item.values["code"]), str(item.values["message"]).partition(" at ")[0]] = item
            elif item.table != "sensor_samples" or not str(item.values["quantity"]).endswith(LIMITS):
                rows.append(item)
        if not rows:
            raise TransientError(f"{self._source}: {trouble or 'no reading in its answer'}")
        rows.extend(row for key, row in faults.items() if key not in self._faults)
        self._faults = frozenset(faults)
        return rows
