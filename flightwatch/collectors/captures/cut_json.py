"""What is complete in a JSON text that was cut off."""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},"]', re.DOTALL)


def complete_part(text: str, start: int, deepest: int) -> Any | None:
    """Return a truncated document without its last, incomplete record; None when no record is complete.

    Records are the members of the document, or of a list directly inside it ({"gpu_data": [{...}, ...]}). The
    cut is made behind a comma or a bracket, so that no half-printed number is kept.
    """
    stack: list[str] = []
    cut, closers = 0, ""
    for token in _TOKEN.finditer(text, start):
        mark = token[0]
        if mark in "[{":
            if len(stack) > deepest:
                return None
            stack.append("]" if mark == "[" else "}")
        elif mark == '"':
            break  # the string that was cut off
        elif mark in "]}" and (not stack or stack.pop() != mark):
            return None
        if mark in ("]", "}", ",") and (len(stack) == 1 or (len(stack) == 2 and stack[1] == "]")):
            cut, closers = token.start() if mark == "," else token.end(), "".join(reversed(stack))
    if not cut:
        return None
    try:
        return json.loads(text[start:cut] + closers)
    except (ValueError, RecursionError):
        return None
