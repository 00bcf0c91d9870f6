"""Callbacks that read the store: what goes wrong is one sentence on the page, and the page goes on."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from dash import no_update

from flightwatch.core.errors import FlightwatchError
from flightwatch.core.logs import Occasionally
from flightwatch.dashboard.components.panels import failure

log = logging.getLogger(__name__)
_occasionally = Occasionally(10.0)


def safely(outputs: int, words_at: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a callback show a failed read in one of its outputs and leave the others as they are.

    Parameters
    ----------
    outputs: how many outputs it has.
    words_at: the output that can show the sentence (a `children`).
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except FlightwatchError as error:
                if _occasionally.due():
                    log.warning("a page could not be read: %s", error)
                shown: list[Any] = [no_update] * outputs
                shown[words_at] = failure(str(error))
                return tuple(shown) if outputs > 1 else shown[0]

        return guarded

    return wrap
