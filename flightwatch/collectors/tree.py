"""A machine's pseudo files (/proc, /sys, /etc) behind two calls, so that a live machine, a recorded
folder and an archive are read by the same code.

Every reader in this package is a function over a `Tree`; `FolderTree("/")` is the live machine.
Paths are relative to the root and use "/": "sys/class/hwmon/hwmon0/temp1_input".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Protocol

#: Longest file content a reader sees; pseudo files are far shorter, a planted one must not fill memory.
MAX_FILE_BYTES = 1 << 20


class Tree(Protocol):
    """Read access to a folder of small files."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content (at most MAX_FILE_BYTES), None when it is absent or unreadable."""

    def listdir(self, path: str) -> Sequence[str]:
        """Return the names in a folder, sorted; empty when it is absent or unreadable."""


class FolderTree:
    """Files below a folder. Each file is opened once and read again with `pread`.

    A pseudo file renders anew on every read from offset 0, so an open descriptor stays fresh; a
    descriptor whose device went away fails, is closed, and the path is opened again on the next read.
    Safe for calls from several threads on different paths. Only regular files are read: a FIFO
    in a recorded folder cannot block the reader.

    Parameters
    ----------
    root: folder that stands for "/".
    keep_open: most descriptors to keep; 0 opens and closes on every read (recorded trees).
    """

    def __init__(self, root: str = "/", keep_open: int = 0) -> None:
        self.root = root.rstrip("/") + "/"
        self.keep_open = keep_open
        self._descriptors: dict[str, int] = {}

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None when it is absent or unreadable."""
        descriptor = self._descriptors.get(path)
        if descriptor is not None:
            try:
                return _read_all(descriptor)
            except OSError:
                self._close(path)
                return None
        return self._read_new(path)

    def listdir(self, path: str) -> Sequence[str]:
        """Return the printable names in a folder, sorted; empty when it is absent or unreadable."""
        try:
            # Names become values of rows: a name that is not text (undecodable bytes, control characters) is left out.
            return sorted(name for name in os.listdir(self.root + path) if name.isprintable())
        except OSError:
            return ()

    def close(self) -> None:
        """Close all descriptors; the tree stays usable."""
        for path in list(self._descriptors):
            self._close(path)

    def _read_new(self, path: str) -> bytes | None:
        try:
            descriptor = os.open(self.root + path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except (OSError, ValueError):
            return None
        keep = False
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            content = _read_all(descriptor)
            keep = len(self._descriptors) < self.keep_open
            return content
        except OSError:
            return None
        finally:
            if keep:
                self._descriptors[path] = descriptor
            else:
                os.close(descriptor)

    def _close(self, path: str) -> None:
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    content = os.pread(descriptor, 4096, 0)
    if len(content) < 4096:
        return content
    parts, size = [content], len(content)
    while size < MAX_FILE_BYTES:
        # /proc files may return short reads before their end; only an empty read is the end.
        part = os.pread(descriptor, 65536, size)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)[:MAX_FILE_BYTES]


def whole_number(content: bytes | None) -> int | None:
    """Return the integer a pseudo file holds, None when it holds something else ("N/A (no PMA)", "", garbage).

    Plain decimal only, with or without a sign: `int()` would also take "1_000" and non-ASCII digits.
    """
    if content is None:
        return None
    digits = content.strip()
    if digits.isdigit() or (digits[:1] == b"-" and digits[1:].isdigit()):
        return int(digits) if len(digits) <= 24 else None
    return None


def text(content: bytes | None) -> str | None:
    """Return the printable text of a pseudo file on one line, None when it is absent, blank or not text."""
    if content is None:
        return None
    try:
        words = content.decode("utf-8").split()
    except UnicodeDecodeError:
        return None
    joined = " ".join(words)
    return joined if joined and joined.isprintable() and len(joined) <= 1024 else None
