from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.core.errors import StaleGeneration
from flightwatch.core.incident import IncidentState, Progress
from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.incidents.context import ClusterView
from flightwatch.incidents.grouping import incident_id
from flightwatch.incidents.severity import JobState
from tests.incidents.engine_kit import Rig, cleared, ids
from tests.incidents.grouping_kit import MINUTE, T0, finding, racks
from tests.incidents.test_grouping import random_findings

HOUR = 60 * MINUTE


def zone(at_ms: int = T0) -> Finding:
    return finding(Kind.COOLING, at_ms=at_ms, scope=FindingScope.COOLING_ZONE, targets=("z0",), severity=Severity.P2)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_a_finding_opens_an_incident_and_people_hear_once(rig: Rig) -> None:
    one = finding(Kind.THROTTLE, "n1", 3, summary="n1 device 3: clocks are held down.", blames_hardware=True)
    rig.take(one)
    rig.wait(1)
    rig.take(one)
    rig.wait(1)
    (incident,) = rig.incidents()
    assert incident.id == incident_id("lab", one.id)
    assert (incident.node, incident.device, incident.kind, incident.severity) == ("n1", 3, "throttle", Severity.P3)
    assert incident.title == "n1 device 3: clocks held down"
    assert (incident.root_finding, incident.blames_hardware, incident.thread) == (one.id, True, incident.id)
    assert rig.told() == [(incident.id, "opened")]
    assert [entry.event for entry in rig.records.history(incident.id)] == ["opened"]


def test_information_opens_nothing_but_belongs_to_what_it_explains(rig: Rig) -> None:
    info = finding(Kind.FAIL_SLOW, at_ms=T0, job="llm", targets=("llm",), severity=Severity.INFO)
    rig.take(info)
    assert rig.incidents() == []
    slow = finding(Kind.SLOW, "n1", 0, T0 + 5, job="llm", class_="compute")
    rig.take(slow)
    (incident,) = rig.incidents()
    assert {one.finding for one in rig.records.findings(incident.id)} == {info.id, slow.id}
    assert incident.root_finding == slow.id


def test_a_root_found_later_takes_over_with_history_and_the_thread_goes_on(rig: Rig) -> None:
    slow = finding(Kind.SLOW, "n1", 3, T0, class_="compute", job="llm")
    rig.take(slow)
    rig.wait(1)
    (first,) = rig.incidents()
    hot = finding(Kind.OVERHEAT, "n1", 3, T0 + 30_000, severity=Severity.P2)
    rig.take(hot)
    rig.wait(1)
    (after,) = rig.incidents()
    assert after.id == first.id
    assert (after.root_finding, after.kind, after.severity) == (hot.id, "overheat", Severity.P2)
    assert after.revision > first.revision
    assert rig.told() == [(first.id, "opened"), (first.id, "worsened")]
    parents = {one.finding: one.parent for one in rig.records.findings(after.id)}
    assert parents == {hot.id: None, slow.id: hot.id}
    assert rig.records.findings(after.id)[1].why == "the device is too hot"


def test_two_incidents_become_one_when_their_cause_shows_and_both_ids_lead_to_it(rig: Rig) -> None:
    a, b = finding(Kind.OVERHEAT, "n1", 0, T0), finding(Kind.OVERHEAT, "n2", 0, T0 + 1)
    rig.take(a, b)
    rig.wait(1)
    assert len(rig.incidents()) == 2
    rig.take(zone(T0 + 2))
    rig.wait(1)
    (incident,) = rig.incidents()
    assert incident.id == incident_id("lab", a.id)
    assert rig.records.get(incident_id("lab", b.id)).id == incident.id
    assert incident.findings_count == 3
    other = incident_id("lab", b.id)
    assert rig.told() == [
        (incident.id, "opened"), (incident.id, "worsened"),
    ]  # fmt: skip
    assert {one.id: one.merged_into for one in rig.incidents(merged=True)} == {incident.id: None, other: incident.id}


