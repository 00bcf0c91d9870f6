"""Facts of a message, read from a real store and control database; and what happens when they cannot be read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.incident import Incident, IncidentState
from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope, Severity
from flightwatch.incidents.alert_settings import AlertSettings
from flightwatch.incidents.chart import EvidencePicture
from flightwatch.incidents.contract import Disclosure
from flightwatch.incidents.facts import FactReader, Facts, next_command
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.incidents.engine_kit import Rig
from tests.incidents.grouping_kit import MINUTE, T0, finding
from tests.pipeline.store.blocks import insert

JOB = "llm-70b"
#: Rows older than their retention go: the store lives in the present.
NOW_MS = (int(time.time() * 1000) - 3_600_000) // MINUTE * MINUTE


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('facts') / 'data'}", StoreSettings())
    migrate(opened)
    insert(opened, "inventory", {"ts": NOW_MS, "cluster": "lab", "node": "n1", "rack": "R1", "slot": "U7",
                                 "attrs": {"bmc": "10.0.0.1"}},
           {"ts": NOW_MS, "cluster": "lab", "node": "n1", "device": 3, "serial": "GPU-3"})  # fmt: skip
    insert(opened, "placements", *(
        {"ts": NOW_MS, "cluster": "lab", "job": JOB, "run": "1", "rank": rank, "node": f"n{rank // 4 + 1}",
         "device": rank % 4} for rank in range(8)
    ))  # fmt: skip
    insert(opened, "runs", {"ts": NOW_MS - 20 * MINUTE, "cluster": "lab", "job": JOB, "run": "1", "phase": "init",
                            "started_at": NOW_MS - 20 * MINUTE, "attrs": {"owner": "wang"}},
           {"ts": NOW_MS - 14 * MINUTE, "cluster": "lab", "job": JOB, "run": "1", "phase": "train",
            "started_at": NOW_MS - 14 * MINUTE})  # fmt: skip
    insert(opened, "op_timings", {"ts": NOW_MS - 5 * MINUTE, "cluster": "lab", "node": "n1", "level": "op", "job": JOB,
                                  "run": "1", "step": 100, "steps": 1, "rank": 0, "kind": "checkpoint",
                                  "op": "checkpoint_persist", "dur_us": 60e6})  # fmt: skip
    insert(opened, "config_facts", *(
        {"ts": at, "cluster": "lab", "node": "n1", "name": "mtu", "value": value}
        for at, value in ((NOW_MS - 3 * 86_400_000, "9000"), (NOW_MS - 60 * MINUTE, "1500"))
    ))  # fmt: skip
    insert(opened, "rank_steps", *(
        {"ts": NOW_MS - 600_000 + step * 1000, "cluster": "lab", "job": JOB, "run": "1", "rank": rank, "step": step,
         "node": "n1", "compute_us": 150_000.0 if rank == 3 else 100_000.0} for step in range(20) for rank in range(8)
    ))  # fmt: skip
    yield opened
    opened.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    one = Rig(tmp_path)
    yield one
    one.close()


def reader(rig: Rig, store: Store | None) -> FactReader:
    records = ActionRecords(rig.control, "lab")
    return FactReader(rig.records, records, store, AlertSettings(facts_seconds=30.0), ManualClock(NOW_MS))


def slow(rig: Rig) -> Incident:
    rig.take(
        finding(
            Kind.SLOW, "n1", 3, T0, job=JOB, run="1", rank=3, severity=Severity.P2, blames_hardware=True,
            evidence={"channel": "compute", "effect": 0.5, "peers": 7, "peer_ranks": [0, 1, 2]},
        )
    )  # fmt: skip
    return replace(rig.incidents()[0], opened_at_ms=NOW_MS)


def test_everything_that_is_known(rig: Rig, store: Store) -> None:
    incident = replace(slow(rig), loss_gpu_hours_per_hour=2.0, gpus_affected=8)
    facts = reader(rig, store).read(incident)
    assert facts.complete
    assert (facts.place.rack, facts.place.slot, facts.place.bmc, facts.place.device_serial) == (
        "R1", "U7", "10.0.0.1", "GPU-3",
    )  # fmt: skip
    assert (facts.owner, facts.job_gpus) == ("wang", 8)
    assert facts.checkpoint_at_ms == NOW_MS - 4 * MINUTE
    assert [(one.name, one.before, one.after) for one in facts.changes] == [("mtu", "9000", "1500")]
    assert facts.nodes == ["n1"]
    assert facts.peers == [0, 1]
    # Six minutes from the start to training, four of work to repeat, eight ranks.
    assert facts.cost is not None
    assert facts.cost.restart == pytest.approx(8 * (6 + 4) / 60)
    assert facts.cost.break_even_hours == pytest.approx(8 * 10 / 60 / 2.0)
    assert next_command(incident, facts) == f"flightwatch profile start --job {JOB} --ranks 3,0,1 --wait"


def test_the_picture_shows_the_rank_beside_its_peers(rig: Rig, store: Store) -> None:
    incident = slow(rig)
    facts = reader(rig, store).read(incident)
    picture = EvidencePicture(store, ManualClock(NOW_MS), 30.0)(incident, facts, Disclosure.STANDARD)
    assert picture is not None
    assert picture.startswith(b"\x89PNG")
    nothing = replace(incident, job="nobody")
    assert EvidencePicture(store, ManualClock(NOW_MS), 30.0)(nothing, facts, Disclosure.STANDARD) is None


def test_without_a_store_the_control_database_is_enough(rig: Rig) -> None:
    facts = reader(rig, None).read(slow(rig))
    assert (facts.owner, facts.checkpoint_at_ms, facts.complete) == (None, None, True)
    assert facts.nodes == ["n1"]


def test_a_store_that_is_away_costs_facts_not_the_message(rig: Rig, store: Store, tmp_path: Path) -> None:
    class Away(Store):
        """A store whose server is gone."""

        def __init__(self) -> None:
            """Nothing to open."""

        def rows(self, *arguments: object, **options: object) -> list[dict[str, object]]:
            from flightwatch.core.errors import TransientError

            raise TransientError("the store is away")

    del store, tmp_path
    facts = reader(rig, Away()).read(slow(rig))
    assert not facts.complete
    assert facts.nodes == ["n1"]
    assert facts.owner is None


class HurriedClock(ManualClock):
    """Every look at it takes a second."""

    def monotonic_s(self) -> float:
        self.advance(1.0)
        return super().monotonic_s()


def test_what_comes_too_late_is_left_out(rig: Rig, store: Store) -> None:
    incident = slow(rig)
    hurried = FactReader(
        rig.records, ActionRecords(rig.control, "lab"), store, AlertSettings(facts_seconds=4.0),
        HurriedClock(NOW_MS),
    )  # fmt: skip
    facts = hurried.read(incident)
    assert not facts.complete
    assert facts.nodes == ["n1"]
    assert facts.changes == ()


def test_facts_of_one_revision_are_read_once(rig: Rig, store: Store) -> None:
    incident = slow(rig)
    one = reader(rig, store)
    first = one.read(incident)
    assert one.read(incident) is first
    assert one.read(replace(incident, revision=99)) is not first


def test_a_zone_names_its_nodes(rig: Rig) -> None:
    nodes = [f"n{number}" for number in range(16)]
    rig.take(finding(Kind.COOLING, scope=FindingScope.COOLING_ZONE, targets=("z1",), evidence={"nodes": nodes}))
    assert reader(rig, None).read(rig.incidents()[0]).nodes == sorted(nodes)


def test_a_profile_is_proposed_only_where_an_agent_sees_the_job() -> None:
    slow = Incident(
        id="i1", revision=1, cluster="lab", state=IncidentState.OPEN, severity=Severity.P2, kind="slow", scope="rank",
        title="", summary="", opened_at_ms=NOW_MS, updated_at_ms=NOW_MS, evidence_at_ms=NOW_MS, job="llm", rank=3,
    )  # fmt: skip
    assert next_command(slow, Facts(peers=(1, 2))) == "flightwatch profile start --job llm --ranks 3,1,2 --wait"
    assert next_command(slow, Facts(peers=(1, 2), profilable=False)) == "flightwatch incident show i1"
