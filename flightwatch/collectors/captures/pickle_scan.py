"""Load a pickle from a stranger: plain data only, bounded in memory.

A pickle is a program. Only opcodes that build dicts, lists, tuples, strings and numbers are allowed, and
they are checked before the loader runs: a short file can ask for gigabytes of memo table, or build a
tree of 2**60 leaves out of shared parts (so nothing here ever walks the result recursively).
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any, NoReturn

from flightwatch.core.errors import BadRecord

#: Opcode to the number of argument bytes. Opcodes that name or call anything are absent.
_FIXED = {
    b"(": 0, b".": 0, b"0": 0, b"1": 0, b"2": 0, b"N": 0, b"]": 0, b"}": 0, b")": 0, b"a": 0, b"e": 0, b"s": 0, b"u": 0,
    b"t": 0, b"l": 0, b"d": 0, b"\x85": 0, b"\x86": 0, b"\x87": 0, b"\x88": 0, b"\x89": 0, b"\x94": 0,
    b"\x8f": 0, b"\x90": 0,
    b"\x91": 0, b"K": 1, b"M": 2, b"J": 4, b"G": 8, b"h": 1, b"j": 4, b"q": 1, b"r": 4, b"\x80": 1, b"\x95": 8,
}  # fmt: skip
#: Opcode to the width of the length that precedes its bytes.
_SIZED = {b"U": 1, b"T": 4, b"X": 4, b"\x8c": 1, b"\x8d": 8, b"C": 1, b"B": 4, b"\x8e": 8, b"\x8a": 1, b"\x8b": 4}
_FIXED_BY_BYTE = {code[0]: size + 1 for code, size in _FIXED.items()}
_SIZED_BY_BYTE = {code[0]: size for code, size in _SIZED.items()}
_LONG_PUT, _STOP = ord("r"), ord(".")
#: Opcodes of a fixed length that need no further look, as many as follow each other: one match instead of a loop.
_RUN = re.compile(
    b"(?:"
    + b"|".join(
        b"[" + b"".join(re.escape(code) for code in _FIXED if _FIXED[code] == size and code not in (b"r", b".")) + b"]"
        + b"." * size
        for size in sorted(set(_FIXED.values()))
    )
    + b")+",
    re.DOTALL,
)  # fmt: skip


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"refuses to load {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("refuses a persistent id")


def scan(data: bytes) -> None:
    """Check every opcode.

    Raises
    ------
    BadRecord: an opcode that is not plain data, a memo index that no file of this size can need, or a cut file.
    """
    position, end = 0, len(data)
    fixed, sized, run_at = _FIXED_BY_BYTE.get, _SIZED_BY_BYTE, _RUN.match
    memo_limit = end // 4  # an object that is kept for reuse takes four bytes at least
    while position < end:
        run = run_at(data, position)
        if run is not None:
            position = run.end()
            continue
        code = data[position]
        size = fixed(code)
        if size is not None:
            if code == _LONG_PUT and int.from_bytes(data[position + 1 : position + 5], "little") > memo_limit:
                raise BadRecord("the pickle asks for a memo entry beyond its size", f"byte {position}")
            if code == _STOP:
                return
            position += size
            continue
        width = sized.get(code)
        if width is None:
            raise BadRecord(f"the pickle holds opcode 0x{code:02x}, which is not plain data", f"byte {position}")
        position += 1 + width + int.from_bytes(data[position + 1 : position + 1 + width], "little")
    raise BadRecord("the pickle is cut: it has no end", f"byte {end}")


def load_plain(data: bytes) -> Any:
    """Return the object in a pickle of plain data.

    Raises
    ------
    BadRecord: see `scan`; or the loader refuses it.
    """
    scan(data)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # the C loader raises many types on damage, all meaning the same to the caller
        raise BadRecord(f"the pickle cannot be loaded ({type(error).__name__})") from error
