"""Time as the rest of the code sees it, injectable in tests."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Source of wall-clock and monotonic time."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch, UTC."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back, for durations only."""

    def sleep_s(self, seconds: float) -> None:
        """Wait; negative durations do not wait."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds of the monotonic clock."""
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        """Sleep on the calling thread."""
        if seconds > 0:
            time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told to; for tests, simulations and backtests.

    Parameters
    ----------
    start_ms: first value of `now_ms`, milliseconds since the epoch.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = float(start_ms)
        self._monotonic_s = 0.0

    def now_ms(self) -> int:
        """Return the current simulated milliseconds since the epoch."""
        return int(self._now_ms)

    def monotonic_s(self) -> float:
        """Return simulated seconds since creation."""
        return self._monotonic_s

    def sleep_s(self, seconds: float) -> None:
        """Advance both clocks at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds` >= 0."""
        self._now_ms += max(0.0, seconds) * 1000
        self._monotonic_s += max(0.0, seconds)

    def set_wall_ms(self, now_ms: int) -> None:
        """Jump the wall clock alone, backwards too, as a bad time server does."""
        self._now_ms = float(now_ms)


def iso_utc(ts_ms: int | None) -> str | None:
    """Render milliseconds since the epoch as `2026-11-29T19:10:13.000Z`; None stays None."""
    if ts_ms is None:
        return None
    moment = datetime.fromtimestamp(ts_ms / 1000, tz=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ts_ms % 1000:03d}Z"


def parse_iso_utc(text: str) -> int:
    """Read an ISO-8601 time (a missing zone means UTC) or epoch seconds / milliseconds as text.

    Returns milliseconds since the epoch. Raises ValueError when the text is neither.
    """
    stripped = text.strip()
    try:
        number = float(stripped)
    except ValueError:
        moment = datetime.fromisoformat(stripped.replace("Z", "+00:00"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    return round(number if abs(number) >= 1e11 else number * 1000)
