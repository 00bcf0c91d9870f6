from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.core.clock import ManualClock, SystemClock
from flightwatch.core.errors import TransientError
from flightwatch.core.incident import Progress
from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope
from flightwatch.incidents.context import Context
from flightwatch.incidents.evidence import Evidence, target_nodes
from flightwatch.incidents.housekeeping import Projections
from flightwatch.pipeline.control.evidence_pins import EvidencePins
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.projections import ProjectionWriter, project, version_of
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.incidents.engine_kit import Rig, cleared
from tests.incidents.grouping_kit import MINUTE, finding
from tests.incidents.store_kit import small_cluster

#: Rows older than their table keeps them would vanish.
T0 = SystemClock().now_ms() // 1000 * 1000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('store') / 'data'}", StoreSettings())
    migrate(opened)
    small_cluster(opened, T0)
    yield opened
    opened.close()


class Away:
    """A store that takes a block and dies before it says so, then works."""

    def __init__(self, store: Store) -> None:
        self._store, self.failures = store, 1

    def insert_block(self, *arguments: object) -> None:
        self._store.insert_block(*arguments)  # type: ignore[arg-type]
        if self.failures:
            self.failures -= 1
            raise TransientError("no answer")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    made.clock.set_wall_ms(T0)
    yield made
    made.close()


def test_the_picture_of_the_cluster_is_read_from_the_store(store: Store) -> None:
    context = Context(store, ManualClock(T0), lambda: 42.0)
    assert context.behind_seconds() is None
    context.refresh()
    view = context.view
    assert view.places.domains_of("n5") == {"rack": "r1", "cooling_zone": "z0"}
    assert view.places.members("rack", "r0") == {"n0", "n1", "n2", "n3"}
    assert (view.node_job["n2"], view.node_job.get("n5")) == ("llm", None)
    assert view.devices["n5"] == 4
    job = view.jobs["llm"]
    assert (job.ranks, job.tenant, job.run) == (16, "red", "a1")
    assert context.behind_seconds() == 42.0


def test_the_slowdown_of_a_job_is_measured_against_before(store: Store) -> None:
    context = Context(store, ManualClock(T0))
    assert context.slowdown("llm", T0 - MINUTE) is None
    context.refresh()
    assert context.slowdown("llm", T0 - MINUTE) == pytest.approx(0.2)
    context.slowdown("unknown", T0)
    context.refresh()
    assert context.slowdown("unknown", T0) is None


def test_a_bus_that_does_not_answer_makes_blind_in_time() -> None:
    clock = ManualClock(T0)

    def away() -> float:
        raise TransientError("away")

    context = Context(None, clock, away)
    context.refresh()
    assert context.behind_seconds() == 0.0
    clock.advance(600)
    context.refresh()
    behind = context.behind_seconds()
    assert behind is not None
    assert behind > 180


def test_evidence_of_opening_peak_and_close_outlives_the_rows(store: Store, rig: Rig) -> None:
    context = Context(store, rig.clock)
    context.refresh()
    rig.context.view = context.view
    slow = finding(Kind.SLOW, "n1", 1, T0 - MINUTE, job="llm", rank=5, class_="compute")
    rig.take(slow)
    incident = rig.incidents()[0]
    evidence = Evidence(EvidencePins(rig.control), rig.records, store, context)
    evidence.cycle(rig.lease)
    count = "SELECT count() AS n FROM flightwatch.incident_evidence WHERE incident = {id:String}"
    assert store.rows(count, {"id": incident.id})[0]["n"] > 0
    rig.take(cleared(slow, T0 + MINUTE))
    rig.wait(400)
    rig.wait(700)
    evidence.cycle(rig.lease)
    evidence.cycle(rig.lease)
    rows = store.rows(
        "SELECT moment, role, source_table, node, row FROM flightwatch.incident_evidence WHERE incident = {id:String}",
        {"id": incident.id},
    )
    seen = {(row["moment"], row["role"], row["source_table"]) for row in rows}
    assert {moment for moment, _, _ in seen} == {"opening", "peak", "close"}
    assert ("opening", "target", "device_samples") in seen
    assert ("opening", "target", "rank_steps") in seen
    assert ("opening", "peer", "rank_steps") in seen
    assert ("opening", "domain", "device_samples") in seen
    targets = {row["node"] for row in rows if row["role"] == "target" and row["source_table"] == "device_samples"}
    peers = {row["node"] for row in rows if row["role"] == "peer"}
    assert targets == {"n1"}
    assert "n1" not in peers
    assert '"temp_c": 61.0' in next(r["row"] for r in rows if r["role"] == "target" and "temp_c" in r["row"])
    total = len(rows)
    # A second pass over the same pins changes nothing.
    with rig.control.transaction() as connection:
        from flightwatch.pipeline.control.schema_incidents import EVIDENCE_PINS

        connection.execute(EVIDENCE_PINS.update().values(done_at_ms=None))
    evidence.cycle(rig.lease)
    assert store.rows(count, {"id": incident.id}) == [{"n": total}]


