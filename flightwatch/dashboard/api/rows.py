"""Rows of the store as JSON documents: times as ISO-8601, numbers beyond what JSON knows as texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from flightwatch.core.clock import iso_utc

#: Columns that hold milliseconds since the epoch when they come from the store.
_TIMES = frozenset(
    {"ts", "received_at", "first_seen_at", "detected_at", "last_seen", "first_seen", "started_at", "ended_at",
     "valid_until", "newest_at", "opened_at", "updated_at", "closed_at", "expires_at"}
)  # fmt: skip
#: Integers above it lose digits in JavaScript.
_LARGEST = 2**53


def documents(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of `Store.rows` as JSON-ready documents."""
    return [{name: _value(name, value) for name, value in row.items()} for row in rows]


def _value(name: str, value: Any) -> Any:
    if name in _TIMES and isinstance(value, int):
        return iso_utc(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _value("", one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value("", one) for one in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)
