"""Every route against every role, from the application's own list: a new route cannot be forgotten."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import Mount, Route

from flightwatch.dashboard.access.gate import PUBLIC_PATHS
from flightwatch.dashboard.api.server import PREFIX, needs_of
from flightwatch.dashboard.app import create_app
from flightwatch.pipeline.control.roles import Role
from tests.dashboard.access_kit import Site

SCOPES = ("read", "sql", "write", "admin", "metrics", "alerts")


def routes(site: Site) -> list[tuple[str, str, Role, str]]:
    """Return method, path, role and scope of every HTTP route of the API."""
    found = []
    for route in site.api.state.routes:
        if isinstance(route, APIRoute):
            needs = needs_of(route)
            assert needs is not None
            found += [(method, route.path, needs.role, needs.scope) for method in route.methods or ()]
    return found


def call(client: TestClient, method: str, path: str, headers: dict[str, str]) -> int:
    place = re.sub(r"\{rank\}", "0", re.sub(r"\{id\}", "x", PREFIX + path))
    body: Any = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
    return client.request(method, place, headers=headers, **body).status_code


def test_the_list_is_the_openapi_document(site: Site) -> None:
    document = site.api.openapi()
    described = {(method.upper(), path) for path, one in document["paths"].items() for method in one}
    assert described == {(method, path) for method, path, _, _ in routes(site)}
    assert len(described) > 40
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            assert one["x-flightwatch-role"], f"{method} {path}"


def test_nobody_comes_in_without_a_credential(site: Site) -> None:
    client = site.client()
    assert {call(client, method, path, {}) for method, path, _, _ in routes(site)} == {401}


@pytest.mark.parametrize("role", list(Role))
def test_a_role_opens_what_it_covers_and_nothing_else(site: Site, role: Role) -> None:
    header, client = site.token(role), site.client()
    for method, path, needed, _ in routes(site):
        status = call(client, method, path, header)
        assert status < 500, f"{method} {path}"
        if not role.covers(needed):
            assert status == 403, f"{role.value}: {method} {path} answered {status}"
        else:
            assert status not in (401, 403), f"{role.value}: {method} {path} answered {status}"


@pytest.mark.parametrize("scope", SCOPES)
def test_a_scope_opens_its_routes_only(site: Site, scope: str) -> None:
    header, client = site.token(Role.ADMIN, scope), site.client()
    for method, path, _, needed in routes(site):
        status = call(client, method, path, header)
        assert (status == 403) == (scope != needed), f"{scope}: {method} {path} answered {status}"


def test_writes_need_more_than_to_read(site: Site) -> None:
    for method, path, role, scope in routes(site):
        if method == "GET":
            assert scope in ("read", "admin"), path
        elif path in ("/sql", "/alerts/alertmanager"):
            assert scope == path.split("/")[1]
        else:
            assert scope in ("write", "admin"), path
            # What a viewer may write is their own: saved things and tokens.
            assert role is not Role.VIEWER or path.startswith(("/saved", "/tokens")), path


@pytest.fixture(scope="module")
def console(site: Site) -> TestClient:
    app = create_app(site.services, loopback_only=True)
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 4711), follow_redirects=False)


def test_the_whole_console_is_closed_but_for_what_is_public(site: Site, console: TestClient) -> None:
    """Pages, assets, callbacks, tools: whatever is mounted, the gate stands before it."""
    app: Any = console.app
    paths = {route.path for route in app.routes if isinstance(route, (Route, APIRoute)) and "{" not in route.path}
    paths |= {f"{route.path}/x" for route in app.routes if isinstance(route, Mount)}
    paths |= {"/", "/incidents", "/nodes/n1", "/sql", "/_dash-layout", "/_dash-dependencies", "/_dash-update-component",
              "/_dash-component-suites/dash/deps/x.js", "/assets/console.js", "/perfetto/index.html", "/_favicon.ico",
              "/_reload-hash", "/metrics", "/api/v1/openapi.json", "/api/v2/x", "/api", "/api/v1"}  # fmt: skip
    for path in sorted(paths):
        status = console.get(path).status_code
        assert status == (200 if path in PUBLIC_PATHS else 401) or (path in PUBLIC_PATHS and status < 500), path
        assert path in PUBLIC_PATHS or console.post(path, json={}).status_code == 401, path


def test_a_page_of_a_viewer_cannot_be_made_to_write(site: Site, console: TestClient) -> None:
    header = site.token(Role.VIEWER)
    assert console.post("/login/token", data={"token": header["Authorization"][7:]}).status_code == 303
    assert console.post("/_dash-update-component", json={}).json()["error"]["code"] == "csrf"
    csrf = {"X-CSRFToken": console.get("/api/v1/me").json()["csrf"]}
    assert console.post("/_dash-update-component", json={}, headers=csrf).json()["error"]["code"] == "malformed"
    assert console.post("/api/v1/incidents/x/acknowledge", json={}, headers=csrf).status_code == 403
    console.cookies.clear()


def test_an_admin_of_one_tenant_administers_nothing_of_everybodys(site: Site) -> None:
    header, client = site.token(Role.ADMIN, tenant="red"), site.client()
    for method, path, needed, _ in routes(site):
        if needed is Role.ADMIN:
            # Whatever the body: a wrong one may be told first, a right one is refused.
            assert call(client, method, path, header) in (403, 422), f"{method} {path}"
