"""The bytes of one bus message: a fixed envelope, a compressed body, an optional signature.

```
envelope  32 bytes   magic "FW", format, min_reader, flags, dictionary, signature bytes,
                     rows, body bytes, created_at_ms, seq
body      zstd       u32 length + identity JSON, then sections
section              u8 kind, u32 schema, text and data lengths, then those three
signature            over everything before it
```
A section of kind 1 is one table: `schema` is JSON `[table, count, ["ts:q", "temp_c:fn", ...]]`, `text` is JSON
of the columns that are not plain numbers, `data` holds the plain numbers column by column, widest first, byte
planes apart. See docs/decisions/0030-wire-format.md for why.

Evolution: readers ignore unknown identity keys and skip unknown section kinds. A writer raises
`min_reader` only for a change an older reader would misread; such a message waits in the dead letters
for the reader's upgrade.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import zstandard

MAGIC = b"FW"
FORMAT_VERSION = 1
#: Version of the meaning of decoded rows; part of every deduplication token.
DECODER_VERSION = 1
FLAG_SIGNED = 1
SIGNATURE_BYTES = 64

#: Largest message the bus carries, bytes.
MAX_MESSAGE_BYTES = 4_000_000
#: Largest body after decompression, bytes: what one hostile message can make a reader allocate.
MAX_BODY_BYTES = 32_000_000
MAX_ROWS = 100_000
MAX_COLUMNS = 1_024
#: Largest rows x columns of one section: a column of one repeated word costs nothing on the wire.
MAX_CELLS = 4_000_000

ENVELOPE = struct.Struct("<2sBBBBHIIqQ")
LENGTH = struct.Struct("<I")
SECTION = struct.Struct("<BIII")
SECTION_TABLE = 1

#: Code of a plain number on the wire to its width in bytes; a trailing "n" adds a null mask of one byte a row.
WIDTHS = {"q": 8, "Q": 8, "d": 8, "i": 4, "I": 4, "f": 4, "h": 2, "H": 2, "b": 1, "B": 1, "?": 1}
#: Code of a catalogue type; types not listed travel in the text part.
CODE_OF_TYPE = {
    "f32": "f", "f64": "d", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i16": "h", "i32": "i", "i64": "q",
    "bool": "?", "time": "q",
}  # fmt: skip
CODE_TEXT = "s"
CODE_JSON = "j"

_LEVEL = 3
_local = threading.local()


def _dictionary(number: int) -> zstandard.ZstdCompressionDict:
    """Load frozen dictionary `number`: words that messages have in common, never edited once released."""
    words = (Path(__file__).parent / f"words_{number}.txt").read_bytes()
    return zstandard.ZstdCompressionDict(words, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


DICTIONARY = 1


def compressor() -> zstandard.ZstdCompressor:
    """Return this thread's compressor (they are not shared between threads)."""
    if not hasattr(_local, "compressor"):
        words = _dictionary(DICTIONARY)
        words.precompute_compress(level=_LEVEL)
        _local.compressor = zstandard.ZstdCompressor(level=_LEVEL, dict_data=words)
    return _local.compressor  # type: ignore[no-any-return]


def decompressor() -> zstandard.ZstdDecompressor:
    """Return this thread's decompressor."""
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor(dict_data=_dictionary(DICTIONARY))
    return _local.decompressor  # type: ignore[no-any-return]


def to_planes(data: bytes, width: int) -> bytes:
    """Put the first bytes of all numbers together, then the second ones, ...: high bytes repeat, so zstd gains 10 %."""
    return data if width == 1 else b"".join(data[plane::width] for plane in range(width))


def from_planes(data: bytes, width: int) -> bytes:
    """Undo `to_planes`."""
    if width == 1:
        return data
    count = len(data) // width
    numbers = bytearray(len(data))
    for plane in range(width):
        numbers[plane::width] = data[plane * count : (plane + 1) * count]
    return bytes(numbers)
