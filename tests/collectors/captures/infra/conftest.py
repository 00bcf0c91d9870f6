"""Reading of the hand-written samples beside these tests."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from flightwatch.collectors.captures.base import Parser
from flightwatch.collectors.captures.registry import parsers
from flightwatch.core.protocols import CaptureContext, Note, Row

SAMPLES = Path(__file__).parent / "samples"


class Found:
    """Rows and notes of one capture, and who read it."""

    def __init__(self, parser: Parser, items: list[Row | Note]) -> None:
        self.parser = parser
        self.rows = [item for item in items if isinstance(item, Row)]
        self.notes = [item for item in items if isinstance(item, Note)]

    def of(self, table: str) -> list[dict]:
        return [row.values for row in self.rows if row.table == table]

    @property
    def errors(self) -> list[str]:
        return [f"{note.where}: {note.text}" for note in self.notes if note.level == "error"]

    @property
    def codes(self) -> list[object]:
        return [row["code"] for row in self.of("events")]

    def sensor(self, label: str, quantity: str) -> dict:
        return next(row for row in self.of("sensor_samples") if (row["label"], row["quantity"]) == (label, quantity))

    def said(self, words: str) -> bool:
        return any(words in note.text for note in self.notes)


def read_bytes(data: bytes, source: str = "") -> Found:
    parser = next(parser for parser in parsers() if parser.recognise(data[:65536]))
    return Found(parser, list(parser.parse(io.BytesIO(data), CaptureContext(source))))


@pytest.fixture
def sample() -> Callable[[str], Found]:
    """Read a file of `samples/` with the parser that recognises it."""
    return lambda name: read_bytes((SAMPLES / name).read_bytes(), name)


@pytest.fixture
def text() -> Callable[[str], Found]:
    """Read a text with the parser that recognises it."""
    return lambda words: read_bytes(words.encode())
