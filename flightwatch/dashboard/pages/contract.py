"""What a page is: one module with a path, a name, a layout and its callbacks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import unquote

from dash import Dash

from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.services import Services

_PART = re.compile(r"<(\w+)>")


class Page(Protocol):
    """The contract of a module in `pages/`.

    Attributes
    ----------
    PATH: path below the console's prefix; `<name>` captures one part.
    NAME: key of its title in the words of the console.
    IN_MENU: whether the header links to it.
    KEY: letter that opens it after `g`; empty for none.
    """

    PATH: str
    NAME: str
    IN_MENU: bool
    KEY: str

    def layout(self, view: View, services: Services) -> Any:
        """Return the page for a state of its address, without data: callbacks bring it."""

    def register(self, app: Dash, services: Services) -> None:
        """Add the page's callbacks."""


def captured(pattern: str, path: str) -> Mapping[str, str] | None:
    """Return the parts of `path` that `pattern` names; None when it is another page's path.

    A trailing slash does not matter; captured parts are unquoted.
    """
    expression = "".join(
        f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part) for index, part in enumerate(_PART.split(pattern))
    )
    match = re.fullmatch(expression.rstrip("/") + "/?", path)
    return {name: unquote(value) for name, value in match.groupdict().items()} if match else None
