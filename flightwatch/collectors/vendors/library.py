"""Collectors that ask a vendor's Python library, and run its command while the library does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.vendors.command import CommandCollector
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import Note, Row

#: An absent library is looked for again this often.
RETRY_SECONDS = 60.0
#: A device that shows none of these shows nothing.
_READINGS = ("temp_c", "hotspot_c", "power_w", "util_pct", "mem_used_bytes")


class LibraryCollector(CommandCollector):
    """Reads through a library at the interval of libraries, through the command at the interval of commands.

    Parameters
    ----------
    load: returns the library's module, raises NoData when it is not there; injected in tests.
    monotonic_s: clock of the pauses between commands.
    """

    def __init__(
        self,
        environment: Environment,
        load: Callable[[], Any],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(environment)
        self._command_interval_s = self.interval_seconds
        self.interval_seconds = environment.settings.library_interval_seconds
        self._load = load
        self._monotonic_s = monotonic_s
        self._retry_at_s = float("-inf")
        self._command_at_s = float("-inf")
        self._library: Any = None

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read every device once; nothing while the command's pause lasts.

        Raises
        ------
        NoData: neither library nor command is there, or the tree is a recorded one.
        TransientError: the library or the command failed.
        """
        if not self._environment.live:
            raise NoData("a recorded tree has neither library nor command")
        now_s = self._monotonic_s()
        if self._library is None and now_s >= self._retry_at_s:
            self._retry_at_s = now_s + RETRY_SECONDS
            try:
                library = self._load()
                self.start(library)
                self._library = library
            except NoData:
                self._library = None
        if self._library is not None:
            rows = self._rows.keep(self.read(self._library, now_ms), now_ms)
            if not any(_has_reading(row) for row in rows):
                self.close()
                raise TransientError(f"{self.name}: the library no longer answers for any device")
            return rows
        if now_s - self._command_at_s < self._command_interval_s:
            return ()
        self._command_at_s = now_s
        return super().collect(now_ms)

    def close(self) -> None:
        """Let go of the library; the next call starts it again."""
        library, self._library = self._library, None
        self._retry_at_s = float("-inf")
        if library is not None:
            self.stop(library)

    def start(self, library: Any) -> None:
        """Start the library and find devices. Raises NoData when it has none or does not start."""
        raise NotImplementedError

    def stop(self, library: Any) -> None:
        """Let go of the library."""
        raise NotImplementedError

    def read(self, library: Any, now_ms: int) -> Iterator[Row | Note]:
        """Yield the rows of every device."""
        raise NotImplementedError


def _has_reading(row: Row) -> bool:
    return any(row.values.get(name) is not None for name in _READINGS)
