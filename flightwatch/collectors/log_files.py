"""New lines of log files (fabric manager, syslog, job logs) as `events` and `training_scalars`, across rotation.

Reading begins at the end of a file that is seen for the first time, goes on where it stopped after a
restart of the agent, finishes a rotated file before its successor, and starts again in a truncated one.
Scalars are taken only from the files that `training_log_files` names and only while one job alone owns this
node's devices: otherwise nothing says whose they are, and where the probe runs it measures them. Timers are
not taken, since a log does not say whose rank they are.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flightwatch.collectors.environment import Environment
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import CaptureContext, Row

if TYPE_CHECKING:
    from flightwatch.collectors.captures.text_log import LogLines

#: Bytes read from one file in one call; the rest is read in the next.
READ_BYTES = 1 << 20
#: Longest line waited for; a longer one is taken in pieces.
LINE_BYTES = 1 << 16
#: Files followed at once.
FILE_LIMIT = 256


@dataclass(slots=True)
class _Followed:
    """One open file."""

    descriptor: int
    inode: int
    offset: int
    lines: LogLines
    is_training: bool = False
    rest: bytes = b""
    number: int = 0


@dataclass(slots=True)
class _Positions:
    """Where reading stopped, by path: (inode, offset)."""

    path: str
    known: dict[str, tuple[int, int]] = field(default_factory=dict)

    def load(self) -> None:
        try:
            with open(self.path, encoding="utf-8") as file:
                stored = json.load(file)
            self.known = {str(path): (int(inode), int(offset)) for path, (inode, offset) in stored.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self.known = {}

    def save(self, positions: dict[str, tuple[int, int]]) -> None:
        if positions == self.known:
            return
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump(positions, file)
        os.replace(self.path + ".new", self.path)
        self.known = dict(positions)


class LogFilesCollector:
    """Follows the files that the settings `log_files` and `training_log_files` name."""

    name = "logs"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.sysfs_interval_seconds
        self._environment = environment
        self._training = environment.settings.training_log_files
        self._patterns = (*environment.settings.log_files, *self._training)
        self._live = environment.live
        self._files: dict[str, _Followed] = {}
        self._positions = (
            _Positions(os.path.join(environment.state_dir, "log_positions")) if environment.state_dir else None
        )
        self._loaded = False

    def collect(self, now_ms: int) -> Iterator[Row]:
        """Read what is new. Raises NoData when no file is named or none exists."""
        if not self._patterns or not self._live:
            raise NoData("no log file is named in the settings")
        if not self._loaded and self._positions is not None:
            self._positions.load()
        paths = sorted({path for pattern in self._patterns for path in glob.glob(pattern)})[:FILE_LIMIT]
        if not paths and not self._files:
            raise NoData("no file matches the setting log_files")
        rows: list[Row] = []
        for path in paths:
            rows.extend(self._follow(path, now_ms))
        for path in [path for path in self._files if path not in paths]:
            rows.extend(self._finish(path, now_ms))
        self._loaded = True
        self._environment.devices.fill(rows)
        if self._positions is not None:
            self._positions.save({path: (f.inode, f.offset - len(f.rest)) for path, f in self._files.items()})
        return iter(rows)

    def close(self) -> None:
        """Let go of all files."""
        for followed in self._files.values():
            os.close(followed.descriptor)
        self._files.clear()

    def _follow(self, path: str, now_ms: int) -> Iterator[Row]:
        try:
            status = os.stat(path)
        except OSError:
            return
        followed = self._files.get(path)
        if followed is not None and followed.inode != status.st_ino:
            yield from self._finish(path, now_ms)
            followed = self._open(path, at_end=False)
        elif followed is None:
            followed = self._open(path, at_end=not self._loaded)
        if followed is None:
            return
        if status.st_size < followed.offset:
            followed.offset, followed.rest = 0, b""
        yield from self._read(followed, now_ms)

    def _open(self, path: str, at_end: bool) -> _Followed | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        status = os.fstat(descriptor)
        known = self._positions.known.get(path) if self._positions is not None else None
        if known is not None and known[0] == status.st_ino and known[1] <= status.st_size:
            offset = known[1]
        else:
            # A file that was there before us is old news; one that appears later is new from its start.
            offset = status.st_size if at_end and known is None else 0
        # The parsers' patterns cost 2 MB that an agent without log files need not spend.
        from flightwatch.collectors.captures.text_log import LogLines

        is_training = any(fnmatch.fnmatchcase(path, pattern) for pattern in self._training)
        followed = _Followed(descriptor, status.st_ino, offset, LogLines(CaptureContext(path)), is_training)
        self._files[path] = followed
        return followed

    def _finish(self, path: str, now_ms: int) -> Iterator[Row]:
        followed = self._files.pop(path)
        yield from self._read(followed, now_ms)
        if followed.rest:
            yield from self._lines(followed, [followed.rest], now_ms)
        yield from self._kept(followed, followed.lines.flush(), now_ms)
        os.close(followed.descriptor)

    def _read(self, followed: _Followed, now_ms: int) -> Iterator[Row]:
        data = os.pread(followed.descriptor, READ_BYTES, followed.offset)
        if not data:
            return
        followed.offset += len(data)
        lines = (followed.rest + data).split(b"\n")
        followed.rest = lines.pop()
        if len(followed.rest) > LINE_BYTES:
            lines.append(followed.rest)
            followed.rest = b""
        yield from self._lines(followed, lines, now_ms)
        # What one read brought is one story: nothing waits for lines that may never come.
        yield from self._kept(followed, followed.lines.flush(), now_ms)

    def _lines(self, followed: _Followed, lines: list[bytes], now_ms: int) -> Iterator[Row]:
        from flightwatch.collectors.captures.log_prefix import split

        for line in lines:
            followed.number += 1
            prefix = split(line[:LINE_BYTES].decode("utf-8", "replace").rstrip("\r"), now_ms)
            if not prefix.zone_known:
                # The writer's zone is not known, but the line was written just now.
                prefix.ts_ms = None
            yield from self._kept(followed, followed.lines.feed(followed.number, prefix), now_ms)

    def _kept(self, followed: _Followed, items: Iterator[object], now_ms: int) -> Iterator[Row]:
        for item in items:
            if not isinstance(item, Row):
                continue
            values = item.values
            if item.table == "training_scalars":
                owner = self._environment.owners.only_job() if followed.is_training else None
                if owner is None or values.get("step") is None or values.get("value") is None:
                    continue
                values["job"], values["run"] = owner
            elif item.table != "events":
                continue
            if values.get("ts") is None:
                values["ts"] = now_ms
            # The file is on this node, whatever name its writer used for it.
            values.pop("node", None)
            yield item