def test_a_merged_incident_that_people_heard_of_is_told_to_be_over(rig: Rig) -> None:
    a, b = finding(Kind.OVERHEAT, "n1", 0, T0), finding(Kind.OVERHEAT, "n2", 0, T0 + 1)
    rig.take(a, b)
    rig.wait(1)
    with rig.control.transaction() as connection:
        rig.needs.handled(connection, [need.sequence for need in rig.needs.waiting()])
    rig.take(zone(T0 + 2))
    rig.wait(1)
    assert rig.told() == [(incident_id("lab", b.id), "resolved"), (incident_id("lab", a.id), "worsened")]


def test_an_earlier_finding_that_comes_late_renames_the_incident_and_keeps_everything(rig: Rig) -> None:
    late = finding(Kind.OVERHEAT, "n1", 0, T0 + 10)
    rig.take(late)
    rig.wait(1)
    (before,) = rig.incidents()
    rig.records.acknowledge(before.id, "ada", note="mine")
    early = finding(Kind.THROTTLE, "n1", 0, T0)
    rig.take(early)
    rig.wait(1)
    (after,) = rig.incidents()
    assert after.id == incident_id("lab", early.id)
    assert rig.records.get(before.id).id == after.id
    assert (after.acknowledged_by, after.state, after.thread) == ("ada", IncidentState.ACKNOWLEDGED, before.id)
    assert [note.text for note in rig.records.notes(after.id)] == ["mine"]
    # One thread of messages: opened once, acknowledged once.
    assert [reason for _, reason in rig.told()] == ["opened", "acknowledged"]
    assert {id_ for id_, _ in rig.told()} == {after.id}


