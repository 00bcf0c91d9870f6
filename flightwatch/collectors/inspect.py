"""Walks files, folders and archives, finds the parser of each capture, and runs it.

Archives are streamed and never extracted; members are counted against a budget. A member that no parser
recognises, a link, a device, a damaged archive: each is a note, and the walk goes on.
"""

from __future__ import annotations

import io
import logging
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from flightwatch.collectors.captures import registry, tar_stream
from flightwatch.collectors.captures.base import Parser, StreamEnded, TreeParser, rejoin
from flightwatch.collectors.captures.memory_tree import FILE_LIMIT, MemoryTree, tree_name
from flightwatch.collectors.captures.unpacking import (
    Budget,
    DamagedStream,
    LimitExceeded,
    compression_of,
    unpacked,
)
from flightwatch.core.errors import ConfigError
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import ExitCode

HEAD_BYTES = 1 << 16
#: Files looked at in one folder given by a person.
FOLDER_LIMIT = 200_000
#: Largest zip inside another archive (it has to be held in memory), in bytes.
INNER_ZIP_LIMIT = 64 << 20
#: Largest table of contents of a zip, in bytes.
ZIP_CONTENTS_LIMIT = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Item:
    """One row or note and the capture it came from ("bundle.tar.gz!node1/dmesg.txt")."""

    source: str
    what: Row | Note


@dataclass(slots=True)
class _Trees:
    """Recorded /sys and /proc trees of one container, by the path before them."""

    by_root: dict[str, MemoryTree] = field(default_factory=dict)


