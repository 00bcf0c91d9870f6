"""Read the Prometheus text format and OpenMetrics, as exporters really print them.

Own reader because a scrape of a broken exporter must still give its good lines: leading tabs, spaces in
labels, types apart from their samples, missing final newline and foreign lines are accepted; the usual
client libraries reject the whole document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from flightwatch.collectors.captures.base import NOTE_LIMIT, Lines, to_float, to_int
from flightwatch.core.protocols import Note

_LABEL = re.compile(r'\s*([A-Za-z_][\w.:]{0,200})\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,?)', re.ASCII)
_NAME = re.compile(r"[ \t]*([A-Za-z_:][\w:.]{0,300})\s*", re.ASCII)
_COMMENT = re.compile(r"[ \t]*#\s*(HELP|TYPE|UNIT)\s+([A-Za-z_:][\w:.]{0,300})\s*(.*)", re.ASCII)
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
_ESCAPE = re.compile(r'\\[n"\\]')
_LINE_LIMIT = 32_768
_FAMILIES_LIMIT = 20_000
_LABELS_LIMIT = 64


@dataclass(slots=True)
class Family:
    """What the comments say about a metric: type (counter, gauge, ...), help text, unit."""

    kind: str = ""
    help: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample line.

    Attributes
    ----------
    value: an int where the text is a whole number (64-bit counters stay exact), else a float; None for NaN.
    at_ms: the sample's own time; None when it has none. Text-format times are milliseconds, OpenMetrics
        times are seconds: a number below 1e11 is read as seconds.
    """

    name: str
    labels: dict[str, str]
    value: int | float | None
    at_ms: int | None
    line: int


@dataclass
class Exposition:
    """An exposition while it is read: families so far, and what could not be read."""

    families: dict[str, Family] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    bad_lines: int = 0

    def family(self, name: str) -> Family:
        """Return what is known about a metric, by its own name or that of its family (`_total`, `_sum`)."""
        found = self.families.get(name)
        if found is None:
            for suffix in ("_total", "_count", "_sum", "_bucket", "_info", "_created"):
                if name.endswith(suffix) and (found := self.families.get(name.removesuffix(suffix))) is not None:
                    break
        return found or Family()

    def samples(self, stream: BinaryIO) -> Iterator[Sample]:
        """Yield the samples in order; unreadable lines go to `notes`."""
        lines = Lines(stream)
        for number, line in lines:
            text = line.strip()
            if not text:
                continue
            if text.startswith("#"):
                self._comment(text)
                continue
            sample = parse_sample(text, number) if len(text) <= _LINE_LIMIT else None
            if sample is not None:
                yield sample
                continue
            self.bad_lines += 1
            if self.bad_lines <= NOTE_LIMIT:
                self.notes.append(Note("error", f"line {number}", "not a sample line; skipped"))
        if self.bad_lines > NOTE_LIMIT:
            self.notes.append(Note("error", "", f"{self.bad_lines - NOTE_LIMIT} more lines were not samples"))
        self.notes.extend(lines.notes)

    def _comment(self, text: str) -> None:
        match = _COMMENT.match(text)
        if match is None or (match[2] not in self.families and len(self.families) >= _FAMILIES_LIMIT):
            return
        family = self.families.setdefault(match[2], Family())
        if match[1] == "TYPE":
            family.kind = match[3].strip().lower()
        elif match[1] == "HELP":
            family.help = match[3].strip()[:500]
        else:
            family.unit = match[3].strip()[:40]


def parse_sample(text: str, line: int) -> Sample | None:
    """Read one sample line; None when it is not one."""
    name = _NAME.match(text)
    if name is None:
        return None
    position = name.end()
    labels: dict[str, str] = {}
    if position < len(text) and text[position] == "{":
        position += 1
        while (label := _LABEL.match(text, position)) is not None and len(labels) < _LABELS_LIMIT:
            labels[label[1]] = _ESCAPE.sub(lambda match: _ESCAPES[match[0]], label[2])
            position = label.end()
        rest = text[position:].lstrip()
        if not rest.startswith("}"):
            return None
        tail = rest[1:]
    else:
        tail = text[position:]
    words = tail.split("#", 1)[0].split()
    if not 1 <= len(words) <= 2:
        return None
    known, value = _value(words[0])
    at_ms = _time(words[1]) if len(words) == 2 else None
    if not known or (len(words) == 2 and at_ms is None):
        return None
    return Sample(name[1], labels, value, at_ms, line)


def _value(word: str) -> tuple[bool, int | float | None]:
    if word.lower() in ("nan", "+nan", "-nan"):
        return True, None
    if word.lower() in ("+inf", "inf", "-inf"):
        return True, float(word)
    whole = to_int(word) if not word.lower().startswith("0x") else None
    if whole is not None:
        return True, whole
    number = to_float(word)
    return number is not None, number


def _time(word: str) -> int | None:
    number = to_float(word)
    if number is None or abs(number) > 1e16:
        return None
    return round(number if abs(number) >= 1e11 else number * 1000)
