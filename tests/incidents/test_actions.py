from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa

from flightwatch.core.clock import ManualClock
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.actions import Actions, action_id
from flightwatch.incidents.contract import ActionRequest, NodeView, Outcome
from flightwatch.pipeline.control.action_model import Proposal
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.schema_incidents import INCIDENT_FINDINGS, INCIDENTS
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.control.incident_kit import finding_row, incident_row

#: Rows older than their retention would not be stored.
START = int(time.time() * 1000)


@dataclass
class Scheduler:
    """A scheduler in memory."""

    name: str = "memory"
    kinds: Sequence[str] = ("drain", "return")
    views: dict[str, NodeView] | None = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)

    def apply(self, request: ActionRequest) -> Outcome:
        self.calls.append((request.kind, request.node))
        assert self.views is not None
        out = request.kind == "drain"
        self.views[request.node] = NodeView(not out, out, out, request.reason)
        return Outcome(True, True, f"{request.kind} {request.node} done", "undo it" if out else None)

    def nodes(self) -> Mapping[str, NodeView] | None:
        return self.views


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('store') / 'data'}", StoreSettings())
    migrate(opened)
    for i in range(21):
        opened.command(
            f"INSERT INTO flightwatch.inventory (ts, cluster, node, device) VALUES (now64(3), 'lab', 'n{i}', 0)"
        )
    yield opened
    opened.close()


class Kit:
    def __init__(self, folder: Path, store: Store, **settings: object) -> None:
        self.clock = ManualClock(START)
        self.control = open_control(f"sqlite://{folder / 'control.db'}", ControlSettings(), self.clock)
        self.records, self.incidents = ActionRecords(self.control, "lab"), IncidentRecords(self.control)
        self.scheduler = Scheduler(views={f"n{i}": NodeView(True, False) for i in range(300)})
        values: dict[str, object] = {"mode": "automatic", "automatic_kinds": ("dead_node",)}
        self.actions = Actions(
            self.records, self.incidents, store, [self.scheduler], ActionSettings(**values | settings),  # type: ignore[arg-type]
            self.clock, "lab",
        )  # fmt: skip
        lease = self.control.leases.acquire("incidents", "test", 10**6)
        assert lease is not None
        self.lease = lease

    def incident(self, node: str, kind: str = "dead_node", **values: object) -> str:
        id_ = f"i-{node}"
        row: dict[str, object] = {"kind": kind, "node": node, "scope": "node", "progress": "stopped", "job": None}
        with self.control.transaction() as connection:
            connection.execute(sa.insert(INCIDENTS).values(incident_row(id_, self.clock.now_ms(), **row | values)))
            found = finding_row(f"f-{node}", id_, self.clock.now_ms(), kind=kind, node=node)
            connection.execute(sa.insert(INCIDENT_FINDINGS).values(found))
        return id_

    def cycle(self) -> None:
        self.actions.cycle(self.lease)
        self.clock.advance(11)

    def states(self) -> dict[str, str]:
        return {one.node: one.state for one in self.records.page()}


@pytest.fixture
def kit(tmp_path: Path, store: Store) -> Iterator[Kit]:
    made = Kit(tmp_path, store)
    yield made
    made.control.close()


def test_a_dead_node_is_drained_without_a_person_once_and_the_incident_says_so(kit: Kit) -> None:
    incident = kit.incident("n1")
    for _ in range(3):
        kit.cycle()
    assert kit.scheduler.calls == [("drain", "n1")]
    assert kit.states() == {"n1": "done"}
    assert kit.records.drains() == {"n1": action_id(incident, "drain", "n1")}
    assert [one.text for one in kit.incidents.notes(incident)] == ["drain n1 done"]


def test_a_storm_stops_at_the_breaker(kit: Kit) -> None:
    for i in range(1, 9):
        kit.incident(f"n{i}")
    for _ in range(3):
        kit.cycle()
    assert len(kit.scheduler.calls) == 2
    held = [one for one in kit.records.page() if one.state == "failed"]
    assert len(held) == 6
    assert all("held back: 2 nodes were drained" in (one.outcome or "") for one in held)


def test_an_unreachable_scheduler_holds_everything_back(kit: Kit) -> None:
    kit.incident("n1")
    kit.scheduler.views = None
    kit.cycle()
    assert kit.scheduler.calls == []
    assert kit.states() == {"n1": "failed"}


def test_the_stop_switch_stops_and_what_was_approved_waits(kit: Kit) -> None:
    kit.incident("n1")
    kit.records.set_stop_switch(True, "ann", "storm")
    kit.cycle()
    assert kit.states() == {}
    kit.records.set_stop_switch(False, "ann", "over")
    kit.cycle()
    assert kit.states() == {"n1": "done"}


def test_a_dry_run_says_what_it_would_do_and_does_nothing(tmp_path: Path, store: Store) -> None:
    kit = Kit(tmp_path, store, mode="dry_run")
    incident = kit.incident("n1")
    kit.cycle()
    assert kit.scheduler.calls == []
    assert [one.text for one in kit.incidents.notes(incident)] == ["dry run: would drain n1"]
    kit.control.close()


