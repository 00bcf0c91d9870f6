"""Results that several pages ask for at nearly the same time, read once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from flightwatch.core.clock import Clock, SystemClock

T = TypeVar("T")
_MOST = 256


class Remembered:
    """Keeps results for a short time; whoever asks while one is being read waits for that one. Thread-safe.

    A result whose time is over is let go at the next read of any: some of them are megabytes.

    Parameters
    ----------
    seconds: so long a result is given out again.
    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self._seconds = seconds
        self._clock = clock or SystemClock()
        self._guard = threading.Lock()
        self._locks: OrderedDict[Hashable, threading.Lock] = OrderedDict()
        self._results: dict[Hashable, tuple[float, float, Any]] = {}

    def get(self, key: Hashable, read: Callable[[], T], seconds: float | None = None) -> T:
        """Return the result of `read`, or the one that was read under `key` a moment ago. Errors are not kept."""
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
            self._locks.move_to_end(key)
            while len(self._locks) > _MOST:
                old, _ = self._locks.popitem(last=False)
                self._results.pop(old, None)
        stands_s = self._seconds if seconds is None else seconds
        with lock:
            found = self._results.get(key)
            if found is not None and self._clock.monotonic_s() - found[0] < stands_s:
                return found[2]  # type: ignore[no-any-return]
            result = read()
            self._keep(key, stands_s, result)
            return result

    def _keep(self, key: Hashable, stands_s: float, result: Any) -> None:
        with self._guard:
            now_s = self._clock.monotonic_s()
            for over in [one for one, (at_s, long_s, _) in self._results.items() if now_s - at_s >= long_s]:
                del self._results[over]
            self._results[key] = (now_s, stands_s, result)
