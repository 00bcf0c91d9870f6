"""Events of a Kineto trace, one at a time, whatever the size of the file.

Accepts the object form (`{"traceEvents": [...], "distributedInfo": ...}`, keys in any order) and the bare
array of older versions, plain or gzip. Two time bases exist: absolute microseconds, and microseconds
relative to `baseTimeNanoseconds`; `TraceMeta.base_us` tells which. Damage ends the reading with one
Note of level "error" that names the offset; everything before it has been yielded.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from flightwatch.collectors.captures.base import StreamEnded, encoding_of, rejoin
from flightwatch.collectors.captures.plain_text import PlainText
from flightwatch.collectors.captures.unpacking import Budget, unpacked
from flightwatch.core.protocols import Note

_CHUNK = 1 << 20
#: Longest single event, in characters; a longer one is damage.
_EVENT_LIMIT = 16 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*')


@dataclass(slots=True)
class TraceMeta:
    """What a trace says about itself beside its events.

    Attributes
    ----------
    base_us: added to every event's `ts` to get microseconds since the epoch; 0.0 when they are absolute.
    rank, world_size, backend: from `distributedInfo`; None when the trace has none.
    """

    base_us: float = 0.0
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def take(self, key: str, value: Any) -> None:
        """Keep one top-level value."""
        if key == "baseTimeNanoseconds" and isinstance(value, (int, float)):
            self.base_us = value / 1000
        elif key == "distributedInfo" and isinstance(value, dict):
            rank, world = value.get("rank"), value.get("world_size")
            self.rank = rank if isinstance(rank, int) and rank >= 0 else None
            self.world_size = world if isinstance(world, int) else None
            self.backend = str(value["backend"]) if "backend" in value else None
        elif isinstance(value, (str, int, float)):
            self.values[key] = value


def open_trace(stream: BinaryIO) -> BinaryIO:
    """Return the stream unpacked when it is gzip, as UTF-8 without a byte-order mark; it must be seekable."""
    head = stream.read(2)
    stream.seek(0)
    # The standard reader of gzip loses what it read in the call in which it meets damage.
    opened = unpacked(stream, "gz", Budget(unpacked_bytes=1 << 62)) if head == b"\x1f\x8b" else stream
    try:
        start = opened.read(512)
    except StreamEnded:
        return opened
    marked = start.startswith(codecs.BOM_UTF8) or encoding_of(start) != "utf-8-sig"
    whole = rejoin(start, opened)
    return PlainText(whole).stream if marked else whole


class TraceReader:
    """Iterate over the events of one trace; `meta` is complete when the iteration has ended.

    Parameters
    ----------
    stream: bytes of the trace, see `open_trace`.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.meta = TraceMeta()
        self._stream = stream
        self._text = ""
        self._at = 0
        self._dropped = 0
        self._ended = False
        self._cause = ""
        self._decoder_utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant)

    def __iter__(self) -> Iterator[dict[str, Any] | Note]:
        try:
            yield from self._document()
        except _NotATrace as other:
            yield Note("warning", f"character {other.offset}", other.text)
        except _Damage as damage:
            cause = f" ({self._cause})" if self._cause else ""
            yield Note("error", f"character {damage.offset}", damage.text + cause)
            return
        if self._cause:
            yield Note("error", f"character {self._dropped + len(self._text)}", self._cause)

    def _document(self) -> Iterator[dict[str, Any]]:
        if not self._text and not self._read() and not self._cause:
            raise _NotATrace(0, "the file is empty")
        start = self._peek()
        if start == "[":
            yield from self._events()
        elif start == "{":
            self._at += 1
            while self._peek() != "}":
                key = self._key()
                if key == "traceEvents" and self._peek() == "[":
                    yield from self._events()
                else:
                    self.meta.take(key, self._value())
                if self._peek() == ",":
                    self._at += 1
        else:
            raise _NotATrace(self._offset(), "not a trace: neither a JSON object nor an array of events")

    def _events(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        while True:
            mark = self._peek()
            if mark == "]":
                self._at += 1
                return
            if mark == ",":
                self._at += 1
                continue
            event = self._value()
            if isinstance(event, dict):
                yield event

    def _key(self) -> str:
        self._need(4096)
        match = _KEY.match(self._text, self._at)
        if match is None:
            raise _Damage(self._offset(), "a key in double quotes is missing here")
        self._at = match.end()
        return match.group(1)

    def _value(self) -> Any:
        """Decode the value at the position, reading more while it is incomplete."""
        wanted = _CHUNK
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise _Damage(self._offset(), "the JSON is nested too deeply here") from error
            except ValueError as error:
                if self._need(wanted):
                    wanted *= 2
                    continue
                raise self._damage(error) from error
            # A number at the very end of the text may go on in the next chunk.
            if end == len(self._text) and not self._ended and self._need(wanted):
                continue
            self._at = end
            self._shrink()
            return value

    def _damage(self, error: ValueError) -> _Damage:
        place = getattr(error, "pos", self._at)
        if self._ended and (place >= len(self._text) - 1 or str(error).startswith("Unterminated string")):
            return _Damage(self._dropped + len(self._text), "the trace is truncated: it ends inside an event")
        text = str(error).split(":", 1)[0]
        return _Damage(self._dropped + place, f"not valid JSON: {text[0].lower()}{text[1:]}")

    def _peek(self) -> str:
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                raise _Damage(
                    self._dropped + len(self._text), "the trace is truncated: it ends before its last bracket"
                )

    def _need(self, count: int) -> bool:
        """Read until `count` characters are ahead; False when nothing more came."""
        before = len(self._text)
        if before - self._at > _EVENT_LIMIT:
            return False
        while len(self._text) - self._at < count and self._read():
            pass
        return len(self._text) > before

    def _read(self) -> bool:
        try:
            data = self._stream.read(_CHUNK)
        except (StreamEnded, OSError) as error:
            # What was read before is still parsed.
            data, self._cause = b"", str(error)
        if not data:
            self._ended = True
            return False
        self._text += self._decoder_utf8.decode(data)
        return True

    def _shrink(self) -> None:
        if self._at > 4 * _CHUNK:
            self._dropped += self._at
            self._text = self._text[self._at :]
            self._at = 0

    def _offset(self) -> int:
        return self._dropped + self._at


class _Damage(Exception):
    """The trace cannot be read on from `offset` (characters)."""

    def __init__(self, offset: int, text: str) -> None:
        super().__init__(text)
        self.offset = offset
        self.text = text


class _NotATrace(_Damage):
    """The file is something else: nothing of a trace is damaged."""


def _refuse_constant(word: str) -> None:
    """Read NaN and Infinity as unknown, as torch writes them in counters."""
    return
