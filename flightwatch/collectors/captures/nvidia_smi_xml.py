"""`nvidia-smi -q -x`: the XML form of the report, read as a stream without expanding entities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO
from xml.parsers import expat

from flightwatch.collectors.captures.base import DEPTH_LIMIT, head_text
from flightwatch.collectors.captures.nvidia_fields import (
    Gpu,
    Report,
    path_word,
    report_rows,
)
from flightwatch.collectors.captures.nvidia_names import QUERY_CARRIES, QUERY_NULL_NOTES
from flightwatch.core.protocols import CaptureContext, Note, Row

_SKIPPED = frozenset(("supported_clocks", "processes", "accounted_processes"))
_CHUNK = 1 << 16
_TEXT_LIMIT = 1000
_FIELDS_LIMIT = 4000
_GPUS_LIMIT = 256
_DECLARATION, _ELEMENT = b"<?xml", b"<nvidia_smi_log"
_EMPTY_LIMIT = 100
_ROOT = re.compile(r"<nvidia_smi_log\b")


class NvidiaSmiXml:
    """Reads the `nvidia_smi_log` document of drivers 418 to 610 (schemas v10 to v13)."""

    name = "nvidia-smi-xml"
    CARRIES = QUERY_CARRIES
    NULL_NOTES = QUERY_NULL_NOTES

    def recognise(self, head: bytes) -> bool:
        """Recognise the root element or its document type."""
        text = head_text(head)
        return _ROOT.search(text) is not None or "<!DOCTYPE nvidia_smi_log" in text

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield rows of every GPU read, then the place where a document is broken, if one is.

        Text before the first document is passed over; documents that follow one another (`nvidia-smi -l`) are
        read one by one.
        """
        source = _Source(stream)
        line = 1 + source.skipped_lines
        empty = 0
        while source.begin() and empty < _EMPTY_LIMIT:
            reader = _Reader()
            error, lines = _feed(reader, source.document(), line)
            if error is not None:
                reader.finish_partial()
            if reader.report.gpus:
                yield from report_rows(reader.report, self.CARRIES, context)
            else:
                empty += 1
                if error is None:
                    yield Note("error", f"line {line}", "the report shows no GPU")
            if reader.dropped:
                yield Note("warning", "", f"{reader.dropped} GPUs beyond the first {_GPUS_LIMIT} were not read")
            if error is not None:
                yield error
            line += lines
        if empty >= _EMPTY_LIMIT:
            yield Note("error", f"line {line}", f"{empty} documents showed no GPU; what follows was not read")


class _Refused(Exception):
    """The document asks for something a report never needs."""


class _Reader:
    """Collects the leaf elements of each `gpu` by path."""

    def __init__(self) -> None:
        self.report = Report()
        self.dropped = 0
        self._path: list[str] = []
        self._text: list[str] = []
        self._size = 0
        self._leaf = False
        self._gpu: Gpu | None = None
        self._child: dict[str, str] | None = None
        self._child_depth = 0
        self._skip_depth = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Take an opening tag."""
        if len(self._path) >= DEPTH_LIMIT:
            raise _Refused(f"elements are nested deeper than {DEPTH_LIMIT} levels")
        self._path.append(path_word(tag))
        self._text, self._size, self._leaf = [], 0, True
        if self._skip_depth:
            return
        if tag in _SKIPPED:
            self._skip_depth = len(self._path)
        elif tag == "gpu" and len(self._path) == 2:
            self._gpu = Gpu(attributes.get("id", f"number {len(self.report.gpus)}"))
        elif tag == "mig_device" and self._gpu is not None:
            self._child = {}
            self._child_depth = len(self._path)

    def end(self, tag: str) -> None:
        """Take a closing tag: a leaf's text is complete here."""
        depth = len(self._path)
        if not self._skip_depth:
            if self._leaf:
                self._store("".join(self._text).strip())
            if self._child is not None and depth == self._child_depth and self._gpu is not None:
                if len(self._gpu.children) < _GPUS_LIMIT:
                    self._gpu.children.append(self._child)
                self._child = None
            elif tag == "gpu" and depth == 2 and self._gpu is not None:
                self._finish(self._gpu)
        elif depth == self._skip_depth:
            self._skip_depth = 0
        self._path.pop()
        self._leaf = False

    def text(self, data: str) -> None:
        """Take character data; only the start of a long text is kept."""
        if self._leaf and self._size < _TEXT_LIMIT:
            self._text.append(data)
            self._size += len(data)

    def finish_partial(self) -> None:
        """Keep the GPU in which the document broke off."""
        if self._gpu is not None and self._gpu.fields:
            self._gpu.partial = True
            self._finish(self._gpu)

    def _finish(self, gpu: Gpu) -> None:
        if len(self.report.gpus) < _GPUS_LIMIT:
            self.report.gpus.append(gpu)
        else:
            self.dropped += 1
        self._gpu = None

    def _store(self, text: str) -> None:
        if self._child is not None:
            target, path = self._child, self._path[self._child_depth :]
        elif self._gpu is not None:
            target, path = self._gpu.fields, self._path[2:]
        else:
            target, path = self.report.fields, self._path[1:]
        if path and len(target) < _FIELDS_LIMIT:
            target.setdefault("/".join(path), text)


