from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.core.clock import Clock, ManualClock
from flightwatch.core.errors import NotFound, Refused, StaleGeneration
from flightwatch.pipeline.control.action_model import Proposal
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.audit import AuditLog
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.leases import Lease

DRAIN = Proposal("a1", "drain", "n1", "approve", "rule:slow", "n1 is slow", incident="i1", revision=4, tenant="red")


class Kit:
    def __init__(self, control: Control, clock: ManualClock) -> None:
        self.control, self.clock = control, clock
        self.records = ActionRecords(control, "lab")
        self.audit = AuditLog(control)
        lease = control.leases.acquire("incidents", "test", 3600)
        assert lease is not None
        self.lease: Lease = lease

    def approved(self, proposal: Proposal = DRAIN) -> None:
        self.records.propose(self.lease, proposal)
        secret = self.records.new_approval(proposal.id, "ann", 4)
        self.records.approve(proposal.id, secret, "ann", 4)

    def done(self, id_: str, **outcome: Any) -> None:
        values: dict[str, Any] = {"ok": True, "actuator": "slurm", "outcome": "ok", "undo": None, "changed": True}
        assert self.records.begin(self.lease, id_) is not None
        self.records.finish(self.lease, id_, **values | outcome)


@pytest.fixture
def kit(open_another: Callable[[Clock | None], Control]) -> Kit:
    clock = ManualClock()
    return Kit(open_another(clock), clock)


def test_a_proposal_is_approved_done_and_undone(kit: Kit) -> None:
    kit.approved()
    assert kit.records.get("a1").state == "approved"
    assert kit.records.get("a1").actor == "ann"
    kit.done("a1")
    assert kit.records.drains() == {"n1": "a1"}
    assert [one.id for one in kit.records.drained_since(0)] == ["a1"]
    kit.approved(Proposal("a2", "return", "n1", "approve", "ann", "repaired", revision=4))
    kit.done("a2")
    assert kit.records.drains() == {}
    assert kit.records.get("a1").state == "undone"
    assert len(kit.records.drained_since(0)) == 1, "a drain that was undone still counts for the breaker"
    seen = [(one.action, one.ok) for one in reversed(kit.audit.page())]
    assert seen == [("action.proposed", True), ("action.approve", True), ("action.drain", True)] * 1 + [
        ("action.proposed", True), ("action.approve", True), ("action.return", True)]  # fmt: skip
    rows = [entry.payload["state"] for entry in kit.control.outbox.waiting() if entry.topic == "projection:actions"]
    assert rows[:4] == ["proposed", "approved", "running", "done"]


def test_the_same_proposal_comes_once(kit: Kit) -> None:
    assert kit.records.propose(kit.lease, DRAIN) is not None
    assert kit.records.propose(kit.lease, DRAIN) is None
    kit.records.reject("a1", "ann", "not now")
    assert kit.records.propose(kit.lease, DRAIN) is None, "what a person rejected does not come back"


@pytest.mark.parametrize(
    ("why", "subject", "revision", "late_s"),
    [
        ("somebody else", "bob", 4, 0),
        ("the incident changed", "ann", 5, 0),
        ("expired", "ann", 4, 901),
    ],
)
def test_an_approval_is_bound(kit: Kit, why: str, subject: str, revision: int, late_s: int) -> None:
    kit.records.propose(kit.lease, DRAIN)
    secret = kit.records.new_approval("a1", "ann", 4)
    kit.clock.advance(late_s)
    with pytest.raises(Refused, match=why):
        kit.records.approve("a1", secret, subject, revision, "10.0.0.1")
    assert kit.records.get("a1").state == "proposed"
    denied = kit.audit.page(limit=1)[0]
    assert (denied.action, denied.ok, denied.address) == ("action.approve", False, "10.0.0.1")


