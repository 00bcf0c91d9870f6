"""What every capture parser needs: bounded reading, checked numbers, complete rows.

Captures come from strangers' machines: any byte can be wrong. Everything here works in bounded
memory, turns damage into a `Note` with its place, and never invents a value.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Protocol, cast

from flightwatch.collectors.captures.cut_json import complete_part
from flightwatch.core.protocols import CaptureContext, Note, Row, Value

if TYPE_CHECKING:
    from flightwatch.collectors.tree import Tree

#: Longest line kept, in characters; the rest of a longer line is dropped with a note.
LINE_LIMIT = 1_000_000
#: Largest document read whole (JSON, XML, tables), in bytes.
DOCUMENT_LIMIT = 64_000_000
#: Deepest nesting accepted in a JSON document.
DEPTH_LIMIT = 200
#: Notes of one kind kept per capture; more are only counted.
NOTE_LIMIT = 20

_CHUNK = 1 << 16
_FLOAT = re.compile(r"[+-]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][+-]?\d{1,4})?", re.ASCII)
_INT = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,16}", re.ASCII)
_JSON_SPACE = re.compile(r"[ \t\r\n\0]*")


class Parser(Protocol):
    """Reads recorded output of one tool, for live collectors and `flightwatch inspect`; says what it can carry.

    Attributes
    ----------
    name: short, unique, the tool and its form ("nvidia-smi-q").
    CARRIES: table to the columns the format can carry, without `ts` and `node`, which are always there.
    NULL_NOTES: column (or "table.column") to one phrase saying when and why it is NULL.
    """

    name: ClassVar[str]
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]]
    NULL_NOTES: ClassVar[Mapping[str, str]]

    def recognise(self, head: bytes) -> bool:
        """Say from the first 64 KiB whether this parser can read the capture. Never raises."""

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield rows and notes; never raises on malformed input: a Note of level "error" names the place, and what
        could be read before and after it is yielded."""


