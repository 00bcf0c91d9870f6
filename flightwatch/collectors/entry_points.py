"""Entry points of installed packages without importlib.metadata, which costs an agent 3 MB."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence


def find(group: str, path: Sequence[str] | None = None) -> Iterator[tuple[str, str, str]]:
    """Yield (name, module, attribute) of every entry point of a group, in order of path and package name.

    Reads `*.dist-info/entry_points.txt` in the folders of `path` (default: sys.path); packages inside
    archives are not seen.
    """
    for folder in sys.path if path is None else path:
        try:
            names = sorted(name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info")))
        except OSError:
            continue
        for name in names:
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), encoding="utf-8") as file:
                    text = file.read()
            except (OSError, UnicodeDecodeError):
                continue
            if group in text:
                yield from _section(text, group)


def _section(text: str, group: str) -> Iterator[tuple[str, str, str]]:
    inside = False
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and "=" in line and not line.startswith("#"):
            name, _, target = line.partition("=")
            module, _, attribute = target.partition("[")[0].strip().partition(":")
            if module and attribute:
                yield name.strip(), module.strip(), attribute.strip()
