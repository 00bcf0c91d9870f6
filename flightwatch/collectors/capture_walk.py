"""Walks files, folders and archives, and hands every capture in them to a reader.

Archives are streamed and never extracted; members are counted against a budget. A link, a device, a damaged
archive: each is a note, and the walk goes on.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol, cast

from flightwatch.collectors.captures import tar_stream, transcript, zip_members
from flightwatch.collectors.captures.base import StreamEnded, rejoin
from flightwatch.collectors.captures.memory_tree import FILE_LIMIT, MemoryTree, tree_name
from flightwatch.collectors.captures.plain_text import PlainText
from flightwatch.collectors.captures.unpacking import Budget, compression_of, member_path, unpacked
from flightwatch.core.errors import ConfigError
from flightwatch.core.protocols import Note, Row

#: Bytes from which a capture is recognised.
HEAD_BYTES = 1 << 16
#: Files looked at in one folder given by a person.
FOLDER_LIMIT = 200_000

#: Recorded /sys and /proc trees of one container, by the path before them.
_Trees = dict[str, MemoryTree]


@dataclass(frozen=True, slots=True)
class Item:
    """One row or note and the capture it came from ("bundle.tar.gz!node1/dmesg.txt")."""

    source: str
    what: Row | Note


class CaptureReader(Protocol):
    """What a walk asks about the captures that it finds."""

    def read_capture(self, source: str, head: bytes, stream: BinaryIO) -> Iterator[Row | Note]:
        """Read one capture.

        Parameters
        ----------
        source: where it is.
        head: its first HEAD_BYTES bytes, fewer when it is smaller.
        stream: all its bytes from the start; reading may raise StreamEnded, which is the walk's to tell.
        """

    def claims(self, name: str) -> bool:
        """Say whether a file ("sys/class/hwmon/hwmon0/temp1_input") belongs to a recorded tree."""

    def read_tree(self, source: str, tree: MemoryTree) -> Iterator[Row | Note]:
        """Read one recorded tree, made of the files that were claimed."""


class CaptureWalk:
    """One walk over any number of paths."""

    def __init__(self, reader: CaptureReader) -> None:
        self._reader = reader
        self._budget = Budget()
        self._malformed: dict[str, None] = {}

    @property
    def malformed(self) -> Sequence[str]:
        """Sources with an error note so far, in order."""
        return list(self._malformed)

    def run(self, paths: Iterable[str]) -> Iterator[Item]:
        """Yield all that the reader makes of paths ("-" is standard input) in order.

        Raises
        ------
        ConfigError: a path does not exist or cannot be read; nothing was read before it is raised.
        """
        given = list(paths)
        for path in given:
            _check(path)
        for path in given:
            self._budget = Budget()
            for item in self._path(path):
                if isinstance(item.what, Note) and item.what.level == "error":
                    self._malformed[item.source] = None
                yield item

    def _path(self, path: str) -> Iterator[Item]:
        if path == "-":
            with os.fdopen(os.dup(0), "rb") as stdin:
                yield from self._capture("-", stdin, 0)
        elif os.path.isdir(path):
            yield from self._folder(path)
        else:
            with open(path, "rb") as file:
                yield from self._capture(path, file, 0)

    # -- containers ------------------------------------------------------------------------------------------------

    def _folder(self, root: str) -> Iterator[Item]:
        trees: _Trees = {}
        top, count = os.path.basename(os.path.abspath(root)), 0
        for path, problem in _files_below(root):
            if problem:
                yield Item(path, Note("info", "", problem))
                continue
            count += 1
            if count > FOLDER_LIMIT:
                text = f"the folder holds more than {FOLDER_LIMIT} files; the rest was not read"
                yield Item(root, Note("warning", "", text))
                break
            try:
                with open(path, "rb", opener=_open_regular) as file:
                    yield from self._member(path, f"{top}/{os.path.relpath(path, root)}", file, trees, 0)
            except OSError as error:
                yield Item(path, Note("warning", "", f"cannot be read ({error.strerror or error})"))
        beside = os.path.dirname(os.path.abspath(root) if os.path.isabs(root) else os.path.normpath(root))
        yield from self._read_trees(trees, beside or ".", "/")

    def _tar(self, source: str, stream: BinaryIO, depth: int) -> Iterator[Item]:
        trees: _Trees = {}
        try:
            for member, content in tar_stream.members(stream):
                self._budget.spend_member()
                inner = f"{source}!{member.name}"
                if member.skipped:
                    yield Item(inner, Note("info", "", f"{member.skipped}, skipped"))
                else:
                    yield from self._member(inner, member.name, cast(BinaryIO, content), trees, depth)
        except StreamEnded:
            yield from self._read_trees(trees, source, "!")
            raise
        yield from self._read_trees(trees, source, "!")

    def _zip(self, source: str, archive: zipfile.ZipFile, depth: int) -> Iterator[Item]:
        trees: _Trees = {}
        for info in archive.infolist():
            if info.is_dir():
                continue
            self._budget.spend_member()
            name = member_path(info.filename)
            inner = f"{source}!{name}"
            if (skipped := zip_members.reason_to_skip(info)) is not None:
                yield Item(inner, skipped)
                continue
            try:
                with archive.open(info) as opened:
                    yield from self._member(inner, name, zip_members.content(opened, self._budget, info), trees, depth)
            except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
                yield Item(inner, Note("error", "", f"the member cannot be read ({error})"))
        yield from self._read_trees(trees, source, "!")

    # -- captures --------------------------------------------------------------------------------------------------

    def _capture(self, source: str, stream: BinaryIO, depth: int, inside: bool = False) -> Iterator[Item]:
        """Read one file: an archive, a compressed file or a capture. `inside`: directly inside a compression."""
        whole = rejoin(b"", stream)
        try:
            head = whole.read(HEAD_BYTES)
        except (StreamEnded, OSError) as error:
            yield Item(source, Note("error", "", str(error)))
            return
        whole = rejoin(head, whole)
        compression = compression_of(head)
        is_zip, is_tar = zip_members.is_zip(head), tar_stream.is_tar(head)
        level = depth if inside and is_tar else depth + 1
        if (compression or is_zip or is_tar) and level > self._budget.nesting:
            yield Item(source, Note("warning", "", f"archives nested deeper than {self._budget.nesting}; not read"))
            return
        try:
            if compression:
                yield from self._capture(source, unpacked(whole, compression, self._budget), level, True)
            elif is_tar:
                yield from self._tar(source, whole, level)
            elif is_zip:
                with zip_members.open_zip(whole, stream) as archive:
                    yield from self._zip(source, archive, level)
            else:
                yield from self._text(source, whole)
        except (StreamEnded, zipfile.BadZipFile, EOFError, OSError) as error:
            yield Item(source, Note("error", "", str(error) or "the archive ends early"))

    def _text(self, source: str, raw: BinaryIO) -> Iterator[Item]:
        """Read one capture, or each part of a shell session ("report.txt!nvidia-smi -q") as one."""
        text = PlainText(raw)
        head = text.stream.read(HEAD_BYTES)
        yield from self._parts(source, head, rejoin(head, text.stream))
        for note in text.notes:
            yield Item(source, note)

    def _parts(self, source: str, head: bytes, stream: BinaryIO) -> Iterator[Item]:
        if not transcript.holds_commands(head):
            for what in self._reader.read_capture(source, head, stream):
                yield Item(source, what)
            return
        seen: dict[str, int] = {}
        for command, part in transcript.parts(stream):
            start = part.read(HEAD_BYTES)
            if not start.strip():
                continue
            seen[command] = seen.get(command, 0) + 1
            inner = f"{source}!{command}" if command else source
            inner += f"#{seen[command]}" if seen[command] > 1 else ""
            for what in self._reader.read_capture(inner, start, rejoin(start, part)):
                yield Item(inner, what)

    def _member(self, source: str, name: str, stream: BinaryIO, trees: _Trees, depth: int) -> Iterator[Item]:
        """Keep a file that belongs to a recorded tree; read every other as a capture of its own."""
        split = tree_name(name)
        if split is None or not self._reader.claims(split[1]):
            yield from self._capture(source, stream, depth)
            return
        content = stream.read(FILE_LIMIT)
        while len(content) < FILE_LIMIT and (more := stream.read(FILE_LIMIT - len(content))):
            content += more
        trees.setdefault(split[0], MemoryTree()).add(split[1], content)

    def _read_trees(self, trees: _Trees, container: str, separator: str) -> Iterator[Item]:
        for root, tree in trees.items():
            source = f"{container}{separator}{root}" if root else container
            if tree.full:
                yield Item(source, Note("warning", "", "the recorded tree is too large; part of it was not read"))
            for what in self._reader.read_tree(source, tree):
                yield Item(source, what)


def _files_below(root: str) -> Iterator[tuple[str, str]]:
    """Yield (path, "") for regular files and (path, why it is skipped) for others, in sorted order."""
    pending = [root]
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            yield folder, f"the folder cannot be read ({error.strerror})"
            continue
        folders = []
        for entry in entries:
            if entry.is_symlink():
                yield entry.path, "a symbolic link, not followed"
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry.path, ""
            else:
                yield entry.path, "a device, pipe or socket, skipped"
        pending.extend(reversed(folders))


def _open_regular(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _check(path: str) -> None:
    if path == "-":
        return
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise ConfigError(f"{path}: not a file or folder")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{path}: no permission to read it")
