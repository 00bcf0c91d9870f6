from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from flightwatch.core.errors import StaleGeneration
from flightwatch.core.incident import IncidentState
from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope
from flightwatch.pipeline.control.engine_writes import EngineWrites
from flightwatch.pipeline.control.evidence_pins import EvidencePins
from flightwatch.pipeline.control.schema_incidents import INCIDENT_FINDINGS
from tests.incidents.engine_kit import Rig, cleared
from tests.incidents.grouping_kit import MINUTE, T0, finding

DAY_MS = 86_400_000


@pytest.fixture
def rig(control_url: str, tmp_path: Path) -> Rig:
    return Rig(tmp_path, url=control_url)


def test_the_life_of_incidents_on_both_databases(rig: Rig) -> None:
    a, b = finding(Kind.OVERHEAT, "n1", 0, T0), finding(Kind.OVERHEAT, "n2", 0, T0 + 1)
    rig.take(a, b, positions={("findings", 0): ("x", 2)})
    rig.wait(1)
    assert len(rig.incidents()) == 2
    zone = finding(Kind.COOLING, at_ms=T0 + 2, scope=FindingScope.COOLING_ZONE, targets=("z0",))
    rig.take(zone, positions={("findings", 0): ("x", 3), ("events", 1): ("y", 9)})
    rig.wait(1)
    (incident,) = rig.incidents()
    assert {one.finding for one in rig.records.findings(incident.id)} == {a.id, b.id, zone.id}
    rig.records.acknowledge(incident.id, "ada")
    rig.engine = rig.another_engine()
    rig.take(*(cleared(one, T0 + MINUTE) for one in (a, b, zone)))
    rig.wait(400)
    (closed,) = rig.incidents()
    assert (closed.state, closed.acknowledged_by) == (IncidentState.RESOLVED, "ada")
    assert EngineWrites(rig.control).positions() == {("findings", 0): ("x", 3), ("events", 1): ("y", 9)}
    rig.clock.advance(3600)
    assert {(pin.moment, pin.part) for pin in EvidencePins(rig.control).due() if pin.incident == closed.id} == {
        (moment, part) for moment in ("opening", "peak", "close") for part in (0, 1)
    }
    rig.close()


def test_nothing_of_a_batch_is_written_when_it_fails_or_the_role_is_lost(rig: Rig) -> None:
    writes = EngineWrites(rig.control)

    def broken() -> None:
        with writes.transaction(rig.lease) as tx:
            tx.advance({("findings", 0): ("x", 1)})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    stale = rig.lease
    rig.take_role("a")
    with pytest.raises(StaleGeneration), writes.transaction(stale) as tx:
        tx.advance({("findings", 0): ("x", 1)})
    assert writes.positions() == {}
    rig.close()


def test_old_findings_are_forgotten_but_the_root(rig: Rig) -> None:
    a, b = finding(Kind.OVERHEAT, "n1", 0, T0), finding(Kind.THROTTLE, "n1", 0, T0 + 1)
    rig.take(a, b)
    rig.take(cleared(a, T0 + 10), cleared(b, T0 + 10))
    rig.wait(400)
    assert rig.incidents()[0].state is IncidentState.RESOLVED
    now = rig.clock.now_ms()
    EngineWrites(rig.control).forget(now - DAY_MS, now - DAY_MS)
    assert len(rig.records.findings(rig.incidents()[0].id)) == 2
    EngineWrites(rig.control).forget(now + 1, now + 1)
    with rig.control.reading() as connection:
        left = connection.execute(sa.select(INCIDENT_FINDINGS.c.finding)).scalars().all()
    assert left == [a.id]
    rig.close()
