"""Finds the parser of each capture that a walk meets, and runs it."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import BinaryIO

from flightwatch.collectors.capture_walk import CaptureWalk, Item
from flightwatch.collectors.captures import registry
from flightwatch.collectors.captures.base import Parser, StreamEnded, TreeParser
from flightwatch.collectors.captures.host_prefix import by_host, first_host
from flightwatch.collectors.captures.last_line import RULES, WholeLines
from flightwatch.collectors.captures.memory_tree import MemoryTree
from flightwatch.collectors.captures.plain_text import document_start, is_document
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import ExitCode

_log = logging.getLogger(__name__)
#: Parsers that find something in almost any text.
_LOGS = frozenset(("log", "journal", "tool-failure"))
_SHOWN = 120
_HEAD = 1 << 16


class Inspection:
    """One run over any number of paths; the `CaptureReader` of its own walk.

    Parameters
    ----------
    at_ms: time of the captures, where they carry none.
    node: node name, where they carry none.

    Attributes
    ----------
    recognised: captures that a parser read, by parser name.
    unrecognised: sources that no parser recognised.
    empty: those of them that hold nothing at all.
    """

    def __init__(self, at_ms: int | None = None, node: str | None = None) -> None:
        self._at_ms, self._node = at_ms, node
        self._walk = CaptureWalk(self)
        self.recognised: dict[str, int] = {}
        self.unrecognised: list[str] = []
        self.empty: set[str] = set()

    @property
    def malformed(self) -> Sequence[str]:
        """Sources in which something could not be read."""
        return self._walk.malformed

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
        return self._walk.run(paths)

    def read_capture(self, source: str, head: bytes, stream: BinaryIO) -> Iterator[Row | Note]:
        """Yield what the first parser that recognises a capture makes of it."""
        if not head:
            self.unrecognised.append(source)
            self.empty.add(source)
            yield Note("warning", "", "the file is empty: nothing was captured")
            return
        printed = first_host(head)
        if printed is not None and (inside := _parser_for(printed)) is not None and inside.name not in _LOGS:
            yield from self._hosts(source, stream)
            return
        yield from self._one(source, head, stream)

    def _hosts(self, source: str, stream: BinaryIO) -> Iterator[Row | Note]:
        """Read what each host printed as a capture of its own."""
        parts, notes = by_host(stream)
        given = self._node
        for host, data in parts.items():
            self._node = host
            try:
                yield from self._one(source, data[:_HEAD], io.BytesIO(data))
            finally:
                self._node = given
        yield from notes

    def _one(self, source: str, head: bytes, stream: BinaryIO) -> Iterator[Row | Note]:
        parser, start = _parser_for(head), document_start(head)
        if start and (inner := _parser_for(head[start:])) is not None and _is_meant(inner, parser):
            shown = head[:start].decode("utf-8", "replace").strip().split("\n")[0][:_SHOWN]
            yield Note("warning", "line 1", f"text before the document was left out: {shown!r}")
            parser = inner
            stream.read(start)
        if parser is None:
            self.unrecognised.append(source)
            yield Note("warning", "", "not recognised as any supported capture")
            return
        yield from self._run(parser, source, partial(_parse, parser, head[start:], stream, self._context(source)))
        # A parser that reads whole documents got what there was; the end of the stream still has to be told.
        stream.read(1)

    def claims(self, name: str) -> bool:
        """Say whether a tree parser wants this file."""
        return any(parser.claims(name) for parser in registry.tree_parsers())

    def read_tree(self, source: str, tree: MemoryTree) -> Iterator[Row | Note]:
        """Yield what every tree parser that recognises a recorded tree makes of it."""
        names, recognised = tree.names, False
        for parser in registry.tree_parsers():
            if any(parser.claims(name) for name in names) and _recognises_tree(parser, names):
                recognised = True
                yield from self._run(parser, source, partial(parser.parse_tree, tree, self._context(source)))
        if not recognised:
            self.unrecognised.append(source)
            yield Note("warning", "", "a recorded tree that no parser recognised")

    def _context(self, source: str) -> CaptureContext:
        return CaptureContext(source, self._at_ms, self._node)

    def _run(
        self, parser: Parser | TreeParser, source: str, produce: Callable[[], Iterable[Row | Note]]
    ) -> Iterator[Row | Note]:
        self.recognised[parser.name] = self.recognised.get(parser.name, 0) + 1
        try:
            yield from produce()
        except StreamEnded:
            # What was parsed stays printed; the walk says what ended the stream.
            raise
        except Exception as error:  # the runner: one parser's fault must not end the inspection of a bundle
            _log.debug("parser %s failed on %s", parser.name, source, exc_info=True)
            yield Note("error", "", f"the {parser.name} parser failed ({type(error).__name__}); please report it")


def _is_meant(inner: Parser, outer: Parser | None) -> bool:
    """Say whether a file is a document with text before it rather than text with a document in it."""
    return inner.name not in _LOGS and (outer is None or outer is inner or outer.name in _LOGS)


def _parse(parser: Parser, head: bytes, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
    """Parse a capture without what its unfinished last line cannot tell."""
    rule = None if is_document(head) else RULES.get(parser.name)
    if rule is None:
        yield from parser.parse(stream, context)
        return
    lines = WholeLines(stream, rule)
    yield from parser.parse(lines.stream, context)
    if lines.note is not None:
        yield lines.note


def _parser_for(head: bytes) -> Parser | None:
    for parser in registry.parsers():
        try:
            if parser.recognise(head):
                return parser
        except Exception:  # the runner: a parser that fails to recognise must not hide the others
            _log.debug("parser %s failed to recognise", parser.name, exc_info=True)
    return None


def _recognises_tree(parser: TreeParser, names: Sequence[str]) -> bool:
    try:
        return parser.recognise_tree(names)
    except Exception:  # the runner, as above
        _log.debug("tree parser %s failed to recognise", parser.name, exc_info=True)
        return False
