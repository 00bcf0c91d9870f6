from __future__ import annotations

import random
import resource
import time
from pathlib import Path

import pytest

from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.joint import Places
from flightwatch.incidents.context import ClusterView
from tests.incidents.engine_kit import Rig, cleared, statement
from tests.incidents.grouping_kit import T0, finding

ZONES = 10


def storm(findings: int) -> tuple[ClusterView, list[Finding], list[Finding]]:
    """Return a cluster of ten zones, their cooling failures, and symptoms of all their devices, in any order."""
    nodes = {f"z{zone}-n{node}": f"z{zone}" for zone in range(ZONES) for node in range(findings // ZONES // 8)}
    places = Places({"cooling_zone": nodes, "rack": {name: name[:-1] for name in nodes}}, {})
    causes = [
        finding(
            Kind.COOLING, at_ms=T0 + 50, scope=FindingScope.COOLING_ZONE, targets=(f"z{zone}",), severity=Severity.P2
        )
        for zone in range(ZONES)
    ]
    symptoms = [
        finding((Kind.OVERHEAT, Kind.THROTTLE)[device % 2], name, device, T0 + number)
        for number, name in enumerate(nodes)
        for device in range(8)
    ]
    random.Random(1).shuffle(symptoms)
    return ClusterView(places), causes, symptoms


def run_storm(rig: Rig, findings: list[Finding], batch: int = 400) -> None:
    for start in range(0, len(findings), batch):
        rig.take(*(statement(one) for one in findings[start : start + batch]))
        rig.clock.advance(60 * batch / 100_000)
    rig.wait(20)


@pytest.mark.parametrize("cause_at", [0.0, 0.3, 1.0])
def test_a_storm_becomes_its_causes_and_few_messages(tmp_path: Path, cause_at: float) -> None:
    view, causes, symptoms = storm(4_000)
    place = round(cause_at * len(symptoms))
    rig = Rig(tmp_path, view, settle_seconds=0.3)
    run_storm(rig, [*symptoms[:place], *causes, *symptoms[place:]])
    incidents = rig.incidents()
    assert sorted(one.findings_count for one in incidents) == [401] * ZONES
    assert {one.kind for one in incidents} == {"cooling"}
    assert len(rig.told()) <= 20
    rig.close()


def test_memory_is_bounded_and_what_was_given_up_is_in_the_database(tmp_path: Path) -> None:
    view, causes, symptoms = storm(4_000)
    rig = Rig(tmp_path, view, most_findings=1_000)
    run_storm(rig, [*causes, *symptoms])
    grouping = rig.engine._grouping
    assert grouping is not None
    assert len(grouping.members) <= 1_000
    assert rig.engine.counters.given_up > 2_900
    incidents = rig.incidents()
    assert len(incidents) == ZONES
    assert [one.findings_count for one in incidents] == [401] * ZONES
    rig.engine = rig.another_engine()
    rig.wait(2)
    assert [one.findings_count for one in rig.incidents()] == [401] * ZONES
    stored = sum(len(rig.records.findings(one.id, limit=10_000)) for one in incidents)
    assert stored == 4_010
    # A clearing of what is not held any more is stored too, and the incident ends with its cause.
    rig.take(*(cleared(one, rig.clock.now_ms()) for one in [*causes, *symptoms]))
    rig.wait(2_000)
    assert {one.state.value for one in rig.incidents()} == {"resolved"}
    states = {one.state for one in rig.records.findings(incidents[0].id, limit=10_000)}
    assert states == {"cleared"}
    rig.close()


@pytest.mark.soak
def test_a_hundred_thousand_findings_in_a_minute(tmp_path: Path) -> None:
    view, causes, symptoms = storm(100_000)
    rig = Rig(tmp_path, view, settle_seconds=0.3)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    run_storm(rig, [*symptoms[:50_000], *causes, *symptoms[50_000:]])
    seconds = time.process_time() - began
    print(f"{100_000 / seconds:.0f} findings per CPU-second")
    assert sorted(one.findings_count for one in rig.incidents()) == [10_001] * ZONES
    assert len(rig.told()) <= 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 400_000
    rig.close()
