"""The mark that tells our drains from those of people and other controllers, and what a node name is."""

from __future__ import annotations

import re

from flightwatch.incidents.contract import ActionRequest

MARK = "flightwatch:"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_LONGEST = 200


def is_node_name(name: str) -> bool:
    """Say whether a name may reach a scheduler at all."""
    return _NODE.fullmatch(name) is not None


def marked(request: ActionRequest) -> str:
    """Return the reason a scheduler keeps: our mark, the action, and why, in printable ASCII."""
    why = "".join(
        char if char.isascii() and char.isprintable() and char not in "\"'`$\\|" else " " for char in request.reason
    )
    return f"{MARK}{request.id} {' '.join(why.split())}"[:_LONGEST]


def is_ours(reason: str) -> bool:
    """Say whether a reason carries our mark."""
    return reason.startswith(MARK)
