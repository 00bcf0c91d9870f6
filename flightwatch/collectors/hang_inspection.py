"""Walks files, folders and archives for hang evidence only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from flightwatch.collectors.captures.hang_files import HangFiles
from flightwatch.collectors.inspect import Inspection, Item
from flightwatch.core.hang_evidence import HangEvidence
from flightwatch.core.vocabulary import ExitCode


class HangInspection(Inspection):
    """The walk of `inspect` (limits, archives, damage), with dumps, logs, RAS output and stacks as its only captures.

    Attributes
    ----------
    evidence: complete once `collect` has returned.
    """

    def __init__(self) -> None:
        super().__init__()
        self._files = HangFiles()

    @property
    def evidence(self) -> HangEvidence:
        """What was found."""
        return self._files.evidence

    def collect(self, paths: Iterable[str]) -> list[Item]:
        """Read everything; return the notes about what could not be read.

        Raises
        ------
        ConfigError: a path does not exist or cannot be read.
        """
        return list(self.run(paths))

    @property
    def exit_code(self) -> ExitCode:
        """MALFORMED when a dump or archive was damaged, UNRECOGNISED when there was no evidence, else DONE."""
        if self.malformed:
            return ExitCode.MALFORMED
        return ExitCode.DONE if self._files.recognised else ExitCode.UNRECOGNISED

    def _keep_tree(self, trees: object, name: str, stream: BinaryIO) -> bool:
        return False

    def _single(self, source: str, head: bytes, whole: BinaryIO) -> Iterator[Item]:
        before = len(self._files.notes)
        self._files.read(source, head, whole)
        for name, note in self._files.notes[before:]:
            if note.level == "error":
                self.malformed.append(name)
            yield Item(name, note)
