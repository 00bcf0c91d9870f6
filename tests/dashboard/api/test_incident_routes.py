"""Incidents, silences, actions over HTTP: pages, filters, tenants, writes and their audit."""

from __future__ import annotations

from typing import Any

import pytest

from flightwatch.core.clock import iso_utc
from flightwatch.pipeline.control.action_model import Proposal
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.store.client import Store
from tests.dashboard.access_kit import Site
from tests.pipeline.control.incident_kit import add_incident
from tests.pipeline.store.blocks import insert

AT_MS = 1_795_990_000_000
SOON = "2027-01-10T00:00:00Z"


@pytest.fixture(scope="module")
def full(site: Site, store: Store) -> Site:
    for number in range(7):
        tenant = ("red", "blue", None)[number % 3]
        add_incident(site.control, f"i{number}", AT_MS + number, tenant=tenant, severity=f"P{1 + number % 4}")
    insert(store, "inventory", {"ts": AT_MS, "cluster": "lab", "node": "n1"})
    return site


def get(site: Site, path: str, header: dict[str, str], **params: Any) -> Any:
    answer = site.client().get(f"/api/v1{path}", headers=header, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(site: Site, path: str, header: dict[str, str], **body: Any) -> Any:
    return site.client().post(f"/api/v1{path}", headers=header, json=body)


def test_pages_follow_each_other_without_gap_or_repeat(full: Site) -> None:
    header, cursor, found = full.token(Role.VIEWER), None, []
    while True:
        page = get(full, "/incidents", header, limit=3, **({"cursor": cursor} if cursor else {}))
        found += [one["id"] for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [f"i{number}" for number in reversed(range(7))]
    assert page["items"][0]["opened_at"] == iso_utc(AT_MS)
    answer = full.client().get("/api/v1/incidents?cursor=nonsense", headers=header)
    assert answer.status_code == 422


def test_filters_reach_the_list(full: Site) -> None:
    header = full.token(Role.VIEWER)
    assert {one["severity"] for one in get(full, "/incidents", header, severity=["P1", "P2"])["items"]} == {"P1", "P2"}
    assert [one["id"] for one in get(full, "/incidents", header, text="(i4)")["items"]] == ["i4"]
    assert get(full, "/incidents", header, node="elsewhere")["items"] == []
    later = iso_utc(AT_MS + 5)
    assert {one["id"] for one in get(full, "/incidents", header, since=later)["items"]} == {"i5", "i6"}
    assert get(full, "/incidents/counts", header)["by_state"]["open"] == 7


def test_a_tenants_people_see_and_change_their_own_only(full: Site) -> None:
    header = full.token(Role.OPERATOR, tenant="red")
    assert {one["id"] for one in get(full, "/incidents", header)["items"]} == {"i0", "i3", "i6"}
    assert full.client().get("/api/v1/incidents/i1", headers=header).status_code == 404
    assert full.client().get("/api/v1/incidents/i2", headers=header).status_code == 404  # nobody's
    assert post(full, "/incidents/i1/acknowledge", header).status_code == 404
    assert post(full, "/incidents/i3/merge", header, ids=["i1"]).status_code == 404
    assert post(full, "/incidents/i3/notes", header, text="ours").status_code == 201
    silence = {"matchers": {"node": "n1"}, "reason": "x", "expires_at": SOON}
    assert post(full, "/silences", header, **silence).status_code == 403
    silence["matchers"] = {"node": "n1", "tenant": "*"}
    assert post(full, "/silences", header, **silence).status_code == 403
    silence["matchers"] = {"node": "n1", "tenant": "red"}
    assert post(full, "/silences", header, **silence).status_code == 201
    assert post(full, "/actions", header, kind="drain", node="n1", reason="x").status_code == 403
    other = full.token(Role.VIEWER, tenant="blue")
    assert get(full, "/silences", other)["items"] == []
    for path in ("/status", "/ingest", "/nodes/n1/history"):
        assert full.client().get(f"/api/v1{path}", headers=other).status_code == 403


def test_the_life_of_an_incident_is_in_its_history_and_the_audit_log(full: Site) -> None:
    header = full.token(Role.OPERATOR, name="oncall")
    assert post(full, "/incidents/i4/acknowledge", header, note="on it", revision=1).json()["state"] == "acknowledged"
    stale = post(full, "/incidents/i4/assign", header, assignee="bob", revision=1)
    assert (stale.status_code, stale.json()["error"]["code"]) == (409, "refused")
    assert post(full, "/incidents/i4/assign", header, assignee="bob").json()["assignee"] == "bob"
    assert post(full, "/incidents/i4/resolve", header, state="false_positive").json()["state"] == "false_positive"
    assert post(full, "/incidents/i4/reopen", header).json()["state"] == "open"
    assert post(full, "/incidents/i4/merge", header, ids=["i5"]).status_code == 200
    detail = get(full, "/incidents/i4", header)
    assert [one["author"] for one in detail["notes"]] == ["token:oncall"]
    assert {one["actor"] for one in detail["history"]} == {"token:oncall"}
    assert detail["findings"][0]["evidence"] == {"peers": 7}
    mine = [(action, ok) for actor, action, ok in full.audit() if actor == "token:oncall"]
    assert mine == [
        ("incident.acknowledge", True), ("incident.assign", True), ("incident.resolve", True),
        ("incident.reopen", True), ("incident.merge", True),
    ]  # fmt: skip


def test_a_silence_ends_early_and_once(full: Site) -> None:
    header = full.token(Role.OPERATOR)
    made = post(full, "/silences", header, matchers={"id": "i2"}, reason="known", expires_at=SOON).json()
    assert full.client().delete(f"/api/v1/silences/{made['id']}", headers=header).json()["ended_by"] is not None
    assert full.client().delete(f"/api/v1/silences/{made['id']}", headers=header).status_code == 409
    assert made["id"] in {one["id"] for one in get(full, "/silences", header, active=False)["items"]}


def test_an_action_is_asked_for_approved_once_and_by_who_asked(full: Site) -> None:
    alice, bob = full.token(Role.OPERATOR), full.token(Role.OPERATOR)
    made = post(full, "/actions", alice, kind="drain", node="n1", reason="it is hot", incident="i0").json()
    assert (made["state"], made["mode"], made["revision"]) == ("proposed", "approve", 1)
    assert post(full, "/actions", alice, kind="drain", node="n1", reason="again", incident="i0").status_code == 409
    approval = post(full, f"/actions/{made['id']}/approval", alice, incident_revision=1).json()["approval"]
    refused = post(full, f"/actions/{made['id']}/approve", bob, approval=approval)
    assert (refused.status_code, "somebody else" in refused.text) == (409, True)
    post(full, "/incidents/i0/assign", alice, assignee="carol")
    changed = post(full, f"/actions/{made['id']}/approve", alice, approval=approval)
    assert (changed.status_code, "changed since" in changed.text) == (409, True)
    approval = post(full, f"/actions/{made['id']}/approval", alice, incident_revision=2).json()["approval"]
    assert post(full, f"/actions/{made['id']}/approve", alice, approval=approval).json()["state"] == "approved"
    assert post(full, f"/actions/{made['id']}/approve", alice, approval=approval).status_code == 409
    assert get(full, "/actions", alice, state="approved")["items"][0]["id"] == made["id"]
    assert ("action.approve", False) in {(action, ok) for _, action, ok in full.audit()}


@pytest.mark.parametrize("node", ["", "n1; rm", "-n1", "../n1", "n" * 254, "n1\n", "ｎ１"])
def test_a_node_that_is_no_name_is_refused(full: Site, node: str) -> None:
    assert post(full, "/actions", full.token(Role.OPERATOR), kind="drain", node=node, reason="x").status_code == 422


def test_a_node_that_is_not_known_is_refused(full: Site) -> None:
    answer = post(full, "/actions", full.token(Role.OPERATOR), kind="drain", node="n999", reason="x")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        "the inventory of cluster lab knows no node n999",
    )


def test_operators_stop_all_actions_and_admins_allow_them_again(full: Site) -> None:
    operator, admin = full.token(Role.OPERATOR), full.token(Role.ADMIN)

    def switch(header: dict[str, str], is_on: bool) -> int:
        body = {"is_on": is_on, "reason": "maintenance"}
        return full.client().put("/api/v1/actions/stop-switch", headers=header, json=body).status_code

    assert switch(operator, True) == 200
    assert get(full, "/actions/stop-switch", operator)["is_on"] is True
    assert switch(operator, False) == 403
    assert switch(admin, False) == 200


def test_actions_are_listed_in_pages(full: Site) -> None:
    records = ActionRecords(full.control, "lab")
    for number in range(5):
        records.request(Proposal(f"p{number}", "return", f"m{number}", "approve", "rule:x", "why", tenant="blue"))
    header = full.token(Role.VIEWER, tenant="blue")
    first = get(full, "/actions", header, limit=3)
    second = get(full, "/actions", header, limit=3, cursor=first["next_cursor"])
    ids = [one["id"] for one in first["items"] + second["items"]]
    assert sorted(ids) == [f"p{number}" for number in range(5)]
    assert second["next_cursor"] is None
