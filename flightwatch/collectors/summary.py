"""One `node_samples` row out of what several collectors read."""

from __future__ import annotations

from collections.abc import Mapping

from flightwatch.core.protocols import Value


class NodeSummary:
    """Holds each collector's part of the node's row until the host collector sends the row.

    The host collector runs last in a round, so that all parts of one row are of one round. A part
    that was not renewed in time is left out: its columns become NULL, not stale.
    Written by collectors, read by the host collector; replacing a dictionary entry is atomic, so
    no lock is needed across their threads.
    """

    def __init__(self) -> None:
        self._parts: dict[str, tuple[int, Mapping[str, Value]]] = {}

    def offer(self, source: str, now_ms: int, values: Mapping[str, Value]) -> None:
        """Replace the part of `source`; columns of different sources do not overlap."""
        self._parts[source] = (now_ms, values)

    def merged(self, now_ms: int, max_age_ms: int) -> dict[str, Value]:
        """Return all columns at most `max_age_ms` away from `now_ms`, in either direction."""
        row: dict[str, Value] = {}
        for offered_ms, values in list(self._parts.values()):
            if abs(now_ms - offered_ms) <= max_age_ms:
                row.update(values)
        return row
