from __future__ import annotations

import random
import time

import pandas as pd
import pytest

from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.joint import Places, explain
from flightwatch.incidents.grouping import Grouping, incident_id
from tests.incidents.grouping_kit import MINUTE, T0, finding, groups_of, member, racks


def cooling(zone: str = "z0", at_ms: int = T0) -> Finding:
    return finding(Kind.COOLING, at_ms=at_ms, scope=FindingScope.COOLING_ZONE, targets=(zone,), severity=Severity.P2)


def sets(groups: dict[str, frozenset[str]]) -> set[frozenset[str]]:
    return set(groups.values())


def test_a_root_found_after_its_consequences_takes_them_over_and_the_id_stays() -> None:
    slow = finding(Kind.SLOW, "n1", 3, T0, class_="compute", job="llm")
    hot = finding(Kind.OVERHEAT, "n1", 3, T0 + MINUTE)
    zone = cooling(at_ms=T0 + 2 * MINUTE)
    grouping = Grouping(racks())
    seen = []
    for one in (slow, hot, zone):
        grouping.add(member(one))
        (group,) = grouping.changed()
        seen.append(group.incident_id)
    assert seen == [incident_id("lab", slow.id)] * 3
    parents = {one.id: one.parent.id for one in grouping.members.values() if one.parent}
    assert parents == {slow.id: zone.id, hot.id: zone.id}


def test_two_causes_at_once_are_two_incidents() -> None:
    a = [finding(Kind.THROTTLE, "n1", 0), finding(Kind.SLOW, "n1", 0, T0 + 1, class_="compute", job="llm")]
    b = [finding(Kind.ECC, "n9", 4), finding(Kind.SLOW, "n9", 4, T0 + 1, class_="compute", job="llm")]
    assert sets(groups_of(a + b)) == {frozenset(one.id for one in part) for part in (a, b)}


def test_the_same_place_told_twice_is_one_incident_and_another_device_is_not() -> None:
    first = finding(Kind.DEVICE_ERROR, "n1", 3, aspect="xid:48")
    second = finding(Kind.ECC, "n1", 3, T0 + MINUTE, aspect="xid:94")
    other = finding(Kind.ECC, "n1", 4, T0 + MINUTE)
    assert sets(groups_of([first, second, other])) == {frozenset({first.id, second.id}), frozenset({other.id})}


def test_a_better_cause_takes_its_effect_away_from_another_incident() -> None:
    power = finding(Kind.POWER, "n1", 2, T0)
    slow = finding(Kind.SLOW, "n1", 2, T0 + 1, class_="compute", job="llm")
    throttle = finding(Kind.THROTTLE, "n1", 2, T0 + 2)
    zone = cooling(at_ms=T0 + 3)
    together = groups_of([power, slow])
    assert sets(together) == {frozenset({power.id, slow.id})}
    after = groups_of([power, slow, throttle, zone])
    assert sets(after) == {frozenset({power.id}), frozenset({slow.id, throttle.id, zone.id})}
    # The incident of `power` keeps its id; the other is named by what was detected first in it.
    assert after[incident_id("lab", power.id)] == frozenset({power.id})
    assert incident_id("lab", slow.id) in after


def test_a_crowd_in_one_rack_is_one_incident_and_four_nodes_are_four() -> None:
    crowd = [finding(Kind.THROTTLE, f"n{number}", 0, T0 + number) for number in range(5)]
    assert len(groups_of(crowd[:4])) == 4
    assert sets(groups_of(crowd)) == {frozenset(one.id for one in crowd)}
    assert set(groups_of(crowd)) == {incident_id("lab", crowd[0].id)}
    spread = [finding(Kind.THROTTLE, f"n{number * 9}", 0, T0 + number) for number in range(5)]
    assert len(groups_of(spread)) == 5
    days = [finding(Kind.THROTTLE, f"n{number}", 0, T0 + number * 60 * MINUTE) for number in range(5)]
    assert len(groups_of(days)) == 5


def test_a_crowd_that_its_cause_explains_does_not_join_two_causes() -> None:
    zones = [cooling("z0"), cooling("z1", T0 + 1)]
    parts = [
        [zones[part], *(finding(Kind.THROTTLE, f"n{part * 16 + n}", 0, T0 + n, job="llm") for n in range(8))]
        for part in range(2)
    ]
    everything = [one for part in reversed(parts) for one in reversed(part)]
    assert sets(groups_of(everything)) == {frozenset(one.id for one in part) for part in parts}


def test_pinned_findings_stay_together_and_forgotten_ones_fall_apart() -> None:
    a, b = finding(Kind.POWER, "n1", 0), finding(Kind.SENSOR, "n9", 1, T0 + 5)
    grouping = Grouping(racks())
    for one in (a, b):
        grouping.add(member(one))
    grouping.pin(a.id, "x")
    grouping.pin(b.id, "x")
    (group,) = grouping.changed()
    assert set(group.members) == {a.id, b.id}
    grouping.forget([a.id])
    (rest,) = grouping.changed()
    assert set(rest.members) == {b.id}
    assert rest.incident_id == incident_id("lab", b.id)


