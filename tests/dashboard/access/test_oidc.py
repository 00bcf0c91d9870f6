"""Logging in at a local OpenID Connect provider, and everything that must not work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from flightwatch.core.clock import ManualClock
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from flightwatch.pipeline.control.roles import Grant, Role
from tests.dashboard.access.provider import CLIENT_ID, CLIENT_SECRET, Provider, callback
from tests.dashboard.access_kit import Site

PUBLIC = "https://fw.example.com"
NOW_MS = 1_795_990_000_000


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    provider = Provider(f"{PUBLIC}/login/callback")
    yield provider
    provider.stop()


@pytest.fixture
def provider(running: Provider) -> Provider:
    running.spoil, running.userinfo, running.algorithm, running.broken, running.forge = {}, {}, "RS256", False, False
    running.claims = {
        "sub": "u-1", "email": "Alice@example.com", "email_verified": True, "name": "Alice", "groups": ["sre"],
    }  # fmt: skip
    return running


@pytest.fixture
def site(make_site: Callable[..., Site], provider: Provider) -> Site:
    settings = AccessSettings(
        public_url=PUBLIC, oidc_issuer=provider.issuer, oidc_client_id=CLIENT_ID, oidc_client_secret=CLIENT_SECRET,
        operator_groups=("sre",), viewer_groups=("ml=team-a",), admin_groups=("root",),
    )  # fmt: skip
    outgoing = Outgoing(OutgoingSettings(allowed_addresses=(f"127.0.0.1:{provider.port}",)))
    return make_site(settings, loopback_only=False, outgoing=outgoing, clock=ManualClock(NOW_MS))


def browser(site: Site) -> TestClient:
    return site.client("10.0.0.9", PUBLIC)


def log_in(client: TestClient, provider: Provider, **query: str) -> tuple[int, str]:
    start = client.get("/login/start", params=query)
    assert start.status_code == 303, start.text
    back = client.get(callback(provider.authorize(start.headers["location"])))
    return back.status_code, back.headers.get("location", back.text)


def test_a_person_comes_in_and_their_groups_make_their_role(site: Site, provider: Provider) -> None:
    client = browser(site)
    assert "Sign in with your organisation" in client.get("/login").text
    assert log_in(client, provider, next="/incidents/i1?a=b") == (303, "/incidents/i1?a=b")
    document = client.get("/api/v1/me").json()
    assert (document["subject"], document["name"], document["role"]) == ("alice@example.com", "Alice", "operator")
    assert site.audit() == [("alice@example.com", "session.open", True)]


def test_what_the_provider_says_replaces_what_it_said_and_not_what_an_admin_gave(
    site: Site, provider: Provider
) -> None:
    client = browser(site)
    provider.claims["groups"] = ["root"]
    log_in(client, provider)
    assert client.get("/api/v1/me").json()["role"] == "admin"
    provider.claims["groups"] = ["ml"]
    assert site.access.people is not None
    site.access.people.grant("alice@example.com", Grant(Role.OPERATOR, "team-b"), "root")
    log_in(client, provider)
    grants = client.get("/api/v1/me").json()["grants"]
    assert grants == [{"role": "viewer", "tenant": "team-a"}, {"role": "operator", "tenant": "team-b"}]


def test_nobody_without_a_role_gets_a_session(site: Site, provider: Provider) -> None:
    provider.claims["groups"] = ["guests"]
    client = browser(site)
    status, text = log_in(client, provider)
    assert (status, "has no role yet" in text) == (403, True)
    assert client.get("/api/v1/me").status_code == 401


def test_groups_may_come_from_the_userinfo_endpoint(site: Site, provider: Provider) -> None:
    provider.claims = {"sub": "u-1", "email": "alice@example.com"}
    provider.userinfo = {"sub": "u-1", "groups": ["sre"], "email": "mallory@example.com"}
    client = browser(site)
    assert log_in(client, provider)[0] == 303
    assert client.get("/api/v1/me").json()["subject"] == "alice@example.com"
    provider.userinfo = {"sub": "u-2", "groups": ["root"]}
    log_in(client, provider)
    assert client.get("/api/v1/me").json()["role"] == "operator"


def test_a_new_key_of_the_provider_is_found(site: Site, provider: Provider) -> None:
    assert log_in(browser(site), provider)[0] == 303
    provider.rotate()
    assert log_in(browser(site), provider)[0] == 303


@pytest.mark.parametrize(
    "spoil",
    [{"nonce": "another"}, {"aud": "another"}, {"iss": "http://evil.example"}, {"exp": 1_795_980_000},
     {"nbf": 1_796_990_000}, {"sub": None}, {"aud": [CLIENT_ID, "another"], "azp": "another"}, {"iat": "soon"},
     {"email": None}, {"email": ""}, {"email_verified": False}, {"email": "token:ci"}, {"email": "local"}],
)  # fmt: skip
def test_a_statement_that_is_not_for_us_opens_nothing(site: Site, provider: Provider, spoil: dict[str, object]) -> None:
    provider.spoil = spoil
    client = browser(site)
    assert log_in(client, provider)[0] == 403
    assert client.get("/api/v1/me").status_code == 401
    assert site.audit()[-1][1:] == ("denied.forbidden", False)


def test_unsigned_and_wrongly_signed_statements_open_nothing(site: Site, provider: Provider) -> None:
    provider.algorithm = "none"
    assert log_in(browser(site), provider)[0] == 403
    provider.algorithm = "RS256"
    assert log_in(browser(site), provider)[0] == 303
    provider.forge = True
    assert log_in(browser(site), provider)[0] == 403


def test_a_login_comes_back_once_in_the_browser_that_began_it(site: Site, provider: Provider) -> None:
    client, other = browser(site), browser(site)
    back = provider.authorize(client.get("/login/start").headers["location"])
    assert other.get(callback(back)).status_code == 403  # no cookie
    other.get("/login/start")
    assert other.get(callback(back)).status_code == 403  # its own cookie
    assert client.get(callback(back)).status_code == 303
    assert client.get(callback(back)).status_code == 403  # once
    assert client.get(callback(back | {"state": "x" * 40})).status_code == 403


def test_a_code_of_another_login_or_issuer_is_refused(site: Site, provider: Provider) -> None:
    client = browser(site)
    first = provider.authorize(client.get("/login/start").headers["location"])
    second = provider.authorize(client.get("/login/start").headers["location"])
    # The second login's state with the first one's code: its PKCE secret does not fit.
    assert client.get(callback(second | {"code": first["code"]})).status_code == 403
    third = provider.authorize(client.get("/login/start").headers["location"])
    assert client.get(callback(third | {"iss": "http://evil.example"})).status_code == 403


def test_a_login_that_takes_too_long_is_over(make_site: Callable[..., Site], provider: Provider) -> None:
    clock = ManualClock(NOW_MS)
    settings = AccessSettings(
        public_url=PUBLIC, oidc_issuer=provider.issuer, oidc_client_id=CLIENT_ID, oidc_client_secret=CLIENT_SECRET,
        default_role="viewer",
    )  # fmt: skip
    outgoing = Outgoing(OutgoingSettings(allowed_addresses=("127.0.0.0/8",)))
    client = browser(make_site(settings, loopback_only=False, outgoing=outgoing, clock=clock))
    back = provider.authorize(client.get("/login/start").headers["location"])
    clock.advance(601)
    assert client.get(callback(back)).status_code == 403


def test_a_provider_that_fails_or_cannot_be_reached_is_said(site: Site, provider: Provider) -> None:
    provider.broken = True
    answer = browser(site).get("/login/start")
    assert (answer.status_code, "identity provider" in answer.text) == (503, True)
    assert browser(site).get("/login/callback?error=access_denied").status_code == 403


def test_the_provider_is_not_called_on_a_guarded_address(make_site: Callable[..., Site], provider: Provider) -> None:
    settings = AccessSettings(public_url=PUBLIC, oidc_issuer=provider.issuer, oidc_client_id=CLIENT_ID)
    answer = browser(make_site(settings, loopback_only=False)).get("/login/start")
    assert (answer.status_code, "allowed_addresses" in answer.text) == (503, True)


def test_the_cookie_of_a_login_goes_to_https_only(site: Site, provider: Provider) -> None:
    cookie = browser(site).get("/login/start").headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "Secure", "SameSite=lax", "Max-Age=600"))
    query = parse_qs(urlsplit(browser(site).get("/login/start").headers["location"]).query)
    assert len(query["state"][0]) >= 40
    assert len(query["nonce"][0]) >= 40
