"""The viewer of the request that a Dash callback or a route answers."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, cast

import flask

from flightwatch.core.errors import Refused
from flightwatch.dashboard.access.viewer import Viewer

STATE_KEY = "viewer"


def current_viewer() -> Viewer:
    """Return who caused the running Dash callback or layout function.

    Raises
    ------
    Refused: no request runs on this thread, or it did not pass the gate.
    """
    if not flask.has_request_context():
        raise Refused("nobody is asking: this runs outside of a request")
    return viewer_of(cast("Mapping[str, Any]", flask.request.environ.get("asgi.scope") or {}))


def viewer_of(scope: Mapping[str, Any]) -> Viewer:
    """Return the viewer that the gate put into an ASGI scope.

    Raises
    ------
    Refused: the request did not pass the gate.
    """
    viewer = (scope.get("state") or {}).get(STATE_KEY)
    if not isinstance(viewer, Viewer):
        raise Refused("this request did not pass the gate")
    return viewer


def put_viewer(scope: MutableMapping[str, Any], viewer: Viewer) -> None:
    """Put the viewer into an ASGI scope; only the gate calls it."""
    scope["state"] = {**(scope.get("state") or {}), STATE_KEY: viewer}
