"""The last line of a capture that ends in the middle of a line.

Tools end every line they print. A text without a line end at its end was cut off, or pasted without it: whether
`345` is all of a number or the start of `34512` can be told only by the lines above it: where one of them has the same
shape and a number that is no longer, it is taken as whole, else it is not a value. (Of numbers whose length varies a
cut one can pass so.) A line that ends in a word (a unit, a state) with which a line above ends is whole as well, and
one that ends in a closing bracket or quote: the numbers before it are. JSON, XML and tables with borders show by
themselves where they end, and are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import BinaryIO, Literal, cast

from flightwatch.collectors.captures.base import LINE_LIMIT, SteadyStream, StreamEnded
from flightwatch.core.protocols import Note

#: What is done with an unfinished last line. "line": it is left out. "cell": a number at its end becomes `N/A`.
#: "number": a number at its end is left out, the words before it stay.
Rule = Literal["line", "cell", "number"]

#: Parsers whose format does not say where it ends. All others read the last line as it is.
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            *("mthreads-gmi-q", "mthreads-gmi", "mx-smi-show", "mx-smi", "mx-smi-list", "cnmon", "ixsmi"),
            *("npu-smi-info", "npu-smi-type", "nvidia-smi-table", "nvidia-nvlink", "nvidia-topo"),
            *("amd-smi-table", "amd-smi-text", "rocm-smi-text", "rocm-smi-table", "openmetrics", "ethtool"),
            *("perfquery", "ibswinfo", "ibnetdiscover", "mlxlink", "ipmi", "rasdaemon", "mountstats", "diskstats"),
            *("nfsiostat", "gpfs-mmpmon", "beegfs", "lustre-lctl", "slurm-job", "slurm-topology", "mce", "ncclras"),
            *("nccl-tests", "py-spy"),
        ),
        "line",
    ),
    **dict.fromkeys(
        ("nvidia-smi-csv", "nvidia-dmon", "xpu-smi-dump", "amd-smi-csv", "facility-csv", "inventory-csv"), "cell"
    ),
    **dict.fromkeys(("log", "journal"), "number"),
}

_CHUNK = 1 << 16
_NUMBER = re.compile(rb"(?:(?<![\w.-])|(?<=\.\.))[+-]?\.?\d[\w.+-]{0,60}[ \t]*\Z", re.ASCII)
#: Borders of tables, and a row between two of them.
_CLOSED = re.compile(rb"\s*(?:\|.*\||\+.*\+|[-=+|]{3,})\s*\Z")
#: What closes; rules that stand on both sides of a title.
_CLOSING, _RULES_AROUND = (b")", b"]", b"'", b'"'), (b"===", b"---")
_DIGIT, _LETTER = re.compile(rb"\d"), re.compile(rb"[A-Za-z]")
_SHOWN = 60
#: Bytes before the last line in which lines of its shape are looked for.
_TAIL = 1 << 15
_DIGITS = re.compile(rb"[\d.]*\d")
_WORDS = re.compile(rb"[A-Za-z_][A-Za-z_#-]*")


class WholeLines:
    """A capture without what its unfinished last line cannot tell.

    Parameters
    ----------
    stream: the capture; its errors are raised after the bytes before them were handed out.
    rule: see `RULES`.

    Attributes
    ----------
    stream: the capture to be parsed.
    note: what was left out; None when nothing was, complete once the stream was read.
    """

    def __init__(self, stream: BinaryIO, rule: Rule) -> None:
        self._source = stream
        self._rule = rule
        self._held = b""
        self._tail = b"\n"
        self._lines = 0
        self._error: Exception | None = None
        self.stream = cast(BinaryIO, SteadyStream(b"", self._read))
        self.note: Note | None = None

    def _read(self, size: int) -> bytes:
        while True:
            if self._error is not None:
                raise self._error
            try:
                data = self._source.read(_CHUNK)
            except (StreamEnded, OSError) as error:
                self._error, data = error, b""
            if not data:
                last, self._held = self._held, b""
                if last := self._last(last):
                    return last
                if self._error is None:
                    return b""
                continue
            if text := self._whole(data):
                self._tail = (self._tail + text)[-_TAIL:]
                return text

    def _whole(self, data: bytes) -> bytes:
        data = self._held + data
        end = data.rfind(b"\n") + 1
        if len(data) - end > LINE_LIMIT:
            end = len(data)
        self._lines += data.count(b"\n", 0, end)
        self._held = data[end:]
        return data[:end]

    def _last(self, line: bytes) -> bytes:
        text = line.strip()
        if not text and line and self._rule == "line" and self._lines:
            self.note = Note("warning", f"line {self._lines + 1}", "the capture ends inside a line that only began")
        if not text or line.endswith(b"\r") or _CLOSED.match(line):
            return line
        number = _NUMBER.search(line)
        if number is None and self._is_closed(text):
            return line
        where = f"line {self._lines + 1}"
        if self._rule == "line" and self._lines:
            shown = text[-_SHOWN:].decode("utf-8", "replace")
            level = "warning" if number else "error"
            self.note = Note(level, where, f"the capture ends inside the line {shown!r}; it was left out")
            return b""
        if number is None or self._is_as_long_as_above(line, number):
            return line
        shown = number[0].strip().decode("utf-8", "replace")
        self.note = Note("warning", where, f"the capture ends inside a line: its last number {shown!r} was not used")
        return line[: number.start()] + (b"N/A" if self._rule == "cell" else b"")

    def _is_closed(self, text: bytes) -> bool:
        """Return whether a line ends in what closes, or in a word (without digits) with which a line above it ends."""
        if text.endswith(_CLOSING) or any(text.startswith(rule) and text.endswith(rule) for rule in _RULES_AROUND):
            return True
        word = text.rsplit(None, 1)[-1]
        if _DIGIT.search(word) or not _LETTER.search(word):
            return False
        return any(other.rsplit(None, 1)[-1:] == [word] for other in self._tail.split(b"\n")[1:])

    def _is_as_long_as_above(self, line: bytes, number: re.Match[bytes]) -> bool:
        """Return whether a line of this line's shape stands above it whose number is no longer than this one's."""
        shape = self._shape(line[: number.start()])
        lengths = [
            len(other[0].strip())
            for text in self._tail.split(b"\n")[1:]
            if (other := _NUMBER.search(text)) and self._shape(text[: other.start()]) == shape
        ]
        return bool(lengths) and len(number[0].strip()) >= min(lengths)

    def _shape(self, text: bytes) -> bytes:
        if self._rule == "cell":
            return b"," * text.count(b",") or b" " * len(text.split())
        return _WORDS.sub(b"w", _DIGITS.sub(b"#", text))
