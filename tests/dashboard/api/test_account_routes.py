"""Tokens, people, saved things and idempotency keys over HTTP."""

from __future__ import annotations

from typing import Any

import httpx2

from flightwatch.pipeline.control.roles import Role
from tests.dashboard.access_kit import Site

SILENCE = {"matchers": {"node": "n1"}, "reason": "repair", "expires_at": "2027-01-10T00:00:00Z"}


def call(site: Site, method: str, path: str, header: dict[str, str], body: Any = None) -> httpx2.Response:
    return site.client().request(method, f"/api/v1{path}", headers=header, **({} if body is None else {"json": body}))


def test_a_token_made_over_http_may_do_no_more_than_its_maker(site: Site) -> None:
    operator = site.token(Role.OPERATOR)
    made = call(site, "POST", "/tokens", operator, {"name": "mine", "scopes": ["read", "write"], "days": 7})
    assert made.status_code == 201
    assert made.json()["token"]["grants"] == [{"role": "operator", "tenant": None}]
    header = {"Authorization": f"Bearer {made.json()['secret']}"}
    assert call(site, "GET", "/me", header).json()["subject"] == "token:mine"
    for grant in ({"role": "admin"}, {"role": "admin", "tenant": "red"}):
        assert call(site, "POST", "/tokens", operator, {"name": "more", "grants": [grant]}).status_code == 403
    narrow = call(site, "POST", "/tokens", operator, {"name": "less", "grants": [{"role": "viewer", "tenant": "red"}]})
    assert narrow.json()["token"]["grants"] == [{"role": "viewer", "tenant": "red"}]
    scoped = site.token(Role.OPERATOR, tenant="red")
    for grant in ({"role": "viewer"}, {"role": "viewer", "tenant": "blue"}):
        assert call(site, "POST", "/tokens", scoped, {"name": "out", "grants": [grant]}).status_code == 403
    assert call(site, "POST", "/tokens", operator, {"name": "mine"}).status_code == 409
    assert call(site, "POST", "/tokens", operator, {"name": "long", "days": 3650}).status_code == 422


def test_people_see_and_revoke_their_own_tokens_and_admins_all(site: Site) -> None:
    first, second, admin = site.token(Role.VIEWER, name="first"), site.token(Role.VIEWER), site.token(Role.ADMIN)
    made = call(site, "POST", "/tokens", first, {"name": "child"}).json()["token"]
    assert [one["name"] for one in call(site, "GET", "/tokens", first).json()["items"]] == ["child"]
    assert call(site, "DELETE", f"/tokens/{made['id']}", second).status_code == 404
    assert made["id"] in {one["id"] for one in call(site, "GET", "/tokens", admin).json()["items"]}
    assert call(site, "DELETE", f"/tokens/{made['id']}", first).json()["revoked_at"] is not None
    assert call(site, "DELETE", f"/tokens/{made['id']}", first).status_code == 409


def test_secrets_are_nowhere_but_in_the_first_answer(site: Site) -> None:
    admin = site.token(Role.ADMIN)
    secret = call(site, "POST", "/tokens", admin | {"Idempotency-Key": "tok-1"}, {"name": "hidden"}).json()["secret"]
    again = call(site, "POST", "/tokens", admin | {"Idempotency-Key": "tok-1"}, {"name": "hidden"})
    assert (again.status_code, secret in again.text) == (409, False)
    assert secret not in call(site, "GET", "/tokens", admin).text
    assert secret not in call(site, "GET", "/audit", admin).text
    with site.control.reading() as connection:
        for table in ("api_tokens", "idempotency_keys", "audit_entries", "outbox"):
            rows = connection.exec_driver_sql(f"SELECT * FROM {table}").all()
            assert secret.rpartition("_")[2] not in str(rows)


