"""Slurm's node list expressions: "node[01-32,40],gpu-[1-2]" as names.

A range can name a billion nodes in twelve characters, so expansion stops at a limit before it builds anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flightwatch.core.errors import BadRecord

#: Most names one expression may have; larger than any cluster.
NODE_LIMIT = 65_536
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
#: What stands in a node name outside brackets.
_PLAIN = re.compile(r"[A-Za-z0-9._-]*")


def expand_nodes(expression: str, limit: int = NODE_LIMIT) -> list[str]:
    """Return the names of an expression in order.

    Raises
    ------
    BadRecord: the expression is malformed or names more than `limit` nodes.
    """
    names: list[str] = []
    for item in split_outside_brackets(expression):
        names.extend(_expand_item(item, limit - len(names)))
    return names


def split_outside_brackets(expression: str) -> Iterator[str]:
    """Yield the comma-separated items of an expression; commas in brackets do not separate."""
    depth, start = 0, 0
    for index, char in enumerate(expression):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        if depth not in (0, 1):
            raise BadRecord("brackets of the node list do not match")
        if char == "," and depth == 0:
            if expression[start:index].strip():
                yield expression[start:index].strip()
            start = index + 1
    if depth:
        raise BadRecord("a bracket of the node list is not closed")
    if expression[start:].strip():
        yield expression[start:].strip()


def _expand_item(item: str, room: int) -> list[str]:
    """Expand one item; several brackets ("rack[1-2]node[01-04]") multiply."""
    names = [""]
    for index, piece in enumerate(re.split(r"[\[\]]", item)):
        if index % 2 == 0:
            if not _PLAIN.fullmatch(piece):
                raise BadRecord(f"not a node name: {piece[:40]!r}")
            names = [name + piece for name in names]
            continue
        numbers = _numbers(piece, room // max(1, len(names)))
        if len(names) * len(numbers) > room:
            raise BadRecord(f"the node list names more than {NODE_LIMIT} nodes")
        names = [name + number for name in names for number in numbers]
    if len(names) > room:
        raise BadRecord(f"the node list names more than {NODE_LIMIT} nodes")
    return names


def _numbers(text: str, room: int) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise BadRecord(f"not a range of numbers: {part[:40]!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadRecord(f"the range {part[:40]} goes backwards")
        if len(found) + last - first + 1 > room:
            raise BadRecord(f"the node list names more than {NODE_LIMIT} nodes")
        width = len(match[1])
        found.extend(str(number).zfill(width) for number in range(first, last + 1))
    return found


def parse_indices(text: str, limit: int = 1024) -> list[int]:
    """Return the numbers of "0-3,5" (the IDX of a GRES); empty for N/A.

    Raises
    ------
    BadRecord: malformed, or more than `limit` numbers.
    """
    if text.strip().upper() in ("N/A", "", "NONE"):
        return []
    return [int(number) for number in _numbers(text, limit)]
