"""Decompression in bounded memory, with a budget that ends archive bombs."""

from __future__ import annotations

import bz2
import lzma
import zlib
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from flightwatch.collectors.captures.base import SteadyStream, StreamEnded

#: Bytes a layer may produce beyond the ratio, so that tiny files are not refused.
GRACE_BYTES = 1 << 16
#: Memory an xz or zstd window may need, in bytes.
WINDOW_LIMIT = 256 << 20
_CHUNK = 1 << 16


class LimitExceeded(StreamEnded):
    """A limit of the inspection was reached; the text names it."""


class DamagedStream(StreamEnded):
    """Compressed data cannot be read further; the text says why."""


def member_path(name: str) -> str:
    """Return the path of an archive's member with "/", without leading "/" and without "." and ".." parts."""
    return "/".join(part for part in name.split("/") if part not in ("", ".", ".."))


@dataclass(slots=True)
class Budget:
    """What an inspection may unpack, counted over all archives of one path.

    Attributes
    ----------
    members: members still allowed.
    unpacked_bytes: bytes of decompressed output still allowed.
    ratio: largest output per input byte of one layer.
    nesting: archives inside archives.
    """

    members: int = 10_000
    unpacked_bytes: int = 20_000_000_000
    ratio: int = 1_000
    nesting: int = 3

    def spend_member(self) -> None:
        """Count one member. Raises LimitExceeded."""
        if self.members <= 0:
            raise LimitExceeded("the archive has more than 10,000 members; the rest was not read")
        self.members -= 1

    def spend(self, produced: int, total_out: int, total_in: int) -> None:
        """Count decompressed bytes of one layer. Raises LimitExceeded."""
        self.unpacked_bytes -= produced
        if self.unpacked_bytes < 0:
            raise LimitExceeded("the archive unpacks to more than 20 GB; the rest was not read")
        if total_out > self.ratio * total_in + GRACE_BYTES:
            raise LimitExceeded(f"the archive unpacks to more than {self.ratio} times its size; the rest was not read")


class Unpacked:
    """Decompressed view of a stream; concatenated frames are read through.

    Parameters
    ----------
    stream: compressed bytes.
    make: returns a fresh decompressor with `decompress(data, max_length)`, `eof`, `unused_data`.
    budget: counted down while reading.
    """

    def __init__(self, stream: BinaryIO, make: Any, budget: Budget) -> None:
        self._stream, self._make, self._budget = stream, make, budget
        self._machine = make()
        self._fresh = True
        self._input = b""
        self._in = self._out = 0
        self._ended = False

    def read(self, size: int) -> bytes:
        """Return some bytes, b"" at the end. Raises DamagedStream, LimitExceeded."""
        while not self._ended:
            data = self._step(min(size, _CHUNK))
            if data:
                self._out += len(data)
                # zlib alone can approach the ratio so closely that input it has not used yet would matter.
                self._budget.spend(len(data), self._out, self._in - getattr(self._machine, "unused", 0))
                return data
        return b""

    def _step(self, size: int) -> bytes:
        if self._machine.eof:
            self._input = self._machine.unused_data or self._fill()
            if not self._input.strip(b"\0"):
                self._ended = True
                return b""
            self._machine, self._fresh = self._make(), True
        elif not self._input and self._machine.needs_input:
            self._input = self._fill()
            if not self._input:
                self._ended = True
                raise DamagedStream("the compressed data is truncated")
        data, self._input = self._input, b""
        try:
            produced: bytes = self._machine.decompress(data, size)
        except (zlib.error, OSError, lzma.LZMAError, EOFError, ValueError) as error:
            self._ended = True
            if self._fresh and self._out:
                return b""  # padding after the last frame
            raise DamagedStream(f"the compressed data is damaged ({error})") from None
        self._fresh = False
        return produced

    def _fill(self) -> bytes:
        data = self._stream.read(_CHUNK)
        self._in += len(data)
        return data


class _Gzip:
    """zlib's decompressor in the shape of bz2's and lzma's."""

    def __init__(self) -> None:
        self._machine = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._machine.eof

    @property
    def unused_data(self) -> bytes:
        return self._machine.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._machine.unconsumed_tail

    @property
    def unused(self) -> int:
        return len(self._machine.unconsumed_tail)

    def decompress(self, data: bytes, size: int) -> bytes:
        return self._machine.decompress(self._machine.unconsumed_tail + data, size)


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=WINDOW_LIMIT)


#: First bytes of a compressed stream to its name.
MAGIC = {b"\x1f\x8b": "gz", b"\xfd7zXZ\0": "xz", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zst"}


def compression_of(head: bytes) -> str | None:
    """Name the compression of a stream from its first bytes: gz, xz, bz2, zst or None."""
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)


def unpacked(stream: BinaryIO, compression: str, budget: Budget) -> BinaryIO:
    """Return the decompressed stream.

    Raises
    ------
    DamagedStream: zstandard data without the zstandard package.
    """
    if compression == "zst":
        return cast(BinaryIO, SteadyStream(b"", Unpacked(stream, _zstd(), budget).read))
    make = {"gz": _Gzip, "bz2": bz2.BZ2Decompressor, "xz": _xz}[compression]
    return cast(BinaryIO, SteadyStream(b"", Unpacked(stream, make, budget).read))


class _Zstd:
    def __init__(self, module: Any) -> None:
        self._machine = module.ZstdDecompressor(max_window_size=WINDOW_LIMIT).decompressobj()
        self._ready = bytearray()
        self._error = module.ZstdError

    @property
    def eof(self) -> bool:
        return bool(self._machine.eof) and not self._ready

    @property
    def unused_data(self) -> bytes:
        return bytes(self._machine.unused_data)

    @property
    def needs_input(self) -> bool:
        return not self._ready and not self._machine.eof

    def decompress(self, data: bytes, size: int) -> bytes:
        # One input chunk of 1 KiB yields at most a window's worth; the rest waits here.
        if data and not self._machine.eof:
            try:
                self._ready += self._machine.decompress(data)
            except self._error as error:
                raise ValueError(str(error)) from None
        produced = bytes(self._ready[:size])
        del self._ready[:size]
        return produced


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise DamagedStream("zstandard data needs the Python package zstandard: pip install zstandard") from None
    return lambda: _Zstd(zstandard)
