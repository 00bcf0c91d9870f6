"""Kernel log lines into events: the dispatcher over the matchers of each driver.

`KernelLines` reads one log in order; live followers keep one per node. Lines that belong to one error
(AER details, APEI records, ACA entries) are folded into one event, which is therefore released a few
lines later, or by `flush`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flightwatch.collectors.captures.base import make_row
from flightwatch.collectors.captures.kernel_amd import AmdMatcher
from flightwatch.collectors.captures.kernel_event import KernelEvent, KernelState, Matcher
from flightwatch.collectors.captures.kernel_host import HostMatcher
from flightwatch.collectors.captures.kernel_nvidia import NvidiaMatcher
from flightwatch.collectors.captures.kernel_pcie import PlatformMatcher
from flightwatch.collectors.captures.log_prefix import Prefix, split
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import EventSource

#: Columns of an event row that kernel lines can carry.
EVENT_COLUMNS = ("device", "source", "code", "severity", "message", "attrs")
CARRIES: Mapping[str, tuple[str, ...]] = {"events": EVENT_COLUMNS}

#: Lines after which an event can no longer be extended and is released.
OPEN_LINES = 40
#: Longest part of a line offered to the matchers, in characters.
LINE_LIMIT = 16_000
#: Machines remembered at once in a log that mixes them.
HOST_LIMIT = 2048

_MATCHERS: tuple[type[Matcher], ...] = (NvidiaMatcher, AmdMatcher, PlatformMatcher, HostMatcher)
_ANY_TRIGGER = re.compile("|".join(matcher.TRIGGER for matcher in _MATCHERS))
_TRIGGERS = tuple(re.compile(matcher.TRIGGER) for matcher in _MATCHERS)


@dataclass(slots=True)
class _Open:
    line: int
    count: int
    event: KernelEvent
    prefix: Prefix


class _Host:
    """Matchers and memory of one machine."""

    def __init__(self) -> None:
        self.matchers = [matcher() for matcher in _MATCHERS]
        self.state = KernelState()


class KernelLines:
    """Reads kernel log lines in time order; lines of several machines may be mixed.

    Parameters
    ----------
    context: gives time and node where a line has none.
    """

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._hosts: dict[str | None, _Host] = {}
        self._open: deque[_Open] = deque()
        self._count = 0

    def feed(self, number: int, prefix: Prefix) -> Iterator[Row | Note]:
        """Offer one line; yields what is complete.

        Parameters
        ----------
        number: line number, for notes.
        prefix: the line, split by `log_prefix.split`.
        """
        self._count += 1
        if self._open and self._count - self._open[0].count > OPEN_LINES:
            yield self._row(self._open.popleft())
        message = prefix.message[:LINE_LIMIT]
        if not _ANY_TRIGGER.search(message):
            return
        host = self._host(prefix.host)
        event = _match(message, host)
        if host.state.rejected is not None:
            yield Note("info", f"line {number}", f"the line {host.state.rejected}")
            host.state.rejected = None
        if event is not None:
            self._open.append(_Open(number, self._count, event, prefix))

    def flush(self) -> Iterator[Row | Note]:
        """Release every event that is still open."""
        while self._open:
            yield self._row(self._open.popleft())

    def _host(self, name: str | None) -> _Host:
        if name not in self._hosts:
            if len(self._hosts) >= HOST_LIMIT:
                self._hosts.clear()
            self._hosts[name] = _Host()
        return self._hosts[name]

    def _row(self, found: _Open) -> Row:
        event, prefix = found.event, found.prefix
        attrs = dict(event.attrs)
        if prefix.uptime_s is not None:
            attrs["uptime_s"] = f"{prefix.uptime_s:.6f}".rstrip("0").rstrip(".")
        if prefix.clock is not None:
            attrs["clock"] = prefix.clock
        attrs["line"] = str(found.line)
        return make_row("events", CARRIES, self._context, {
            "ts": prefix.ts_ms,
            "node": prefix.host,
            "device": event.device,
            "source": EventSource.KERNEL.value,
            "code": event.code,
            "severity": event.severity.value,
            "message": event.message,
            "attrs": attrs,
        })  # fmt: skip


def _match(message: str, host: _Host) -> KernelEvent | None:
    for trigger, matcher in zip(_TRIGGERS, host.matchers, strict=True):
        if trigger.search(message):
            result = matcher.match(message, host.state)
            if result is not None:
                return result if isinstance(result, KernelEvent) else None
    return None


def parse_kernel_line(text: str, context: CaptureContext) -> Iterator[Row | Note]:
    """Read one line on its own, without memory of earlier lines; followers keep a `KernelLines` instead."""
    lines = KernelLines(context)
    yield from lines.feed(1, split(text, context.at_ms))
    yield from lines.flush()
