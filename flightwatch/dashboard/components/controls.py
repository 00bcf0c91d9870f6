"""Controls whose value is a part of the address: changing one changes the address, never more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html

from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t

#: (value, words) of one choice.
Choice = tuple[str, str]


def identity(name: str, default: str = "") -> dict[str, str]:
    """Return the id that ties a control to the address's parameter `name`; its default is left out there."""
    return {"type": "param", "name": name, "default": default}


def segments(view: View, name: str, choices: Sequence[Choice], label: str, default: str | None = None) -> Any:
    """Return a row of choices of which one is on."""
    values = [value for value, _ in choices]
    first = values[0] if default is None else default
    return dmc.SegmentedControl(
        id=identity(name, first),
        value=view.choice(name, tuple(values), first),
        data=[{"value": value, "label": words} for value, words in choices],
        size="xs",
        className="fw-segments",
        **{"aria-label": label},
    )


def select(view: View, name: str, choices: Sequence[Choice], label: str, default: str | None = None) -> Any:
    """Return a native menu: short to reach with a keyboard and on a phone."""
    values = [value for value, _ in choices]
    first = (values[0] if values else "") if default is None else default
    chosen = view.params.get(name, first)
    now = chosen if chosen in values else first
    return html.Select(
        [html.Option(words, value=value, selected=value == now) for value, words in choices],
        className="fw-select",
        **{"aria-label": label, "data-param": name, "data-default": first},
    )


def search(view: View, name: str = "q", label: str = "", width: int = 200) -> Any:
    """Return a text box that narrows what the page shows; `/` reaches it."""
    return html.Div(
        dmc.TextInput(
            id=identity(name),
            value=view.get(name),
            debounce=200,
            size="xs",
            w=width,
            placeholder=label or t("search"),
            **{"aria-label": label or t("search")},
        ),
        **{"data-search": "1"},
    )


def set_button(
    words: Any, changes: str, *, pressed: bool | None = None, class_name: str = "fw-chip", **more: Any
) -> Any:
    """Return a button that writes `changes` (JSON) into the address."""
    state = {} if pressed is None else {"aria-pressed": "true" if pressed else "false"}
    return html.Button(words, className=class_name, **{"data-action": "set", "data-set": changes, **state, **more})
