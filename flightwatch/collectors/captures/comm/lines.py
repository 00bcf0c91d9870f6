"""Communication-library and watchdog lines of a log into events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from flightwatch.collectors.captures.base import make_row
from flightwatch.collectors.captures.comm.library import TRIGGER as LIBRARY_TRIGGER
from flightwatch.collectors.captures.comm.library import LibraryLine, hccl_speaker, parse_library
from flightwatch.collectors.captures.comm.watchdog import TRIGGER as WATCHDOG_TRIGGER
from flightwatch.collectors.captures.comm.watchdog import WatchdogLine, incomplete, parse_watchdog
from flightwatch.collectors.captures.log_prefix import Prefix
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import EventSeverity, EventSource

CARRIES: Mapping[str, tuple[str, ...]] = {
    "events": ("device", "rank", "source", "code", "severity", "message", "attrs"),
}
#: Lines that a wrapped message may run over.
WRAP_LINES = 4

_SEVERITY = {
    "timeout": EventSeverity.ERROR,
    "status": EventSeverity.ERROR,
    "stuck": EventSeverity.ERROR,
    "desync": EventSeverity.ERROR,
    "dump_signal": EventSeverity.INFO,
    "terminated": EventSeverity.INFO,
}
_FIELDS = (
    "seq", "op", "numel_in", "numel_out", "timeout_ms", "ran_ms", "enqueued", "completed", "stuck_s", "group_id",
    "group_desc", "group_rank", "clock",
)  # fmt: skip


class CommLines:
    """Reads communication messages of one log, in order.

    Parameters
    ----------
    context: gives time and node where a line has none.
    """

    def __init__(self, context: CaptureContext) -> None:
        self._context = context
        self._wrapped: tuple[int, str, Prefix, int] | None = None
        self._speaker: tuple[int, int] | None = None

    def feed(self, number: int, prefix: Prefix) -> Iterator[Row | Note]:
        """Offer one line; yields what it says."""
        for line_number, item, origin in self.objects(number, prefix):
            if isinstance(item, WatchdogLine):
                yield self.watchdog_row(line_number, item, origin)
            else:
                yield self.library_row(line_number, item, origin)

    def objects(self, number: int, prefix: Prefix) -> Iterator[tuple[int, WatchdogLine | LibraryLine, Prefix]]:
        """Offer one line; yields (line number, structured object, prefix of its first line)."""
        text = prefix.message
        if self._wrapped is not None:
            first, begun, origin, count = self._wrapped
            self._wrapped = None
            joined = begun + text
            line = None if incomplete(joined) else parse_watchdog(joined, origin)
            line = line or (None if incomplete(f"{begun} {text}") else parse_watchdog(f"{begun} {text}", origin))
            if line is not None:
                yield first, line, origin
                return
            if count < WRAP_LINES and incomplete(joined) and not WATCHDOG_TRIGGER.search(text):
                self._wrapped = first, joined, origin, count + 1
                return
        if WATCHDOG_TRIGGER.search(text):
            line = parse_watchdog(text, prefix)
            if line is not None:
                yield number, line, prefix
                return
            if incomplete(text):
                self._wrapped = number, text[-4000:].rstrip("\n"), prefix, 1
                return
        if LIBRARY_TRIGGER.search(text):
            self._speaker = hccl_speaker(text[:2000]) or self._speaker
            said = parse_library(prefix)
            if said is not None:
                if said.code.startswith("hccl:") and said.global_rank is None and self._speaker is not None:
                    said.global_rank, said.device = self._speaker
                yield number, said, prefix

    def flush(self) -> Iterator[Row | Note]:
        """End of the log: say what was cut off."""
        if self._wrapped is not None:
            yield Note("info", f"line {self._wrapped[0]}", "a watchdog message is cut off here and was not used")
            self._wrapped = None

    def watchdog_row(self, number: int, line: WatchdogLine, prefix: Prefix) -> Row:
        """Build the event of one watchdog message."""
        attrs = {name: str(getattr(line, name)) for name in _FIELDS if getattr(line, name) is not None}
        if line.backend is not None:
            attrs["backend"] = line.backend
        if line.ranks:
            attrs["ranks"] = ",".join(str(rank) for rank in line.ranks)
        if line.global_rank is None and line.rank is not None:
            attrs["rank_scope"] = "group"
        if prefix.local_rank is not None:
            attrs["local_rank"] = str(prefix.local_rank)
        return self._row(number, prefix, {
            "ts": prefix.ts_ms if prefix.ts_ms is not None else _glog_time(line.clock, self._context.at_ms),
            "node": prefix.host,
            "rank": line.rank,
            "code": f"watchdog:{line.kind}",
            "severity": _SEVERITY[line.kind].value,
            "message": line.message,
        }, attrs)  # fmt: skip

    def library_row(self, number: int, line: LibraryLine, prefix: Prefix) -> Row:
        """Build the event of one library message."""
        attrs = dict(line.attrs)
        rank = line.global_rank
        if rank is None and line.comm_rank is not None:
            rank, attrs["rank_scope"] = line.comm_rank, "communicator"
        if line.local_rank is not None:
            attrs["local_rank"] = str(line.local_rank)
        return self._row(number, prefix, {
            "ts": prefix.ts_ms,
            "node": line.host or prefix.host,
            "device": line.device,
            "rank": rank,
            "code": line.code,
            "severity": line.severity.value,
            "message": line.message,
        }, attrs)  # fmt: skip

    def _row(self, number: int, prefix: Prefix, values: dict[str, str | int | None], attrs: dict[str, str]) -> Row:
        attrs["line"] = str(number)
        if prefix.clock is not None:
            attrs.setdefault("clock", prefix.clock)
        return make_row("events", CARRIES, self._context, {**values, "source": EventSource.COMM.value, "attrs": attrs})


def _glog_time(clock: str | None, at_ms: int | None) -> int | None:
    """Place torch's "month-day time" header on the year of the capture; None without a capture time."""
    if clock is None or at_ms is None:
        return None
    at = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
    for year in (at.year, at.year - 1):
        try:
            moment = datetime.fromisoformat(f"{year}-{clock.replace(' ', 'T')}").replace(tzinfo=UTC)
        except ValueError:
            return None
        if moment.timestamp() <= at.timestamp() + 86_400:
            return round(moment.timestamp() * 1000)
    return None