def test_when_the_cause_is_forgotten_its_effects_look_for_another() -> None:
    zone, hot = cooling(), finding(Kind.OVERHEAT, "n1", 3, T0 + 1)
    throttle = finding(Kind.THROTTLE, "n1", 3, T0 + 2)
    grouping = Grouping(racks())
    for one in (zone, hot, throttle):
        grouping.add(member(one))
    grouping.changed()
    grouping.forget([zone.id])
    (group,) = grouping.changed()
    assert set(group.members) == {hot.id, throttle.id}
    held = grouping.members[throttle.id].parent
    assert held is not None
    assert held.id == hot.id


def test_an_earlier_statement_of_the_same_finding_renames_the_incident_the_same_in_any_order() -> None:
    late, early = finding(Kind.SENSOR, "n1", 0, T0 + 9), finding(Kind.SENSOR, "n1", 0, T0 + 5, aspect="b")
    grouping = Grouping(racks())
    for one in (late, early):
        grouping.add(member(one))
    grouping.earlier(grouping.members[late.id], T0 + 1)
    (group,) = grouping.changed()
    assert group.incident_id == incident_id("lab", late.id)


_KINDS = (Kind.SLOW, Kind.THROTTLE, Kind.OVERHEAT, Kind.ECC, Kind.DEVICE_ERROR, Kind.LINK_FLAP, Kind.RDMA, Kind.ANOMALY,
          Kind.SENSOR, Kind.DEAD_NODE, Kind.POWER)  # fmt: skip


def random_findings(seed: int, count: int) -> list[Finding]:
    rng = random.Random(seed)
    found: dict[str, Finding] = {}
    for number in range(count):
        at = T0 + rng.randrange(0, 90 * MINUTE)
        kind = rng.choice([*_KINDS, Kind.COOLING, Kind.FAIL_SLOW, Kind.GRAD_NORM, Kind.STORAGE])
        job = rng.choice(["llm", "vision", None])
        if kind == Kind.COOLING:
            one = cooling(f"z{rng.randrange(4)}", at)
        elif kind in (Kind.FAIL_SLOW, Kind.GRAD_NORM):
            one = finding(kind, at_ms=at, job=job or "llm", targets=(job or "llm",), aspect=str(number))
        elif kind == Kind.STORAGE:
            one = finding(kind, at_ms=at, scope=FindingScope.STORAGE_TARGET, targets=(f"fs{rng.randrange(2)}",))
        else:
            class_ = rng.choice(["compute", "link", "storage"]) if kind == Kind.SLOW else None
            one = finding(kind, f"n{rng.randrange(64)}", rng.randrange(4), at, job=job, class_=class_)
        found[one.id] = one
    return list(found.values())


@pytest.mark.parametrize("seed", range(12))
def test_groups_and_ids_do_not_depend_on_the_order(seed: int) -> None:
    findings = random_findings(seed, 150)
    expected = groups_of(sorted(findings, key=lambda one: (one.detected_at or 0, one.id)))
    for shuffle in range(4):
        shuffled = findings.copy()
        random.Random(shuffle).shuffle(shuffled)
        assert groups_of(shuffled) == expected


@pytest.mark.parametrize("seed", range(6))
def test_groups_after_forgetting_are_those_of_the_rest(seed: int) -> None:
    findings = random_findings(seed, 120)
    grouping = Grouping(racks())
    for one in findings:
        grouping.add(member(one))
        if len(grouping.members) % 7 == 0:
            grouping.changed()
    gone = {one.id for one in findings[::3]}
    grouping.forget(gone)
    grouping.changed()
    left = {group.incident_id: frozenset(group.members) for group in grouping.groups()}
    assert left == groups_of([one for one in findings if one.id not in gone])


@pytest.mark.parametrize("seed", range(6))
def test_causes_are_those_of_the_joint_analysis(seed: int) -> None:
    findings = random_findings(seed, 150)
    inventory = pd.DataFrame(
        [{"node": f"n{n}", "rack": f"r{n // 8}", "cooling_zone": f"z{n // 16}", "ts": 1.0} for n in range(64)]
    )
    placements = pd.DataFrame([{"job": "llm", "node": f"n{n}"} for n in range(32)])
    roots = {cause.root.id for cause in explain(findings, {"inventory": inventory, "placements": placements})}
    grouping = Grouping(Places.of_frames({"inventory": inventory, "placements": placements}))
    shuffled = findings.copy()
    random.Random(seed).shuffle(shuffled)
    for one in shuffled:
        grouping.add(member(one))
    assert {one.id for one in grouping.members.values() if one.parent is None} == roots


def test_one_cause_among_ten_thousand_symptoms_is_one_incident_whenever_it_comes() -> None:
    nodes = [f"n{number}" for number in range(2500)]
    places = Places({"cooling_zone": dict.fromkeys(nodes, "z0")}, {})
    symptoms = [finding(Kind.OVERHEAT, node, device, T0 + device) for node in nodes for device in range(4)]
    for place in (0, 5000, len(symptoms)):
        findings = [*symptoms[:place], cooling("z0", T0 + 10), *symptoms[place:]]
        grouping = Grouping(places)
        began = time.process_time()
        for number, one in enumerate(findings):
            grouping.add(member(one))
            if number % 500 == 0:
                grouping.changed()
        grouping.changed()
        assert [len(group.members) for group in grouping.groups()] == [10_001]
        assert sum(1 for one in grouping.members.values() if one.parent is None) == 1
        # A bound against quadratic growth, far above what it takes.
        assert time.process_time() - began < 20