def test_a_better_cause_splits_an_incident(rig: Rig) -> None:
    power, slow = finding(Kind.POWER, "n1", 2, T0), finding(Kind.SLOW, "n1", 2, T0 + 1, class_="compute", job="llm")
    rig.take(power, slow)
    rig.wait(1)
    assert len(rig.incidents()) == 1
    throttle = finding(Kind.THROTTLE, "n1", 2, T0 + 2)
    hot = zone(T0 + 3)
    rig.take(throttle, hot)
    rig.wait(1)
    found = {one.id: {f.finding for f in rig.records.findings(one.id)} for one in rig.incidents()}
    assert found == {
        incident_id("lab", power.id): {power.id}, incident_id("lab", slow.id): {slow.id, throttle.id, hot.id},
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_a_replay_in_any_order_and_any_batches_gives_the_same_incidents(seed: int, tmp_path: Path) -> None:
    findings = random_findings(seed, 80)
    outcomes = []
    for shuffle in range(3):
        folder = tmp_path / str(shuffle)
        folder.mkdir()
        rig = Rig(folder)
        rng = random.Random(shuffle)
        order = findings.copy()
        if shuffle:
            rng.shuffle(order)
        while order:
            size = rng.choice([1, 3, 20])
            rig.take(*order[:size])
            order = order[size:]
            if rng.random() < 0.2:
                rig.engine = rig.another_engine()
        rig.wait(1)
        outcomes.append({one.id: frozenset(f.finding for f in rig.records.findings(one.id)) for one in rig.incidents()})
        rig.close()
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_taking_everything_twice_changes_nothing(rig: Rig) -> None:
    findings = random_findings(7, 60)
    rig.take(*findings)
    rig.wait(20)
    before = [(one.id, one.revision, one.state) for one in rig.incidents()]
    told, sequence = rig.told(), rig.records.latest_sequence()
    rig.engine = rig.another_engine()
    rig.take(*findings)
    rig.wait(20)
    assert [(one.id, one.revision, one.state) for one in rig.incidents()] == before
    assert (rig.told(), rig.records.latest_sequence()) == (told, sequence)


def test_an_incident_ends_when_its_evidence_is_gone_a_while_and_flaps_hold(rig: Rig) -> None:
    one = finding(Kind.THROTTLE, "n1", 3, T0)
    rig.take(one)
    rig.wait(60)
    rig.take(cleared(one, T0 + 60_000))
    rig.wait(200)
    assert rig.incidents()[0].state is IncidentState.OPEN
    rig.wait(120)
    (closed,) = rig.incidents()
    assert (closed.state, closed.evidence_at_ms) == (IncidentState.RESOLVED, T0 + 60_000)
    # Back within the hold: the same incident, also for another finding at the same place.
    again = finding(Kind.THROTTLE, "n1", 3, rig.clock.now_ms(), aspect="power")
    rig.take(again)
    rig.wait(1)
    (reopened,) = rig.incidents()
    assert (reopened.id, reopened.state, reopened.reopened) == (closed.id, IncidentState.OPEN, 1)
    rig.take(cleared(again, rig.clock.now_ms()))
    rig.wait(600)
    assert rig.incidents()[0].state is IncidentState.OPEN
    rig.wait(1300)
    assert rig.incidents()[0].state is IncidentState.RESOLVED
    assert [reason for _, reason in rig.told()] == ["opened", "resolved", "reopened", "resolved"]
    # After the hold it is another incident.
    rig.wait(1900)
    rig.take(finding(Kind.THROTTLE, "n1", 3, rig.clock.now_ms(), aspect="later"))
    assert len(rig.incidents()) == 2


def test_what_a_person_closed_opens_again_only_with_new_evidence(rig: Rig) -> None:
    one = finding(Kind.THROTTLE, "n1", 3, T0)
    rig.take(one)
    rig.wait(5)
    (incident,) = rig.incidents()
    rig.records.resolve(incident.id, "ada")
    rig.take(dataclasses.replace(one, score=9.0, state=FindingState.CHANGED, detected_at=T0 + 6_000))
    rig.wait(5)
    assert rig.incidents()[0].state is IncidentState.RESOLVED
    rig.take(cleared(one, T0 + 12_000))
    rig.wait(5)
    rig.take(dataclasses.replace(one, id=one.id, detected_at=T0 + 20_000))
    rig.wait(5)
    assert (rig.incidents()[0].id, rig.incidents()[0].state) == (incident.id, IncidentState.OPEN)


def test_a_false_alarm_stays_quiet_at_its_place_but_hides_nothing_else(rig: Rig) -> None:
    one = finding(Kind.THROTTLE, "n1", 3, T0)
    rig.take(one)
    rig.wait(1)
    (incident,) = rig.incidents()
    rig.records.resolve(incident.id, "ada", IncidentState.FALSE_POSITIVE)
    rig.wait(1)
    rig.take(finding(Kind.THROTTLE, "n1", 3, rig.clock.now_ms(), aspect="b"))
    rig.take(finding(Kind.ECC, "n1", 3, rig.clock.now_ms()))
    rig.engine = rig.another_engine()
    rig.take(finding(Kind.THROTTLE, "n1", 3, rig.clock.now_ms(), aspect="c"))
    rig.wait(1)
    states = {one.kind: one.state for one in rig.incidents()}
    assert states == {"throttle": IncidentState.FALSE_POSITIVE, "ecc": IncidentState.OPEN}
    assert len(rig.records.findings(incident.id)) == 3
    rig.records.reopen(incident.id, "ada")
    rig.wait(1)
    assert rig.records.get(incident.id).state is IncidentState.OPEN


def test_old_findings_never_page(rig: Rig) -> None:
    rig.clock.advance(11 * 60)
    old = finding(Kind.HANG, at_ms=T0, job="llm", targets=("llm",), severity=Severity.P1)
    rig.take(old)
    rig.wait(5)
    (incident,) = rig.incidents()
    assert incident.stale
    assert rig.told() == []
    rig.take(dataclasses.replace(old, state=FindingState.CHANGED, score=9.0, detected_at=rig.clock.now_ms()))
    rig.wait(5)
    assert not rig.incidents()[0].stale
    assert [reason for _, reason in rig.told()] == ["opened"]


def test_blindness_is_one_incident_and_nothing_ends_meanwhile(rig: Rig) -> None:
    one = finding(Kind.THROTTLE, "n1", 3, T0)
    rig.take(one)
    rig.wait(1)
    rig.context.lag = 400.0
    rig.wait(1)
    rig.take(cleared(one, rig.clock.now_ms()))
    for _ in range(30):
        rig.wait(60)
        rig.context.lag = 400.0 + 60
    rig.take(finding(Kind.DEAD_NODE, "n7", at_ms=rig.clock.now_ms(), severity=Severity.P2))
    rig.wait(2)
    by_kind = {one.kind: one for one in rig.incidents()}
    assert set(by_kind) == {"throttle", "blind", "dead_node"}
    assert by_kind["throttle"].state is IncidentState.OPEN
    assert by_kind["blind"].summary.startswith("Flightwatch is blind since ")
    assert by_kind["dead_node"].inhibited_by == by_kind["blind"].id
    assert by_kind["dead_node"].thread == ""
    rig.context.lag = 10.0
    rig.wait(1)
    rig.wait(400)
    rig.wait(2)
    by_kind = {one.kind: one for one in rig.incidents()}
    assert by_kind["throttle"].state is IncidentState.RESOLVED
    assert by_kind["blind"].state is IncidentState.RESOLVED
    assert (by_kind["dead_node"].inhibited_by, by_kind["dead_node"].state) == (None, IncidentState.OPEN)
    assert (by_kind["dead_node"].id, "opened") in rig.told()


def test_blindness_that_the_detection_loop_noticed_too_is_one_incident(rig: Rig) -> None:
    rig.context.lag = 400.0
    rig.wait(1)
    rig.take(
        finding(Kind.BLIND, at_ms=T0 + 1000, scope=FindingScope.PIPELINE, targets=("ingest",), severity=Severity.P2)
    )
    rig.wait(1)
    (incident,) = rig.incidents()
    assert (incident.cluster, incident.findings_count) == ("lab", 2)
    rig.context.lag = 0.0
    rig.wait(1)
    rig.wait(301)
    assert rig.incidents()[0].state is IncidentState.RESOLVED


def test_timing_incidents_do_not_end_while_the_job_is_half_seen(rig: Rig) -> None:
    slow = finding(Kind.SLOW, "n1", 0, T0, job="llm", class_="compute")
    half = finding(Kind.COVERAGE, at_ms=T0 + 5, job="llm", targets=("llm",), severity=Severity.INFO)
    rig.take(slow, half)
    rig.take(cleared(slow, T0 + 1000))
    rig.wait(900)
    assert rig.incidents()[0].state is IncidentState.OPEN
    rig.engine = rig.another_engine()
    rig.wait(1)
    assert rig.incidents()[0].state is IncidentState.OPEN
    rig.take(cleared(half, rig.clock.now_ms()))
    rig.wait(2)
    assert rig.incidents()[0].state is IncidentState.RESOLVED


def test_silences_keep_quiet_until_they_end(rig: Rig) -> None:
    rig.records.create_silence({"rack": "r0", "kind": "thr*"}, "ada", "repair", expires_at_ms=T0 + HOUR)
    rig.take(finding(Kind.THROTTLE, "n1", 3, T0), finding(Kind.THROTTLE, "n9", 3, T0), finding(Kind.ECC, "n2", 0, T0))
    rig.wait(1)
    silenced = {one.node: one.silenced_by is not None for one in rig.incidents()}
    assert silenced == {"n1": True, "n9": False, "n2": False}
    assert len(rig.told()) == 2
    rig.wait(3601)
    assert len(rig.told()) == 3
    assert all(one.silenced_by is None for one in rig.incidents())


def test_a_maintenance_window_begins_and_ends_by_itself(rig: Rig) -> None:
    rig.records.create_silence(
        {"node": "n1"}, "ada", "swap", starts_at_ms=T0 + 10 * MINUTE, expires_at_ms=T0 + HOUR, maintenance=True
    )
    rig.wait(11 * 60)
    rig.take(finding(Kind.DEAD_NODE, "n1", at_ms=rig.clock.now_ms()))
    rig.wait(1)
    assert rig.told() == []
    assert rig.incidents()[0].silenced_by is not None


def test_a_cooling_zone_and_a_dead_node_keep_their_nodes_quiet(rig: Rig) -> None:
    rig.take(zone(T0), finding(Kind.DEAD_NODE, "n40", at_ms=T0))
    rig.wait(1)
    # Too late for the causal rules, still in the zone.
    rig.wait(2 * 3600)
    now = rig.clock.now_ms()
    rig.take(
        finding(Kind.OVERHEAT, "n2", 1, now), finding(Kind.SENSOR, "n40", 1, now), finding(Kind.SENSOR, "n41", 1, now)
    )
    rig.wait(1)
    quiet = {(one.kind, one.node): one.inhibited_by is not None for one in rig.incidents()}
    assert quiet == {
        ("cooling", None): False, ("dead_node", "n40"): False, ("overheat", "n2"): True, ("sensor", "n40"): True,
        ("sensor", "n41"): False,
    }  # fmt: skip


def view(ranks: int, *, step_at: int | None = None) -> ClusterView:
    nodes = [f"n{number}" for number in range(32)]
    return ClusterView(
        racks(), {"llm": JobState("llm", ranks, "red", "run1", step_at, 5e6)}, dict.fromkeys(nodes, "llm"),
        dict.fromkeys(nodes, 8),
    )  # fmt: skip


def test_a_cooling_zone_without_consequences_names_the_job_of_its_nodes(tmp_path: Path) -> None:
    rig = Rig(tmp_path, view(128))
    rig.take(zone(T0))
    assert [one.job for one in rig.incidents()] == ["llm"]
    rig.close()


@pytest.mark.parametrize(
    ("ranks", "slow", "severity", "rate"),
    [
        (256, 0.02, Severity.P3, 5.12),
        (256, 0.05, Severity.P2, 12.8),
        (1024, 0.05, Severity.P2, 51.2),
        (1024, 0.004, Severity.P3, 4.096),
        (64, None, Severity.P3, 64 * 0.1),
    ],
)
def test_severity_follows_the_loss(
    tmp_path: Path, ranks: int, slow: float | None, severity: Severity, rate: float
) -> None:
    rig = Rig(tmp_path, view(ranks))
    if slow is not None:
        rig.context.slow["llm"] = slow
    rig.take(finding(Kind.SLOW, "n1", 3, T0, class_="compute", job="llm", blames_hardware=True, expected_gain=0.1))
    (incident,) = rig.incidents()
    assert (incident.severity, incident.progress, incident.gpus_affected) == (severity, Progress.SLOWED, ranks)
    assert incident.loss_gpu_hours_per_hour == pytest.approx(rate)
    assert incident.tenant == "red"
    rig.close()


def test_a_stopped_job_is_p1_and_loses_all_its_gpus_from_the_onset_until_it_goes_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path, view(128))
    hang = finding(
        Kind.HANG, at_ms=T0, job="llm", targets=("llm",), severity=Severity.P1, first_seen_at=T0 - 6 * MINUTE
    )
    rig.take(hang)
    (incident,) = rig.incidents()
    assert (incident.severity, incident.progress) == (Severity.P1, Progress.STOPPED)
    assert incident.lost_gpu_hours == pytest.approx(128 * 0.1)
    rig.wait(30 * 60)
    assert rig.incidents()[0].lost_gpu_hours == pytest.approx(128 * 0.6)
    rig.take(cleared(hang, T0 + 36 * MINUTE))
    rig.wait(20 * 60)
    (closed,) = rig.incidents()
    assert closed.state is IncidentState.RESOLVED
    # Counted to the end of the evidence, not to the end of the hold.
    assert closed.lost_gpu_hours == pytest.approx(128 * 0.7)
    rig.close()


