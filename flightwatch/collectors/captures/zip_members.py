"""Members of a zip archive: its table of contents is checked first, and what members unpack to is counted."""

from __future__ import annotations

import io
import lzma
import os
import stat
import struct
import zipfile
import zlib
from typing import BinaryIO, cast

from flightwatch.collectors.captures.unpacking import Budget, DamagedStream, LimitExceeded
from flightwatch.core.protocols import Note

#: Largest zip inside another archive (it has to be held in memory), in bytes.
INNER_ZIP_LIMIT = 64 << 20
#: Largest table of contents, in bytes.
CONTENTS_LIMIT = 16 << 20
_CHUNK = 1 << 16
#: A comment of the archive may stand between its end record and the end of the file.
_TAIL = 66_000


def is_zip(head: bytes) -> bool:
    """Say whether a head begins a zip archive with members."""
    return head.startswith(b"PK\x03\x04")


def open_zip(whole: BinaryIO, stream: BinaryIO) -> zipfile.ZipFile:
    """Open an archive.

    Parameters
    ----------
    whole: all its bytes from the start.
    stream: the same as a file; where it can be sought nothing is held in memory.

    Raises
    ------
    DamagedStream: it has no table of contents. LimitExceeded: that table, or the archive in memory, is too large.
    zipfile.BadZipFile: the table is damaged.
    """
    file = stream if _rewound(stream) else io.BytesIO(_in_memory(whole))
    _check_contents(file)
    return zipfile.ZipFile(file)


def reason_to_skip(info: zipfile.ZipInfo) -> Note | None:
    """Return why a member is not read; None for a regular file."""
    kind = info.external_attr >> 16
    if kind and not stat.S_ISREG(kind) and stat.S_IFMT(kind):
        return Note("info", "", "a link or device, skipped")
    if info.flag_bits & 1:
        return Note("warning", "", "the member is encrypted; not read")
    return None


class MemberStream:
    """Content of one member, counted against the budget."""

    def __init__(self, stream: BinaryIO, budget: Budget, packed_bytes: int) -> None:
        self._stream, self._budget, self._packed, self._out = stream, budget, max(packed_bytes, 1), 0

    def read(self, size: int = -1) -> bytes:
        """Read like a file. Raises LimitExceeded, DamagedStream."""
        try:
            data = self._stream.read(_CHUNK if size is None or size < 0 else min(size, _CHUNK))
        except (zlib.error, lzma.LZMAError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise DamagedStream(f"the member is damaged ({error})") from None
        self._out += len(data)
        self._budget.spend(len(data), self._out, self._packed)
        return data


def content(opened: object, budget: Budget, info: zipfile.ZipInfo) -> BinaryIO:
    """Return the counted stream of an opened member."""
    return cast(BinaryIO, MemberStream(cast(BinaryIO, opened), budget, info.compress_size))


def _rewound(stream: BinaryIO) -> bool:
    try:
        if not stream.seekable():
            return False
        stream.seek(0)
    except (AttributeError, OSError, ValueError):
        return False
    return True


def _in_memory(whole: BinaryIO) -> bytes:
    parts: list[bytes] = []
    size = 0
    while data := whole.read(_CHUNK):
        parts.append(data)
        size += len(data)
        if size > INNER_ZIP_LIMIT:
            raise LimitExceeded("a zip inside another archive is larger than 64 MB; not read")
    return b"".join(parts)


def _check_contents(file: BinaryIO) -> None:
    """Refuse a zip whose table of contents alone would fill memory."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _TAIL))
    tail = file.read(_TAIL)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        raise DamagedStream("the zip archive has no table of contents (truncated)")
    entries, contents = struct.unpack_from("<HI", tail, at + 10)
    if contents > CONTENTS_LIMIT or entries == 0xFFFF:
        raise LimitExceeded("the archive has more than 10,000 members; not read")
    file.seek(0)
