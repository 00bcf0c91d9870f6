"""Every setting that the configuration offers is read somewhere."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import flightwatch
from flightwatch.cli.sections import all_sections

PACKAGE = Path(flightwatch.__file__).parent


def _words_read() -> set[str]:
    """Return attributes and whole texts of the code; a field's declaration is neither."""
    words: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    return words


def test_no_setting_is_without_effect() -> None:
    words = _words_read()
    unread = [
        f"{section}.{field.name}"
        for section, kind in all_sections().items()
        for field in dataclasses.fields(kind)
        if field.name not in words
    ]
    assert not unread, f"declared and read by nobody: {', '.join(unread)}"


def test_every_setting_says_what_it_means() -> None:
    silent = [
        f"{section}.{field.name}"
        for section, kind in all_sections().items()
        for field in dataclasses.fields(kind)
        if not field.metadata.get("meaning")
    ]
    assert not silent
