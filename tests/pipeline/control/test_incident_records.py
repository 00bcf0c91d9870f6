from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from flightwatch.core.clock import Clock, ManualClock
from flightwatch.core.errors import ConfigError, NotFound, Refused
from flightwatch.core.incident import AlertReason, IncidentState
from flightwatch.core.vocabulary import Severity
from flightwatch.pipeline.control.alert_needs import AlertNeeds
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.incident_rows import IncidentFilter
from flightwatch.pipeline.control.incidents import IncidentRecords
from tests.pipeline.control.incident_kit import add_incident

Another = Callable[[Clock | None], Control]
NOW = 1_764_400_000_000
HOUR = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def control(open_another: Another, clock: ManualClock) -> Control:
    return open_another(clock)


@pytest.fixture
def records(control: Control) -> IncidentRecords:
    return IncidentRecords(control)


def reasons(control: Control) -> list[tuple[str, str]]:
    return [(need.incident.id, need.reason.value) for need in AlertNeeds(control).waiting()]


def test_an_acknowledgement_is_state_history_projection_and_message(control: Control, records: IncidentRecords) -> None:
    add_incident(control, "i1", NOW)
    got = records.acknowledge("i1", "ada", note="looking")
    assert (got.state, got.acknowledged_by, got.assignee, got.revision) == (IncidentState.ACKNOWLEDGED, "ada", "ada", 2)
    assert got.acknowledged_at_ms == NOW
    assert [(entry.event, entry.actor) for entry in records.history("i1")] == [
        ("noted", "ada"),
        ("acknowledged", "ada"),
    ]
    assert [note.text for note in records.notes("i1")] == ["looking"]
    assert reasons(control) == [("i1", "acknowledged")]
    topics = {entry.topic for entry in control.outbox.waiting()}
    assert topics == {"projection:incidents", "projection:incident_notes"}
    assert records.acknowledge("i1", "ada").revision == 2


def test_a_write_on_what_changed_meanwhile_is_refused(control: Control, records: IncidentRecords) -> None:
    add_incident(control, "i1", NOW)
    assert records.assign("i1", "ada", "bob", revision=1).assignee == "bob"
    with pytest.raises(Refused, match="changed meanwhile"):
        records.acknowledge("i1", "carol", revision=1)
    assert records.get("i1").state is IncidentState.OPEN


def test_closing_counts_the_loss_up_to_now_and_reopening_goes_on(
    control: Control, records: IncidentRecords, clock: ManualClock
) -> None:
    add_incident(
        control, "i1", NOW, loss_gpu_hours_per_hour=8.0, lost_gpu_hours=1.0, loss_counted_at_ms=NOW,
    )  # fmt: skip
    clock.advance(1800)
    closed = records.resolve("i1", "ada")
    assert closed.lost_gpu_hours == pytest.approx(5.0)
    assert closed.closed_at_ms == NOW + HOUR // 2
    clock.advance(3600)
    assert records.resolve("i1", "ada", IncidentState.FALSE_POSITIVE).lost_gpu_hours == pytest.approx(5.0)
    again = records.reopen("i1", "bob")
    assert (again.state, again.reopened, again.closed_at_ms) == (IncidentState.OPEN, 1, None)
    assert reasons(control) == [("i1", "resolved"), ("i1", "resolved"), ("i1", "reopened")]
    with pytest.raises(ConfigError):
        records.resolve("i1", "ada", IncidentState.OPEN)


def test_a_closed_incident_is_not_acknowledged(control: Control, records: IncidentRecords) -> None:
    add_incident(control, "i1", NOW, state="resolved", closed_at_ms=NOW)
    with pytest.raises(Refused, match="reopen it first"):
        records.acknowledge("i1", "ada")


def test_nobody_hears_of_changes_to_what_was_never_announced(control: Control, records: IncidentRecords) -> None:
    add_incident(control, "quiet", NOW, thread="")
    records.acknowledge("quiet", "ada")
    records.resolve("quiet", "ada")
    assert reasons(control) == []