def test_imminent_failure_and_one_degraded_node(rig: Rig) -> None:
    rig.take(
        finding(Kind.DEVICE_ERROR, "n1", 3, T0, severity=Severity.P2, blames_hardware=True),
        finding(Kind.ECC, "n20", 1, T0, severity=Severity.P3, blames_hardware=True),
        finding(Kind.SENSOR, "n30", 1, T0, severity=Severity.P4),
    )
    assert {one.node: one.severity for one in rig.incidents()} == {
        "n1": Severity.P2, "n20": Severity.P3, "n30": Severity.P4,
    }  # fmt: skip


def test_an_engine_that_lost_the_role_writes_nothing(rig: Rig) -> None:
    stale = rig.lease
    rig.lease = rig.take_role("a")
    with pytest.raises(StaleGeneration):
        rig.engine.cycle(stale, [], {("topic", 0): ("x", 5)})
    assert rig.incidents() == []


def test_what_people_merged_stays_together(rig: Rig) -> None:
    a, b = finding(Kind.POWER, "n1", 0, T0), finding(Kind.SENSOR, "n40", 1, T0 + 5)
    rig.take(a, b)
    rig.wait(1)
    first, second = ids(rig.incidents())
    rig.records.merge(second, [first], "ada")
    rig.take(finding(Kind.SENSOR, "n40", 1, T0 + 9, aspect="more"))
    rig.engine = rig.another_engine()
    rig.take(finding(Kind.POWER, "n1", 0, T0 + 9, aspect="more"))
    rig.wait(1)
    (one,) = rig.incidents()
    assert (one.id, one.findings_count) == (second, 4)
    assert rig.records.get(first).id == second


