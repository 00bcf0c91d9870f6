"""Buttons that change something: they run on a click of a person who may, never because a page appeared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from dash import Dash, Input, Output, State, html

from flightwatch.core.errors import FlightwatchError
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.components.panels import failure
from flightwatch.dashboard.components.request import viewer
from flightwatch.dashboard.i18n import t
from flightwatch.pipeline.control.roles import Role

#: Does the work and returns what the page says about it.
Work = Callable[..., Any]


def action(app: Dash, button: Any, said: Any, role: Role, states: Sequence[State] = ()) -> Callable[[Work], Work]:
    """Return a decorator that makes a function the work of a button.

    The function gets the viewer and the values of `states`. It does not run when the button merely arrives with a
    page (`prevent_initial_call` does not stop that), and not for a person without the role: the callback is refused on
    the server, whatever the page shows.

    Parameters
    ----------
    button: id of the button, with `n_clicks`. said: id of the element whose children are what the function returns.
    """

    def wrap(work: Work) -> Work:
        @app.callback(Output(said, "children"), Input(button, "n_clicks"), *states, prevent_initial_call=True)
        @functools.wraps(work)
        def run(clicks: int | None, *values: Any) -> Any:
            if not clicks:
                return None
            person: Viewer = viewer()
            if not person.may_somewhere(role):
                return failure(t("action.denied", role=t(f"role.{role.value}")))
            try:
                return work(person, *values)
            except FlightwatchError as error:
                return failure(str(error))

        return work

    return wrap


def button(words: str, button_id: Any, role: Role, *, primary: bool = False, shortcut: str = "") -> html.Button:
    """Return the button of an action; it is off for people without the role, and says why."""
    allowed = viewer().may_somewhere(role)
    more = {"data-shortcut": shortcut} if shortcut else {}
    reason = {} if allowed else {"title": t("action.denied", role=t(f"role.{role.value}"))}
    return html.Button(
        words,
        id=button_id,
        n_clicks=0,
        disabled=not allowed,
        className="fw-button primary" if primary else "fw-button",
        **more,
        **reason,
    )