class Inspection:
    """One run over any number of paths.

    Parameters
    ----------
    at_ms: time of the captures, where they carry none.
    node: node name, where they carry none.

    Attributes
    ----------
    recognised: captures that a parser read, by parser name.
    malformed: sources in which something could not be read.
    unrecognised: sources that no parser recognised.
    """

    def __init__(self, at_ms: int | None = None, node: str | None = None) -> None:
        self._at_ms, self._node = at_ms, node
        self.recognised: dict[str, int] = {}
        self.malformed: list[str] = []
        self.unrecognised: list[str] = []
        self._budget = Budget()

    @property
    def exit_code(self) -> ExitCode:
        """MALFORMED when a recognised capture was malformed, UNRECOGNISED when there was none, else DONE."""
        if self.malformed:
            return ExitCode.MALFORMED
        return ExitCode.DONE if self.recognised else ExitCode.UNRECOGNISED

    def run(self, paths: Iterable[str]) -> Iterator[Item]:
        """Inspect paths ("-" is standard input) in order.

        Raises
        ------
        ConfigError: a path does not exist or cannot be read; nothing was inspected before it is raised.
        """
        given = list(paths)
        for path in given:
            _check(path)
        for path in given:
            self._budget = Budget()
            if path == "-":
                with os.fdopen(os.dup(0), "rb") as stdin:
                    yield from self._capture("-", stdin, 0)
            elif os.path.isdir(path):
                yield from self._folder(path)
            else:
                with open(path, "rb") as file:
                    yield from self._capture(path, file, 0)

    # -- folders ---------------------------------------------------------------------------------------------------

    def _folder(self, root: str) -> Iterator[Item]:
        trees, top, count = _Trees(), os.path.basename(os.path.abspath(root)), 0
        for path, problem in _walk(root):
            if problem:
                yield Item(path, Note("info", "", problem))
                continue
            count += 1
            if count > FOLDER_LIMIT:
                yield Item(
                    root, Note("warning", "", f"the folder holds more than {FOLDER_LIMIT} files; the rest was not read")
                )
                break
            inner = f"{top}/{os.path.relpath(path, root)}"
            try:
                with open(path, "rb", opener=_open_regular) as file:
                    if not self._keep_tree(trees, inner, file):
                        yield from self._capture(path, file, 0)
            except OSError as error:
                yield Item(path, Note("warning", "", f"cannot be read ({error.strerror or error})"))
        yield from self._trees(
            trees, os.path.dirname(os.path.abspath(root)) if os.path.isabs(root) else _parent(root), "/"
        )

    # -- captures and containers -----------------------------------------------------------------------------------

    def _capture(self, source: str, stream: BinaryIO, depth: int, inside: bool = False) -> Iterator[Item]:
        """Read one file: an archive, a compressed file or a capture. `inside`: directly inside a compression."""
        whole = rejoin(b"", stream)
        try:
            head = whole.read(HEAD_BYTES)
        except (StreamEnded, OSError) as error:
            yield self._damage(source, str(error))
            return
        whole = rejoin(head, whole)
        compression = compression_of(head)
        is_zip, is_tar = head.startswith(b"PK\x03\x04"), tar_stream.is_tar(head)
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
                yield from self._zip(source, whole, stream, level)
            else:
                yield from self._single(source, head, whole)
        except (StreamEnded, zipfile.BadZipFile, EOFError, OSError) as error:
            yield self._damage(source, str(error) or "the archive ends early")

    def _damage(self, source: str, text: str) -> Item:
        self.malformed.append(source)
        return Item(source, Note("error", "", text))

    def _tar(self, source: str, stream: BinaryIO, depth: int) -> Iterator[Item]:
        trees = _Trees()
        try:
            for member, content in tar_stream.members(stream):
                self._budget.spend_member()
                inner = f"{source}!{member.name}"
                if member.skipped:
                    yield Item(inner, Note("info", "", f"{member.skipped}, skipped"))
                elif not self._keep_tree(trees, member.name, cast(BinaryIO, content)):
                    yield from self._capture(inner, cast(BinaryIO, content), depth)
        except StreamEnded:
            yield from self._trees(trees, source, "!")
            raise
        yield from self._trees(trees, source, "!")

    def _zip(self, source: str, whole: BinaryIO, stream: BinaryIO, depth: int) -> Iterator[Item]:
        seekable = stream if _seekable(stream) else io.BytesIO(_inner_zip(whole))
        _check_zip(seekable)
        trees = _Trees()
        with zipfile.ZipFile(seekable) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                self._budget.spend_member()
                name = "/".join(part for part in info.filename.split("/") if part not in ("", ".", ".."))
                inner = f"{source}!{name}"
                kind = info.external_attr >> 16
                if kind and not stat.S_ISREG(kind) and stat.S_IFMT(kind):
                    yield Item(inner, Note("info", "", "a link or device, skipped"))
                elif info.flag_bits & 1:
                    yield Item(inner, Note("warning", "", "the member is encrypted; not read"))
                else:
                    yield from self._zip_member(archive, info, inner, name, trees, depth)
        yield from self._trees(trees, source, "!")

    def _zip_member(
        self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, inner: str, name: str, trees: _Trees, depth: int
    ) -> Iterator[Item]:
        try:
            with archive.open(info) as opened:
                counted = cast(BinaryIO, _Counted(cast(BinaryIO, opened), self._budget, max(info.compress_size, 1)))
                if not self._keep_tree(trees, name, counted):
                    yield from self._capture(inner, counted, depth)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
            yield self._damage(inner, f"the member cannot be read ({error})")

    # -- parsers ---------------------------------------------------------------------------------------------------

    def _single(self, source: str, head: bytes, whole: BinaryIO) -> Iterator[Item]:
        if not head:
            self.unrecognised.append(source)
            yield Item(source, Note("warning", "", "the file is empty: nothing was captured"))
            return
        parser = _parser_for(head)
        if parser is None:
            self.unrecognised.append(source)
            yield Item(source, Note("warning", "", "not recognised as any supported capture"))
            return
        self.recognised[parser.name] = self.recognised.get(parser.name, 0) + 1
        context = CaptureContext(source, self._at_ms, self._node)
        yield from self._run(source, parser.name, parser.parse(whole, context))
        # A parser that reads whole documents got what there was; the end of the stream still has to be told.
        whole.read(1)

    def _run(self, source: str, name: str, produced: Iterable[Row | Note]) -> Iterator[Item]:
        failed = False
        try:
            for what in produced:
                failed = failed or (isinstance(what, Note) and what.level == "error")
                yield Item(source, what)
        except StreamEnded:
            # What was parsed stays printed; the caller says what ended the stream.
            raise
        except Exception as error:  # the runner: one parser's fault must not end the inspection of a bundle
            _log.debug("parser %s failed on %s", name, source, exc_info=True)
            failed = True
            yield Item(
                source, Note("error", "", f"the {name} parser failed ({type(error).__name__}); please report it")
            )
        if failed:
            self.malformed.append(source)

    def _keep_tree(self, trees: _Trees, name: str, stream: BinaryIO) -> bool:
        """Keep a file that belongs to a recorded /sys or /proc tree; False when it is a capture of its own."""
        split = tree_name(name)
        if split is None or not any(parser.claims(split[1]) for parser in registry.tree_parsers()):
            return False
        content = stream.read(FILE_LIMIT)
        while len(content) < FILE_LIMIT and (more := stream.read(FILE_LIMIT - len(content))):
            content += more
        trees.by_root.setdefault(split[0], MemoryTree()).add(split[1], content)
        return True

    def _trees(self, trees: _Trees, container: str, separator: str) -> Iterator[Item]:
        for root, tree in trees.by_root.items():
            source = f"{container}{separator}{root}" if root else container
            names, claimed = tree.names, set()
            if tree.full:
                yield Item(source, Note("warning", "", "the recorded tree is too large; part of it was not read"))
            for parser in registry.tree_parsers():
                mine = [name for name in names if parser.claims(name)]
                if mine and _recognises_tree(parser, names):
                    claimed.update(mine)
                    self.recognised[parser.name] = self.recognised.get(parser.name, 0) + 1
                    context = CaptureContext(source, self._at_ms, self._node)
                    yield from self._run(source, parser.name, parser.parse_tree(tree, context))
            if names and not claimed:
                self.unrecognised.append(source)
                yield Item(source, Note("warning", "", "a recorded tree that no parser recognised"))