class _Source:
    """Chunks of a stream, none of which goes past the next XML declaration."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._ahead = stream.read(_CHUNK)
        start = min((at for at in (self._ahead.find(_DECLARATION), self._ahead.find(_ELEMENT)) if at >= 0), default=0)
        # Prompts and logs before a report; a report in UTF-16 has neither mark in these bytes and starts at once.
        self.skipped_lines = self._ahead.count(b"\n", 0, start)
        self._ahead = self._ahead[start:]

    def begin(self) -> bool:
        """Say whether another document follows."""
        if not self._ahead:
            self._ahead = self._stream.read(_CHUNK)
        return bool(self._ahead.strip())

    def document(self) -> Iterator[bytes]:
        """Yield the chunks up to the next declaration or the end."""
        first = True
        while self._ahead:
            cut = self._ahead.find(_DECLARATION, 1 if first else 0)
            if cut >= 0:
                chunk, self._ahead = self._ahead[:cut], self._ahead[cut:]
                yield chunk
                return
            more = self._stream.read(_CHUNK)
            keep = len(_DECLARATION) - 1 if more else 0
            end = max(0, len(self._ahead) - keep)
            chunk, self._ahead = self._ahead[:end], self._ahead[end:] + more
            if chunk:
                yield chunk
                first = False


def _feed(reader: _Reader, chunks: Iterator[bytes], first_line: int) -> tuple[Note | None, int]:
    """Read one document; returns what is wrong with it and the lines it took."""
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    # A report carries a document type with a system id (never fetched) and, with --dtd, element declarations.
    # It never declares entities: whoever does wants them expanded.
    parser.EntityDeclHandler = _refuse_entity
    error: Note | None = None
    lines = 0
    for data in chunks:
        lines += data.count(b"\n")
        if error is None:
            error = _parse(parser, data, first_line, final=False)
    return error or _parse(parser, b"", first_line, final=True), lines


def _parse(parser: expat.XMLParserType, data: bytes, first_line: int, *, final: bool) -> Note | None:
    try:
        parser.Parse(data, final)
    except expat.ExpatError as error:
        where = f"line {first_line + error.lineno - 1}"
        return Note("error", where, f"the XML is broken off or malformed here: {expat.ErrorString(error.code)}")
    except _Refused as error:
        return Note("error", f"line {first_line + parser.CurrentLineNumber - 1}", str(error))
    except ValueError as error:
        return Note("error", f"line {first_line + parser.CurrentLineNumber - 1}", f"the XML cannot be decoded: {error}")
    return None


def _refuse_entity(*_: object) -> None:
    raise _Refused("the document declares entities, which a report never does; it was not read further")