class TreeParser(Protocol):
    """Reads one kind of recorded folder tree (/sys, /proc), of which a single file means nothing.

    Attributes are those of `Parser`.
    """

    name: ClassVar[str]
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]]
    NULL_NOTES: ClassVar[Mapping[str, str]]

    def recognise_tree(self, names: Sequence[str]) -> bool:
        """Say from the file paths ("sys/class/hwmon/hwmon0/temp1_input") whether the tree holds this. Never raises."""

    def claims(self, name: str) -> bool:
        """Say whether the file at this path belongs to the tree, so that it is not read as a capture of its own."""

    def parse_tree(self, tree: Tree, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield rows and notes; never raises on malformed input."""


def encoding_of(head: bytes) -> str:
    """Name the encoding of a capture from its first bytes: utf-8-sig, utf-16, utf-16-le or utf-16-be."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:512]
    if len(sample) >= 4:
        odd, even = sample[1::2].count(0), sample[0::2].count(0)
        if odd > len(sample) * 0.4 and even == 0:
            return "utf-16-le"
        if even > len(sample) * 0.4 and odd == 0:
            return "utf-16-be"
    return "utf-8-sig"


def head_text(head: bytes) -> str:
    """Decode the head of a capture for `recognise`: byte-order mark, UTF-16 and bad bytes handled, newlines as \\n."""
    text = head.decode(encoding_of(head), "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


class StreamEnded(Exception):
    """A stream cannot be read further (damage, truncation, a limit); the text says why."""


class SteadyStream(io.BufferedIOBase):
    """Full reads over a source of short ones; an error waits until the bytes before it were handed out.

    The standard buffered reader drops what it read in the call in which the layer below fails, which for a
    small truncated file is everything.

    Parameters
    ----------
    head: bytes handed out first.
    source: called with a size, returns up to that many bytes, b"" at the end.
    """

    def __init__(self, head: bytes, source: Callable[[int], bytes]) -> None:
        self._buffer, self._source = head, source
        self._error: Exception | None = None
        self._ended = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read exactly `size` bytes, fewer only at the end or before an error; all of them without a size."""
        wanted = -1 if size is None or size < 0 else size
        parts: list[bytes] = []
        held = 0
        while wanted < 0 or held < wanted:
            if not self._buffer and not self._fill():
                break
            data = self._buffer if wanted < 0 else self._buffer[: wanted - held]
            self._buffer = self._buffer[len(data) :]
            parts.append(data)
            held += len(data)
        if not parts and wanted and self._error is not None:
            raise self._error
        return b"".join(parts)

    def read1(self, size: int = -1, /) -> bytes:
        """Read what one call to the source gives."""
        data = self.peek()
        return self.read(len(data) if size < 0 else min(size, len(data))) if data else self.read(1)

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def peek(self, size: int = 0, /) -> bytes:
        """Return bytes that the next read will give, at least one unless the stream is at its end."""
        if not self._buffer:
            self._fill()
        return self._buffer

    def _fill(self) -> bool:
        if self._ended:
            return False
        try:
            self._buffer = self._source(_CHUNK)
        except (StreamEnded, OSError) as error:
            self._error = error
        self._ended = not self._buffer
        return bool(self._buffer)


def rejoin(head: bytes, rest: BinaryIO) -> BinaryIO:
    """Return a stream over bytes already read and the rest of the stream they came from."""
    return cast(BinaryIO, SteadyStream(head, rest.read))


class Lines:
    """The lines of a capture, numbered from 1, decoded, in bounded memory.

    Iterating yields `(number, text)` without line end. A lone carriage return also ends a text (progress
    bars are drawn that way) but the number counts newlines, as editors do. `notes` says afterwards what was
    replaced or cut; a parser ends with `yield from lines.notes`.

    Parameters
    ----------
    stream: read in chunks, to its end.
    limit: longest line kept, in characters.
    """

    def __init__(self, stream: BinaryIO, limit: int = LINE_LIMIT) -> None:
        self._stream = stream
        self._limit = limit
        self._first_bad: int | None = None
        self._cut: list[int] = []
        self._cut_count = 0

    @property
    def notes(self) -> list[Note]:
        """What happened to the text while it was read; complete once the iteration has ended."""
        found = [
            Note("warning", f"line {number}", f"the line is longer than {self._limit} characters and was cut")
            for number in self._cut
        ]
        if self._cut_count > len(self._cut):
            found.append(Note("warning", "", f"{self._cut_count - len(self._cut)} more lines were cut"))
        if self._first_bad is not None:
            found.append(Note("warning", f"line {self._first_bad}", "bytes that are not valid text were replaced"))
        return found

    def __iter__(self) -> Iterator[tuple[int, str]]:
        number, pending, skipping = 1, "", False
        for text in self._texts():
            parts = (pending + text).split("\n")
            pending = parts.pop()
            for part in parts:
                if skipping:
                    skipping = False
                else:
                    yield from self._pieces(number, part)
                number += 1
            if len(pending) > self._limit:
                if not skipping:
                    yield from self._pieces(number, pending)
                pending, skipping = "", True
        if pending and not skipping:
            yield from self._pieces(number, pending)

    def _texts(self) -> Iterator[str]:
        chunk = self._stream.read(_CHUNK)
        decoder = codecs.getincrementaldecoder(encoding_of(chunk))("replace")
        while chunk:
            yield decoder.decode(chunk)
            chunk = self._stream.read(_CHUNK)
        yield decoder.decode(b"", True)

    def _pieces(self, number: int, line: str) -> Iterator[tuple[int, str]]:
        if len(line) > self._limit:
            line = line[: self._limit]
            self._cut_count += 1
            if len(self._cut) < NOTE_LIMIT:
                self._cut.append(number)
        if self._first_bad is None and "\ufffd" in line:
            self._first_bad = number
        line = line.rstrip("\r")
        if "\r" in line:
            for piece in line.split("\r"):
                if piece:
                    yield number, piece
        else:
            yield number, line


def read_document(stream: BinaryIO, limit: int = DOCUMENT_LIMIT) -> tuple[str, list[Note]]:
    """Read a whole capture as text with \\n line ends.

    Returns the text and notes; text beyond `limit` bytes is not read, which is a Note of level "error".
    """
    data = stream.read(limit + 1)
    notes: list[Note] = []
    if len(data) > limit:
        notes.append(Note("error", f"offset {limit}", f"the file is larger than {limit} bytes; the rest was not read"))
        data = data[:limit]
    text = data.decode(encoding_of(data), "replace").replace("\r\n", "\n").replace("\r", "\n")
    if "\ufffd" in text:
        line = text.count("\n", 0, text.index("\ufffd")) + 1
        notes.append(Note("warning", f"line {line}", "bytes that are not valid text were replaced"))
    return text, notes


def load_json(stream: BinaryIO, limit: int = DOCUMENT_LIMIT) -> tuple[Any, list[Note]]:
    """Read one JSON document.

    Returns the value and notes; a Note of level "error" names the offset when the text is truncated, malformed,
    nested deeper than DEPTH_LIMIT or larger than `limit` bytes. The value is then None, for a truncated text
    what was complete in it. The words NaN and Infinity, which some tools print, are floats.
    """
    text, notes = read_document(stream, limit)
    documents = json_documents(text)
    for end, value, error in documents:
        if error is not None:
            return None, [*notes, error]
        rest = text[end:].lstrip(" \t\r\n\0")
        if rest:
            where = f"offset {len(text) - len(rest)}"
            notes.append(Note("error", where, "there is more text after the end of the JSON document"))
        else:
            notes.extend(cut for _, _, cut in documents if cut is not None)
        return value, notes
    return None, [*notes, Note("error", "offset 0", "the JSON document is empty")]


def json_documents(text: str) -> Iterator[tuple[int, Any, Note | None]]:
    """Yield the JSON documents that follow one another in a text (JSON lines, several objects in one file).

    Yields (offset after the document, value, None) for each; at the first place that is not JSON yields
    (offset, None, a Note of level "error" naming offset, line and column) and stops. Of a truncated last
    document the complete records are yielded before that.
    """
    decoder = json.JSONDecoder()
    position = 0
    while True:
        space = _JSON_SPACE.match(text, position)
        position = space.end() if space else position
        if position >= len(text):
            return
        try:
            value, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            note = _json_note(text, position, error)
            if note.text == TRUNCATED and (kept := complete_part(text, position, DEPTH_LIMIT)) is not None:
                yield len(text), kept, None
            yield position, None, note
            return
        except RecursionError:
            yield position, None, Note("error", f"offset {position}", f"JSON nested deeper than {DEPTH_LIMIT} levels")
            return
        except ValueError:
            yield position, None, Note("error", f"offset {position}", "a number in the JSON text is too long")
            return
        if _too_deep(value):
            yield position, None, Note("error", f"offset {position}", f"JSON nested deeper than {DEPTH_LIMIT} levels")
            return
        yield end, value, None
        position = end


#: Text of the note about a JSON document that ends early; what was complete in it has been read.
TRUNCATED = "the JSON text is truncated here"


def _json_note(text: str, start: int, error: json.JSONDecodeError) -> Note:
    where = f"offset {error.pos} (line {error.lineno} column {error.colno})"
    ends_early = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
    if ends_early and error.pos > start:
        return Note("error", where, TRUNCATED)
    return Note("error", where, f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]}")


def _too_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(DEPTH_LIMIT + 1):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(child for child in item.values() if isinstance(child, (dict, list)))
            elif isinstance(item, list):
                inner.extend(child for child in item if isinstance(child, (dict, list)))
        if not inner:
            return False
        level = inner
    return True


def to_float(text: str) -> float | None:
    """Read a plain decimal number; None when the text is anything else (N/A, 1_000, inf, other scripts' digits)."""
    stripped = text.strip()
    if not _FLOAT.fullmatch(stripped):
        return None
    value = float(stripped)
    return value if value not in (float("inf"), float("-inf")) else None


def to_int(text: str) -> int | None:
    """Read a plain decimal or 0x integer of at most 64 bits; None when the text is anything else."""
    stripped = text.strip()
    if _HEX.fullmatch(stripped):
        return int(stripped, 16)
    if not _INT.fullmatch(stripped):
        return None
    value = int(stripped)
    return value if -(2**63) <= value < 2**64 else None


def make_row(
    table: str, carries: Mapping[str, tuple[str, ...]], context: CaptureContext, values: Mapping[str, Value]
) -> Row:
    """Build a row with every column the format can carry, None where `values` has none.

    Parameters
    ----------
    table: key of `carries`.
    carries: the parser's CARRIES declaration.
    context: gives `ts` (at_ms) and `node` where `values` does not set them (None counts as not set).
    values: what was read; a column outside the declaration is a programming error.

    Raises
    ------
    KeyError: a column of `values` is not declared.
    """
    columns = carries[table]
    complete: dict[str, Value] = {"ts": context.at_ms, "node": context.node}
    complete.update(dict.fromkeys(columns))
    for name, value in values.items():
        if name not in complete:
            raise KeyError(f"{table}.{name} is not declared in CARRIES")
        if value is not None:
            complete[name] = value
    return Row(table, complete)
