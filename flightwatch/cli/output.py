"""What commands that ask a running instance share about their output: text for people, JSON for programs."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Sequence

#: Below this many columns a terminal is not wrapped for.
_NARROWEST = 40


def add_format(parser: argparse.ArgumentParser, choices: Sequence[str] = ("text", "json"), text: str = "") -> None:
    """Declare `--format`, the first choice its default, and `--json` as its short form."""
    said = text or "json: one object a line"
    parser.add_argument("--format", choices=choices, default=choices[0], help=f"{said} (default: {choices[0]})")
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")


def fitted(line: str, indent: str = "  ") -> str:
    """Return a line wrapped to the terminal, further lines indented; as it is where nobody looks (a pipe, a file)."""
    if not sys.stdout.isatty():
        return line
    width = shutil.get_terminal_size().columns
    if width < _NARROWEST:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True, replace_whitespace=False,
    )  # fmt: skip
