"""Configuration values that collectors learn on the way, kept for the collector that sends them."""

from __future__ import annotations

from collections.abc import Mapping

#: (device index or None for the node, name)
Key = tuple[int | None, str]


class FactBoard:
    """Where collectors leave configuration values that they learn on the way (driver, VBIOS, power limit)."""

    def __init__(self) -> None:
        self._parts: dict[str, Mapping[Key, str]] = {}

    def offer(self, source: str, facts: Mapping[Key, str]) -> None:
        """Replace the facts of `source`."""
        self._parts[source] = facts

    def all(self) -> dict[Key, str]:
        """Return the facts of all sources."""
        merged: dict[Key, str] = {}
        for facts in list(self._parts.values()):
            merged.update(facts)
        return merged
