"""The state of a page as its address says it: path, time window, time zone, the page's own parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from flightwatch.core.clock import parse_iso_utc

#: Relative ranges on offer, by their word in the address.
RANGES: Mapping[str, int] = {
    "5m": 300,
    "15m": 900,
    "1h": 3600,
    "3h": 10_800,
    "6h": 21_600,
    "24h": 86_400,
    "7d": 604_800,
}
DEFAULT_RANGE = "1h"
LONGEST_SECONDS = 92 * 86_400
#: Clocks are not put forward and back again within so short a time.
_SHIFT_STAYS_MS = 14 * 86_400_000
#: Longest parameter that is looked at; the SQL page's query is the longest.
_LONGEST_TEXT = 60_000


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, milliseconds since the epoch; `live` when its end is now."""

    start_ms: int
    end_ms: int
    live: bool

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end_ms - self.start_ms) / 1000

    def bucket_seconds(self, points: int) -> int:
        """Return the width of buckets so that at most about `points` fit."""
        return max(1, -int(-self.seconds // points))


@dataclass(frozen=True, slots=True)
class View:
    """What a page shows.

    Attributes
    ----------
    path: path without the console's own prefix.
    params: query parameters of the address; strings that a person may have typed.
    captured: parts of the path that the page's PATH names.
    """

    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    captured: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, data: object) -> View:
        """Read what the browser sent; anything malformed is left out."""
        if not isinstance(data, Mapping):
            return cls("/")
        path, params, captured = data.get("path"), data.get("params"), data.get("captured")
        return cls(path if isinstance(path, str) else "/", _texts(params), _texts(captured))

    def data(self) -> dict[str, object]:
        """Return it as the browser keeps it."""
        return {"path": self.path, "params": dict(self.params), "captured": dict(self.captured)}

    def get(self, name: str, default: str = "") -> str:
        """Return one parameter."""
        return self.params.get(name) or default

    def choice(self, name: str, allowed: Mapping[str, object] | tuple[str, ...], default: str) -> str:
        """Return one parameter if it is one of those allowed, else the default."""
        value = self.params.get(name, default)
        return value if value in allowed else default

    def number(self, name: str) -> int | None:
        """Return a parameter as a number >= 0; None when it is absent or none."""
        text = self.params.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    @property
    def zone(self) -> tzinfo:
        """The time zone shown; UTC when the address names none that this machine knows."""
        name = self.params.get("tz", "UTC")
        if name == "UTC" or len(name) > 64:
            return UTC
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return UTC

    @property
    def zone_name(self) -> str:
        """Name of the time zone shown."""
        return "UTC" if self.zone is UTC else self.params["tz"]

    def window(self, now_ms: int) -> Window:
        """Return the stretch of time that the address asks for, relative to `now_ms` unless it is absolute."""
        start, end = _moment(self.params.get("from"), self.zone), _moment(self.params.get("to"), self.zone)
        if start is not None:
            until = min(end if end is not None else now_ms, now_ms + 300_000)
            start = max(start, until - LONGEST_SECONDS * 1000)
            return Window(min(start, until - 1000), until, live=False)
        seconds = RANGES[self.choice("range", RANGES, DEFAULT_RANGE)]
        return Window(now_ms - seconds * 1000, now_ms, live=True)

    def local(self, ts_ms: float) -> datetime:
        """Return a moment in the zone shown, without zone: charts draw what they are given."""
        return datetime.fromtimestamp(ts_ms / 1000, tz=self.zone).replace(tzinfo=None)

    def axis(self, ts_ms: Any) -> np.ndarray[Any, np.dtype[np.datetime64]]:
        """Return moments (milliseconds since the epoch) in the zone shown, without zone, as an array for a chart."""
        moments = np.asarray(ts_ms, dtype=np.int64)
        if self.zone is UTC or not len(moments):
            return np.asarray(moments.astype("datetime64[ms]"))
        low, high = int(moments.min()), int(moments.max())
        shift = self._shift_ms(low)
        if high - low < _SHIFT_STAYS_MS and shift == self._shift_ms(high):
            return np.asarray((moments + shift).astype("datetime64[ms]"))
        return np.asarray((moments + np.array([self._shift_ms(int(one)) for one in moments])).astype("datetime64[ms]"))

    def _shift_ms(self, ts_ms: int) -> int:
        """Return how far the clocks of the zone shown are ahead of UTC at a moment."""
        offset = datetime.fromtimestamp(ts_ms / 1000, tz=self.zone).utcoffset()
        return 0 if offset is None else round(offset.total_seconds() * 1000)

    def clock(self, ts_ms: float | None, *, date: bool = True) -> str:
        """Write a moment for people, in the zone shown."""
        if ts_ms is None:
            return "—"
        return self.local(ts_ms).strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S")


def _texts(given: object) -> dict[str, str]:
    if not isinstance(given, Mapping):
        return {}
    return {str(k): v for k, v in given.items() if isinstance(v, str) and len(v) <= _LONGEST_TEXT}


def _moment(text: str | None, zone: tzinfo) -> int | None:
    """Read an absolute time; one without a zone is meant in the zone shown."""
    if not text or len(text) > 40:
        return None
    try:
        plain = datetime.fromisoformat(text.replace(" ", "T"))
        if plain.tzinfo is None:
            return round(plain.replace(tzinfo=zone).timestamp() * 1000)
    except (ValueError, OverflowError):
        pass
    try:
        found = parse_iso_utc(text)
    except (ValueError, OverflowError, OSError):
        return None
    return found if 0 < found < 4_102_444_800_000 else None