def test_unknown_ids_and_empty_notes_are_refused(control: Control, records: IncidentRecords) -> None:
    add_incident(control, "i1", NOW)
    for write in (
        lambda: records.get("nix"), lambda: records.acknowledge("nix", "ada"), lambda: records.notes("nix"),
        lambda: records.expire_silence("nix", "ada"),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            write()
    for text in ("", "  ", "x" * 10_001):
        with pytest.raises(ConfigError):
            records.note("i1", "ada", text)


def test_merging_moves_everything_and_every_old_id_still_leads_there(
    control: Control, records: IncidentRecords
) -> None:
    for number, id_ in enumerate(("a", "b", "c")):
        add_incident(control, id_, NOW + number)
    records.note("b", "ada", "about b")
    merged = records.merge("a", ["b", "c", "a"], "ada")
    assert (merged.id, merged.findings_count) == ("a", 3)
    assert {records.get(id_).id for id_ in ("a", "b", "c", "i-f-b", "i-f-c")} == {"a"}
    assert [one.finding for one in records.findings("c")] == ["f-a", "f-b", "f-c"]
    assert [note.text for note in records.notes("a")] == ["about b"]
    assert "merged_into" in {entry.event for entry in records.history("a")}
    assert [one.id for one in records.page().items] == ["a"]
    assert {one.id for one in records.page(IncidentFilter(merged=True)).items} == {"a", "b", "c"}
    told = AlertNeeds(control).waiting()
    assert [(one.incident.id, one.reason) for one in told] == [
        ("b", AlertReason.RESOLVED), ("c", AlertReason.RESOLVED), ("a", AlertReason.CHANGED),
    ]  # fmt: skip
    assert told[0].incident.merged_into == "a"
    with pytest.raises(Refused):
        records.merge("a", ["b"], "ada")


def test_pages_go_through_all_incidents_once_newest_first(control: Control, records: IncidentRecords) -> None:
    for number in range(7):
        add_incident(control, f"i{number}", NOW + number // 2)
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = records.page(cursor=cursor, limit=3)
        seen += [one.id for one in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == ["i6", "i5", "i4", "i3", "i2", "i1", "i0"]
    with pytest.raises(ConfigError):
        records.page(cursor="nonsense")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (IncidentFilter(states=("open",)), {"a", "b"}),
        (IncidentFilter(states=(IncidentState.RESOLVED,)), {"c"}),
        (IncidentFilter(severities=(Severity.P1,)), {"b"}),
        (IncidentFilter(tenants=("red",)), {"a", "c"}),
        (IncidentFilter(tenants=()), set()),
        (IncidentFilter(nodes=("n2",)), {"b"}),
        (IncidentFilter(text="N2_%"), set()),
        (IncidentFilter(text="SLOW (b"), {"b"}),
        (IncidentFilter(since_ms=NOW + 1), {"b", "c"}),
        (IncidentFilter(until_ms=NOW + 1), {"a"}),
        (IncidentFilter(quiet=True), {"b"}),
        (IncidentFilter(quiet=False, states=("open",)), {"a"}),
    ],
)
def test_filters(control: Control, records: IncidentRecords, wanted: IncidentFilter, expected: set[str]) -> None:
    add_incident(control, "a", NOW)
    add_incident(control, "b", NOW + 1, severity="P1", node="n2", tenant=None, inhibited_by="a")
    add_incident(control, "c", NOW + 2, state="resolved")
    assert {one.id for one in records.page(wanted).items} == expected


def test_counts_by_state_and_severity(control: Control, records: IncidentRecords) -> None:
    add_incident(control, "a", NOW)
    add_incident(control, "b", NOW, severity="P1", state="acknowledged")
    add_incident(control, "c", NOW, state="resolved", tenant="blue")
    counts = records.counts()
    assert (counts["open"], counts["acknowledged"], counts["resolved"], counts["P1"], counts["P2"]) == (1, 1, 1, 1, 1)
    assert records.counts(tenants=["blue"])["resolved"] == 1
    assert records.counts(tenants=["blue"])["open"] == 0


def test_a_silence_needs_matchers_a_reason_and_an_end(records: IncidentRecords) -> None:
    for matchers, reason, expires in (
        ({}, "why", NOW + HOUR), ({"nodes": "n1"}, "why", NOW + HOUR), ({"node": ""}, "why", NOW + HOUR),
        ({"node": "*"}, "why", NOW + HOUR), ({"node": "n1"}, " ", NOW + HOUR), ({"node": "n1"}, "why", NOW),
        ({"node": "n1"}, "why", NOW + 400 * 24 * HOUR),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            records.create_silence(matchers, "ada", reason, expires_at_ms=expires)


def test_silences_begin_expire_and_are_ended(records: IncidentRecords, clock: ManualClock, control: Control) -> None:
    short = records.create_silence({"node": "n*"}, "ada", "repair", expires_at_ms=NOW + HOUR)
    window = records.create_silence(
        {"rack": "r1"}, "bob", "pump", expires_at_ms=NOW + 3 * HOUR, starts_at_ms=NOW + 2 * HOUR, maintenance=True
    )
    before = records.latest_sequence()
    assert [one.id for one in records.silences()] == [short.id]
    assert [one.id for one in records.silences(active_only=False)] == [short.id, window.id]
    ended = records.expire_silence(short.id, "bob")
    assert ended.ended_by == "bob"
    assert records.latest_sequence() > before
    assert records.silences() == []
    with pytest.raises(Refused):
        records.expire_silence(short.id, "bob")
    clock.advance(2.5 * 3600)
    assert [one.kind for one in records.silences()] == ["maintenance"]
    rows = [entry.payload for entry in control.outbox.waiting() if entry.topic == "projection:silences"]
    assert [row["expires_at"] for row in rows] == [NOW + HOUR, NOW + 3 * HOUR, NOW]


def test_handled_needs_are_not_given_again(control: Control, records: IncidentRecords) -> None:
    add_incident(control, "a", NOW)
    records.acknowledge("a", "ada")
    records.resolve("a", "ada")
    needs = AlertNeeds(control)
    first, second = needs.waiting()
    with control.transaction() as connection:
        needs.handled(connection, [first.sequence])
    assert [one.sequence for one in needs.waiting()] == [second.sequence]


def test_two_people_at_once_lose_no_write(control: Control, open_another: Another, clock: ManualClock) -> None:
    add_incident(control, "a", NOW)
    other = IncidentRecords(open_another(clock))
    mine = IncidentRecords(control)
    threads = [
        threading.Thread(target=who.note, args=("a", name, f"note {number}"))
        for who, name in ((mine, "ada"), (other, "bob"))
        for number in range(5)
    ]
    for thread in threads:
        thread.start()
    other.acknowledge("a", "bob")
    for thread in threads:
        thread.join()
    assert len(mine.notes("a")) == 10
    assert mine.get("a").acknowledged_by == "bob"
