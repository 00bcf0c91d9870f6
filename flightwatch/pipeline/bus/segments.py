"""A local log: a chain of segment files in one folder, shared by several processes.

The newest file takes messages; a file is sealed exactly when the next one exists. Retention and
trimming delete whole files, so they give disk back at once. The agent's spool is the same format.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flightwatch.core.errors import TransientError
from flightwatch.pipeline.bus.segment import Damaged, Entry, Record, Segment, create, explain, remove

logger = logging.getLogger(__name__)

#: When the end of a damaged file is unknown, the next file starts this much higher: no offset is used twice.
DAMAGE_JUMP = 1_000_000_000
_OPEN_SEALED = 2
_ABANDONED_S = 3600


@dataclass(frozen=True, slots=True)
class Read:
    """Answer of `SegmentedLog.read`.

    Attributes
    ----------
    next: offset to continue with (beyond messages that cannot be read).
    damaged: True when something between the asked offset and `next` could not be read.
    """

    records: Sequence[Record]
    next: int
    damaged: bool


class NothingReadable(TransientError):
    """Every file of a log is damaged."""


class SegmentedLog:
    """The chain of one topic. Not thread-safe; any number of processes may have it open.

    Parameters
    ----------
    partitions: number of partitions when the log does not exist yet.
    segment_bytes: size at which a new file is started.
    durable: True: an append survives a power cut; False: it survives kill -9.
    """

    def __init__(self, folder: Path, partitions: int, segment_bytes: int, *, durable: bool = True) -> None:
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._synchronous = "FULL" if durable else "NORMAL"
        self._open: dict[int, Segment] = {}
        self._bases: dict[int, tuple[int, ...] | None] = {}
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
        if not self.numbers():
            create(self.path(1), secrets.token_hex(8), [0] * partitions)
        first = next((segment for segment in map(self._segment, reversed(self.numbers())) if segment), None)
        if first is None:
            raise NothingReadable(f"{folder}: no file of this log can be read; move the folder away to begin a new log")
        self.incarnation = first.log_id
        self.partitions = len(first.bases)

    def path(self, number: int) -> Path:
        """Return the path of a segment."""
        return self.folder / f"{number:012d}.db"

    def numbers(self) -> list[int]:
        """Return the segments that exist, oldest first."""
        try:
            names = os.listdir(self.folder)
        except OSError as error:
            raise TransientError(f"{self.folder}: the folder of the log cannot be read: {error.strerror}") from error
        return sorted(int(name[:12]) for name in names if len(name) == 15 and name.endswith(".db"))

    def append(self, entries: Sequence[Entry], now_ms: int) -> list[int]:
        """Append all entries in one transaction; return their offsets.

        Raises
        ------
        TransientError: nothing was appended (disk full, folder gone, lock held too long).
        """
        while True:
            segment, number = self._writable()
            try:
                segment.begin()
                if self.path(number + 1).exists():
                    continue
                if segment.size_bytes() >= self._segment_bytes and segment.newest_ms() is not None:
                    self._roll(segment, number)
                    continue
                offsets = segment.append(entries, now_ms)
                segment.commit()
                return offsets
            except Damaged as error:
                self._replace(number, error)
            finally:
                with contextlib.suppress(TransientError, Damaged):
                    segment.rollback()

    def seal(self, stored_before_ms: int | None = None) -> None:
        """Start a new file, unless the newest one is empty or holds a message stored at `stored_before_ms` or later."""
        segment, number = self._writable()
        try:
            segment.begin()
            newest = segment.newest_ms()
            old = newest is not None and (stored_before_ms is None or newest < stored_before_ms)
            if old and not self.path(number + 1).exists():
                self._roll(segment, number)
        finally:
            segment.rollback()

    def _roll(self, segment: Segment, number: int) -> None:
        # Under the write lock of the old file: nobody appends to it between reading its ends and the link.
        create(self.path(number + 1), segment.log_id, segment.ends())
        segment.rollback()
        segment.checkpoint()

    def _replace(self, number: int, error: Damaged) -> None:
        known = self._bases.get(number) or self._last_known(number)
        create(self.path(number + 1), self.incarnation, [base + DAMAGE_JUMP for base in known])
        self._forget(number)
        self._bases[number] = None
        logger.error("%s; new messages go to the next file, what was in it is lost", error)

    def _last_known(self, below: int) -> tuple[int, ...]:
        for number in reversed(self.numbers()):
            if number < below and (bases := self._base(number)):
                return bases
        return (0,) * self.partitions

    def _writable(self) -> tuple[Segment, int]:
        for _ in range(5):
            number = self.numbers()[-1] if self.numbers() else 0
            if number == 0:
                raise TransientError(f"{self.folder}: the files of this log were removed")
            segment = self._segment(number)
            if segment is not None:
                return segment, number
            if self.path(number).exists():
                self._replace(number, Damaged(f"{self.path(number)} is damaged"))
        raise TransientError(f"{self.folder}: the newest file of this log cannot be opened")

    def read(self, partition: int, offset: int, max_bytes: int) -> Read:
        """Read records of one partition from `offset` on, from one file; empty at the end of the log."""
        damaged = False
        starts = [(number, self.start_of(number, partition)) for number in self.numbers()]
        for index, (number, _) in enumerate(starts):
            end = next((start for _, start in starts[index + 1 :] if start is not None), None)
            if end is not None and offset >= end:
                continue
            records, lost = self._read_one(number, partition, offset, max_bytes)
            damaged = damaged or lost
            if records:
                return Read(records, records[-1].offset + 1, damaged)
            if end is None:
                break
            damaged = damaged or starts[index + 1][1] is None
            offset = end
        return Read((), offset, damaged)

    def _read_one(self, number: int, partition: int, offset: int, max_bytes: int) -> tuple[list[Record], bool]:
        segment = self._segment(number)
        if segment is None:
            return [], self.path(number).exists()
        try:
            records, lost = segment.read(partition, offset, max_bytes)
        except Damaged as error:
            logger.error("%s; its messages are skipped", error)
            self._forget(number)
            self._bases[number] = None
            return [], True
        if lost:
            logger.error("%s: %d messages of partition %d are damaged and skipped", segment.path, lost, partition)
        return records, lost > 0 or bool(records and records[0].offset > max(offset, segment.bases[partition]))

    def start_of(self, number: int, partition: int) -> int | None:
        """Return the first offset of a file, None when the file cannot be read."""
        bases = self._base(number)
        return bases[partition] if bases else None

    def file_end(self, number: int, partition: int) -> int | None:
        """Return where the next readable file after `number` starts, None when there is none."""
        for following in self.numbers():
            start = self.start_of(following, partition) if following > number else None
            if start is not None:
                return start
        return None

    def begin_offset(self, partition: int) -> int:
        """Return the oldest offset still kept."""
        for number in self.numbers():
            start = self.start_of(number, partition)
            if start is not None:
                return start
        raise TransientError(f"{self.folder}: no file of this log can be read")

    def ends(self) -> tuple[int, ...]:
        """Return the offset after the newest message of each partition."""
        for number in reversed(self.numbers()):
            segment = self._segment(number)
            if segment is not None:
                try:
                    return segment.ends()
                except Damaged as error:
                    logger.error("%s", error)
        raise TransientError(f"{self.folder}: no file of this log can be read")

    def offset_at(self, partition: int, timestamp_ms: int) -> int:
        """Return the first offset stored at or after a time; the end offset when there is none."""
        for number in self.numbers():
            segment = self._segment(number)
            if segment is None or (segment.newest_ms(partition) or -1) < timestamp_ms:
                continue
            found = segment.first_at(partition, timestamp_ms)
            if found is not None:
                return found
        return self.ends()[partition]

    def size_bytes(self) -> int:
        """Return the bytes of all files; the WAL of the newest one comes on top and is bounded."""
        numbers = self.numbers()
        total = 0
        for number in numbers[:-1]:
            with contextlib.suppress(FileNotFoundError):
                total += self.path(number).stat().st_size
        newest = self._segment(numbers[-1]) if numbers else None
        return total + (newest.size_bytes() if newest else 0)

    def apply_retention(self, now_ms: int, retention_ms: int | None, retention_bytes: int | None) -> int:
        """Delete sealed files that are too old or too much; return how many."""
        if retention_ms is not None:
            self.seal(now_ms - retention_ms)
        dropped = 0
        numbers = self.numbers()
        while len(numbers) > 1:
            oldest = numbers[0]
            segment = self._segment(oldest)
            newest = segment.newest_ms() if segment else None
            expired = retention_ms is not None and newest is not None and newest < now_ms - retention_ms
            if not expired and not (retention_bytes is not None and self.size_bytes() > retention_bytes):
                break
            self.drop(oldest)
            dropped += 1
            numbers = self.numbers()
        self._clean()
        return dropped

    def drop(self, number: int) -> None:
        """Delete one sealed file."""
        self._forget(number)
        try:
            remove(self.path(number))
        except OSError as error:
            raise explain(error, self.path(number)) from error

    def trim(self, partition: int, offset: int) -> None:
        """Delete sealed files that hold only messages before `offset` (for logs of one partition)."""
        for number in self.numbers():
            end = self.file_end(number, partition)
            if end is None or end > offset:
                break
            self.drop(number)

    def _clean(self) -> None:
        alive = {f"{number:012d}.db" for number in self.numbers()}
        for entry in os.scandir(self.folder):
            orphan = entry.name.endswith(("-wal", "-shm")) and entry.name[:15] not in alive
            with contextlib.suppress(OSError):
                # Of a process killed while it created or deleted a file; never one at work on it.
                if (orphan or entry.name.startswith(".new-")) and time.time() - entry.stat().st_mtime > _ABANDONED_S:
                    os.unlink(entry.path)

    def signature(self) -> tuple[object, ...]:
        """Return a value that changes when another process appended; costs two `stat` calls."""
        number = max(self._bases, default=0)
        try:
            wal = os.stat(f"{self.path(number)}-wal")
        except FileNotFoundError:
            return (number, self.path(number + 1).exists())
        return (number, self.path(number + 1).exists(), wal.st_size, wal.st_mtime_ns)

    def close(self) -> None:
        """Close all files."""
        for number in list(self._open):
            self._forget(number)

    def _base(self, number: int) -> tuple[int, ...] | None:
        if number not in self._bases:
            self._segment(number)
        return self._bases.get(number)

    def _segment(self, number: int) -> Segment | None:
        if number in self._open:
            segment = self._open.pop(number)
            self._open[number] = segment
            return segment
        if self._bases.get(number, ()) is None:
            return None
        try:
            segment = Segment(self.path(number), self._synchronous)
        except FileNotFoundError:
            self._bases.pop(number, None)
            return None
        except Damaged as error:
            logger.error("%s; its messages are skipped", error)
            self._bases[number] = None
            return None
        self._bases[number] = segment.bases
        self._open[number] = segment
        newest = max(self._open)
        for old in list(self._open)[: -_OPEN_SEALED - 1]:
            if old not in (newest, number) or not self.path(old).exists():
                self._forget(old)
        return segment

    def _forget(self, number: int) -> None:
        segment = self._open.pop(number, None)
        if segment is not None:
            segment.close()
