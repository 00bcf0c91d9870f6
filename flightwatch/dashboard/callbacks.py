"""Requests of pages that no page of ours sends: answered with 400 before Dash stumbles over them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import flask
from dash import Dash

from flightwatch.dashboard.access.denied import error_body

_PATH = "/_dash-update-component"


def refuse_malformed(dash: Dash) -> None:
    """Let a Dash application answer malformed callback requests with 400 instead of 500."""

    def check() -> tuple[flask.Response, int] | None:
        request = flask.request
        if request.method != "POST" or not request.path.endswith(_PATH):
            return None
        try:
            body = json.loads(request.get_data())
        except (ValueError, RecursionError):
            body = None
        problem = problem_of(body, dash.callback_map)
        return None if problem is None else (flask.jsonify(error_body("malformed", problem)), 400)

    dash.server.before_request(check)


def problem_of(body: Any, callbacks: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return what is wrong with the body of a callback request, None when it fits one of the callbacks."""
    if not isinstance(body, dict) or not isinstance(body.get("output"), str):
        return "a callback request is an object with an output"
    known = callbacks.get(body["output"])
    if known is None:
        return "no callback has this output"
    changed = body.get("changedPropIds", [])
    if not isinstance(changed, list) or not all(isinstance(one, str) for one in changed):
        return "changedPropIds is a list of names"
    for part, declared in (("inputs", "inputs"), ("state", "state")):
        given = body.get(part, [])
        if not isinstance(given, list) or len(given) != len(known.get(declared, [])):
            return f"{part} do not fit the callback"
        if not all(_is_property(one) for one in given):
            return f"{part} are components with a property"
    outputs = body.get("outputs", [])
    every = outputs if isinstance(outputs, list) else [outputs]
    return None if all(_is_property(one) for one in every) else "outputs are components with a property"


def _is_property(one: Any) -> bool:
    """Say whether a value names a property of a component, or of all components that fit a pattern."""
    if isinstance(one, list):
        return all(isinstance(item, dict) and _is_property(item) for item in one)
    return isinstance(one, dict) and isinstance(one.get("property"), str) and isinstance(one.get("id"), (str, dict))
