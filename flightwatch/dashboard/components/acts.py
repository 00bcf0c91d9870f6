"""Forms with which a person changes something. They post to the API from the browser (`assets/writes.js`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from flightwatch.dashboard.i18n import t


def act_form(
    path: str,
    fields: Sequence[Any],
    submit: str,
    *,
    body: Mapping[str, Any] | None = None,
    tone: str = "",
    shortcut: str = "",
    disabled: bool = False,
    **more: Any,
) -> html.Form:
    """Return a form that posts its fields and `body` as JSON to `path`.

    Parameters
    ----------
    fields: see `field`, `note_field`. submit: words on the button. tone: "danger" or "primary".
    shortcut: key that presses the button.
    more: attributes of `assets/writes.js` with underscores for dashes (`data_each`, `data_confirm`, ...).
    """
    keys = {"data-shortcut": shortcut, "aria-keyshortcuts": shortcut} if shortcut else {}
    button = html.Button(submit, type="submit", className=f"fw-button {tone}", disabled=disabled, **keys)
    attributes = {name.replace("_", "-"): value for name, value in more.items()}
    return html.Form(
        [*fields, button], className="fw-act",
        **{"data-post": path, "data-body": json.dumps(dict(body or {})), **attributes},
    )  # fmt: skip


def field(
    name: str, label: str, *, kind: str = "text", as_: str = "", value: str = "", required: bool = True, **more: Any
) -> html.Label:
    """Return a labelled input; `as_` says how its text travels (number, hours, list, json)."""
    box = dcc.Input(
        name=name, type=kind, value=value, className="fw-input", autoComplete="off", required=required, **more
    )
    return html.Label([html.Span(label), html.Span(box, **({"data-as": as_} if as_ else {}))], className="fw-field")


def note_field(name: str, label: str, *, rows: int = 2) -> html.Label:
    """Return a labelled box for a longer text."""
    return html.Label(
        [html.Span(label), html.Textarea(name=name, rows=rows, className="fw-input", maxLength=4000)],
        className="fw-field",
    )


def choice_field(
    name: str, label: str, choices: Sequence[tuple[str, str]], chosen: str, as_: str = "", *, raw: bool = False
) -> html.Label:
    """Return a labelled menu of (value, words); `raw`: the words are those of the API, the same in every language."""
    options = [html.Option(words, value=value, selected=value == chosen) for value, words in choices]
    more = ({"data-as": as_} if as_ else {}) | ({"data-raw": "1"} if raw else {})
    menu = html.Select(options, name=name, className="fw-select", **more)
    return html.Label([html.Span(label), menu], className="fw-field")


def hours_field(name: str = "expires_at", chosen: str = "4") -> html.Label:
    """Return a menu of durations that travels as the moment at which they end."""
    hours = ("1", "4", "12", "24", "72", "168")
    return choice_field(name, t("act.for"), [(one, t("act.hours", n=one)) for one in hours], chosen, "hours")


def drop_down(words: str, *inside: Any, tone: str = "", note: str = "") -> html.Details:
    """Return a button that opens a small form below it."""
    shown = html.Summary(words, className=f"fw-button {tone}")
    hint = [html.P(note, className="fw-dim")] if note else []
    return html.Details([shown, html.Div([*hint, *inside], className="fw-drop")], className="fw-drop-down")


def not_allowed(words: str) -> html.P:
    """Return what stands in the place of a form for somebody who may not use it."""
    return html.P(words, className="fw-dim")


def copy_button(words: str, text: str) -> html.Button:
    """Return a button that copies a text, such as the SQL of a panel."""
    return html.Button(words, className="fw-chip", **{"data-action": "copy-text", "data-text": text})
