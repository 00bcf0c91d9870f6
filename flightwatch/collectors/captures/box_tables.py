"""Read the boxed tables that vendor tools print, by the words of their headers.

Such a table has a header of one to three lines, split into cells by `|`, each cell naming one or more
values (`Fan  Temp  Perf  Pwr:Usage/Cap`), and then groups of as many lines per device. Widths, order and
number of the named values differ between releases, so a cell is read with a pattern put together from the
words its own header cell shows; a word that is not known matches anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

#: Header words that are spelled alike by several vendors, and the pattern of the value below them.
COMMON_LABELS: dict[str, str] = {
    "gpu": r"(?P<index>\d{1,4})",
    "id": r"(?P<index>\d{1,4})",
    "card": r"(?P<index>\d{1,4})",
    "npu": r"(?P<index>\d{1,4})",
    "name": r"(?P<name>.+?)",
    "bus-id": r"(?P<bus>\S+)",
    "fan": r"(?P<fan>\S+)",
    "temp": r"(?P<temp>\S+)",
    "perf": r"(?P<perf>\S+)",
    "pwr:usage/cap": r"(?P<power>N/A|[^/|]*?)\s*/\s*(?P<cap>N/A|[^/|]*?)",
    "memory-usage": r"(?P<mem_used>N/A|[^/|]*?)\s*/\s*(?P<mem_total>N/A|[^/|]*?)",
    "gpu-util": r"(?P<util>\S+)",
    "compute m.": r"(?P<compute>.+?)",
}

_RULER = re.compile(r"\s*[+|]?[-=+|]{6,}\s*\Z")
_WORDS = re.compile(r"\S+")
#: A table of processes looks much like one of devices and is none.
_PROCESSES = re.compile(r"\bprocess(?:es)?\b|\bpid\b", re.IGNORECASE)
_CELLS_LIMIT = 32
_LINE_LIMIT = 2000
#: Header cells whose patterns are remembered while one capture is read.
_SEEN_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Found:
    """One group of table lines, or one line outside a table.

    Attributes
    ----------
    number: line number of the (first) line.
    line: the (first) line as it stands.
    cells: value name to text for a table group; None for a line outside.
    missing_lines: header lines for which the group had no line (the table is cut off).
    """

    number: int
    line: str
    cells: dict[str, str] | None = None
    missing_lines: int = 0


class _Header:
    def __init__(self) -> None:
        self.lines: list[list[re.Pattern[str]]] = []


def read_tables(lines: Iterable[tuple[int, str]], labels: Mapping[str, str]) -> Iterator[Found]:
    """Yield table groups and other lines in order.

    Parameters
    ----------
    lines: numbered lines.
    labels: lower-case header words to a pattern with named groups.
    """
    header: _Header | None = None
    in_header = in_processes = False
    known: dict[str, tuple[re.Pattern[str], int, int]] = {}
    group: list[tuple[int, str]] = []
    for number, line in lines:
        bare = line.rstrip()
        if _RULER.match(bare) and bare.strip("| \t"):
            yield from _flush(header, group)
            group = []
            in_header = False
            continue
        if "|" not in bare or len(bare) > _LINE_LIMIT:
            yield from _flush(header, group)
            group = []
            if in_header:
                header = None
            in_header = in_processes = False
            yield Found(number, bare)
            continue
        if in_processes or _PROCESSES.search(bare):
            yield from _flush(header, group)
            header, group, in_header, in_processes = None, [], False, True
            continue
        patterns = _header_line(bare, labels, 1 if in_header else 2, known)
        if patterns is not None and not group:
            if not in_header:
                header = _Header()
            in_header = True
            if header is not None:
                header.lines.append(patterns)
        elif header is None:
            yield Found(number, bare)
        else:
            in_header = False
            group.append((number, bare))
            if len(group) == len(header.lines):
                yield from _flush(header, group)
                group = []
    yield from _flush(header, group)


def _flush(header: _Header | None, group: list[tuple[int, str]]) -> Iterator[Found]:
    if header is None or not group:
        return
    cells: dict[str, str] = {}
    for patterns, (_, line) in zip(header.lines, group, strict=False):
        for pattern, text in zip(patterns, _segments(line), strict=False):
            match = pattern.fullmatch(text.strip())
            if match is not None:
                cells.update({name: value.strip() for name, value in match.groupdict().items() if value is not None})
    number, line = group[0]
    yield Found(number, line, cells, len(header.lines) - len(group))


def _segments(line: str) -> list[str]:
    inner = line.strip()
    return inner.removeprefix("|").removesuffix("|").split("|")[:_CELLS_LIMIT] if inner.startswith("|") else (
        line.split("|")[:_CELLS_LIMIT]
    )  # fmt: skip


def line_pattern(line: str, labels: Mapping[str, str], needed: int = 3) -> re.Pattern[str] | None:
    """Return the pattern of the lines below a header without cell borders; None when the line is no such header."""
    pattern, known, unknown = _cell_pattern(line[:_LINE_LIMIT].lower(), labels)
    return pattern if known >= needed and unknown <= known else None


def _header_line(
    line: str, labels: Mapping[str, str], needed: int, seen: dict[str, tuple[re.Pattern[str], int, int]]
) -> list[re.Pattern[str]] | None:
    patterns: list[re.Pattern[str]] = []
    known = unknown = 0
    for segment in _segments(line):
        cell = seen.get(segment)
        if cell is None:
            cell = _cell_pattern(segment.lower(), labels)
            if len(seen) < _SEEN_LIMIT:
                seen[segment] = cell
        pattern, hits, misses = cell
        patterns.append(pattern)
        known += hits
        unknown += misses
    return patterns if known >= needed and unknown <= known else None


def _cell_pattern(segment: str, labels: Mapping[str, str]) -> tuple[re.Pattern[str], int, int]:
    parts: list[str] = []
    used: set[str] = set()
    hits = misses = 0
    position = 0
    while (word := _WORDS.search(segment, position)) is not None:
        label = _label_at(segment, word.start(), labels)
        if label is None:
            misses += 1
            position = word.end()
            parts.append(r".*?")
            continue
        hits += 1
        position = word.start() + len(label)
        pattern = labels[label]
        names = set(re.findall(r"\?P<(\w+)>", pattern))
        parts.append(pattern if not names & used else r".*?")
        used |= names
    return re.compile(r"\s+".join(parts) if parts else r".*"), hits, misses


def _label_at(segment: str, start: int, labels: Mapping[str, str]) -> str | None:
    best: str | None = None
    for label in labels:
        if segment.startswith(label, start):
            end = start + len(label)
            if (end == len(segment) or segment[end].isspace()) and (best is None or len(label) > len(best)):
                best = label
    return best
