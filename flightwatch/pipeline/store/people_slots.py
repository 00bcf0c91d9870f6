"""How many queries of people run at once: in all, and of one person."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from flightwatch.core.errors import Refused


class Slots:
    """Places for running queries. Thread-safe; nobody waits, who finds no place is told so.

    Parameters
    ----------
    total: places in all. each: places of one person; a person without a name is held by `total` alone.
    """

    def __init__(self, total: int, each: int) -> None:
        self._total, self._each = total, each
        self._running: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def place(self, who: str) -> Iterator[None]:
        """Hold a place while the block runs.

        Raises
        ------
        Refused: all places, or all of this person, are taken.
        """
        with self._lock:
            if self._running.total() >= self._total:
                raise Refused("too many queries are running, try again in a moment")
            if who and self._running[who] >= self._each:
                raise Refused(f"you have {self._each} queries running already: wait for one or cancel it")
            self._running[who] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running[who] -= 1
                if not self._running[who]:
                    del self._running[who]
