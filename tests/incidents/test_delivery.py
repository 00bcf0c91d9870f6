"""From needs to messages: once each, in order, together in a storm, again after a failure, never lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flightwatch.core.errors import StaleGeneration
from flightwatch.core.incident import IncidentState
from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.alert_settings import RouteSettings
from flightwatch.incidents.buttons import parse_button
from flightwatch.incidents.contract import Delivery
from flightwatch.pipeline.control.schema import OUTBOX
from tests.incidents.delivery_kit import Desk, Inbox
from tests.incidents.engine_kit import cleared
from tests.incidents.grouping_kit import finding

LOST = Delivery(ok=False, error="no answer", unknown=True)
BUSY = Delivery(ok=False, http_status=503, error="answered 503")


@pytest.fixture
def desk_of(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(*inboxes: Inbox, **settings: object) -> Desk:
        made.append(Desk(tmp_path, *inboxes, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for desk in made:
        desk.rig.close()


def opened(
    desk: Desk,
    number: int = 1,
    kind: Kind = Kind.DEVICE_ERROR,
    severity: Severity = Severity.P1,
    job: str | None = None,
) -> list[str]:
    """Open incidents at far places and return their ids, the oldest first."""
    for i in range(number):
        desk.rig.take(
            finding(kind, f"n{i * 16}" if number < 5 else f"x{i}", 0, desk.clock.now_ms(), severity=severity, job=job)
        )
    desk.rig.wait(1)
    return [one.id for one in desk.rig.incidents()]


def test_one_incident_is_one_message_to_each_channel(desk_of: Callable[..., Desk]) -> None:
    chat, pager = Inbox("chat"), Inbox("pager", pages=True, idempotent=True)
    desk = desk_of(chat, pager)
    ids = opened(desk)
    desk.deliver()
    desk.deliver()
    assert (chat.reasons, pager.reasons) == (["opened"], ["opened"])
    assert chat.got[0][0].key == ids[0]
    assert chat.got[0][0].idempotency_key != pager.got[0][0].idempotency_key
    assert not desk.rig.needs.waiting()


def test_p3_goes_to_chats_and_p4_to_nobody(desk_of: Callable[..., Desk]) -> None:
    chat, pager = Inbox("chat"), Inbox("pager", pages=True)
    desk = desk_of(chat, pager)
    opened(desk, severity=Severity.P3)
    desk.rig.take(finding(Kind.ANOMALY, "n40", 1, desk.clock.now_ms(), severity=Severity.P4))
    desk.wait(1)
    assert (len(chat.got), len(pager.got)) == (1, 0)


def test_the_life_of_an_incident_stays_in_its_thread(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat", updates=True)
    desk = desk_of(chat)
    first = finding(Kind.SLOW, "n1", 0, desk.clock.now_ms(), job="llm", severity=Severity.P3)
    desk.rig.take(first)
    desk.wait(1)
    id_ = desk.rig.incidents()[0].id
    desk.rig.take(finding(Kind.DEVICE_ERROR, "n1", 0, desk.clock.now_ms(), severity=Severity.P1))
    desk.wait(1)
    desk.rig.records.acknowledge(id_, "li")
    desk.wait(1)
    desk.rig.records.resolve(id_, "li", IncidentState.RESOLVED)
    desk.wait(1)
    assert chat.reasons == ["opened", "worsened", "acknowledged", "resolved"]
    assert {reference.get("id") for _, reference in chat.got[1:]} == {"m1"}
    assert len({alert.key for alert, _ in chat.got}) == 1
    assert "li works on it" in chat.titles[2]
    # A press is possible while nobody has acknowledged, and names the incident as the message shows it.
    assert [[label for label, _ in alert.buttons] for alert, _ in chat.got] == [
        ["Acknowledge"],
        ["Acknowledge"],
        [],
        [],
    ]
    first_press = parse_button(chat.got[0][0].buttons[0][1])
    assert first_press is not None
    assert first_press.target == id_


def test_a_channel_without_updates_hears_only_what_needs_a_look(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    desk = desk_of(chat)
    opened(desk, severity=Severity.P3)
    desk.deliver()
    id_ = desk.rig.incidents()[0].id
    desk.rig.records.acknowledge(id_, "li")
    desk.wait(1)
    desk.rig.records.resolve(id_, "li", IncidentState.RESOLVED)
    desk.wait(1)
    assert chat.reasons == ["opened", "resolved"]


def test_what_waits_is_told_once_as_it_is_by_then(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    chat.answers = [BUSY]
    desk = desk_of(chat)
    opened(desk, kind=Kind.SLOW, job="llm", severity=Severity.P3)
    desk.deliver()
    desk.rig.take(finding(Kind.DEVICE_ERROR, "n0", 0, desk.clock.now_ms(), severity=Severity.P1))
    desk.run(5)
    assert chat.reasons == ["opened"]
    assert chat.got[0][0].severity is Severity.P1


def test_over_before_it_was_told(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    chat.answers = [BUSY, BUSY]
    desk = desk_of(chat)
    minor, grave = (
        finding(Kind.SENSOR, "n0", 0, desk.clock.now_ms(), severity=Severity.P3),
        finding(Kind.DEVICE_ERROR, "n40", 0, desk.clock.now_ms(), severity=Severity.P1),
    )
    desk.rig.take(minor, grave)
    desk.wait(1)
    for one in desk.rig.incidents():
        desk.rig.records.resolve(one.id, "li", IncidentState.RESOLVED)
    desk.run(30)
    assert chat.reasons == ["resolved"]
    assert chat.titles[0].startswith("RESOLVED, was P1")


def test_retries_wait_longer_and_honour_retry_after(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    chat.answers = [BUSY, BUSY, Delivery(ok=False, http_status=429, error="slow down", retry_after_seconds=90.0)]
    desk = desk_of(chat)
    opened(desk)
    desk.deliver()
    times = []
    for _ in range(200):
        before = len(chat.answers)
        desk.wait(1)
        if len(chat.answers) != before or chat.got:
            times.append(desk.clock.monotonic_s())
        if chat.got:
            break
    gaps = [round(b - a) for a, b in itertools.pairwise(times)]
    assert len(gaps) == 2
    assert gaps[0] >= 3
    assert gaps[1] >= 90
    [delivery] = desk.records.deliveries()
    assert (delivery.state, delivery.attempts, delivery.error) == ("sent", 4, None)


def test_a_refusal_fails_at_once_unless_it_is_urgent(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    refusal = Delivery(ok=False, http_status=403, error="answered 403", retry=False)
    chat.answers = [refusal]
    desk = desk_of(chat)
    opened(desk, severity=Severity.P3)
    desk.deliver()
    assert desk.records.deliveries()[0].state == "failed"
    chat.answers = [refusal]
    desk.rig.take(finding(Kind.DEVICE_ERROR, "n40", 0, desk.clock.now_ms(), severity=Severity.P1))
    desk.wait(1)
    assert not chat.got
    desk.run(90)
    assert chat.reasons == ["opened"]


def test_it_is_given_up_in_the_end(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    chat.answers = [BUSY] * 1000
    desk = desk_of(chat, give_up_hours=1.0)
    opened(desk)
    for _ in range(80):
        desk.wait(60)
    assert [one.state for one in desk.records.deliveries()][-1] == "failed"


def test_an_unknown_outcome_is_sent_again_and_says_so(desk_of: Callable[..., Desk]) -> None:
    chat, hook = Inbox("chat"), Inbox("hook", idempotent=True)
    chat.answers, hook.answers = [LOST], [LOST]
    desk = desk_of(chat, hook)
    opened(desk)
    desk.run(5)
    assert [len(inbox.got) for inbox in (chat, hook)] == [2, 2]
    assert "may have come before" in chat.got[1][0].body
    assert "may have come before" not in hook.got[1][0].body
    assert len({alert.idempotency_key for alert, _ in hook.got}) == 1


def test_a_process_that_died_while_sending_repeats_only_that_message(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    desk = desk_of(chat)
    opened(desk, 3)
    desk.planner.plan(desk.rig.lease)
    desk.senders["chat"].step(desk.rig.lease)
    waiting = desk.records.due("chat")
    desk.records.intend(desk.rig.lease, waiting[0])  # and then it dies
    old = desk.rig.lease
    desk.rig.lease = desk.rig.take_role("a")
    assert desk.records.recover(desk.rig.lease, desk.channels) == 1
    with pytest.raises(StaleGeneration):
        desk.senders["chat"].step(old)
    desk.build()
    desk.deliver()
    assert len(chat.got) == 3
    marked = ["may have come before" in alert.body for alert, _ in chat.got]
    assert marked.count(True) == 1


def test_a_notifier_that_breaks_its_word_blocks_nothing(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    chat.answers = [RuntimeError("bug")]
    desk = desk_of(chat)
    opened(desk)
    desk.run(5)
    assert chat.reasons == ["opened"]
    assert desk.records.deliveries()[0].may_repeat


def test_a_storm_is_told_together(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat", updates=True)
    desk = desk_of(chat)
    found = [finding(Kind.SENSOR, f"y{i}", 0, desk.clock.now_ms(), severity=Severity.P3) for i in range(300)]
    for start in range(0, 300, 5):
        desk.rig.take(*found[start : start + 5])
        desk.wait(1)
    desk.run(40)
    incidents = desk.rig.incidents()
    assert len(chat.got) <= 10
    told = "".join(alert.body for alert, _ in chat.got)
    assert len(incidents) > 50
    assert len(desk.records.threads({one.id for one in incidents})) == len(incidents)
    together = [alert for alert, _ in chat.got if alert.incident is None]
    assert together
    assert "incidents at once" in together[0].title
    assert told.count("P3") > 40
    # The end of what was told together is told once, in the thread of that message.
    before = len(chat.got)
    desk.rig.take(*(cleared(one, desk.clock.now_ms()) for one in found))
    desk.run(400, step=10)
    assert all(one.state is IncidentState.RESOLVED for one in desk.rig.incidents())
    ends = chat.got[before:]
    assert len(ends) <= len(together) + 5
    assert {alert.reason.value for alert, _ in ends} == {"resolved"}
    assert any(reference for alert, reference in ends if alert.incident is None)


def test_grave_news_in_a_storm_does_not_wait_long(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    desk = desk_of(chat)
    for i in range(100):
        desk.rig.take(finding(Kind.SENSOR, f"y{i}", 0, desk.clock.now_ms(), severity=Severity.P3))
    desk.wait(1)
    desk.run(20)
    seen = len(chat.got)
    desk.rig.take(finding(Kind.DEVICE_ERROR, "grave", 0, desk.clock.now_ms(), severity=Severity.P1))
    desk.run(11)
    assert any("grave" in alert.body for alert, _ in chat.got[seen:])


def test_after_an_outage_the_backlog_is_told_together_and_soon(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    desk = desk_of(chat)
    chat.answers = [BUSY] * 1000
    for number in range(30):  # ten minutes
        found = finding(Kind.OVERHEAT, f"x{number}", 0, desk.clock.now_ms(), severity=Severity.P3)
        desk.rig.take(found)
        desk.run(20, step=5)
    assert 5 <= 1000 - len(chat.answers) <= 40  # the service is tried now and then, not by every message
    chat.answers.clear()
    desk.run(120, step=2)
    assert desk.records.waiting_by_channel().get("chat", 0) == 0
    assert len(chat.got) <= 8
    assert "incidents at once" in chat.titles[-1]
    incidents = {one.id for one in desk.rig.incidents()}
    assert len(desk.records.threads(incidents)) == len(incidents) >= 20


def test_a_clock_that_is_set_back_or_forth_keeps_nothing_back(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    desk = desk_of(chat)
    opened(desk, 8)
    chat.answers = [BUSY, BUSY]
    desk.run(60, step=10)
    for hours in (-1, 3, -2):
        before = len(chat.got)
        desk.clock.set_wall_ms(desk.clock.now_ms() + hours * 3_600_000)
        node = f"jump{hours}"
        desk.rig.take(finding(Kind.DEVICE_ERROR, node, 0, desk.clock.now_ms(), severity=Severity.P1))
        desk.run(90, step=10)
        assert any(node in alert.body for alert, _ in chat.got[before:]), hours


def test_reminders_until_somebody_acknowledges(desk_of: Callable[..., Desk]) -> None:
    chat, pager = Inbox("chat", updates=True), Inbox("pager", pages=True, updates=True)
    desk = desk_of(chat, pager, remind_p1_minutes=15.0)
    opened(desk)
    desk.deliver()
    desk.run(80 * 60, step=30)
    assert chat.reasons == ["opened", "reminder", "reminder"]  # after 15 minutes, after 30 more, then after 60
    assert "NOBODY HAS ACKNOWLEDGED for 45 min" in chat.titles[2]
    assert pager.reasons == ["opened"]
    desk.rig.records.acknowledge(desk.rig.incidents()[0].id, "li")
    desk.run(80 * 60, step=60)
    assert chat.reasons[3:] == ["acknowledged"]


def test_a_dead_channel_is_reported_on_the_others(desk_of: Callable[..., Desk]) -> None:
    chat, mail = Inbox("chat"), Inbox("mail")
    chat.answers = [BUSY] * 100
    desk = desk_of(chat, mail)
    opened(desk)
    desk.run(300, step=5)
    assert mail.reasons == ["opened", "platform"]
    assert mail.titles[1] == "Channel chat takes no messages"
    assert "answered 503" in mail.got[1][0].lead
    chat.answers.clear()
    desk.run(400, step=5)
    assert chat.reasons == ["opened"]
    assert mail.titles[2] == "Channel chat takes messages again"
    assert len(mail.got) == 3


def test_all_dead(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    chat.answers = [BUSY] * 100
    desk = desk_of(chat)
    opened(desk)
    desk.deliver()
    assert not desk.planner.all_dead()
    desk.run(300, step=5)
    assert desk.planner.all_dead()


def test_silenced_incidents_are_not_told(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    desk = desk_of(chat)
    desk.rig.records.create_silence({"node": "n0"}, "li", "repair", expires_at_ms=desk.clock.now_ms() + 3_600_000)
    opened(desk)
    desk.run(60, step=5)
    assert not chat.got


def test_routes_decide(desk_of: Callable[..., Desk]) -> None:
    chat, night = Inbox("chat"), Inbox("night")
    desk = desk_of(chat, night, routes={"sensors": RouteSettings(match={"kind": "sensor"}, channels=("night",))})
    opened(desk, kind=Kind.SENSOR, severity=Severity.P3)
    desk.deliver()
    assert (len(chat.got), len(night.got)) == (0, 1)


def test_merged_incidents_end_their_thread(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat", updates=True)
    desk = desk_of(chat)
    ids = opened(desk, 2)
    desk.deliver()
    keys = [alert.key for alert, _ in chat.got]
    desk.rig.records.merge(ids[0], [ids[1]], "li")
    desk.wait(1)
    ends = [alert for alert, _ in chat.got[2:] if alert.reason.value == "resolved"]
    if ends:
        assert ends[0].key in keys
        assert ends[0].title.startswith("NOW PART OF")


def test_every_attempt_is_projected(desk_of: Callable[..., Desk]) -> None:
    import json

    import sqlalchemy as sa

    chat = Inbox("chat")
    chat.answers = [BUSY]
    desk = desk_of(chat)
    opened(desk)
    desk.run(5)
    with desk.rig.control.reading() as connection:
        chosen = sa.select(OUTBOX.c.payload).where(OUTBOX.c.topic == "projection:alert_deliveries")
        rows = [json.loads(text) for text in connection.execute(chosen.order_by(OUTBOX.c.sequence)).scalars()]
    assert [(row["status"], row["attempt"], row["http_status"]) for row in rows] == [
        ("intent", 1, None), ("failed", 1, 503), ("intent", 2, None), ("sent", 2, 200),
    ]  # fmt: skip


def test_rate_limit_of_a_service(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat", per_minute=6.0)
    desk = desk_of(chat, burst=100)
    opened(desk, 15)
    desk.deliver()
    assert len(chat.got) == 5
    desk.run(60)
    assert len(chat.got) in (10, 11)


def test_old_deliveries_are_forgotten(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    desk = desk_of(chat)
    opened(desk)
    desk.deliver()
    assert desk.records.forget(desk.clock.now_ms() + 1) == 1
    assert desk.records.deliveries() == []
    assert desk.records.threads({desk.rig.incidents()[0].id})


def test_a_channel_that_is_gone_keeps_nothing_back(desk_of: Callable[..., Desk]) -> None:
    chat = Inbox("chat")
    chat.answers = [BUSY]
    desk = desk_of(chat)
    opened(desk)
    desk.deliver()
    desk.records.recover(desk.rig.lease, ["other"])
    assert [one.state for one in desk.records.deliveries()] == ["dropped"]
