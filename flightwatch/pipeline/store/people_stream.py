"""A person's result on its way out, piece by piece: formulas disarmed, rows counted, never whole in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet

CHUNK_BYTES = 256 * 1024
_FORMULA = re.compile(rb'([,\n])"([=+\-@\t\r])')
#: A match may begin up to two bytes before the end of a piece.
_OVERLAP = 2


class Readable(Protocol):
    """What a client's stream offers."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, b"" at the end."""

    def close(self) -> None:
        """Let the engine stop."""


def pieces(stream: Readable, form: str) -> Iterator[bytes]:
    """Return the result in pieces of about 256 KB; a CSV's formulas are made texts.

    A spreadsheet runs a cell that starts like a formula; an apostrophe before it makes it a text.
    """
    if form != "csv":
        while piece := stream.read(CHUNK_BYTES):
            yield piece
        return
    # The line feed put before the first byte lets one pattern serve the first cell too; it is not sent.
    rest, first = b"\n", True
    while piece := stream.read(CHUNK_BYTES):
        text = _FORMULA.sub(rb"\1" + b"\"'" + rb"\2", rest + piece)
        ready, rest = text[:-_OVERLAP], text[-_OVERLAP:]
        if first and ready:
            ready, first = ready[1:], False
        yield ready
    yield rest[1:] if first else rest


class RowCounter:
    """Counts the rows of a result as it passes.

    Arrow and Parquet files are counted from their last pieces, so those are kept (at most `tail_bytes`).
    """

    def __init__(self, form: str) -> None:
        self._form = form
        self._lines = 0
        self._quoted = False

    def add(self, piece: bytes) -> None:
        """Take note of one piece."""
        if self._form == "json":
            self._lines += piece.count(b"\n")
        elif self._form == "csv":
            self._lines += self._csv_lines(piece)

    def _csv_lines(self, piece: bytes) -> int:
        # A line feed inside quotes is part of a cell; a doubled quote flips twice and changes nothing.
        lines = 0
        for part in re.split(rb'(")', piece):
            if part == b'"':
                self._quoted = not self._quoted
            elif not self._quoted:
                lines += part.count(b"\n")
        return lines

    def rows(self, whole: bytes | None = None) -> int | None:
        """Return the number of rows, None where the format does not tell without the whole result.

        Parameters
        ----------
        whole: the result, when the caller has it.
        """
        if self._form == "json":
            return self._lines
        if self._form == "csv":
            return max(0, self._lines - 1)
        if whole is None:
            return None
        if self._form == "parquet":
            return int(pyarrow.parquet.read_metadata(pa.BufferReader(whole)).num_rows)
        if self._form == "arrow":
            reader: Any = pa.ipc.open_file(pa.BufferReader(whole))
            return int(sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches)))
        return max(0, whole.count(b"\n") - 2)
