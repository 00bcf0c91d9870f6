"""The gate: who comes in, with what, from where; what is refused and written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import ConfigError, Refused
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.current import current_viewer, viewer_of
from flightwatch.dashboard.access.gate import Gate
from flightwatch.dashboard.access.login import login_router
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.pipeline.control.roles import Grant, Role
from tests.dashboard.access_kit import Site
from tests.pipeline.control.incident_kit import add_incident

MakeSite = Callable[..., Site]
LOGIN = AccessSettings(required=True)
HTML = {"Accept": "text/html,application/xhtml+xml"}
SILENCE = {"matchers": {"node": "n1"}, "reason": "repair", "expires_at": "2026-12-24T00:00:00Z"}
CLOCK_MS = 1_795_990_000_000


def me(site: Site, **more: Any) -> Any:
    return site.client().get("/api/v1/me", **more)


def test_on_loopback_without_a_login_everybody_is_the_local_admin(make_site: MakeSite) -> None:
    document = me(make_site()).json()
    assert (document["subject"], document["role"], document["via"]) == ("local", "admin", "local")


def test_a_proxy_in_front_of_a_console_without_a_login_is_refused(make_site: MakeSite) -> None:
    site = make_site()
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Host"):
        answer = me(site, headers={name: "203.0.113.9"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert all(not ok for _, _, ok in site.audit())


def test_a_trusted_network_reads_and_changes_nothing(make_site: MakeSite) -> None:
    site = make_site(loopback_only=False)
    client = site.client("10.0.0.7")
    assert client.get("/api/v1/me").json()["role"] == "viewer"
    csrf = client.get("/api/v1/me").json()["csrf"]
    client.cookies.set("_csrf_token", csrf)
    answer = client.post("/api/v1/silences", json=SILENCE, headers={"X-CSRFToken": csrf})
    assert answer.status_code == 403
    assert ("anonymous", "denied.forbidden", False) in site.audit()


def test_without_a_login_nothing_opens_but_what_is_public(make_site: MakeSite) -> None:
    site = make_site(LOGIN)
    client = site.client()
    assert client.get("/api/v1/incidents").status_code == 401
    assert client.get("/api/v1/incidents").headers["WWW-Authenticate"].startswith("Bearer")
    assert client.get("/metrics").status_code == 401
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 200
    assert client.get("/login").status_code == 200
    assert client.get("/api/v1/openapi.json").status_code == 401
    answer = client.get("/page?job=a%26b", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fpage%3Fjob%3Da%2526b")


@pytest.mark.parametrize(
    "path",
    ["/healthz/../api/v1/me", "/healthz%2f..%2fapi/v1/me", "//api/v1/me", "/login/../page", "/api/v1/hooks/../me",
     "/api/v1/hooks/..%2fme", "/API/v1/me", "/login%00/../page", "/api/v1/me/", "/api//v1/me", "/./api/v1/me",
     "/healthz;/../page", "/api/v1/hooks%2f..%2fme", "/login/style.css/../../page"],
)  # fmt: skip
def test_tricks_with_paths_open_nothing(make_site: MakeSite, path: str) -> None:
    site = make_site(LOGIN)
    scope_path, answers = path, []
    # The client would tidy the path: it is sent as it stands.
    request = site.client().build_request("GET", "/")
    request.url = request.url.copy_with(raw_path=scope_path.encode())
    answers.append(site.client().send(request))
    assert all(answer.status_code in (307, 401, 404, 303) for answer in answers)
    assert all("subject" not in answer.text for answer in answers)


def test_a_token_opens_the_api_and_only_as_far_as_its_scopes(make_site: MakeSite) -> None:
    site = make_site(LOGIN)
    reader = site.token("admin", "read")
    assert me(site, headers=reader).json()["scopes"] == ["read"]
    answer = site.client().post("/api/v1/silences", json=SILENCE, headers=reader)
    assert (answer.status_code, "scope write" in answer.json()["error"]["message"]) == (403, True)
    assert site.client().get("/api/v1/audit", headers=reader).status_code == 403
    assert site.client().get("/page", headers=reader).status_code == 403
    scraper = site.token("viewer", "metrics")
    assert site.client().get("/metrics", headers=scraper).status_code == 200
    assert site.client().get("/api/v1/incidents", headers=scraper).status_code == 403
    writer = site.token("viewer", "write")
    assert site.client().get("/metrics", headers=writer).status_code == 403


def test_a_revoked_or_expired_token_or_one_of_somebody_kept_out_opens_nothing(make_site: MakeSite) -> None:
    clock = ManualClock(CLOCK_MS)
    site = make_site(LOGIN, clock=clock)
    header = site.token("viewer")
    assert me(site, headers=header).status_code == 200
    assert site.access.tokens is not None
    assert site.access.people is not None
    site.access.tokens.revoke(site.access.tokens.all()[0].id)
    clock.advance(4)
    assert me(site, headers=header).status_code == 401
    header = site.token("viewer")
    clock.advance(86_401)
    assert me(site, headers=header).status_code == 401
    header = site.token("viewer")
    site.access.people.grant("admin@example.com", Grant(Role.ADMIN), "test")
    site.access.people.disable("admin@example.com")
    assert me(site, headers=header).status_code == 401


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer fw_000000000000_" + "A" * 43, "Bearer \xff", "bearer x" * 500],
)
def test_a_wrong_credential_is_not_passed_over(make_site: MakeSite, value: str) -> None:
    site = make_site()  # on loopback, where no credential at all makes an admin
    answer = me(site, headers={"Authorization": value.encode("latin-1")})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")


def test_guessing_is_slowed_down(make_site: MakeSite) -> None:
    site = make_site(LOGIN, clock=ManualClock(CLOCK_MS))
    statuses = {me(site, headers={"Authorization": "Bearer fw_x"}).status_code for _ in range(70)}
    assert statuses == {401, 429}
    assert len(site.audit()) <= 25  # a flood does not fill the audit log


def test_a_browser_session_begins_with_a_token_and_ends_with_logout(make_site: MakeSite) -> None:
    site = make_site(LOGIN)
    text = site.token("operator")["Authorization"].removeprefix("Bearer ")
    client = site.client()
    answer = client.post("/login/token", data={"token": text, "next": "/page?a=1"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/page?a=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie  # 127.0.0.1 without TLS
    page = client.get("/page", headers=HTML)
    assert page.status_code == 200
    csrf = client.cookies["_csrf_token"]
    assert client.get("/api/v1/me").json()["csrf"] == csrf
    refused = client.post("/api/v1/silences", json=SILENCE)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "csrf")
    assert client.post("/api/v1/silences", json=SILENCE, headers={"X-CSRFToken": "x" * 32}).status_code == 403
    assert client.post("/api/v1/silences", json=SILENCE, headers={"X-CSRFToken": csrf}).status_code == 201
    assert client.post("/logout").status_code == 403
    assert client.post("/logout", headers={"X-CSRFToken": csrf}).status_code == 303
    assert client.get("/api/v1/me").status_code == 401
    assert [action for _, action, _ in site.audit()] == [
        "session.open", "denied.csrf", "denied.csrf", "silence.create", "denied.csrf", "session.close",
    ]  # fmt: skip


def test_behind_tls_cookies_are_secure_and_bound_to_our_host(make_site: MakeSite) -> None:
    site = make_site(AccessSettings(required=True, public_url="https://fw.example.com"), loopback_only=False)
    text = site.token("viewer")["Authorization"].removeprefix("Bearer ")
    client = site.client("10.0.0.9", "https://fw.example.com")
    answer = client.post("/login/token", data={"token": text})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-flightwatch_session=")
    assert "Secure" in cookie
    assert client.get("/page", headers=HTML).status_code == 200


def test_a_session_of_a_revoked_token_ends(make_site: MakeSite) -> None:
    clock = ManualClock(CLOCK_MS)
    site = make_site(LOGIN, clock=clock)
    client = site.client()
    client.post("/login/token", data={"token": site.token("viewer")["Authorization"].removeprefix("Bearer ")})
    assert client.get("/api/v1/me").status_code == 200
    assert site.access.tokens is not None
    site.access.tokens.revoke(site.access.tokens.all()[0].id)
    clock.advance(4)
    assert client.get("/api/v1/me").status_code == 401


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil", "/a\r\nX: y", ""]
)
def test_a_login_goes_on_to_pages_of_ours_only(make_site: MakeSite, target: str) -> None:
    site = make_site(LOGIN)
    text = site.token("viewer")["Authorization"].removeprefix("Bearer ")
    assert site.client().post("/login/token", data={"token": text, "next": target}).headers["location"] == "/"
    page = site.client().get("/login", params={"next": target})
    assert "evil" not in page.text


def test_a_wrong_token_at_the_login_page_is_said_there(make_site: MakeSite) -> None:
    site = make_site(LOGIN)
    answer = site.client().post("/login/token", data={"token": "<script>", "next": "/page"})
    assert answer.status_code == 401
    assert "unknown, expired or revoked" in answer.text
    assert "<script>" not in answer.text
    assert site.audit() == [("anonymous", "denied.unauthenticated", False)]


def test_the_login_page_speaks_chinese(make_site: MakeSite) -> None:
    client = make_site(LOGIN).client()
    assert "API 令牌" in client.get("/login", headers={"Accept-Language": "zh-CN,zh;q=0.9"}).text
    assert "API 令牌" in client.get("/login?lang=zh").text
    assert "API token" in client.get("/login", headers={"Accept-Language": "de"}).text


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:9999"},
     {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://127.0.0.1.evil.example"}],
)  # fmt: skip
def test_writes_from_other_sites_are_refused(make_site: MakeSite, headers: dict[str, str]) -> None:
    site = make_site()
    answer = site.client().post("/api/v1/silences", json=SILENCE, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_origin")
    assert site.client().post("/login/token", data={"token": "x"}, headers=headers).status_code == 403
    assert site.audit()[0] == ("anonymous", "denied.cross_origin", False)


def test_a_browser_on_loopback_sends_the_csrf_token_and_a_program_needs_none(make_site: MakeSite) -> None:
    client = make_site().client()
    same = {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/v1/silences", json=SILENCE, headers=same).json()["error"]["code"] == "csrf"
    client.get("/page", headers=HTML)
    headers = same | {"X-CSRFToken": client.cookies["_csrf_token"]}
    assert client.post("/api/v1/silences", json=SILENCE, headers=headers).status_code == 201
    client.cookies.clear()
    assert client.post("/api/v1/silences", json=SILENCE).status_code == 201


def test_the_websocket_opens_to_our_own_pages_only(make_site: MakeSite) -> None:
    site = make_site(LOGIN)
    header = site.token("viewer")
    with site.client().websocket_connect("/api/v1/live", headers=header) as socket:
        assert set(socket.receive_json()) == {"tables", "control", "at"}
    for refused in ({}, header | {"Origin": "http://evil.example"}, site.token("viewer", "sql")):
        with (
            pytest.raises(WebSocketDisconnect),
            site.client().websocket_connect("/api/v1/live", headers=refused) as socket,
        ):
            socket.receive_json()


PROXY = AccessSettings(
    proxy_addresses=("10.0.0.0/24",), proxy_user_header="X-Forwarded-User", proxy_groups_header="X-Forwarded-Groups",
    operator_groups=("sre", "ml=team-a"),
)  # fmt: skip


def test_a_listed_proxy_names_the_person(make_site: MakeSite) -> None:
    site = make_site(PROXY, loopback_only=False)
    proxy = site.client("10.0.0.5")
    named = {"X-Forwarded-User": "alice", "X-Forwarded-Groups": "sre, other", "X-Forwarded-For": "203.0.113.7"}
    document = proxy.get("/api/v1/me", headers=named).json()
    assert (document["subject"], document["role"], document["via"]) == ("alice", "operator", "proxy")
    scoped = proxy.get("/api/v1/me", headers={"X-Forwarded-User": "bob", "X-Forwarded-Groups": "ml"}).json()
    assert scoped["grants"] == [{"role": "operator", "tenant": "team-a"}]
    nobody = proxy.get("/api/v1/me", headers={"X-Forwarded-User": "carol", "X-Forwarded-Groups": "other"})
    assert (nobody.status_code, "has no role" in nobody.json()["error"]["message"]) == (403, True)
    assert proxy.get("/api/v1/me").status_code == 401
    refused = proxy.post("/api/v1/silences", json=SILENCE, headers=named)
    assert refused.json()["error"]["code"] == "csrf"


@pytest.mark.parametrize("name", ["local", "anonymous", "token:ci", "socket:root", "rule:x", "a b", "x" * 300])
def test_a_proxy_cannot_name_what_is_no_person(make_site: MakeSite, name: str) -> None:
    site = make_site(PROXY, loopback_only=False)
    answer = site.client("10.0.0.5").get("/api/v1/me", headers={"X-Forwarded-User": name, "X-Forwarded-Groups": "sre"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forged_header")


def test_a_forged_user_header_from_anywhere_else_is_refused_and_written_down(make_site: MakeSite) -> None:
    site = make_site(PROXY, loopback_only=False)
    for address in ("10.0.1.5", "127.0.0.1", "::1", "not-an-address"):
        answer = site.client(address).get("/api/v1/me", headers={"X-Forwarded-User": "alice"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forged_header")
    double = [("X-Forwarded-User", "alice"), ("X-Forwarded-User", "root")]
    assert site.client("10.0.0.5").get("/api/v1/me", headers=double).status_code == 403
    assert {action for _, action, _ in site.audit()} == {"denied.forged_header"}


def test_the_address_in_the_audit_log_is_the_one_the_proxy_saw(make_site: MakeSite) -> None:
    site = make_site(PROXY, loopback_only=False)
    header = site.token("operator")
    forged = header | {"X-Forwarded-For": "198.51.100.1, 203.0.113.7, 10.0.0.6"}
    site.client("10.0.0.5").post("/api/v1/silences", json=SILENCE, headers=forged)
    site.client("192.0.2.8").post("/api/v1/silences", json=SILENCE, headers=forged)
    assert site.access.audit is not None
    assert [entry.address for entry in site.access.audit.page()] == ["192.0.2.8", "203.0.113.7"]


def test_other_host_names_are_refused_where_ours_is_known(make_site: MakeSite) -> None:
    site = make_site(AccessSettings(public_url="https://fw.example.com", required=True), loopback_only=False)
    client = site.client("10.0.0.9")
    assert client.get("/login", headers={"Host": "evil.example"}).json()["error"]["code"] == "unknown_host"
    assert client.get("/login", headers={"Host": "fw.example.com"}).status_code == 200
    assert client.get("/healthz", headers={"Host": "10.1.2.3:8080"}).status_code == 200
    scraped = client.get("/metrics", headers=site.token("viewer") | {"Host": "flightwatch.monitoring.svc:8080"})
    assert scraped.status_code == 200


def test_settings_that_would_let_nobody_or_everybody_in_are_refused(make_site: MakeSite) -> None:
    control = make_site().control
    for settings, words in (
        (AccessSettings(proxy_user_header="X-User"), "proxy_addresses"),
        (AccessSettings(oidc_issuer="https://id.example"), "oidc_client_id"),
        (AccessSettings(proxy_addresses=("10.0.0.0/99",)), "proxy_addresses"),
        (AccessSettings(public_url="fw.example.com"), "public_url"),
        (AccessSettings(default_role="root"), "not a role"),
    ):
        with pytest.raises(ConfigError, match=words):
            AccessControl(settings, control, loopback_only=True)
    with pytest.raises(ConfigError, match="control database"):
        AccessControl(LOGIN, None, loopback_only=True)


def test_outside_of_a_request_there_is_no_viewer() -> None:
    with pytest.raises(Refused, match="nobody is asking"):
        current_viewer()
    with pytest.raises(Refused, match="did not pass the gate"):
        viewer_of({"type": "http", "state": {"viewer": "admin"}})


def test_a_person_may_do_no_more_than_the_limits_of_requests(make_site: MakeSite) -> None:
    clock = ManualClock(CLOCK_MS)
    site = make_site(AccessSettings(required=True, requests_per_second=5, writes_per_minute=4), clock=clock)
    header = site.token("operator")
    answers = [me(site, headers=header) for _ in range(25)]
    assert [answer.status_code for answer in answers] == [200] * 20 + [429] * 5
    assert int(answers[-1].headers["Retry-After"]) >= 1
    clock.advance(60)
    writes = [site.client().post("/api/v1/silences", json=SILENCE, headers=header).status_code for _ in range(3)]
    assert writes == [201, 201, 429]


def test_figures_tell_open_incidents_and_refusals(make_site: MakeSite) -> None:
    site = make_site()
    add_incident(site.control, "i1", CLOCK_MS, severity="P1")
    site.client().post("/api/v1/silences", json=SILENCE, headers={"Origin": "http://evil.example"})
    text = site.client().get("/metrics").text
    assert 'flightwatch_open_incidents{severity="P1"} 1.0' in text
    assert 'flightwatch_open_incidents{severity="P2"} 0.0' in text
    assert 'flightwatch_requests_refused_total{code="cross_origin"} 1.0' in text


def test_below_a_path_prefix_the_login_is_found(make_site: MakeSite) -> None:
    site = make_site(LOGIN)
    app = FastAPI(openapi_url=None)
    app.include_router(login_router(site.access, None, "/fw"))
    app.add_middleware(Gate, access=site.access, prefix="/fw")
    client = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1), follow_redirects=False)
    assert client.get("/incidents", headers=HTML).headers["location"] == "/fw/login?next=%2Fincidents"
    assert 'action="/fw/login/token"' in client.get("/login").text
    text = site.token("viewer")["Authorization"].removeprefix("Bearer ")
    answer = client.post("/login/token", data={"token": text, "next": "/incidents/i1"})
    assert answer.headers["location"] == "/fw/incidents/i1"
    page = client.get("/logout", headers=HTML)
    assert 'data-url="/fw/logout"' in page.text
