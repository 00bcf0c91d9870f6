"""The kernel's log as it is written, from /dev/kmsg: `events`.

This file only reads; what a line means is decided by the parser that is handed in. After a restart
of the agent reading continues where it stopped, as long as the machine has not been rebooted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flightwatch.collectors.environment import Environment
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import CaptureContext, Row

PATH = "dev/kmsg"
#: Longest record of the kernel's ring.
_RECORD_BYTES = 8192
#: Records read in one call; a flood is read on in the next.
MAX_RECORDS = 5000
_LEVELS = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
#: Seconds between two writes of the position.
_SAVE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One record of the kernel's ring.

    Attributes
    ----------
    sequence: number of the record since boot.
    level: 0 (emergency) to 7 (debug).
    uptime_us: microseconds since boot.
    text: the message, without the key-value lines that follow it.
    """

    sequence: int
    level: int
    uptime_us: int
    text: str


#: Turns the lines of one read, each with its time (ms since the epoch), into the events they mean.
ParseLines = Callable[[Sequence[tuple[KernelLine, int]]], Iterable[Row]]


def parse_record(record: bytes) -> KernelLine | None:
    """Read "6,1234,5678901,-;text" and the escapes of /dev/kmsg; None when it is not a record."""
    head, separator, rest = record.partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 3 or not all(field.isdigit() and len(field) <= 20 for field in fields[:3]):
        return None
    line = rest.split(b"\n", 1)[0]
    if b"\\x" in line:
        line = _unescape(line)
    text = "".join(
        character if character.isprintable() else "\ufffd"
        for character in line.decode("utf-8", "replace").replace("\t", " ")
    )
    return KernelLine(int(fields[1]), int(fields[0]) & 7, int(fields[2]), text)


def _unescape(line: bytes) -> bytes:
    parts = line.split(b"\\x")
    out = [parts[0]]
    for part in parts[1:]:
        try:
            out.append(bytes([int(part[:2], 16)]) + part[2:])
        except ValueError:
            out.append(b"\\x" + part)
    return b"".join(out)


class KernelLogCollector:
    """New lines of the kernel's log.

    Parameters
    ----------
    parse: what lines mean; None takes the parser of the captures.
    boot_ms: time of boot in milliseconds since the epoch, from which record times are counted.
    """

    name = "kernel"
    interval_seconds = 1.0

    def __init__(
        self,
        environment: Environment,
        parse: ParseLines | None = None,
        boot_ms: Callable[[], float] | None = None,
    ) -> None:
        self._environment = environment
        self._parse = parse
        self._boot_ms = boot_ms or _boot_ms
        self._descriptor: int | None = None
        self._buffer = bytearray(_RECORD_BYTES)
        self._next = 0
        self._saved_at = time.monotonic()
        self._saved = -1

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read what is new. Raises NoData when the log is not readable here."""
        if not self._environment.live:
            raise NoData("a recorded tree has no live kernel log")
        if self._descriptor is None:
            self._open()
        rows: list[Row] = []
        lines = [(line, self._time_of(line, now_ms)) for line in self._lines(now_ms, rows)]
        if lines:
            if self._parse is None:
                self._parse = captures_parser()
            rows.extend(self._parse(lines))
            self._environment.devices.fill(rows)
        self._save()
        return rows

    def close(self) -> None:
        """Keep the position and let go of the log."""
        self._saved_at = float("-inf")
        self._save()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._environment.kernel_log_answers = False

    def _open(self) -> None:
        try:
            self._descriptor = os.open("/" + PATH, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NoData(f"/{PATH} is not readable ({error.strerror})") from error
        self._environment.kernel_log_answers = True
        self._next = self._saved = self._stored_position()
        if not self._next:
            # First start on this boot: old lines belong to the time before the agent watched.
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def _lines(self, now_ms: int, rows: list[Row]) -> Iterator[KernelLine]:
        descriptor = self._descriptor
        if descriptor is None:
            return
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                # The ring was overwritten before it was read; the kernel goes on at the oldest record.
                rows.append(_overrun(now_ms))
                continue
            line = parse_record(record)
            if line is not None and line.sequence >= self._next:
                self._next = line.sequence + 1
                yield line

    def _time_of(self, line: KernelLine, now_ms: int) -> int:
        # The kernel counts without suspend and drifts a little: never later than now.
        return min(now_ms, int(self._boot_ms() + line.uptime_us / 1000))

    def _position_path(self) -> str:
        return os.path.join(self._environment.state_dir, "kernel_position")

    def _boot_id(self) -> str:
        return (self._environment.tree.read("proc/sys/kernel/random/boot_id") or b"").decode("ascii", "replace").strip()

    def _stored_position(self) -> int:
        if not self._environment.state_dir:
            return 0
        try:
            with open(self._position_path(), encoding="ascii") as file:
                boot_id, position = file.read().split()
            return int(position) if boot_id == self._boot_id() else 0
        except (OSError, ValueError):
            return 0

    def _save(self) -> None:
        now_s = time.monotonic()
        if not self._environment.state_dir or self._next == self._saved or now_s - self._saved_at < _SAVE_SECONDS:
            return
        path = self._position_path()
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(f"{self._boot_id()} {self._next}\n")
        os.replace(path + ".new", path)
        self._saved, self._saved_at = self._next, now_s


def _boot_ms() -> float:
    return (time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)) * 1000


def _overrun(now_ms: int) -> Row:
    return Row(
        "events",
        {
            "ts": now_ms,
            "source": "agent",
            "code": "kernel:overrun",
            "severity": "warning",
            "message": "the kernel wrote its log faster than it was read; some lines are lost",
        },
    )


def captures_parser() -> ParseLines:
    """Return the parser of recorded kernel logs, with the memory of one machine's log."""
    # Imported when the kernel first speaks: the patterns cost memory that a silent machine need not spend.
    from flightwatch.collectors.captures.kernel import KernelLines
    from flightwatch.collectors.captures.log_prefix import Prefix

    reader = KernelLines(CaptureContext("/" + PATH))

    def parse(lines: Sequence[tuple[KernelLine, int]]) -> Iterator[Row]:
        for line, ts_ms in lines:
            prefix = Prefix(line.text, ts_ms=ts_ms, level=_LEVELS[line.level], is_kernel=True)
            yield from (item for item in reader.feed(line.sequence, prefix) if isinstance(item, Row))
        # What one read brought is one story: nothing waits for lines that may never come.
        yield from (item for item in reader.flush() if isinstance(item, Row))

    return parse
