"""Types of what callers send: bounded texts without control characters, times, pages and cursors."""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import StringConstraints

from flightwatch.dashboard.access.denied import Denied

#: Text of several lines. NUL cannot be stored; other control characters would forge lines where they are shown.
_FREE = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$"
_LINE = r"^[^\x00-\x1f\x7f]*$"
#: 1970 to 2100: what every clock and both databases can hold.
_LATEST_MS = 4_102_444_800_000

Word = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_LINE)]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=_LINE)]
Note = Annotated[str, StringConstraints(min_length=1, max_length=10_000, pattern=_FREE)]
Id = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f/\\]+$")]
Words = Annotated[list[Word], Query(max_length=50)]
Limit = Annotated[int, Query(ge=1, le=1000, description="items on a page")]
Cursor = Annotated[str, Query(min_length=1, max_length=1000, pattern=_LINE, description="`next_cursor` of a page")]
Moment = Annotated[datetime, Query(description="ISO-8601; without a zone: UTC")]


def moment_ms(moment: datetime | None, where: str) -> int | None:
    """Return a time in milliseconds since the epoch. Raises Denied (422) outside of 1970 to 2100."""
    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    try:
        found = round(aware.timestamp() * 1000)
    except (OverflowError, ValueError) as error:
        raise Denied(422, "invalid", f"{where} is not a time between 1970 and 2100", where) from error
    if not 0 <= found <= _LATEST_MS:
        raise Denied(422, "invalid", f"{where} is not a time between 1970 and 2100", where)
    return found


def cursor_of(*values: Any) -> str:
    """Return an opaque cursor after an item with these sort keys."""
    return base64.urlsafe_b64encode(json.dumps(values, separators=(",", ":")).encode()).decode().rstrip("=")


def parse_cursor(text: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Undo `cursor_of`, None for None. Raises Denied (422) when it is not a cursor with such keys."""
    if text is None:
        return None
    try:
        values = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise _no_cursor() from error
    fits = isinstance(values, list) and len(values) == len(kinds)
    if not fits or not all(type(value) is kind for value, kind in zip(values, kinds, strict=True)):
        raise _no_cursor()
    if any(isinstance(value, int) and not -(2**62) < value < 2**62 for value in values):
        raise _no_cursor()
    if any(isinstance(value, str) and ("\x00" in value or not value.isprintable()) for value in values):
        raise _no_cursor()
    return tuple(values)


def _no_cursor() -> Denied:
    return Denied(422, "invalid", "the cursor is not one that this list gave", "cursor")
