"""One segment of a local log: an SQLite file with messages of all partitions of one topic."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from flightwatch.core.errors import TransientError
from flightwatch.pipeline.bus.base import key_bytes, key_text
from flightwatch.pipeline.bus.folder import create_private, sync_folder

#: A row id is `partition << OFFSET_BITS | offset`: one b-tree, each partition a contiguous range.
OFFSET_BITS = 48
PAGE_BYTES = 16_384
#: Pages in the WAL (4 MB, 1 MB where disk is short) after which it is folded into the file.
_CHECKPOINT_PAGES = {"FULL": 256, "NORMAL": 64}
#: Bounds the time of one read transaction, which keeps the WAL from being reset.
_MOST_RECORDS = 20_000
_FORMAT = "1"
_SCHEMA = f"""
PRAGMA page_size={PAGE_BYTES};
PRAGMA journal_mode=WAL;
CREATE TABLE info (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE partitions (number INTEGER PRIMARY KEY, base INTEGER NOT NULL, next INTEGER NOT NULL, newest_ms INTEGER);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, stored_ms INTEGER NOT NULL, checksum INTEGER NOT NULL, key BLOB NOT NULL,
    value BLOB NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One message as stored."""

    offset: int
    stored_ms: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One message to append."""

    partition: int
    key: str
    value: bytes


class Damaged(Exception):
    """The file is not a readable segment."""


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    """Open an existing SQLite file of ours, tuned for large values and little memory."""
    connection = sqlite3.connect(
        f"file:{quote(os.fspath(path))}?mode=rw", uri=True, isolation_level=None, timeout=10.0, check_same_thread=False
    )
    connection.execute("PRAGMA cache_size=-1024")
    pages = _CHECKPOINT_PAGES[synchronous]
    connection.execute(f"PRAGMA wal_autocheckpoint={pages}")
    connection.execute(f"PRAGMA journal_size_limit={pages * PAGE_BYTES}")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    return connection


def explain(error: sqlite3.Error | OSError, path: Path) -> Exception:
    """Turn an SQLite or system error into one that says what the caller can do."""
    if isinstance(error, OSError):
        return TransientError(f"{path}: {error.strerror}")
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return Damaged(f"{path} is damaged: {error}")
    if name.startswith("SQLITE_FULL"):
        return TransientError(f"{path}: the disk is full")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return TransientError(f"{path}: another process has held the lock for more than 10 s")
    if name.startswith("SQLITE_READONLY"):
        return TransientError(f"{path}: the file or its folder cannot be written")
    if isinstance(error, sqlite3.OperationalError):
        return TransientError(f"{path}: {error}")
    return Damaged(f"{path} is damaged: {error}")


def create(path: Path, log_id: str, bases: Sequence[int]) -> bool:
    """Create a segment whole or not at all.

    Parameters
    ----------
    bases: first offset of each partition.

    Returns
    -------
    False when another process created it first; its content then counts.
    """
    temporary = path.with_name(f".new-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        create_private(temporary)
        connection = connect(temporary, "FULL")
        try:
            connection.executescript(_SCHEMA)
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO info VALUES (?, ?)", [("log_id", log_id), ("format", _FORMAT)])
            rows = [(number, base, base) for number, base in enumerate(bases)]
            connection.executemany("INSERT INTO partitions VALUES (?, ?, ?, NULL)", rows)
            connection.execute("COMMIT")
        finally:
            connection.close()  # The last close folds the WAL into the file, so that the link is complete.
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        sync_folder(path.parent)
        return True
    except (sqlite3.Error, OSError) as error:
        raise explain(error, path) from error
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{temporary}{suffix}").unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Delete a segment; readers that have it open keep reading it."""
    # The main file first: without it nobody opens a left-over WAL, and names are never used again.
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


class Segment:
    """An open segment. Not thread-safe.

    Parameters
    ----------
    synchronous: "FULL" (survives a power cut) or "NORMAL" (survives kill -9).

    Raises
    ------
    Damaged: not a segment. TransientError: cannot be opened now. FileNotFoundError: it was removed.
    """

    def __init__(self, path: Path, synchronous: str) -> None:
        if not path.exists():
            raise FileNotFoundError(path)
        self.path = path
        self._most_wal_bytes = 4 * _CHECKPOINT_PAGES[synchronous] * PAGE_BYTES
        try:
            self._connection = connect(path, synchronous)
            info = dict(self._connection.execute("SELECT name, value FROM info").fetchall())
            bases = self._connection.execute("SELECT base FROM partitions ORDER BY number").fetchall()
        except sqlite3.Error as error:
            if not path.exists():
                raise FileNotFoundError(path) from error
            if "no such table" in str(error):
                raise Damaged(f"{path} is damaged: {error}") from error
            raise explain(error, path) from error
        if info.get("format") != _FORMAT:
            self._connection.close()
            raise Damaged(f"{path} has log format {info.get('format')!r}, this program reads {_FORMAT!r}")
        self.log_id: str = info["log_id"]
        self.bases: tuple[int, ...] = tuple(base for (base,) in bases)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def begin(self) -> None:
        """Take the write lock."""
        self._run("BEGIN IMMEDIATE")

    def rollback(self) -> None:
        """Give the write lock back, writing nothing."""
        if self._connection.in_transaction:
            self._run("ROLLBACK")

    def commit(self) -> None:
        """Make what was appended durable; on an error nothing was."""
        self._run("COMMIT")
        self._bound_wal()

    def _bound_wal(self) -> None:
        """Wait for readers to let the WAL be reused once it is far beyond its goal; each holds it for < 1 s."""
        try:
            large = os.stat(f"{self.path}-wal").st_size > self._most_wal_bytes
        except FileNotFoundError:
            return
        if large:
            # What was committed is durable whatever happens here, so the caller must not hear of a failure.
            with contextlib.suppress(TransientError, Damaged):
                self._run("PRAGMA wal_checkpoint(RESTART)")

    def append(self, entries: Sequence[Entry], now_ms: int) -> list[int]:
        """Append inside the write lock; return the offsets."""
        following = list(self.ends())
        offsets, rows = [], []
        for entry in entries:
            offset = following[entry.partition]
            following[entry.partition] = offset + 1
            offsets.append(offset)
            row_id = entry.partition << OFFSET_BITS | offset
            rows.append((row_id, now_ms, zlib.crc32(entry.value), key_bytes(entry.key), entry.value))
        touched = {entry.partition for entry in entries}
        try:
            self._connection.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?)", rows)
            self._connection.executemany(
                "UPDATE partitions SET next = ?, newest_ms = max(?, ifnull(newest_ms, 0)) WHERE number = ?",
                [(following[number], now_ms, number) for number in touched],
            )
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
        return offsets

    def ends(self) -> tuple[int, ...]:
        """Return the offset after the newest message of each partition."""
        return tuple(row[0] for row in self._run("SELECT next FROM partitions ORDER BY number"))

    def newest_ms(self, partition: int | None = None) -> int | None:
        """Return the time of the newest message, None in an empty segment."""
        statement = "SELECT max(newest_ms) FROM partitions WHERE ?1 IS NULL OR number = ?1"
        newest: int | None = self._run(statement, (partition,))[0][0]
        return newest

    def size_bytes(self) -> int:
        """Return the size of the content, in the WAL or not."""
        return int(self._run("PRAGMA page_count")[0][0]) * PAGE_BYTES

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[list[Record], int]:
        """Return records from `offset` on (at least one when there is one) and how many were damaged."""
        low, high = partition << OFFSET_BITS | offset, (partition + 1) << OFFSET_BITS
        records: list[Record] = []
        damaged = total = 0
        try:
            cursor = self._connection.execute(
                "SELECT id, stored_ms, checksum, key, value FROM messages WHERE id >= ? AND id < ? ORDER BY id",
                (low, high),
            )
            try:
                for row_id, stored_ms, checksum, key, value in cursor:
                    if zlib.crc32(value) != checksum:
                        damaged += 1
                        continue
                    records.append(Record(row_id & (1 << OFFSET_BITS) - 1, stored_ms, key_text(key), value))
                    total += len(value)
                    if total >= max_bytes or len(records) >= _MOST_RECORDS:
                        break
            finally:
                cursor.close()  # Ends the read transaction, so that the WAL can be reset.
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
        return records, damaged

    def first_at(self, partition: int, timestamp_ms: int) -> int | None:
        """Return the first offset stored at or after a time, None when there is none."""
        rows = self._run(
            "SELECT min(id) FROM messages WHERE id >= ? AND id < ? AND stored_ms >= ?",
            (partition << OFFSET_BITS, (partition + 1) << OFFSET_BITS, timestamp_ms),
        )
        return None if rows[0][0] is None else rows[0][0] & (1 << OFFSET_BITS) - 1

    def checkpoint(self) -> None:
        """Fold the WAL into the file; a reader in the way only delays it."""
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")

    def _run(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[int, ...]]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
