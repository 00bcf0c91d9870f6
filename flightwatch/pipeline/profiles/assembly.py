"""Chunks of traces back into files, checked, once each, whatever is repeated or lost on the way."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from flightwatch.core.errors import BadRecord, TransientError
from flightwatch.pipeline.blobs import Chunk

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,95}")
_MOST_CHUNKS = 1_000_000


@dataclass(frozen=True, slots=True)
class Assembled:
    """One whole file: place, size and checksum."""

    path: Path
    bytes: int
    sha256: str


class TraceFolder:
    """The folder of traces: `<id>/rankN.json.gz`, and chunks on their way in `.parts`.

    Every chunk is a file of its own until the last one came: writing one twice changes nothing, and a
    restart goes on with what is there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def take(self, chunk: Chunk, request: str, rank: int, max_bytes: int) -> Assembled | None:
        """Keep one chunk; return the file when it was the last.

        Parameters
        ----------
        max_bytes: most bytes of the whole.

        Raises
        ------
        BadRecord: names that are none, a part that is missing, a checksum that differs, or too many bytes.
        TransientError: the disk is full or away.
        """
        if not _WORD.fullmatch(request) or not _WORD.fullmatch(chunk.blob_id) or not 0 <= chunk.index < _MOST_CHUNKS:
            raise BadRecord(f"a chunk of {chunk.blob_id!r} of profile {request!r}: not names")
        parts = self.root / ".parts" / chunk.blob_id
        if (chunk.index + 1) * len(chunk.data) > max_bytes and not chunk.last:
            shutil.rmtree(parts, ignore_errors=True)
            raise BadRecord(f"the trace of rank {rank} is larger than the {max_bytes} bytes allowed")
        try:
            parts.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(parts / f"{chunk.index:07d}", chunk.data)
            return self._join(chunk, parts, request, rank) if chunk.last else None
        except OSError as error:
            raise TransientError(f"{self.root}: {error.strerror}") from error

    def _join(self, chunk: Chunk, parts: Path, request: str, rank: int) -> Assembled:
        folder = self.root / request
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = folder / f"rank{rank}.json.gz"
        temporary = folder / f".rank{rank}.new"
        whole, size = hashlib.sha256(), 0
        try:
            with open(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                for index in range(chunk.index + 1):
                    data = (parts / f"{index:07d}").read_bytes()
                    whole.update(data)
                    size += len(data)
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError as error:
            temporary.unlink(missing_ok=True)
            shutil.rmtree(parts, ignore_errors=True)
            known = _known(target)
            if known is not None and (known.bytes, known.sha256) == (chunk.total_bytes, chunk.total_sha256):
                return known  # its parts were joined by a process that did not live to say so
            raise BadRecord(f"a part of the trace of rank {rank} was lost on its way") from error
        if size != chunk.total_bytes or whole.hexdigest() != chunk.total_sha256:
            temporary.unlink(missing_ok=True)
            shutil.rmtree(parts, ignore_errors=True)
            raise BadRecord(f"the trace of rank {rank} arrived damaged")
        os.replace(temporary, target)
        shutil.rmtree(parts, ignore_errors=True)
        return Assembled(target, size, whole.hexdigest())

    def sweep(self, older_than_s: float, now_s: float) -> None:
        """Remove parts of traces whose last chunk never came."""
        with contextlib.suppress(OSError):
            for parts in (self.root / ".parts").iterdir():
                with contextlib.suppress(OSError):
                    if now_s - parts.stat().st_mtime > older_than_s:
                        shutil.rmtree(parts, ignore_errors=True)


def _known(target: Path) -> Assembled | None:
    """Return the file that is there already, None when there is none."""
    whole, size = hashlib.sha256(), 0
    try:
        with target.open("rb") as file:
            while data := file.read(1 << 20):
                whole.update(data)
                size += len(data)
    except FileNotFoundError:
        return None
    return Assembled(target, size, whole.hexdigest())


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    with open(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    os.replace(temporary, path)
