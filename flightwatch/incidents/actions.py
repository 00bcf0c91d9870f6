"""The follower that acts: proposes what incidents ask for, carries out what is approved, closes what is over."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from flightwatch.core.clock import Clock
from flightwatch.core.errors import NotFound, TransientError
from flightwatch.core.incident import Incident
from flightwatch.incidents import breaker
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.contract import ActionRequest, Actuator, NodeView, Outcome
from flightwatch.incidents.policy import CHECKPOINT, Facts, Statement, decide
from flightwatch.pipeline.control.action_model import Action, Proposal
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.incident_rows import OPEN_STATES, IncidentFilter
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.store.capacity_reads import busy_nodes, job_size, known_nodes
from flightwatch.pipeline.store.client import Store

log = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
#: How often open incidents are looked at; approved actions are carried out in every cycle.
_LOOK_MS = 10_000
_LOOKED_AT = 500


class Actions:
    """See the module. One lives in the process that holds the engine's lease.

    Parameters
    ----------
    actuators: first one that can do a kind does it.
    store: None: nothing is known beyond the incidents, so nothing is proposed.
    """

    name = "actions"
    urgent = False

    def __init__(
        self, records: ActionRecords, incidents: IncidentRecords, store: Store | None, actuators: Sequence[Actuator],
        settings: ActionSettings, clock: Clock, cluster: str,
    ) -> None:  # fmt: skip
        self._records, self._incidents, self._store = records, incidents, store
        self._actuators, self._settings, self._clock, self._cluster = (
            tuple(actuators),
            settings.checked(),
            clock,
            cluster,
        )
        self._looked_at_ms = 0
        self._said: dict[str, str] = {}

    def cycle(self, lease: Lease) -> None:
        """Do what is due now.

        Raises
        ------
        TransientError: the store or the control database is away; nothing is lost. StaleGeneration: the lease is.
        """
        now_ms = self._clock.now_ms()
        stopped = self._records.stop_switch().is_on
        if now_ms - self._looked_at_ms >= _LOOK_MS:
            self._looked_at_ms = now_ms
            if not stopped:
                self._propose(lease, now_ms)
            self._close(lease, now_ms)
        if not stopped:
            for action in self._records.page(states=("approved", "running"), limit=50):
                self._carry_out(lease, action, now_ms)

    # Proposing ----------------------------------------------------------------------------------------------------

    def _propose(self, lease: Lease, now_ms: int) -> None:
        if self._settings.mode == "off" or self._store is None:
            return
        page = self._incidents.page(IncidentFilter(states=OPEN_STATES), limit=_LOOKED_AT)
        # The scheduler knows the nodes of this cluster only; another's may bear the same names.
        worth = [one for one in page.items if one.blames_hardware and one.node and one.cluster == self._cluster]
        if not worth:
            return
        nodes = known_nodes(self._store, self._cluster)
        spares = self._spares()
        for incident in worth:
            self._consider(lease, incident, nodes, spares, now_ms)
        self._said = {id_: why for id_, why in self._said.items() if id_ in {one.id for one in worth}}

    def _consider(
        self, lease: Lease, incident: Incident, nodes: frozenset[str], spares: int | None, now_ms: int
    ) -> None:
        findings = [
            Statement(one.kind, one.node, one.state, one.evidence) for one in self._incidents.findings(incident.id)
        ]
        decision = decide(incident, findings, self._facts(incident, nodes, spares, now_ms), self._settings)
        if decision.mode is None:
            if self._said.get(incident.id) != decision.why:
                self._said[incident.id] = decision.why
                log.info("No action for %s: %s", incident.title, decision.why)
            return
        cost: dict[str, Any] = {}
        if decision.cost is not None:
            cost = {
                "horizon_hours": decision.cost.horizon_hours, "loss_gpu_hours": decision.cost.loss,
                "restart_gpu_hours": decision.cost.restart, "break_even_hours": decision.cost.break_even_hours,
                "spares": spares,
            }  # fmt: skip
        proposal = Proposal(
            id=action_id(incident.id, "drain", incident.node or ""), kind="drain", node=incident.node or "",
            mode=decision.mode, actor=f"rule:{incident.kind}", reason=decision.why, incident=incident.id,
            revision=incident.revision, job=incident.job, rank=incident.rank, tenant=incident.tenant, cost=cost,
            waits_for=decision.waits_for,
        )  # fmt: skip
        # A dry run and an automatic action need nobody's word; what is approved is carried out below.
        state = "proposed" if decision.mode == "approve" else "approved"
        if self._records.propose(lease, proposal, state) is not None:
            log.info("Proposed: drain %s (%s): %s", proposal.node, proposal.mode, proposal.reason)

    def _facts(self, incident: Incident, nodes: frozenset[str], spares: int | None, now_ms: int) -> Facts:
        node = incident.node or ""
        earlier = self._incidents.earlier(node, incident.opened_at_ms)
        hangs = [one for one in earlier if one.kind in ("hang", "crash") and one.opened_at_ms > now_ms - _DAY_MS]
        drains = [
            one for one in self._records.page(node=node, limit=100)
            if one.applied_at_ms is not None and one.mode != "dry_run" and one.state in ("done", "undone")
        ]  # fmt: skip
        since = now_ms - self._settings.repeat_days * _DAY_MS
        returns = [one.applied_at_ms for one in drains if one.kind == "return" and one.applied_at_ms]
        size = None
        if incident.job is not None and self._store is not None:
            size = job_size(self._store, self._cluster, incident.job)
        return Facts(
            now_ms=now_ms, known_nodes=nodes, spares=spares,
            job_gpus=incident.gpus_affected if size is None or size.ranks is None else size.ranks,
            checkpoint_at_ms=None if size is None else size.checkpoint_at_ms,
            hangs_in_a_day=len(hangs), returned_at_ms=max(returns, default=None),
            drains_counted=sum(one.kind == "drain" and (one.applied_at_ms or 0) >= since for one in drains),
            maintenance=incident.silenced_by is not None and self._is_maintenance(incident.silenced_by),
        )  # fmt: skip

    def _is_maintenance(self, id_: str) -> bool:
        return any(one.id == id_ and one.kind == "maintenance" for one in self._incidents.silences())

    def _spares(self) -> int | None:
        """Return how many usable nodes have no job, None when the scheduler does not say who is usable."""
        views = self._views()
        if views is None or self._store is None:
            return None
        busy = busy_nodes(self._store, self._cluster)
        return sum(view.usable for name, view in views.items() if name not in busy)

    # Carrying out -------------------------------------------------------------------------------------------------

    def _carry_out(self, lease: Lease, action: Action, now_ms: int) -> None:
        reason = self._not_yet(action)
        if reason is not None:
            self._records.wait(lease, action.id, reason)
            return
        if action.mode == "dry_run" or self._settings.mode == "dry_run":
            self._finish(lease, action, "dry run", Outcome(True, False, f"dry run: would {action.kind} {action.node}"))
            return
        if self._settings.mode == "off":
            self._finish(lease, action, "", Outcome(False, False, "actions are off (actions.mode)"))
            return
        actuator = self._actuator(action.kind)
        if actuator is None:
            none = Outcome(False, False, f"no scheduler is configured for {action.kind} (actions.scheduler)")
            self._finish(lease, action, "", none)
            return
        # A running drain was begun by a process that died: it counts itself, and it is carried on.
        if action.kind == "drain" and action.state == "approved":
            objection = self._objection(action, actuator.nodes(), now_ms)
            if objection is not None:
                self._finish(lease, action, "", Outcome(False, False, f"held back: {objection}"))
                return
        if action.kind == "return" and action.node not in self._records.drains():
            none = Outcome(False, False, f"{action.node} was not taken out by Flightwatch: left as it is")
            self._finish(lease, action, "", none)
            return
        if self._records.begin(lease, action.id) is None:
            return
        request = ActionRequest(
            action.id, action.kind, action.node, action.reason, action.actor, action.incident, action.job, action.rank
        )
        self._finish(lease, action, actuator.name, actuator.apply(request))

    def _not_yet(self, action: Action) -> str | None:
        """Return what the action still waits for."""
        if action.waits_for != CHECKPOINT or action.mode == "dry_run" or action.job is None or self._store is None:
            return None
        if action.incident is not None:
            try:
                if self._incidents.get(action.incident).progress.value == "stopped":
                    return None
            except NotFound:
                return None
        saved = job_size(self._store, self._cluster, action.job).checkpoint_at_ms
        return None if saved is not None and saved >= action.created_at_ms else CHECKPOINT

    def _objection(self, action: Action, views: Mapping[str, NodeView] | None, now_ms: int) -> str | None:
        drained = self._records.drained_since(now_ms - self._settings.window_minutes * 60_000)
        others = [one for one in drained if one.id != action.id]
        return breaker.objection(action.node, self._settings, views, others, by_person=action.mode == "approve")

    def _finish(self, lease: Lease, action: Action, actuator: str, outcome: Outcome) -> None:
        # Only what this call changed is ours: a node that others took out stays theirs.
        undo = outcome.undo if outcome.changed else None
        self._records.finish(
            lease, action.id, ok=outcome.ok, actuator=actuator, outcome=outcome.message, undo=undo,
            changed=outcome.changed,
        )  # fmt: skip
        log.info("Action %s %s: %s", action.kind, action.node, outcome.message)
        if action.incident is not None:
            try:
                self._incidents.note(action.incident, action.actor, outcome.message)
            except (NotFound, TransientError) as error:
                log.warning("The incident %s does not know of its action: %s", action.incident, error)

    # Closing ------------------------------------------------------------------------------------------------------

    def _close(self, lease: Lease, now_ms: int) -> None:
        """Close proposals that nobody answered or whose incident is over; forget drains that others lifted."""
        for action in self._records.page(states=("proposed",), limit=_LOOKED_AT):
            if now_ms - action.created_at_ms > self._settings.proposal_hours * _HOUR_MS:
                self._records.expire(lease, action.id, "nobody answered in time")
            elif action.incident is not None and action.kind != "return" and self._is_over(action.incident):
                self._records.expire(lease, action.id, "the incident is over")
        ours = self._records.drains()
        views = self._views() if ours else None
        for node in ours:
            view = None if views is None else views.get(node)
            if view is not None and not view.out:
                self._records.forget_drain(lease, node)
                log.info("%s takes work again; somebody else brought it back", node)

    def _is_over(self, id_: str) -> bool:
        try:
            return self._incidents.get(id_).closed
        except NotFound:
            return True

    def _actuator(self, kind: str) -> Actuator | None:
        return next((one for one in self._actuators if kind in one.kinds), None)

    def _views(self) -> Mapping[str, NodeView] | None:
        actuator = self._actuator("drain")
        return None if actuator is None else actuator.nodes()


def action_id(incident: str, kind: str, node: str) -> str:
    """Return the id of an action: the same wish has the same id, whoever computes it."""
    return "a" + hashlib.sha256(f"{incident}|{kind}|{node}".encode()).hexdigest()[:15]
