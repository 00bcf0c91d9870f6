"""Audit, people, tokens, sessions, idempotency keys, saved things: on both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from flightwatch.core.clock import Clock, ManualClock
from flightwatch.core.errors import ConfigError, NotFound, Refused
from flightwatch.pipeline.control.audit import KEPT_DAYS, PROJECTION, AuditLog
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.idempotency import IdempotencyKeys
from flightwatch.pipeline.control.people import PeopleRecords
from flightwatch.pipeline.control.revisions import latest_change
from flightwatch.pipeline.control.roles import Grant, Role, grants_from, grants_text, may, role_of, within
from flightwatch.pipeline.control.saved import SavedItems
from flightwatch.pipeline.control.sessions import PendingLogin, Sessions
from flightwatch.pipeline.control.tokens import Tokens

Open = Callable[[Clock | None], Control]
EVERYWHERE = [Grant(Role.OPERATOR)]


def test_an_audited_write_and_its_entry_are_one(open_another: Open) -> None:
    control = open_another(None)
    log = AuditLog(control)
    log.record(None, "alice", "sql", "store", True, "", sql="SELECT 1", rows=1, elapsed_ms=2.5, address="10.0.0.1")
    with pytest.raises(Refused):
        _note_and_fail(control, log)
    (entry,) = log.page()
    assert (entry.actor, entry.sql, entry.rows, entry.elapsed_ms, entry.address) == (
        "alice",
        "SELECT 1",
        1,
        2.5,
        "10.0.0.1",
    )
    (row,) = control.outbox.waiting()
    assert row.topic == PROJECTION
    assert (row.payload["actor"], row.payload["ts"], row.payload["ok"]) == ("alice", entry.at_ms, True)


def _note_and_fail(control: Control, log: AuditLog) -> None:
    with control.transaction() as connection:
        log.record(connection, "alice", "incident.note", "i1", True, "lost with its write")
        raise Refused("the write fails")


def test_the_audit_log_is_read_by_page_and_by_what_it_says(open_another: Open) -> None:
    log = AuditLog(open_another(None))
    for number in range(6):
        log.record(None, f"p{number % 2}", "incident.note" if number < 3 else "denied.csrf", "x", number < 3, "")
    newest = log.page(limit=2)
    assert [entry.sequence for entry in log.page(before=newest[-1].sequence, limit=2)] == [4, 3]
    assert {entry.actor for entry in log.page(actor="p1")} == {"p1"}
    assert len(log.page(action="denied.csrf", ok=False)) == 3


def test_old_entries_leave_the_control_database(open_another: Open) -> None:
    clock = ManualClock()
    control = open_another(clock)
    log = AuditLog(control)
    log.record(None, "a", "old", "x", True, "")
    clock.advance(KEPT_DAYS * 86_400 + 1)
    with control.transaction() as connection:
        for _ in range(499):
            log.record(connection, "a", "new", "x", True, "")
    assert log.page(action="old") == []


def test_a_change_is_noticed_and_an_audit_entry_alone_is_none(open_another: Open) -> None:
    control = open_another(None)
    before = latest_change(control)
    AuditLog(control).record(None, "a", "sql", "store", True, "")
    assert latest_change(control) == before
    with control.transaction() as connection:
        control.outbox.append(connection, "projection:incidents", "i1", {})
    assert latest_change(control) > before


def test_people_have_the_highest_of_what_was_given_and_claimed(open_another: Open) -> None:
    people = PeopleRecords(open_another(None))
    people.grant("alice", Grant(Role.VIEWER), "root")
    person = people.seen("alice", "Alice A.", [Grant(Role.ADMIN), Grant(Role.VIEWER, "red")])
    assert (person.name, list(person.grants)) == ("Alice A.", [Grant(Role.ADMIN), Grant(Role.VIEWER, "red")])
    assert list(people.seen("alice", "Alice A.", []).grants) == [Grant(Role.VIEWER)]
    assert list(people.seen("alice", "Alice A.", None).grants) == [Grant(Role.VIEWER)]
    people.grant("alice", Grant(Role.OPERATOR), "root")
    people.withdraw("alice", None)
    person = people.seen("alice", "Alice", None)
    assert list(person.grants) == []
    with pytest.raises(Refused):
        people.withdraw("alice", None)
    assert [one.subject for one in people.all()] == ["alice"]
    assert people.get("bob") is None


def test_a_visit_that_says_nothing_new_writes_nothing(open_another: Open) -> None:
    clock = ManualClock()
    people = PeopleRecords(open_another(clock))
    first = people.seen("alice", "Alice", [Grant(Role.VIEWER)])
    clock.advance(59)
    assert people.seen("alice", "Alice", [Grant(Role.VIEWER)]) == first
    changed = people.seen("alice", "Alice", [Grant(Role.ADMIN)])
    assert (list(changed.grants), changed.seen_at_ms) == ([Grant(Role.ADMIN)], clock.now_ms())
    clock.advance(60)
    assert people.seen("alice", "Alice", None).seen_at_ms == clock.now_ms()


@pytest.mark.parametrize(
    "subject", ["", "a b", "token:x", "socket:root", "rule:x", "local", "anonymous", "x\x00", "é" * 201]
)
def test_names_that_are_no_persons_are_refused(open_another: Open, subject: str) -> None:
    with pytest.raises(ConfigError):
        PeopleRecords(open_another(None)).grant(subject, EVERYWHERE[0], "root")


def test_an_account_is_one_persons(open_another: Open) -> None:
    people = PeopleRecords(open_another(None))
    people.grant("alice", EVERYWHERE[0], "root")
    people.grant("bob", EVERYWHERE[0], "root")
    people.link("alice", "slack", "U1")
    people.link("alice", "slack", "U1")
    found = people.by_account("slack", "U1")
    assert found is not None
    assert (found.subject, list(found.accounts)) == ("alice", [("slack", "U1")])
    for subject, service, account in (("bob", "slack", "U1"), ("carol", "slack", "U2")):
        with pytest.raises(Refused):
            people.link(subject, service, account)
    with pytest.raises(ConfigError):
        people.link("alice", "icq", "1")
    people.unlink("slack", "U1")
    assert people.by_account("slack", "U1") is None


def test_a_token_is_known_by_its_text_until_it_ends(open_another: Open) -> None:
    clock = ManualClock()
    control = open_another(clock)
    tokens, people = Tokens(control), PeopleRecords(control)
    token, text = tokens.create("ci", "alice", EVERYWHERE, ["read", "sql"], 1)
    found = tokens.verify(text)
    assert found is not None
    assert (found.id, found.subject, list(found.grants)) == (token.id, "token:ci", EVERYWHERE)
    assert tokens.verify(text[:-1] + ("A" if text[-1] != "A" else "B")) is None
    assert tokens.verify(f"fw_{'0' * 12}_{text[16:]}") is None
    for odd in ("", "fw_", text + "\n", text + " ", text.upper(), "x" * 10_000):
        assert tokens.verify(odd) is None
    tokens.used(found)
    again = tokens.verify(text)
    assert again is not None
    assert again.used_at_ms == clock.now_ms()
    people.grant("alice", EVERYWHERE[0], "root")
    people.disable("alice")
    assert tokens.verify(text) is None
    people.disable("alice", disabled=False)
    clock.advance(86_400)
    assert tokens.verify(text) is None
    assert tokens.valid(token.id) is None
    _, other = tokens.create("ci", "alice", EVERYWHERE, ["read"], 1)  # the name of an expired one is free
    tokens.revoke(tokens.all()[0].id)
    assert tokens.verify(other) is None


def test_the_database_holds_no_secret(open_another: Open) -> None:
    control = open_another(None)
    _, text = Tokens(control).create("ci", "alice", EVERYWHERE, ["read"], 1)
    identity, _ = Sessions(control).open("alice", 1, "10.0.0.1")
    with control.reading() as connection:
        for table in ("api_tokens", "sessions"):
            rows = str(connection.exec_driver_sql(f"SELECT * FROM {table}").all())
            assert text.rpartition("_")[2] not in rows
            assert identity not in rows


@pytest.mark.parametrize(
    ("name", "scopes", "grants", "days"),
    [("", ["read"], EVERYWHERE, 1), ("a b", ["read"], EVERYWHERE, 1), ("a", [], EVERYWHERE, 1),
     ("a", ["root"], EVERYWHERE, 1), ("a", ["read"], [], 1), ("a", ["read"], EVERYWHERE, 0)],
)  # fmt: skip
def test_tokens_that_make_no_sense_are_refused(
    open_another: Open, name: str, scopes: list[str], grants: list[Grant], days: int
) -> None:
    with pytest.raises(ConfigError):
        Tokens(open_another(None)).create(name, "alice", grants, scopes, days)


def test_sessions_end_by_time_and_by_hand(open_another: Open) -> None:
    clock = ManualClock()
    sessions = Sessions(open_another(clock))
    first, session = sessions.open("alice", 1, "10.0.0.1")
    second, _ = sessions.open("alice", 2, "10.0.0.1")
    assert sessions.find(first) == session
    assert sessions.find("x") is None
    clock.advance(3_600)
    assert sessions.find(first) is None
    sessions.close(second)
    assert sessions.find(second) is None
    sessions.open("alice", 1, "10.0.0.1")
    assert sessions.close_all("alice") == 1


def test_a_login_is_finished_once_by_the_browser_that_began_it(open_another: Open) -> None:
    clock = ManualClock()
    sessions = Sessions(open_another(clock))
    login = PendingLogin("n", "v", "/incidents")
    sessions.begin_login("s1", "b1", login)
    assert sessions.finish_login("s1", "b2") is None
    assert sessions.finish_login("s1", "b1") == login
    assert sessions.finish_login("s1", "b1") is None
    sessions.begin_login("s2", "b1", login)
    clock.advance(601)
    assert sessions.finish_login("s2", "b1") is None


def test_what_is_accepted_once_is_accepted_by_one_of_many(open_another: Open) -> None:
    sessions = [Sessions(open_another(None)) for _ in range(6)]
    taken: list[bool] = []
    threads = [threading.Thread(target=lambda one=one: taken.append(_once(one))) for one in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False] * 5 + [True]


def _once(sessions: Sessions) -> bool:
    return sessions.use_once("slack", "v0=abc", 60)


def test_a_key_is_claimed_once_and_its_answer_kept_for_a_day(open_another: Open) -> None:
    clock = ManualClock()
    keys = IdempotencyKeys(open_another(clock))
    assert keys.begin("alice", "k", "h1") is None
    running = keys.begin("alice", "k", "h1")
    assert running is not None
    assert (running.same, running.status) == (True, None)
    keys.end("alice", "k", 201, '{"id": 1}')
    done, other = keys.begin("alice", "k", "h1"), keys.begin("alice", "k", "h2")
    assert done is not None
    assert other is not None
    assert (done.same, done.status, done.body, other.same) == (True, 201, '{"id": 1}', False)
    assert keys.begin("bob", "k", "h1") is None
    keys.abandon("bob", "k")
    assert keys.begin("bob", "k", "h2") is None
    clock.advance(121)  # bob's process died
    assert keys.begin("bob", "k", "h3") is None
    clock.advance(86_400)
    assert keys.begin("alice", "k", "h9") is None


def test_saved_things(open_another: Open) -> None:
    saved = SavedItems(open_another(None))
    mine = saved.create("query", "alice", "b", {"sql": "SELECT 1"}, False)
    shared = saved.create("query", "bob", "a", {"sql": "SELECT 2"}, True)
    assert [one.id for one in saved.list("query", "alice")] == [shared.id, mine.id]
    assert saved.list("view", "alice") == []
    with pytest.raises(NotFound):
        saved.get(mine.id, "bob")
    with pytest.raises(Refused):
        saved.replace(shared.id, "alice", "a", {}, True, None)
    assert saved.replace(mine.id, "alice", "c", {}, True, 1).revision == 2
    with pytest.raises(Refused):
        saved.replace(mine.id, "alice", "c", {}, True, 1)
    saved.delete(mine.id, "alice")
    with pytest.raises(NotFound):
        saved.delete(mine.id, "alice")


def test_roles_cover_what_is_below_them_and_tenants_what_is_theirs() -> None:
    assert Role.ADMIN.covers(Role.VIEWER)
    assert not Role.VIEWER.covers(Role.OPERATOR)
    scoped = [Grant(Role.OPERATOR, "red"), Grant(Role.VIEWER)]
    assert may(scoped, Role.OPERATOR, "red")
    assert may(scoped, Role.VIEWER)
    assert may(scoped, Role.VIEWER, "blue")
    assert not may(scoped, Role.OPERATOR)
    assert not may(scoped, Role.OPERATOR, "blue")
    assert grants_from(grants_text(scoped)) == tuple(scoped)
    with pytest.raises(ConfigError):
        role_of("root")


@pytest.mark.parametrize(
    ("asked", "limits", "left"),
    [
        ([Grant(Role.ADMIN)], [Grant(Role.VIEWER)], [Grant(Role.VIEWER)]),
        ([Grant(Role.VIEWER)], [Grant(Role.ADMIN)], [Grant(Role.VIEWER)]),
        ([Grant(Role.ADMIN)], [Grant(Role.OPERATOR, "red")], [Grant(Role.OPERATOR, "red")]),
        ([Grant(Role.ADMIN, "red")], [Grant(Role.OPERATOR, "blue")], []),
        ([Grant(Role.ADMIN, "red")], [Grant(Role.OPERATOR)], [Grant(Role.OPERATOR, "red")]),
        ([Grant(Role.ADMIN)], [Grant(Role.VIEWER), Grant(Role.ADMIN, "red")],
         [Grant(Role.VIEWER), Grant(Role.ADMIN, "red")]),
    ],
)  # fmt: skip
def test_what_is_left_within_limits(asked: list[Grant], limits: list[Grant], left: list[Grant]) -> None:
    assert within(asked, limits) == tuple(left)
