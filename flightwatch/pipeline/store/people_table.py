"""A result drawn as text for a terminal."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

_CELL_WIDTH = 60


def drawn(answer: bytes) -> bytes:
    """Draw rows as a text table: numbers to the right, NULL as NULL, control characters escaped.

    Parameters
    ----------
    answer: names, types and rows in JSONCompactEachRowWithNamesAndTypes.
    """
    lines = [json.loads(line) for line in answer.decode("utf-8", "replace").splitlines()]
    names, kinds, rows = lines[0], lines[1], lines[2:]
    numeric = [bool(re.match(r"(Nullable\()?(U?Int|Float|Decimal)", kind)) for kind in kinds]
    cells = [[_cell(value) for value in row] for row in rows]
    header = [_cell(name) for name in names]
    widths = [max([_width(row[i]) for row in [header, *cells]]) for i in range(len(names))]
    out = ["  ".join(_padded(text, width, False) for text, width in zip(header, widths, strict=True)).rstrip()]
    out.append("  ".join("-" * width for width in widths))
    for row in cells:
        out.append("  ".join(_padded(*cell) for cell in zip(row, widths, numeric, strict=True)).rstrip())
    out.append(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")
    return ("\n".join(out) + "\n").encode()


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if unicodedata.category(c)[0] != "C" else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= _CELL_WIDTH else text[: _CELL_WIDTH - 1] + "…"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space
