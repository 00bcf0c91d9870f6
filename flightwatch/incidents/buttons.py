"""What a button in a chat message carries, and how its service proves who pressed it.

A value names an action, its target, the incident's revision and when the message was sent; it is short enough for
every service (Telegram: 64 bytes). It is no secret: what makes a press valid is the service's signature, a known
person behind the account, and that person's role.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Do = Literal["ack", "silence", "approve", "reject"]
_VALUE = re.compile(r"(ack|silence|approve|reject):([A-Za-z0-9._-]{1,36}):(\d{1,9}):(\d{1,12})")


@dataclass(frozen=True, slots=True)
class Press:
    """A button that was pressed.

    Attributes
    ----------
    do: ack and silence act on an incident, approve and reject on an action.
    target: id of the incident or action. revision: of the incident when the message was sent.
    sent_at_s: when the message was sent, seconds since the epoch.
    """

    do: Do
    target: str
    revision: int
    sent_at_s: int


def button_value(do: Do, target: str, revision: int, sent_at_ms: int) -> str:
    """Return the value of a button."""
    return f"{do}:{target}:{revision}:{sent_at_ms // 1000}"


def parse_button(value: object) -> Press | None:
    """Return the press of a button's value, None when it is not one of ours."""
    match = _VALUE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    return Press(match[1], match[2], int(match[3]), int(match[4]))  # type: ignore[arg-type]
