"""Port counters under one set of column names, whatever the tool that printed them calls them.

A counter that no column takes is kept in `extra_counters` as `<source>.<name>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from flightwatch.collectors.captures.base import NOTE_LIMIT
from flightwatch.core.protocols import CaptureContext, Note, Value
from flightwatch.core.vocabulary import SATURATED_COUNTERS

#: Columns every port format shares: identity and the two maps.
IDENTITY = ("hca", "port", "link_layer", "state", "rate_gbps")
MAPS = ("extra", "extra_counters")

#: Words a tool prints instead of a number it does not have.
ABSENT_WORDS = frozenset({"", "n/a", "na", "none", "null", "-", "--", "unknown", "not supported", "nil"})

_U64 = 2**64 - 1
_DEVICE_NAME = re.compile(
    r"(?<![A-Za-z0-9])((?:mlx[45]_|bnxt_re|ionic_|irdma|hfi1_|qedr|erdma_|hns_|efa_)[0-9]+"
    r"|(?:en[opsx]|eth|swp|rdma|rdmap|roce[ops]|ibp|ibs|ib)[0-9][0-9a-z]*)(?![A-Za-z0-9])"
)


@dataclass(frozen=True)
class CounterNames:
    """How one family of tools names the counters of a port.

    Attributes
    ----------
    source: prefix of names in `extra_counters` ("ethtool", "rdma").
    choices: column to the names that can fill it, best first; the first one present does.
    words: names that count 4-byte words; the column holds bytes.
    sums: column to a pattern; the column holds the sum of all counters whose name matches, and wins over `choices`.
    """

    source: str
    choices: Mapping[str, tuple[str, ...]]
    words: frozenset[str] = frozenset()
    sums: Mapping[str, re.Pattern[str]] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns these names can fill."""
        return tuple(dict.fromkeys((*self.choices, *self.sums)))

    def values(self, counts: Mapping[str, int]) -> dict[str, Value]:
        """Return columns and `extra_counters` (what fills no column as it stands; None when empty)."""
        values: dict[str, Value] = {}
        used: set[str] = set()
        for column, pattern in self.sums.items():
            parts = [count for name, count in counts.items() if pattern.fullmatch(name)]
            if parts:
                values[column] = min(sum(parts), _U64)
        for column, names in self.choices.items():
            name = next((name for name in names if name in counts), None)
            if name is not None and column not in values:
                values[column] = _bytes_of_words(counts[name]) if name in self.words else counts[name]
                used.add(name)
        rest = {f"{self.source}.{name}": count for name, count in counts.items() if name not in used}
        values["extra_counters"] = rest or None
        return values


def _bytes_of_words(count: int) -> int:
    """Return bytes of a count of 4-byte words; a full register stays as it is, so that it is seen to be full."""
    return count if count in SATURATED_COUNTERS else min(count * 4, _U64)


@dataclass
class Counts:
    """Counters of one port by the tool's own names, and what was noted while reading them."""

    numbers: dict[str, int] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def read(self, name: str, value: object, where: str) -> None:
        """Take one counter as the tool printed it."""
        number, note = count_of(name, value, where)
        if number is not None:
            self.numbers[name] = number
        if note is not None and len(self.notes) <= NOTE_LIMIT:
            self.notes.append(note if len(self.notes) < NOTE_LIMIT else Note("info", where, "further notes left out"))


def count_of(name: str, value: object, where: str) -> tuple[int | None, Note | None]:
    """Read a counter; the note says why it is None, or that it is at its maximum."""
    if isinstance(value, bool) or value is None:
        return None, None
    if isinstance(value, int):
        number = value
    elif isinstance(value, str):
        text = value.strip()
        if text.lower() in ABSENT_WORDS or text.lower().startswith("n/a"):
            return None, Note("info", where, f"{name} is not available ({text or 'empty'})")
        if not (text.isascii() and text.isdigit()) or len(text) > 20:
            return None, Note("warning", where, f"{name} is not a count: {shown(text)}")
        number = int(text)
    elif isinstance(value, float) and value.is_integer() and 0 <= value < 2**53:
        number = int(value)
    else:
        return None, Note("warning", where, f"{name} is not a count: {shown(value)}")
    if not 0 <= number <= _U64:
        return None, Note("warning", where, f"{name} is not a 64-bit count: {shown(number)}")
    if number in SATURATED_COUNTERS:
        return number, Note("warning", where, f"{name} is saturated: the true count is at least {number}")
    return number, None


def shown(value: object) -> str:
    """Quote a value for a note: printable, at most 60 characters."""
    text = str(value)[:61]
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return f"'{printable[:60]}…'" if len(text) > 60 else f"'{printable}'"


def device_in_name(context: CaptureContext) -> str | None:
    """Return the adapter or interface that a capture's file name mentions, None when it names none or several.

    `ethtool -S` prints no interface name, and people put it in the file name.
    """
    stem = PurePosixPath(context.source.replace("!", "/")).name
    found = set(_DEVICE_NAME.findall(stem))
    return found.pop() if len(found) == 1 else None
