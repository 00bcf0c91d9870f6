"""Any text log: kernel, communication and training lines mixed as they come.

One parser for all three, because real files mix them: a training log ends with a watchdog message, a node
log holds syslog and kernel lines. Each line is split once and offered to each reader.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, StreamEnded, head_text
from flightwatch.collectors.captures.comm.lines import CommLines
from flightwatch.collectors.captures.kernel import KernelLines
from flightwatch.collectors.captures.log_prefix import Prefix, split
from flightwatch.collectors.captures.training_log import CARRIES as TRAINING_CARRIES
from flightwatch.collectors.captures.training_log import TrainingLines
from flightwatch.core.protocols import CaptureContext, Note, Row

#: Lines looked at to find out whether the newest come first.
ORDER_LINES = 400
#: Lines of a newest-first log kept for turning round; beyond that the file order is used.
TURN_LIMIT = 500_000

_STRONG = re.compile(
    r"NVRM: |SXid \(PCI|amdgpu [0-9a-f]{4}:|Watchdog caught collective|Work[NHMRCX]{1,2}CCL\(|NCCL (?:INFO|WARN) |"
    r"[MHRC]CCL (?:INFO|WARN) |\biteration +\d+/ *\d+ *\||\{'(?:loss|grad_norm)': |PCIe Bus Error: |\[Hardware Error\]|"
    r"HW Exception by GPU|step=\d+, skipped=\d+|step: +\d+ +loss: |watchdog got stuck|CUDA error: |"
    r"detected NVSwitch|Out of memory: Kill|segfault at |Kernel panic|reduced_train_loss|OVERFLOW! Rank|"
    r"\b(?:step|iter) \d+[:,|].{0,40}loss|Fabric Manager|fabric-?manager|mlx5_core [0-9a-f]{4}:|"
    r"\d/\d{1,12} \[[^\]\n]{0,200}[\s,_/]loss(?:_step)?=|"
    r"last enqueued (?:NCCL )?work|E[A-Z]\d{4}: (?:\[PID|\d{4}-)"
)


class LogLines:
    """All line readers over one log.

    Parameters
    ----------
    context: gives time and node where a line has none.
    """

    def __init__(self, context: CaptureContext) -> None:
        self._readers = (KernelLines(context), CommLines(context), TrainingLines(context))

    def feed(self, number: int, prefix: Prefix) -> Iterator[Row | Note]:
        """Offer one split line to every reader."""
        for reader in self._readers:
            yield from reader.feed(number, prefix)

    def flush(self) -> Iterator[Row | Note]:
        """End of the log."""
        for reader in self._readers:
            yield from reader.flush()


class TextLog:
    """Parser of text logs."""

    name: ClassVar[str] = "log"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "events": ("device", "rank", "source", "code", "severity", "message", "attrs"),
        **TRAINING_CARRIES,
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "ts": "lines with seconds since boot, a time of day or no year cannot be placed without --at",
        "node": "lines without a host prefix",
        "events.device": "the line names a PCI address (attrs.pci_bus_id) but no index",
        "events.rank": "the line names no rank, or one inside a group that is not the whole job",
        "training_scalars.step": "the line prints no step number",
        "op_timings.rank": "the timers are of no single rank",
        "op_timings.step": "no iteration line stands before the timers",
        "op_timings.span_us": "only times that contain communication",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether this text is a log: known messages, or most lines with a log's prefix."""
        if b"\0\0\0\0" in head[:4096]:
            return False
        text = head_text(head)
        if _STRONG.search(text):
            return True
        lines = [line for line in text.split("\n")[:60] if line.strip()]
        shaped = sum(1 for line in lines if _is_log_line(line[:2000]))
        return len(lines) > 0 and shaped * 2 > len(lines)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield events, scalars and timings in the order of time (a newest-first file is turned round)."""
        source = Lines(stream)
        numbered = _Held(iter(source))
        head = list(itertools.islice(numbered, ORDER_LINES))
        lines: Iterable[tuple[int, str]] = itertools.chain(head, numbered)
        if _newest_first([text for _, text in head], context.at_ms):
            kept = list(itertools.islice(lines, TURN_LIMIT))
            rest = next(numbered, None)
            if rest is None:
                kept.reverse()
                yield Note("info", "line 1", "the newest lines come first; read from the end")
                lines = kept
            else:
                yield Note("warning", "line 1", "the newest lines come first and the file is too long to turn round")
                lines = itertools.chain(kept, [rest], numbered)
        yield from _read(lines, context)
        if numbered.error is not None:
            raise numbered.error
        yield from source.notes


class _Held:
    """Lines of a stream; an error of the stream ends them and is kept until they have been used."""

    def __init__(self, lines: Iterator[tuple[int, str]]) -> None:
        self._lines = lines
        self.error: StreamEnded | None = None

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return self

    def __next__(self) -> tuple[int, str]:
        try:
            return next(self._lines)
        except StreamEnded as error:
            self.error = error
            raise StopIteration from None


def _read(lines: Iterable[tuple[int, str]], context: CaptureContext) -> Iterator[Row | Note]:
    readers, zone_noted = LogLines(context), False
    for number, text in lines:
        if not text or text.isspace():
            continue
        prefix = split(text, context.at_ms)
        for item in readers.feed(number, prefix):
            if not zone_noted and isinstance(item, Row) and not prefix.zone_known:
                zone_noted = True
                yield Note("info", f"line {number}", "times carry no zone and were read as UTC")
            yield item
    yield from readers.flush()


def _is_log_line(line: str) -> bool:
    prefix = split(line)
    return (
        prefix.layers > 0
        and bool(prefix.message)
        and (prefix.is_kernel or prefix.ts_ms is not None or prefix.clock is not None or prefix.rank is not None)
    )


def _newest_first(lines: list[str], at_ms: int | None) -> bool:
    """True when times only fall, at least twice."""
    falls, last = 0, None
    for line in lines:
        order = split(line[:2000], at_ms).order
        if order is None:
            continue
        if last is not None and order[0] == last[0]:
            if order[1] > last[1]:
                return False
            falls += order[1] < last[1]
        last = order
    return falls >= 2
