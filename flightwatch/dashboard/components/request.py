"""Who asks, in which theme, below which prefix: what the present request says."""

from __future__ import annotations

import flask

from flightwatch.dashboard.access.current import current_viewer
from flightwatch.dashboard.access.viewer import Viewer

__all__ = ["cookie", "link", "theme", "viewer"]


def viewer() -> Viewer:
    """Return who asks. Raises Refused outside of a request that passed the gate."""
    return current_viewer()


def cookie(name: str, allowed: tuple[str, ...], default: str) -> str:
    """Return a cookie of the request if it is one of the values allowed."""
    if not flask.has_request_context():
        return default
    value = flask.request.cookies.get(name, default)
    return value if value in allowed else default


def theme() -> str:
    """Return "dark" or "light"; dark when the person never chose: most look at it at night."""
    return cookie("fw_theme", ("dark", "light"), "dark")


def link(path: str) -> str:
    """Return the address of one of the console's paths, below the prefix under which it is served."""
    prefix = flask.request.environ.get("SCRIPT_NAME", "") if flask.has_request_context() else ""
    return f"{prefix}{path}"