def test_findings_of_events_end_when_the_detection_loop_does_not_confirm_them(rig: Rig) -> None:
    from tests.incidents.engine_kit import statement

    fast = statement(finding(Kind.DEVICE_ERROR, "n1", 3, T0))
    fast.fast = True
    rig.take(fast, finding(Kind.ECC, "n9", 1, T0))
    rig.engine = rig.another_engine()
    for _ in range(40):
        rig.wait(60)
    assert {one.node: one.state for one in rig.incidents()} == {
        "n1": IncidentState.RESOLVED, "n9": IncidentState.OPEN,
    }  # fmt: skip


def test_the_engine_knows_when_the_next_message_is_due(tmp_path: Path) -> None:
    rig = Rig(tmp_path, settle_seconds=0.3)
    rig.take(finding(Kind.THROTTLE, "n1", 3, T0))
    assert rig.engine.due_in_seconds() == 0.3
    rig.wait(0.299)
    assert rig.told() == []
    rig.wait(0.001)
    assert [reason for _, reason in rig.told()] == ["opened"]
    assert rig.engine.due_in_seconds() == 1.0
    rig.close()


def test_what_is_kept_quiet_is_not_looked_at_more_often(tmp_path: Path) -> None:
    rig = Rig(tmp_path, settle_seconds=0.3)
    silence = rig.records.create_silence({"node": "n1"}, "ada", "known", expires_at_ms=T0 + 60_000)
    rig.take(finding(Kind.THROTTLE, "n1", 3, T0))
    rig.wait(0.3)
    assert rig.told() == []
    assert rig.engine.due_in_seconds() == 1.0
    rig.records.expire_silence(silence.id, "ada")
    rig.wait(1.0)
    assert [reason for _, reason in rig.told()] == ["opened"]
    rig.close()
