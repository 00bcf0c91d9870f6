"""A tar archive as a stream: bounded headers, no seeking, nothing written to disk.

The standard library reads extended headers whole, whatever size they claim; here each is limited.
Understands ustar, GNU long names and pax paths and sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from flightwatch.collectors.captures.base import StreamEnded
from flightwatch.collectors.captures.unpacking import member_path

_BLOCK = 512
#: Largest extended header, in bytes.
HEADER_LIMIT = 1 << 20
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a pipe",
          b"S": "a sparse file"}  # fmt: skip


class TarDamage(StreamEnded):
    """The archive cannot be read further; the text says why."""


@dataclass(frozen=True, slots=True)
class TarMember:
    """One entry.

    Attributes
    ----------
    name: path with "/", without a leading "./" or "/".
    size: bytes of content.
    skipped: why it holds no content to read ("a symbolic link"), "" for a regular file.
    """

    name: str
    size: int
    skipped: str


class MemberStream:
    """Content of the member in hand."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self.left = size

    def read(self, size: int = -1) -> bytes:
        """Read like a file, to the end of the member."""
        wanted = self.left if size is None or size < 0 else min(size, self.left)
        data = self._stream.read(wanted) if wanted else b""
        self.left -= len(data)
        if wanted and not data:
            raise TarDamage("the archive is truncated inside a member")
        return data


def is_tar(head: bytes) -> bool:
    """Say whether a head begins a tar archive."""
    if len(head) < _BLOCK or not head[:1].strip(b"\0"):
        return False
    return head[257:262] == b"ustar" or (head[148:156].strip(b" \0").isdigit() and _checksum(head[:_BLOCK]))


def members(stream: BinaryIO) -> Iterator[tuple[TarMember, MemberStream]]:
    """Yield the members in order; what is left unread of one is skipped.

    Raises
    ------
    TarDamage: a header is damaged or the stream ends early; members before it were yielded.
    """
    long_name: str | None = None
    pax: dict[str, str] = {}
    while True:
        header = _exactly(stream, _BLOCK, at_end=True)
        if not header.strip(b"\0"):
            return
        if not _checksum(header):
            raise TarDamage("a header of the archive is damaged")
        kind, size = header[156:157], _number(header[124:136])
        if kind in (b"L", b"K", b"x", b"g", b"X"):
            data = _extension(stream, size)
            if kind == b"L":
                long_name = data.rstrip(b"\0").decode("utf-8", "replace")
            elif kind in (b"x", b"X"):
                pax = _pax(data)
            continue
        name = pax.get("path") or long_name or _name(header)
        if pax.get("size", "").isdigit() and len(pax["size"]) < 16:
            size = int(pax["size"])
        long_name, pax = None, {}
        content = 0 if kind in (b"1", b"2", b"3", b"4", b"5", b"6") else size
        body = MemberStream(stream, content)
        if kind != b"5":
            yield TarMember(member_path(name), content, _KINDS.get(kind, "")), body
        _skip(stream, body.left + -content % _BLOCK)


def _exactly(stream: BinaryIO, size: int, at_end: bool = False) -> bytes:
    parts, left = [], size
    while left:
        data = stream.read(left)
        if not data:
            break
        parts.append(data)
        left -= len(data)
    whole = b"".join(parts)
    if left and not (at_end and not whole):
        raise TarDamage("the archive is truncated")
    return whole


def _skip(stream: BinaryIO, size: int) -> None:
    while size > 0:
        data = stream.read(min(size, 1 << 16))
        if not data:
            raise TarDamage("the archive is truncated")
        size -= len(data)


def _extension(stream: BinaryIO, size: int) -> bytes:
    if size > HEADER_LIMIT:
        raise TarDamage("an extended header of the archive is larger than allowed")
    data = _exactly(stream, size)
    _skip(stream, -size % _BLOCK)
    return data


def _checksum(header: bytes) -> bool:
    try:
        claimed = _number(header[148:156])
    except TarDamage:
        return False
    return claimed == sum(header[:148]) + 8 * 32 + sum(header[156:512])


def _number(field: bytes) -> int:
    if field[:1] and field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if value >= 1 << 62:
            raise TarDamage("a member of the archive claims an impossible size")
        return value
    digits = field.strip(b" \0")
    if not digits:
        return 0
    try:
        return int(digits, 8)
    except ValueError:
        raise TarDamage("a header of the archive is damaged") from None


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0":
        prefix = header[345:500].split(b"\0", 1)[0]
        name = prefix + b"/" + name if prefix else name
    return name.decode("utf-8", "replace")


def _pax(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    while data:
        length, space, _ = data.partition(b" ")
        if not space or not length.isdigit() or len(length) > 8 or not len(length) < int(length) <= len(data):
            break
        record, data = data[len(length) + 1 : int(length)], data[int(length) :]
        name, _, value = record.rstrip(b"\n").partition(b"=")
        if name in (b"path", b"size"):
            found[name.decode("ascii")] = value.decode("utf-8", "replace")
    return found
