"""Turn what a capture parser says about a live machine into rows worth sending.

A parser describes a recorded capture whole: readings, configuration, inventory, conditions. Asked every
few seconds it says most of that again. Here readings pass, configuration goes to the fact board, inventory
passes when it changed, and a condition passes when it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flightwatch.collectors.environment import Environment
from flightwatch.core.protocols import Note, Row, Value

_SET_BY_AGENT = ("cluster", "node", "ts")


class LiveRows:
    """The memory of one source between two calls.

    Parameters
    ----------
    source: name under which configuration is offered.
    """

    def __init__(self, environment: Environment, source: str) -> None:
        self._environment = environment
        self._source = source
        self._inventory: dict[Value, dict[str, Value]] = {}
        self._conditions: set[tuple[Value, ...]] = set()
        #: Errors of the last call, as sentences.
        self.errors: list[str] = []
        #: Rows of the last call that lacked a required column (a device whose index is unknown).
        self.incomplete = 0

    def keep(self, found: Iterable[Row | Note], now_ms: int) -> list[Row]:
        """Return the rows to send.

        Parameters
        ----------
        found: what the parser yielded, with `now_ms` as the time of the capture.
        """
        self.errors, self.incomplete = [], 0
        facts: dict[tuple[int | None, str], str] = {}
        conditions: set[tuple[Value, ...]] = set()
        kept: list[Row] = []
        for item in found:
            if isinstance(item, Note):
                if item.level == "error":
                    self.errors.append(item.text)
            elif item.table == "config_facts":
                self._fact(item.values, facts)
            elif item.table == "inventory":
                self._environment.devices.learn(self._source, item.values)
                if self._changed(item.values):
                    kept.append(self._stamped(item, now_ms))
            elif item.table == "events":
                key = tuple(item.values.get(name) for name in ("device", "rank", "code", "message"))
                conditions.add(key)
                if key not in self._conditions:
                    kept.append(self._stamped(item, now_ms))
            elif _complete(item):
                kept.append(self._stamped(item, now_ms))
            else:
                self.incomplete += 1
        self._conditions = conditions
        if facts:
            self._environment.facts.offer(self._source, facts)
        return kept

    def _stamped(self, row: Row, now_ms: int) -> Row:
        if row.values.get("ts") is None:
            row.values["ts"] = now_ms
        return row

    def _fact(self, values: Mapping[str, Value], facts: dict[tuple[int | None, str], str]) -> None:
        device, name, value = values.get("device"), values.get("name"), values.get("value")
        if isinstance(name, str) and isinstance(value, str) and (device is None or isinstance(device, int)):
            facts[device, name] = value

    def _changed(self, values: Mapping[str, Value]) -> bool:
        known = {name: value for name, value in values.items() if name not in _SET_BY_AGENT}
        if self._inventory.get(values.get("device")) == known:
            return False
        self._inventory[values.get("device")] = known
        return True


def _complete(row: Row) -> bool:
    # The catalogue costs an agent memory that only agents with such a source should pay.
    from flightwatch.core.catalogue import TABLES

    return all(
        row.values.get(column.name) is not None or column.type.startswith("map")
        for column in TABLES[row.table].columns
        if not column.nullable and column.source == "agent" and column.name not in _SET_BY_AGENT
    )
