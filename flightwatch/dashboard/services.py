"""What the console needs from the process that serves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flightwatch.pipeline.store.client import Store

#: A JSON-ready picture of the running instance (see pipeline.status).
Status = Mapping[str, Any]


@dataclass(frozen=True)
class Services:
    """Handles given to pages and routes.

    Attributes
    ----------
    store: reads of measurements and history; thread-safe.
    status: returns the present state of the instance; must answer within a second.
    ready: returns None when the instance can serve, else one sentence saying what is missing.
    """

    store: Store
    status: Callable[[], Status]
    ready: Callable[[], str | None]