def test_a_zone_names_its_nodes_as_targets(store: Store, rig: Rig) -> None:
    context = Context(store, rig.clock)
    context.refresh()
    rig.context.view = context.view
    rig.take(finding(Kind.COOLING, at_ms=T0, scope=FindingScope.COOLING_ZONE, targets=("z0",)))
    incident = rig.incidents()[0]
    assert target_nodes(incident, context.view.places) == [f"n{n}" for n in range(8)]
    # The job that most of its busy nodes work for is the one that suffers.
    assert (incident.gpus_affected, incident.job) == (16, "llm")


def test_a_running_job_is_said_to_progress(store: Store, rig: Rig) -> None:
    context = Context(store, rig.clock)
    context.refresh()
    rig.context.view = context.view
    rig.take(finding(Kind.ECC, "n1", 1, T0))
    incident = rig.incidents()[0]
    assert (incident.job, incident.tenant, incident.gpus_affected) == ("llm", "red", 16)
    assert incident.progress is Progress.PROGRESSING


def test_projections_are_written_once_although_the_store_died_in_between(store: Store, rig: Rig) -> None:
    rig.take(finding(Kind.THROTTLE, "n1", 3, T0))
    rig.wait(1)
    (incident,) = rig.incidents()
    rig.records.acknowledge(incident.id, "ada", note="looking")
    rig.records.create_silence({"node": "n7"}, "ada", "repair", expires_at_ms=T0 + 60 * MINUTE)
    away = Away(store)
    broken = Projections(ProjectionWriter(rig.control, away, "lab"))  # type: ignore[arg-type]
    with pytest.raises(TransientError):
        broken.cycle(rig.lease)
    # More changes before the next try: the first block comes again exactly as it was.
    IncidentRecords(rig.control).resolve(incident.id, "ada")
    lease = rig.take_role("a")
    Projections(ProjectionWriter(rig.control, store, "lab")).cycle(lease)
    rows = store.rows(
        "SELECT state, version, findings, toString(node) AS node FROM flightwatch.incidents WHERE id = {id:String} "
        "ORDER BY version", {"id": incident.id},
    )  # fmt: skip
    assert [row["state"] for row in rows] == ["open", "acknowledged", "resolved"]
    assert [len(row["findings"]) for row in rows] == [1, 1, 1]
    assert rows[0]["version"] < rows[1]["version"] < rows[2]["version"]
    assert rows[2]["version"] > version_of(2, 0)
    notes = store.rows("SELECT author, text FROM flightwatch.incident_notes WHERE incident = {id:String}",
                       {"id": incident.id})  # fmt: skip
    assert notes == [{"author": "ada", "text": "looking"}]
    silences = store.rows("SELECT matchers FROM flightwatch.silences")
    assert silences == [{"matchers": {"node": "n7"}}]
    assert rig.control.outbox.waiting() == []


def test_a_row_that_the_store_refuses_holds_up_nothing(store: Store, rig: Rig) -> None:
    with rig.control.transaction() as connection:
        for text in ("first", None, "last"):
            values = {"ts": T0, "incident": "x", "author": "ada", "text": text if text else {"not": "text"}}
            project(rig.control, connection, "incident_notes", "x", values)
        project(rig.control, connection, "no_such_table", "x", {"ts": T0})
    writer = ProjectionWriter(rig.control, store, "lab")
    assert writer.step(rig.lease) == 4
    assert writer.refused == 2
    found = store.rows("SELECT text FROM flightwatch.incident_notes WHERE incident = 'x' ORDER BY version")
    assert [row["text"] for row in found] == ["first", "last"]
