"""The API as one application below `/api/v1`: routes, errors, idempotency, its OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute

from flightwatch import __version__
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.api import (
    account,
    actions,
    alerts,
    channels,
    detectors,
    findings,
    fleet,
    hooks,
    incidents,
    live,
    profiles,
    reports,
    saved,
    silences,
    sql,
)
from flightwatch.dashboard.api import status as status_routes
from flightwatch.dashboard.api.errors import RESPONSES, add_handlers
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.repeats import HEADER, Repeats
from flightwatch.dashboard.api.routes import Needs
from flightwatch.dashboard.bodies import WholeBody
from flightwatch.dashboard.services import Services

PREFIX = "/api/v1"
LARGEST_BODY_BYTES = 1_000_000
_PARTS = (
    incidents, reports, silences, findings, actions, profiles, fleet, sql, status_routes, account, channels,
    detectors, alerts, saved, live,
)  # fmt: skip
_DESCRIPTION = (
    "Incidents, findings, silences, actions, profiles, devices, nodes, jobs, SQL. Log in at /login, or send a token:"
    " `Authorization: Bearer fw_...`. Writes of a browser carry its cookie `_csrf_token` in the header `X-CSRFToken`;"
    f" a write with the header `{HEADER}` is done once, however often it is sent."
)


def create_api(services: Services, access: AccessControl) -> FastAPI:
    """Build the application to be mounted at PREFIX, behind the gate; `state.routes` has its routes.

    Raises
    ------
    RuntimeError: a route does not say who may use it.
    """
    api = FastAPI(
        title="Flightwatch",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        responses=RESPONSES,
    )
    parts = Parts(services, access, access.clock)
    api.state.routes = []
    for part in _PARTS:
        router = part.routes(parts).router
        api.include_router(router)
        api.state.routes += router.routes
    api.include_router(hooks.router(parts))
    add_handlers(api, access)
    if services.control is not None:
        api.add_middleware(Repeats, control=services.control)
    api.add_middleware(WholeBody, largest_bytes=LARGEST_BODY_BYTES)
    for route in api.state.routes:
        if needs_of(route) is None:
            raise RuntimeError(f"the route {route.path} does not say who may use it")
    return api


def needs_of(route: APIRoute | APIWebSocketRoute) -> Needs | None:
    """Return what a route asks of a viewer, None when it asks nothing."""
    dependencies: list[Any] = getattr(route, "dependencies", [])
    return next((one.dependency for one in dependencies if isinstance(one.dependency, Needs)), None)