def test_an_approved_drain_of_a_running_job_waits_for_the_next_checkpoint(tmp_path: Path, store: Store) -> None:
    kit = Kit(tmp_path, store, mode="approve")
    saved = "INSERT INTO flightwatch.op_timings (ts, cluster, node, job, run, rank, level, kind, op, dur_us)"
    for rank in range(4):
        store.command(
            "INSERT INTO flightwatch.placements (ts, cluster, node, job, run, rank)"
            f" VALUES (fromUnixTimestamp64Milli({START}), 'lab', 'n1', 'llm', 'r1', {rank})"
        )
    store.command(f"{saved} VALUES (fromUnixTimestamp64Milli({START - 60_000}), 'lab', 'n1', 'llm', 'r1', 0, 'phase',"
                  " 'checkpoint', 'checkpoint', 1000000)")  # fmt: skip
    id_ = kit.incident("n1", "slow", progress="slowed", job="llm", run="r1", loss_gpu_hours_per_hour=50.0)
    kit.cycle()
    action = kit.records.page()[0]
    assert (action.state, action.mode, action.waits_for) == ("proposed", "approve", "the next durable checkpoint")
    assert action.cost["loss_gpu_hours"] == 1200.0
    assert action.cost["restart_gpu_hours"] == pytest.approx(4 * (0.25 + 59 / 3600), rel=0.02)
    secret = kit.records.new_approval(action.id, "ann", kit.incidents.get(id_).revision)
    kit.records.approve(action.id, secret, "ann", kit.incidents.get(id_).revision)
    kit.cycle()
    assert kit.scheduler.calls == []
    store.command(f"{saved} VALUES (fromUnixTimestamp64Milli({START + 60_000}), 'lab', 'n1', 'llm', 'r1', 0, 'phase',"
                  " 'checkpoint', 'restore', 1000000)")  # fmt: skip
    kit.cycle()
    assert kit.scheduler.calls == [], "a restore is no checkpoint"
    store.command(f"{saved} VALUES (fromUnixTimestamp64Milli({START + 90_000}), 'lab', 'n1', 'llm', 'r1', 0, 'phase',"
                  " 'checkpoint', 'checkpoint.persist', 1000000)")  # fmt: skip
    kit.cycle()
    assert kit.scheduler.calls == [("drain", "n1")]
    kit.control.close()


def test_proposals_end_with_their_incident_and_with_time(tmp_path: Path, store: Store) -> None:
    kit = Kit(tmp_path, store, mode="approve")
    over = kit.incident("n2")
    kit.incident("n3")
    kit.cycle()
    kit.incidents.resolve(over, "ann")
    kit.cycle()
    assert kit.states() == {"n2": "expired", "n3": "proposed"}
    kit.clock.advance(25 * 3600)
    kit.cycle()
    assert kit.states() == {"n2": "expired", "n3": "expired"}
    kit.control.close()


def test_only_our_own_drains_are_lifted_and_those_others_lifted_are_forgotten(kit: Kit) -> None:
    kit.incident("n1")
    kit.cycle()
    for node in ("n1", "n9"):
        wish = Proposal(f"r-{node}", "return", node, "approve", "ann", "repaired")
        kit.records.request(wish)
        kit.records.approve(wish.id, kit.records.new_approval(wish.id, "ann", None), "ann", None)
    kit.cycle()
    assert kit.scheduler.calls == [("drain", "n1"), ("return", "n1")]
    assert kit.records.get("r-n9").outcome == "n9 was not taken out by Flightwatch: left as it is"
    assert kit.records.drains() == {}
    kit.incident("n2")
    kit.cycle()
    assert "n2" in kit.records.drains()
    assert kit.scheduler.views is not None
    kit.scheduler.views["n2"] = NodeView(True, False)
    kit.cycle()
    assert kit.records.drains() == {}


def test_a_node_that_is_not_in_the_inventory_is_left_alone(kit: Kit) -> None:
    kit.incident("n250")
    kit.cycle()
    assert kit.states() == {}


@pytest.mark.parametrize(
    ("mode", "state", "said"), [("dry_run", "done", "dry run: would drain n1"), ("off", "failed", "actions are off")]
)
def test_the_mode_holds_for_what_people_approve_too(
    tmp_path: Path, store: Store, mode: str, state: str, said: str
) -> None:
    kit = Kit(tmp_path, store, mode=mode)
    wish = Proposal("w1", "drain", "n1", "approve", "ann", "bad fan")
    kit.records.request(wish)
    kit.records.approve(wish.id, kit.records.new_approval(wish.id, "ann", None), "ann", None)
    kit.cycle()
    assert kit.scheduler.calls == []
    done = kit.records.get("w1")
    assert done.state == state
    assert said in (done.outcome or "")
    assert kit.records.drains() == {}
    kit.control.close()


def test_a_node_of_another_cluster_is_not_this_scheduler_s(kit: Kit) -> None:
    kit.incident("n1", cluster="elsewhere")
    kit.cycle()
    assert kit.states() == {}
    assert kit.scheduler.calls == []