class _Counted:
    """A zip member's stream that counts against the budget."""

    def __init__(self, stream: BinaryIO, budget: Budget, packed: int) -> None:
        self._stream, self._budget, self._packed, self._out = stream, budget, packed, 0

    def read(self, size: int = -1) -> bytes:
        """Read like a file. Raises LimitExceeded."""
        try:
            data = self._stream.read(HEAD_BYTES if size is None or size < 0 else min(size, HEAD_BYTES))
        except (zlib.error, lzma.LZMAError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise DamagedStream(f"the member is damaged ({error})") from None
        self._out += len(data)
        self._budget.spend(len(data), self._out, self._packed)
        return data


def _parser_for(head: bytes) -> Parser | None:
    for parser in registry.parsers():
        try:
            if parser.recognise(head):
                return parser
        except Exception:  # the runner: a parser that fails to recognise must not hide the others
            _log.debug("parser %s failed to recognise", parser.name, exc_info=True)
    return None


def _recognises_tree(parser: TreeParser, names: Iterable[str]) -> bool:
    try:
        return parser.recognise_tree(list(names))
    except Exception:  # the runner, as above
        _log.debug("tree parser %s failed to recognise", parser.name, exc_info=True)
        return False


def _walk(root: str) -> Iterator[tuple[str, str]]:
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


def _parent(path: str) -> str:
    parent = os.path.dirname(os.path.normpath(path))
    return parent or "."


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


def _seekable(stream: BinaryIO) -> bool:
    try:
        if not stream.seekable():
            return False
        stream.seek(0)
    except (AttributeError, OSError, ValueError):
        return False
    return True


def _inner_zip(whole: BinaryIO) -> bytes:
    data = b""
    parts: list[bytes] = []
    size = 0
    while data := whole.read(HEAD_BYTES):
        parts.append(data)
        size += len(data)
        if size > INNER_ZIP_LIMIT:
            raise LimitExceeded("a zip inside another archive is larger than 64 MB; not read")
    return b"".join(parts)


def _check_zip(stream: BinaryIO) -> None:
    """Refuse a zip whose table of contents alone would fill memory."""
    stream.seek(0, os.SEEK_END)
    size = stream.tell()
    stream.seek(max(0, size - 66_000))
    tail = stream.read(66_000)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        raise DamagedStream("the zip archive has no table of contents (truncated)")
    entries, contents = struct.unpack_from("<HI", tail, at + 10)
    if contents > ZIP_CONTENTS_LIMIT or entries == 0xFFFF:
        raise LimitExceeded("the archive has more than 10,000 members; not read")
    stream.seek(0)
