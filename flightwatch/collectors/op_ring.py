"""The node's ring of full per-op detail: the last half hour of every rank here, bounded in bytes, on disk.

One set of segment files per user, so that a user who sends much pushes out his own past and nobody else's.
What cannot be written (a full disk) is dropped and counted; training and the rest of the agent do not notice.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator

from flightwatch.collectors.receiver_detail import Detail
from flightwatch.core.logs import Occasionally

logger = logging.getLogger(__name__)

#: A segment is closed after so long, or when it is a 32nd of the ring.
SEGMENT_SECONDS = 60.0
SEGMENTS = 32
#: Detail kept in memory between two writes.
MOST_WAITING_BYTES = 4_000_000
_NAME = re.compile(r"(\d{1,10})-(\d{1,15})\.ops")


class OpRing:
    """Segments in a folder of the agent's own.

    Parameters
    ----------
    most_bytes: size of all segments together.
    most_seconds: age after which a segment is removed.

    Attributes
    ----------
    dropped: steps that could not be written.
    """

    def __init__(self, folder: str, most_bytes: int, most_seconds: float) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._most_s = most_seconds
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._open: dict[int, str] = {}
        self._lock = threading.Lock()
        self._files = threading.Lock()
        self._trouble = Occasionally(300.0)
        self.dropped = 0

    def put(self, detail: Detail) -> None:
        """Take one step of one rank; it is written at the next `flush`."""
        line = detail.line()
        with self._lock:
            if self._waiting_bytes + len(line) > MOST_WAITING_BYTES:
                self.dropped += 1
                return
            self._waiting.append((detail.uid, line))
            self._waiting_bytes += len(line)

    def flush(self) -> None:
        """Write what waits and remove what is too old or too much."""
        with self._lock:
            waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        by_uid: dict[int, list[bytes]] = {}
        for uid, line in waiting:
            by_uid.setdefault(uid, []).append(line)
        with self._files:
            for uid, lines in by_uid.items():
                try:
                    self._append(uid, b"".join(lines))
                except OSError as error:
                    self.dropped += len(lines)
                    self._make_room(uid)
                    if self._trouble.due():
                        logger.warning("per-op detail cannot be kept in %s: %s", self._folder, error.strerror)
            self._evict()

    def _append(self, uid: int, content: bytes) -> None:
        """Add to the user's open segment. Raises OSError; what was written of the content is taken back."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        now_ms = time.time_ns() // 1_000_000
        name = self._open.get(uid)
        path = os.path.join(self._folder, name) if name is not None else ""
        if name is None or now_ms - _begun_ms(name) > SEGMENT_SECONDS * 1000 or self._is_full(path):
            path = self._new_segment(uid, now_ms)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            before = os.fstat(handle).st_size
            if os.write(handle, content) != len(content):
                os.ftruncate(handle, before)
                raise OSError(28, "No space left on device")
        finally:
            os.close(handle)

    def _new_segment(self, uid: int, now_ms: int) -> str:
        """Begin a segment, never one that is there: its last line may be half a line of an agent that was killed."""
        while os.path.exists(path := os.path.join(self._folder, f"{uid}-{now_ms}.ops")):
            now_ms += 1
        self._open[uid] = os.path.basename(path)
        return path

    def _is_full(self, path: str) -> bool:
        try:
            return os.stat(path).st_size >= self._most_bytes // SEGMENTS
        except OSError:
            return True

    def _make_room(self, uid: int) -> None:
        """Give up the user's oldest segment: its space is worth more to what comes now."""
        mine = [segment for segment in self._segments() if segment[0] == uid]
        if mine:
            self._remove(mine[0])

    def _segments(self) -> list[tuple[int, str, int, float]]:
        """Return uid, path, bytes and time of the last write of all segments, the oldest first."""
        found = []
        try:
            entries = list(os.scandir(self._folder))
        except OSError:
            return []
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is not None:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                found.append((int(match[2]), int(match[1]), entry.path, status.st_size, status.st_mtime))
        return [(uid, path, size, written_s) for _, uid, path, size, written_s in sorted(found)]

    def _evict(self) -> None:
        segments = self._segments()
        now_s = time.time()
        for segment in [one for one in segments if now_s - one[3] > self._most_s]:
            segments.remove(segment)
            self._remove(segment)
        while sum(size for _, _, size, _ in segments) > self._most_bytes:
            bytes_of: dict[int, int] = {}
            for uid, _, size, _ in segments:
                bytes_of[uid] = bytes_of.get(uid, 0) + size
            largest = max(bytes_of, key=lambda uid: bytes_of[uid])
            oldest = next(segment for segment in segments if segment[0] == largest)
            segments.remove(oldest)
            self._remove(oldest)

    def _remove(self, segment: tuple[int, str, int, float]) -> None:
        uid, path, _, _ = segment
        try:
            os.unlink(path)
        except OSError:
            logger.debug("%s could not be removed", path)
        if self._open.get(uid) == os.path.basename(path):
            del self._open[uid]

    @property
    def bytes(self) -> int:
        """Size of all segments."""
        return sum(size for _, _, size, _ in self._segments())

    def read(self, since_ms: int, until_ms: int) -> Iterator[Detail]:
        """Yield steps that began in [since_ms, until_ms], in the order in which they were written."""
        self.flush()
        for _, path, _, written_s in self._segments():
            # A step is written after it began, perhaps long after: only the lower bound excludes a segment.
            if written_s * 1000 < since_ms:
                continue
            try:
                with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                    for line in file:
                        detail = Detail.of_line(line)
                        if detail is not None and since_ms <= detail.ts <= until_ms:
                            yield detail
            except OSError:
                continue  # Evicted meanwhile.


def _begun_ms(name: str) -> int:
    match = _NAME.fullmatch(name)
    return int(match[2]) if match is not None else 0
