"""Text as its writer meant it: one encoding, no colours, no blocks of a disk that was never written.

A capture passes through terminals, `script`, editors and file systems before it is handed in. What they add
is taken away once, here, so that every parser meets the tool's own words.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO, cast

from flightwatch.collectors.captures.base import SteadyStream, encoding_of, rejoin
from flightwatch.core.protocols import Note

_CHUNK = 1 << 16
#: Longest escape sequence looked for, in bytes.
_ESCAPE_LIMIT = 2048
#: Colours and cursor movement (CSI), window titles (OSC), character sets and keypad modes of terminals.
_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)|[()*+][0-9A-Za-z]|[=>78cDEHMNOZ])"
)
_DECLARED = re.compile(rb"^(\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"'])[\w.-]{1,40}", re.IGNORECASE)
#: A pickle, and the journal's export format, in which lengths are binary.
_BINARY = (b"\x80", b"__CURSOR=", b"__REALTIME_TIMESTAMP=")
#: A line that begins a JSON or XML document.
_DOCUMENT = re.compile(
    rb"(?m)^[ \t]*(?:\{[ \t]*(?:[\"}\r\n]|$)|\[[ \t]*(?:[\[{\"\r\n]|$)|<(?:\?xml|!DOCTYPE|[a-z_]{3,40}[ >]))"
)
#: Lines of warnings that a tool prints before its document.
_BEFORE_LINES = 10


def is_document(head: bytes) -> bool:
    """Say whether a capture is JSON or XML, which show by themselves where they end."""
    return _DOCUMENT.match(head.lstrip()) is not None


def document_start(head: bytes) -> int:
    """Return where a JSON or XML document begins after a few lines of other text; 0 when none does.

    Tools print warnings before their documents, and terminals join the two streams.
    """
    found = _DOCUMENT.search(head)
    if found is None or not head[: found.start()].strip() or head.count(b"\n", 0, found.start()) > _BEFORE_LINES:
        return 0
    return found.start()


class PlainText:
    """One capture as UTF-8 text without byte-order mark, escape sequences and NUL bytes; anything else as it is.

    Parameters
    ----------
    raw: the capture; its errors are raised after the bytes before them were handed out. Its first bytes decide
        whether it is text at all.

    Attributes
    ----------
    stream: the text.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._nuls = 0
        head = raw.read(_CHUNK)
        while head and not head.strip(b"\0") and (more := raw.read(_CHUNK)):
            # A log that was cut short under its writer begins with a hole.
            self._nuls += len(head)
            head = more
        self._rest = rejoin(head, raw)
        self._encoding = encoding_of(head)
        if self._encoding == "utf-8-sig":
            # Below a hole; big-endian UTF-16 begins with a NUL of its own and was told above.
            self._encoding = encoding_of(head.lstrip(b"\0"))
        self._held = b""
        self._started = False
        is_text = self._encoding != "utf-8-sig" or not (b"\0" in head.strip(b"\0") or head.startswith(_BINARY))
        self._decoder = codecs.getincrementaldecoder(self._encoding)("replace")
        self.stream = cast(BinaryIO, SteadyStream(b"", self._read)) if is_text else self._rest

    @property
    def notes(self) -> Iterator[Note]:
        """What was taken away that may have been somebody's words; complete once the stream was read."""
        if self._nuls:
            yield Note("warning", "", f"{self._nuls} NUL bytes were left out: that part was never written to the disk")

    def _read(self, size: int) -> bytes:
        while True:
            data = self._rest.read(_CHUNK)
            if not data:
                last, self._held = self._held + self._decoded(b"", final=True), b""
                return last
            if text := self._whole(self._decoded(data)):
                return text

    def _decoded(self, data: bytes, *, final: bool = False) -> bytes:
        if self._encoding == "utf-8-sig":
            if not self._started:
                data = data.removeprefix(codecs.BOM_UTF8)
        else:
            data = self._decoder.decode(data, final).encode("utf-8", "replace").removeprefix(codecs.BOM_UTF8)
            if not self._started:
                data = _DECLARED.sub(rb"\g<1>utf-8", data)
        self._started = True
        if b"\0" in data:
            self._nuls += data.count(b"\0")
            data = data.replace(b"\0", b"")
        return data

    def _whole(self, data: bytes) -> bytes:
        """Take escape sequences away; hold back one that the chunk's end may have cut."""
        data, self._held = self._held + data, b""
        if b"\x1b" not in data:
            return data
        data = _ESCAPE.sub(b"", data)
        start = data.rfind(b"\x1b")
        if start >= 0 and len(data) - start < _ESCAPE_LIMIT and b"\n" not in data[start:]:
            data, self._held = data[:start], data[start:]
        return data
