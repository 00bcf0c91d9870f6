"""Reads the look-alike captures of this folder: fixtures `sample` (by file name) and `text` (given lines)."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.captures import registry
from flightwatch.core.protocols import CaptureContext, Note, Row

SAMPLES = Path(__file__).parent / "samples"


class Found:
    """What the parser that recognises some bytes makes of them."""

    def __init__(self, data: bytes, at_ms: int | None = None, node: str | None = None) -> None:
        parser = next(parser for parser in registry.parsers() if parser.recognise(data[:65536]))
        self.parser = parser.name
        items = list(parser.parse(io.BytesIO(data), CaptureContext("x", at_ms, node)))
        self.rows = [item for item in items if isinstance(item, Row)]
        self.notes = [item for item in items if isinstance(item, Note)]

    def of(self, table: str) -> list[dict[str, Any]]:
        """Values of a table's rows."""
        return [row.values for row in self.rows if row.table == table]

    @property
    def codes(self) -> list[str]:
        """Codes of all events in order."""
        return [event["code"] for event in self.of("events")]

    def event(self, code: str, index: int = 0) -> dict[str, Any]:
        """The n-th event with a code."""
        return [event for event in self.of("events") if event["code"] == code][index]

    def scalar(self, step: int | None, name: str) -> Any:
        """A training scalar."""
        return next(r["value"] for r in self.of("training_scalars") if (r["step"], r["name"]) == (step, name))


@pytest.fixture
def sample() -> Callable[..., Found]:
    """Read a file of `samples/`."""
    return lambda name, **arguments: Found((SAMPLES / name).read_bytes(), **arguments)


@pytest.fixture
def text() -> Callable[..., Found]:
    """Read a few lines."""
    return lambda lines, **arguments: Found(lines.encode(), **arguments)