def test_an_approval_works_once_and_only_for_its_action(kit: Kit) -> None:
    kit.records.propose(kit.lease, DRAIN)
    kit.records.propose(kit.lease, Proposal("a2", "drain", "n2", "approve", "rule:slow", "x", "i2", 4))
    secret = kit.records.new_approval("a1", "ann", 4)
    with pytest.raises(Refused, match="not for this action"):
        kit.records.approve("a2", secret, "ann", 4)
    with pytest.raises(Refused, match="not for this action"):
        kit.records.approve("a1", "guess", "ann", 4)
    kit.records.approve("a1", secret, "ann", 4)
    with pytest.raises(Refused, match="used already"):
        kit.records.approve("a1", secret, "ann", 4)
    with pytest.raises(Refused, match="nothing to approve"):
        kit.records.new_approval("a1", "ann", 4)
    stored = kit.control.outbox.waiting()
    assert all(secret not in str(entry.payload) for entry in stored)


def test_what_others_drained_is_not_noted_as_ours(kit: Kit) -> None:
    kit.approved()
    kit.done("a1", changed=False)
    assert kit.records.drains() == {}


def test_a_failed_drain_and_a_dry_run_are_not_ours(kit: Kit) -> None:
    kit.approved()
    kit.done("a1", ok=False)
    assert kit.records.get("a1").state == "failed"
    kit.records.propose(kit.lease, Proposal("a2", "drain", "n2", "dry_run", "rule", "x"), "approved")
    kit.done("a2")
    assert kit.records.drains() == {}
    assert [one.id for one in kit.records.drained_since(0)] == []


def test_an_engine_that_lost_its_lease_changes_nothing(kit: Kit) -> None:
    kit.approved()
    assert kit.control.leases.acquire("incidents", "test", 60) is not None
    attempts: tuple[Callable[[], object], ...] = (
        lambda: kit.records.begin(kit.lease, "a1"),
        lambda: kit.records.propose(kit.lease, Proposal("a9", "drain", "n9", "approve", "r", "x")),
        lambda: kit.records.forget_drain(kit.lease, "n1"),
        lambda: kit.records.expire(kit.lease, "a1", "x"),
    )
    for late in attempts:
        with pytest.raises(StaleGeneration):
            late()
    assert kit.records.get("a1").state == "approved"


def test_a_running_action_is_taken_up_again_and_a_rejected_one_is_not(kit: Kit) -> None:
    kit.approved()
    assert kit.records.begin(kit.lease, "a1") is not None
    assert kit.records.begin(kit.lease, "a1") is not None
    with pytest.raises(Refused, match="running"):
        kit.records.reject("a1", "ann", "too late")
    kit.approved(Proposal("a2", "drain", "n2", "approve", "r", "x", revision=4))
    kit.records.reject("a2", "ann", "no")
    assert kit.records.begin(kit.lease, "a2") is None


def test_a_person_asks_for_a_return_and_may_ask_again_later(kit: Kit) -> None:
    wish = Proposal("a3", "return", "n1", "approve", "ann", "repaired")
    kit.records.request(wish)
    with pytest.raises(Refused, match="already"):
        kit.records.request(wish)
    kit.records.reject("a3", "ann", "not yet")
    assert kit.records.request(wish).state == "proposed"


def test_the_stop_switch(kit: Kit) -> None:
    assert not kit.records.stop_switch().is_on
    kit.records.set_stop_switch(True, "ann", "storm")
    assert (kit.records.stop_switch().is_on, kit.records.stop_switch().reason) == (True, "storm")
    kit.records.set_stop_switch(False, "bob", "over")
    assert (kit.records.stop_switch().is_on, kit.records.stop_switch().actor) == (False, "bob")
    assert [one.action for one in kit.audit.page(limit=2)] == ["action.allow_again", "action.stop_all"]


def test_pages_and_unknown_ids(kit: Kit) -> None:
    for number in range(5):
        kit.records.propose(kit.lease, Proposal(f"a{number}", "drain", f"n{number}", "approve", "r", "x", tenant="red"))
        kit.clock.advance(1)
    first = kit.records.page(limit=2)
    rest = kit.records.page(limit=9, before=(first[-1].created_at_ms, first[-1].id))
    assert [one.id for one in first + rest] == ["a4", "a3", "a2", "a1", "a0"]
    assert kit.records.page(tenants=["blue"]) == []
    assert len(kit.records.page(tenants=["red"], node="n3")) == 1
    with pytest.raises(NotFound):
        kit.records.get("nothing")
