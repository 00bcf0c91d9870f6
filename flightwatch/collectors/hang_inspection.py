"""Walks files, folders and archives for hang evidence only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from flightwatch.collectors.capture_walk import CaptureWalk, Item
from flightwatch.collectors.captures.hang_files import HangFiles
from flightwatch.collectors.captures.memory_tree import MemoryTree
from flightwatch.core.hang_evidence import HangEvidence
from flightwatch.core.protocols import Note
from flightwatch.core.vocabulary import ExitCode


class HangInspection:
    """The walk of `inspect` (limits, archives, damage) whose only captures are dumps, logs, RAS output and stacks.

    It is the `CaptureReader` of its own walk.
    """

    def __init__(self) -> None:
        self._walk = CaptureWalk(self)
        self._files = HangFiles()

    @property
    def evidence(self) -> HangEvidence:
        """What was found; complete once `collect` has returned."""
        return self._files.evidence

    @property
    def exit_code(self) -> ExitCode:
        """MALFORMED when a dump or archive was damaged, UNRECOGNISED when there was no evidence, else DONE."""
        if self._walk.malformed:
            return ExitCode.MALFORMED
        return ExitCode.DONE if self._files.recognised else ExitCode.UNRECOGNISED

    def collect(self, paths: Iterable[str]) -> list[Item]:
        """Read everything; return the notes about what could not be read.

        Raises
        ------
        ConfigError: a path does not exist or cannot be read.
        """
        return list(self._walk.run(paths))

    def read_capture(self, source: str, head: bytes, stream: BinaryIO) -> Iterator[Note]:
        """Take the evidence of one file; yield what could not be read of it."""
        before = len(self._files.notes)
        self._files.read(source, head, stream)
        yield from (note for _, note in self._files.notes[before:])

    def claims(self, name: str) -> bool:
        """Return False: recorded trees hold no evidence."""
        return False

    def read_tree(self, source: str, tree: MemoryTree) -> Iterator[Note]:
        """Yield nothing: no tree is ever claimed."""
        yield from ()
