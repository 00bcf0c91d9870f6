"""Routes that say who may use them: one cannot be made without a role and a scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import HTTPConnection

from flightwatch.dashboard.access.current import viewer_of
from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.pipeline.control.roles import Role

ROLE_KEY, SCOPE_KEY = "x-flightwatch-role", "x-flightwatch-scope"
Handler = Callable[..., Any]


class Needs:
    """Dependency that lets a viewer through who has a role (everywhere or for some tenant) and a scope.

    Whether the role covers the very thing asked for is checked by the route, which knows its tenant.
    """

    def __init__(self, role: Role, scope: str) -> None:
        self.role, self.scope = role, scope

    async def __call__(self, connection: HTTPConnection) -> None:
        """Raise Denied (403) when the viewer may not."""
        viewer = viewer_of(connection.scope)
        if not viewer.has_scope(self.scope):
            raise Denied(403, "forbidden", f"this token lacks the scope {self.scope}")
        if not viewer.may_somewhere(self.role):
            raise Denied(403, "forbidden", f"this needs the role {self.role.value}; yours is {viewer.role.value}")


async def _asker(connection: HTTPConnection) -> Viewer:
    return viewer_of(connection.scope)


Asker = Annotated[Viewer, Depends(_asker)]


def check_tenant(viewer: Viewer, role: Role, tenant: str | None) -> None:
    """Refuse a write to what belongs to a tenant for whom the viewer lacks a role. Raises Denied (403)."""
    if not viewer.may(role, tenant):
        whose = f"of tenant {tenant}" if tenant is not None else "that belongs to the whole cluster"
        raise Denied(403, "forbidden", f"this needs the role {role.value} for a thing {whose}")


class Routes:
    """Collects the routes of one part of the API.

    Parameters
    ----------
    tag: heading in the OpenAPI document.

    Attributes
    ----------
    router: to be included.
    """

    def __init__(self, tag: str) -> None:
        self.router = APIRouter(tags=[tag])

    def get(self, path: str, role: Role, scope: str = "read", **more: Any) -> Callable[[Handler], Handler]:
        """Declare a read."""
        return self._route("GET", path, role, scope, more)

    def post(self, path: str, role: Role, scope: str = "write", **more: Any) -> Callable[[Handler], Handler]:
        """Declare a write, or a read with a body."""
        return self._route("POST", path, role, scope, more)

    def put(self, path: str, role: Role, scope: str = "write", **more: Any) -> Callable[[Handler], Handler]:
        """Declare a write that replaces."""
        return self._route("PUT", path, role, scope, more)

    def delete(self, path: str, role: Role, scope: str = "write", **more: Any) -> Callable[[Handler], Handler]:
        """Declare a write that ends something."""
        return self._route("DELETE", path, role, scope, more)

    def websocket(self, path: str, role: Role, scope: str = "read") -> Callable[[Handler], Handler]:
        """Declare a websocket."""
        return self.router.websocket(path, dependencies=[Depends(Needs(role, scope))])

    def _route(
        self, method: str, path: str, role: Role, scope: str, more: dict[str, Any]
    ) -> Callable[[Handler], Handler]:
        return self.router.api_route(
            path,
            methods=[method],
            dependencies=[Depends(Needs(role, scope))],
            openapi_extra={ROLE_KEY: role.value, SCOPE_KEY: scope},
            **more,
        )