def test_admins_give_and_take_roles(site: Site) -> None:
    admin = site.token(Role.ADMIN)
    person = call(site, "PUT", "/people/dora@example.com/grants", admin, {"role": "viewer", "tenant": "red"})
    assert person.json()["grants"] == [{"role": "viewer", "tenant": "red"}]
    body = {"service": "slack", "account": "U1"}
    linked = call(site, "PUT", "/people/dora@example.com/accounts", admin, body)
    assert linked.json()["accounts"] == [["slack", "U1"]]
    assert call(site, "PUT", "/people/dora@example.com/disabled", admin, {"disabled": True}).json()["disabled"] is True
    gone = call(site, "DELETE", "/people/dora@example.com/grants?tenant=red", admin)
    assert gone.json()["grants"] == []
    assert call(site, "DELETE", "/people/dora@example.com/grants", admin).status_code == 409
    assert call(site, "PUT", "/people/token:x/grants", admin, {"role": "viewer"}).status_code == 422
    assert call(site, "PUT", "/people/nobody/disabled", admin, {"disabled": True}).status_code == 409
    scoped = site.token(Role.ADMIN, tenant="red")
    assert call(site, "GET", "/people", scoped).status_code == 403
    assert call(site, "GET", "/audit", scoped).status_code == 403


def test_the_audit_log_is_read_in_pages(site: Site) -> None:
    admin = site.token(Role.ADMIN)
    for _ in range(5):
        call(site, "POST", "/silences", admin, SILENCE)
    first = call(site, "GET", "/audit?limit=3&action=silence.create", admin).json()
    second = call(site, "GET", f"/audit?limit=3&action=silence.create&cursor={first['next_cursor']}", admin).json()
    sequences = [one["sequence"] for one in first["items"] + second["items"]]
    assert sequences == sorted(set(sequences), reverse=True)
    assert {one["ok"] for one in call(site, "GET", "/audit?ok=false", admin).json()["items"]} <= {False}


def test_a_write_with_a_key_is_done_once(site: Site) -> None:
    header = site.token(Role.OPERATOR) | {"Idempotency-Key": "k-1"}
    first, second = (call(site, "POST", "/silences", header, SILENCE) for _ in range(2))
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert second.headers["Idempotent-Replayed"] == "true"
    other = call(site, "POST", "/silences", header, SILENCE | {"reason": "another"})
    assert (other.status_code, other.json()["error"]["where"]) == (422, "Idempotency-Key")
    somebody = site.token(Role.OPERATOR) | {"Idempotency-Key": "k-1"}
    assert call(site, "POST", "/silences", somebody, SILENCE).json()["id"] != first.json()["id"]
    failed = site.token(Role.OPERATOR) | {"Idempotency-Key": "k-2"}
    assert call(site, "POST", "/silences", failed, {}).status_code == 422
    assert call(site, "POST", "/silences", failed, SILENCE).status_code == 201  # a refusal is not kept
    for key in ("", "a b", "x" * 201, "\x7f"):
        odd = site.token(Role.OPERATOR) | {"Idempotency-Key": key}
        assert call(site, "POST", "/silences", odd, SILENCE).status_code == 422


def test_saved_things_are_ones_own_or_shared(site: Site) -> None:
    mine, other = site.token(Role.VIEWER), site.token(Role.VIEWER)
    new = {"kind": "query", "name": "hot nodes", "body": {"sql": "SELECT 1"}}
    made = call(site, "POST", "/saved", mine, new).json()
    assert call(site, "GET", f"/saved/{made['id']}", other).status_code == 404
    changed = {"name": "hot nodes", "body": {"sql": "SELECT 2"}, "shared": True, "revision": 1}
    assert call(site, "PUT", f"/saved/{made['id']}", mine, changed).json()["revision"] == 2
    assert call(site, "PUT", f"/saved/{made['id']}", mine, changed).status_code == 409
    assert call(site, "GET", f"/saved/{made['id']}", other).json()["body"] == {"sql": "SELECT 2"}
    assert call(site, "PUT", f"/saved/{made['id']}", other, changed | {"revision": 2}).status_code == 409
    assert call(site, "DELETE", f"/saved/{made['id']}", other).status_code == 409
    assert made["id"] in {one["id"] for one in call(site, "GET", "/saved?kind=query", other).json()["items"]}
    assert call(site, "DELETE", f"/saved/{made['id']}", mine).status_code == 204
    large = {"kind": "view", "name": "v", "body": {"x": "a" * 70_000}}
    assert call(site, "POST", "/saved", mine, large).status_code == 422
