"""The fast path: a critical event becomes a finding at once, before the detection loop's next cycle.

The detectors are the loop's own, over a window of the newest events of the node, so the id of a finding is the one
that the loop gives it a few seconds later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from flightwatch.core.vocabulary import EventSeverity, EventSource
from flightwatch.detectors.contract import Detector, Finding
from flightwatch.detectors.registry import all_detectors

log = logging.getLogger(__name__)

#: Events older than this belong to nothing new.
WINDOW_MS = 45 * 60_000
#: Most events kept of one node, and most nodes.
_MOST_EVENTS = 256
_MOST_NODES = 20_000
_SOURCES = (EventSource.KERNEL.value, EventSource.AGENT.value)
_KEPT = (EventSeverity.WARNING.value, EventSeverity.ERROR.value, EventSeverity.CRITICAL.value)
_AT_ONCE = (EventSeverity.ERROR.value, EventSeverity.CRITICAL.value)
#: A node is looked at again at the earliest after this.
_PAUSE_MS = 1_000


def event_detectors(disabled: Sequence[str] = ()) -> list[Detector]:
    """Return the detectors that need nothing but events."""
    return [one for one in all_detectors() if set(one.needs.tables) == {"events"} and one.name not in disabled]


class FastEvents:
    """Remembers recent events of nodes and scores those that had a grave one. Not thread-safe."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self._detectors = detectors
        self._events: dict[tuple[str, str], deque[dict[str, Any]]] = {}
        self._due: dict[tuple[str, str], None] = {}
        self._scored_ms: dict[tuple[str, str], int] = {}
        self._said: dict[str, tuple[object, ...]] = {}

    def see(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take rows of the events table in."""
        for row in rows:
            if row.get("source") not in _SOURCES or row.get("severity") not in _KEPT or not row.get("node"):
                continue
            key = (str(row.get("cluster") or ""), str(row["node"]))
            if key not in self._events and len(self._events) >= _MOST_NODES:
                self._events.pop(next(iter(self._events)))
            self._events.setdefault(key, deque(maxlen=_MOST_EVENTS)).append(dict(row))
            if row["severity"] in _AT_ONCE:
                self._due[key] = None

    def forget(self) -> None:
        """Start anew: what was said may not have been stored, and its events come again."""
        for held in (self._events, self._due, self._scored_ms, self._said):
            held.clear()

    def findings(self, now_ms: int) -> list[tuple[str, Finding]]:
        """Return (cluster, finding) of what is new about the nodes that are due."""
        ready = [key for key in self._due if not 0 <= now_ms - self._scored_ms.get(key, -_PAUSE_MS) < _PAUSE_MS]
        found: list[tuple[str, Finding]] = []
        for cluster in sorted({key[0] for key in ready}):
            rows = []
            for key in (key for key in ready if key[0] == cluster):
                del self._due[key]
                self._scored_ms[key] = now_ms
                rows += self._recent(key)
            found += [(cluster, one) for one in self._score(rows)]
        if len(self._scored_ms) > _MOST_NODES:
            self._scored_ms.clear()
        return found

    def _recent(self, key: tuple[str, str]) -> list[dict[str, Any]]:
        events = self._events[key]
        newest = max((row["ts"] for row in events if row.get("ts") is not None), default=0)
        return [row for row in events if row.get("ts") is not None and newest - row["ts"] <= WINDOW_MS]

    def _score(self, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
        if not rows:
            return []
        frame = _frame(rows)
        fresh = []
        for detector in self._detectors:
            try:
                found = detector.score({"events": frame})
            except Exception:  # a runner: one detector must not take the engine along
                log.exception("The detector %s failed on new events; the detection loop tries again.", detector.name)
                continue
            for one in found:
                mark = (one.class_, one.targets, one.severity, one.state)
                if self._said.get(one.id) != mark:
                    self._said[one.id] = mark
                    fresh.append(one)
        if len(self._said) > 4 * _MOST_NODES:
            self._said.clear()
        return fresh


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return events by the conventions of `detectors.contract`."""
    flat = []
    for row in rows:
        attrs = row.get("attrs") or {}
        flat.append({name: row.get(name) for name in ("ts", "cluster", "node", "device", "job", "run", "rank", "source",
                                                      "code", "severity", "message")}
                    | {f"attrs.{name}": value for name, value in attrs.items()})  # fmt: skip
    frame = pd.DataFrame(flat)
    for name in ("ts", "device", "rank"):
        frame[name] = pd.to_numeric(frame[name], errors="coerce").astype(float)
    return frame.astype({name: object for name in frame if name not in ("ts", "device", "rank")}).where(
        frame.notna(), None
    )
