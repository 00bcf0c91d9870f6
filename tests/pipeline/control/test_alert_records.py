"""Deliveries, threads and channels on both databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flightwatch.core.clock import Clock
from flightwatch.core.errors import StaleGeneration
from flightwatch.core.incident import AlertReason
from flightwatch.core.vocabulary import Severity
from flightwatch.pipeline.control.alert_rows import NewDelivery, Settled
from flightwatch.pipeline.control.alerts import AlertRecords, merged
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.leases import Lease


@pytest.fixture
def control(open_another: Callable[[Clock | None], Control]) -> Control:
    return open_another(None)


@pytest.fixture
def lease(control: Control) -> Lease:
    taken = control.leases.acquire("incidents", "a", 60.0)
    assert taken is not None
    return taken


def message(number: int = 1, thread: str = "i1") -> NewDelivery:
    return NewDelivery(f"{number}.chat", "chat", thread, thread, AlertReason.OPENED, Severity.P2)


def test_planning_twice_changes_nothing(control: Control, lease: Lease) -> None:
    records = AlertRecords(control)
    assert records.plan(lease, [message()]) == 1
    assert records.plan(lease, [message()]) == 0
    assert records.pending({"i1", "i2"}) == {("chat", "i1")}
    assert records.waiting_by_channel() == {"chat": 1}


def test_a_message_from_intent_to_thread(control: Control, lease: Lease) -> None:
    records = AlertRecords(control)
    records.plan(lease, [message()])
    [waiting] = records.due("chat")
    begun = records.intend(lease, waiting)
    assert records.due("chat") == []
    records.settle(lease, begun, Settled("waiting", 503, "answered 503", due_at_ms=records.now_ms(), unknown=True))
    [again] = records.due("chat")
    assert (again.attempts, again.may_repeat, again.error) == (1, True, "answered 503")
    state = records.channel_states()["chat"]
    assert (state.failures, state.last_error) == (1, "answered 503")
    records.settle(lease, records.intend(lease, again), Settled("sent", 200, None, 12.5, {"ts": "1"}))
    thread = records.threads(["i1"])["chat", "i1"]
    assert (thread.reference, thread.open, thread.severity) == ({"ts": "1"}, True, Severity.P2)
    assert records.channel_states()["chat"].failures == 0
    assert len(records.loud_since("chat", 0)) == 1
    [done] = records.deliveries(incident="i1")
    assert (done.state, done.latency_ms) == ("sent", 12.5)


def test_several_in_one(control: Control, lease: Lease) -> None:
    records = AlertRecords(control)
    records.plan(lease, [message(number, thread=f"i{number}") for number in range(3)])
    together = records.gather(lease, records.due("chat"), Severity.P2)
    members = records.carried_by(together.id)
    assert [one.incident for one in members] == ["i0", "i1", "i2"]
    records.settle(lease, records.intend(lease, together), Settled("sent", reference={"id": "7"}), members)
    assert {one.thread for one in records.told_together("chat", together.id)} == {"i0", "i1", "i2"}
    records.close_thread(lease, "chat", "i0")
    assert [one.thread for one in records.open_threads(records.now_ms()) if one.digest] == ["i1", "i2"]


def test_who_lost_the_lease_changes_nothing(control: Control, lease: Lease) -> None:
    records = AlertRecords(control)
    records.plan(lease, [message()])
    begun = records.intend(lease, records.due("chat")[0])
    other = control.leases.acquire("incidents", "a", 60.0)
    assert other is not None
    for act in (
        lambda: records.plan(lease, [message(2)]),
        lambda: records.intend(lease, begun),
        lambda: records.settle(lease, begun, Settled("sent")),
    ):
        with pytest.raises(StaleGeneration):
            act()
    assert records.recover(other, ["chat"]) == 1
    assert records.due("chat")[0].may_repeat


def test_reports_about_channels_are_queued_once(control: Control, lease: Lease) -> None:
    records = AlertRecords(control)
    records.plan(lease, [message()])
    records.settle(lease, records.intend(lease, records.due("chat")[0]), Settled("failed", error="403"))
    report = NewDelivery("dead.chat.1.mail", "mail", "channel:chat", "", AlertReason.PLATFORM, Severity.P3,
                         detail={"channel": "chat"})  # fmt: skip
    records.report_channel(lease, "chat", [report], dead=True)
    records.report_channel(lease, "chat", [report], dead=True)
    [waiting] = records.due("mail")
    assert waiting.detail == {"channel": "chat"}
    assert records.channel_states()["chat"].reported_at_ms is not None
    records.report_channel(lease, "chat", [], dead=False)
    assert records.channel_states()["chat"].reported_at_ms is None


@pytest.mark.parametrize(
    ("waiting", "new", "want"),
    [
        ("opened", "changed", "opened"), ("opened", "worsened", "opened"), ("opened", "acknowledged", "opened"),
        ("changed", "worsened", "worsened"), ("worsened", "changed", "worsened"), ("opened", "resolved", "resolved"),
        ("resolved", "reopened", "reopened"), ("reminder", "worsened", "worsened"), ("reopened", "opened", "opened"),
        ("worsened", "reminder", "worsened"),
    ],
)  # fmt: skip
def test_what_a_waiting_message_becomes(waiting: str, new: str, want: str) -> None:
    assert merged(AlertReason(waiting), AlertReason(new)) is AlertReason(want)
