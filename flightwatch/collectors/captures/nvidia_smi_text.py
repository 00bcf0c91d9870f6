"""`nvidia-smi -q` as text: sections nested by indentation, `key : value` lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from flightwatch.collectors.captures.base import Lines, head_text
from flightwatch.collectors.captures.nvidia_fields import (
    Fields,
    Gpu,
    Report,
    path_word,
    report_rows,
)
from flightwatch.collectors.captures.nvidia_names import QUERY_CARRIES, QUERY_NULL_NOTES
from flightwatch.core.protocols import CaptureContext, Note, Row

_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{1,2}\.[0-9A-Fa-f])\s*", re.ASCII)
_PAIR = re.compile(r"(\s*)(\S[^:]{0,80}?)\s*:(?: (.*)|)$")
_LOST = re.compile(r"(?:Unable to determine the device handle|GPU is lost|fallen off the bus|has fallen off).*", re.I)
_KEYED = re.compile(r"^\s{2,}(?:Product Name|ECC Mode|FB Memory Usage|Temperature|Utilization|ECC Errors)\b", re.M)
#: Sections whose contents are lists of processes or clocks, not fields of the device.
_SKIPPED = ("processes", "accounted_processes", "supported_clocks")
_FIELDS_LIMIT = 4000
_GPUS_LIMIT = 64


class _EndSeen:
    """A stream that remembers whether the last byte read was a line end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.ended = True

    def read(self, size: int = -1) -> bytes:
        """Read as the wrapped stream does."""
        data = self._stream.read(size)
        if data:
            self.ended = data.endswith((b"\n", b"\r", b"\0"))
        return data


class NvidiaSmiText:
    """Reads one or several `nvidia-smi -q` reports of drivers 418 to 610."""

    name = "nvidia-smi-q"
    CARRIES = QUERY_CARRIES
    NULL_NOTES = QUERY_NULL_NOTES

    def recognise(self, head: bytes) -> bool:
        """Recognise the NVSMI header, or a GPU section with its usual keys."""
        text = head_text(head)
        if "<nvidia_smi_log" in text:
            return False
        if "NVSMI LOG" in text and ":" in text:
            return True
        return any(_GPU.fullmatch(line) for line in text.splitlines()) and _KEYED.search(text) is not None

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield rows of every GPU, then notes."""
        watched = _EndSeen(stream)
        lines = Lines(watched)  # type: ignore[arg-type]
        reader = _Reader()
        number, held = 0, ""
        for number, line in lines:
            finished = reader.feed(held)
            if finished is not None:
                yield from report_rows(finished, self.CARRIES, context)
            held = line
            if (lost := _LOST.search(line)) is not None:
                yield Note("error", f"line {number}", f"the tool says: {lost[0][:200].strip()}")
        cut = not watched.ended and held.strip() != "" and not reader.skips(held)
        if not cut:
            finished = reader.feed(held)
            if finished is not None:
                yield from report_rows(finished, self.CARRIES, context)
        elif reader.report.gpus:
            reader.report.gpus[-1].partial = True
        if reader.report.gpus:
            yield from report_rows(reader.report, self.CARRIES, context)
        elif number:
            yield Note("error", f"line {number}", "the report shows no GPU")
        if cut:
            yield Note("error", f"line {number}", "the text is cut off here; this line was left out")
        yield from lines.notes


class _Reader:
    """Turns lines into reports; one report at a time is held."""

    def __init__(self) -> None:
        self.report = Report()
        self._stack: list[tuple[int, str]] = []
        self._target: Fields = self.report.fields

    def feed(self, line: str) -> Report | None:
        """Take one line; return the previous report when this line starts the next one."""
        finished = None
        if not line.strip() or line.lstrip().startswith(("====", "[...]", "+--", "#")):
            return None
        if line.startswith("Timestamp") and (self.report.gpus or "timestamp" in self.report.fields):
            finished = self._start()
        gpu = _GPU.fullmatch(line)
        if gpu is not None:
            if len(self.report.gpus) >= _GPUS_LIMIT:
                finished = self._start(keep_head=True)
            self.report.gpus.append(Gpu(gpu[1]))
            self._target = self.report.gpus[-1].fields
            self._stack = []
        else:
            self._field(line)
        return finished if finished and finished.gpus else None

    def skips(self, line: str) -> bool:
        """Say whether a line stands in a list of processes, of which nothing is read."""
        return bool(self._stack) and self._stack[0][1] in _SKIPPED and line[:1].isspace()

    def _start(self, *, keep_head: bool = False) -> Report:
        finished = self.report
        self.report = Report(dict(finished.fields) if keep_head else {})
        self._target, self._stack = self.report.fields, []
        return finished

    def _field(self, line: str) -> None:
        pair = _PAIR.match(line)
        indent = len(line) - len(line.lstrip())
        while self._stack and self._stack[-1][0] >= indent:
            self._stack.pop()
        if pair is None or pair[3] is None:
            word = path_word(line.strip().rstrip(":"))
            self._section(indent, word)
            return
        path = "/".join([*(name for _, name in self._stack), path_word(pair[2])])
        if path.split("/", 1)[0] in _SKIPPED:
            return
        gpu = self.report.gpus[-1] if self.report.gpus else None
        if gpu is not None and path.startswith("mig_device"):
            inner = path.split("/", 1)[1] if "/" in path else path
            if inner == "index" or not gpu.children:
                gpu.children.append({})
            _keep(gpu.children[-1], inner, pair[3])
            return
        _keep(self._target, path, pair[3])

    def _section(self, indent: int, word: str) -> None:
        self._stack.append((indent, word))


def _keep(fields: Fields, path: str, text: str) -> None:
    if len(fields) < _FIELDS_LIMIT:
        fields.setdefault(path, text.strip())
