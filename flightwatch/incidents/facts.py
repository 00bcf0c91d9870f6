"""Everything a message may tell about an incident, collected within a time limit. Unknown stays unknown."""

from __future__ import annotations

import logging
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.incident import Incident
from flightwatch.core.vocabulary import FindingKind
from flightwatch.incidents.alert_settings import AlertSettings
from flightwatch.incidents.cost import Cost, cost_of
from flightwatch.pipeline.control.action_model import Action
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.incident_rows import OPEN_STATES, IncidentFilter, IncidentFinding
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.store.alert_reads import AlertReads, ChangedFact, Place
from flightwatch.pipeline.store.capacity_reads import busy_nodes, job_size, reporting_nodes
from flightwatch.pipeline.store.client import Store

T = TypeVar("T")
log = logging.getLogger(__name__)
#: Facts of one revision are used again for so long: several channels tell the same incident.
_KEPT_MS = 10_000
_MOST_KEPT = 256
#: Idle nodes are counted this often: it reads the whole cluster.
_SPARES_KEPT_MS = 30_000
_SLOW = (FindingKind.SLOW.value, FindingKind.FAIL_SLOW.value)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside the incident itself.

    Attributes
    ----------
    job_gpus: ranks of the job. spares: idle nodes that report and that no open incident blames.
    cost: of going on beside a restart. earlier: incidents of this node before, the newest first.
    nodes: that findings of the incident's kind name. peers: ranks to compare with.
    evidence: of the root finding. coverage: ranks seen, ranks there are.
    complete: False when something could not be read in time.
    profilable: an agent sees ranks of the job.
    """

    place: Place = field(default_factory=Place)
    owner: str | None = None
    job_gpus: int | None = None
    checkpoint_at_ms: int | None = None
    spares: int | None = None
    cost: Cost | None = None
    changes: Sequence[ChangedFact] = ()
    earlier: Sequence[Incident] = ()
    actions: Sequence[Action] = ()
    nodes: Sequence[str] = ()
    peers: Sequence[int] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    coverage: tuple[int, int] | None = None
    complete: bool = True
    profilable: bool = True


class FactReader:
    """Collects facts. Thread-safe.

    Parameters
    ----------
    store: None: only what the control database holds.
    profilable: says whether an agent sees ranks of a job, so that they can be profiled; None: taken for granted.
    """

    def __init__(
        self, incidents: IncidentRecords, actions: ActionRecords, store: Store | None, settings: AlertSettings,
        clock: Clock, profilable: Callable[[str], bool] | None = None,
    ) -> None:  # fmt: skip
        self._profilable = profilable
        self._incidents, self._actions, self._store = incidents, actions, store
        self._settings, self._clock = settings, clock
        self._kept: dict[tuple[str, int], tuple[int, Facts]] = {}
        self._spares_kept: dict[str, tuple[int, int | None]] = {}
        self._guard = threading.Lock()

    def read(self, incident: Incident) -> Facts:
        """Return the facts of an incident; what fails or comes too late is left out."""
        key, now_ms = (incident.id, incident.revision), self._clock.now_ms()
        with self._guard:
            kept = self._kept.get(key)
        if kept is not None and 0 <= now_ms - kept[0] < _KEPT_MS:
            return kept[1]
        facts = self._read(incident, now_ms)
        with self._guard:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = (now_ms, facts)
        return facts

    def _read(self, incident: Incident, now_ms: int) -> Facts:
        ask = _Asking(self._clock, self._settings.facts_seconds)
        facts = self._from_control(incident, ask)
        store = self._store
        if store is not None:
            reads = AlertReads(store, incident.cluster, self._settings.facts_seconds)
            node, job = incident.node, incident.job
            if node:
                facts = replace(facts, place=ask(lambda: reads.place(node, incident.device), Place()))
            if job:
                facts = self._of_job(facts, incident, job, reads, store, ask, now_ms)
            facts = replace(facts, spares=ask(lambda: self._spares(store, incident.cluster, now_ms), None))
            if node:
                facts = replace(facts, changes=ask(lambda: reads.changes(node, incident.opened_at_ms), ()))
        return replace(facts, complete=ask.complete)

    def _from_control(self, incident: Incident, ask: _Asking) -> Facts:
        nothing: list[IncidentFinding] = []
        findings = ask(lambda: self._incidents.findings(incident.id), nothing)
        evidence = findings[0].evidence if findings else {}
        # What is wrong with a rack or a zone names its nodes.
        wide = evidence.get("nodes")
        named = wide if not incident.node and isinstance(wide, list) else []
        nodes = sorted({*map(str, named), *(one.node for one in findings if one.node and one.kind == incident.kind)})
        peers = evidence.get("peer_ranks", [])
        node = incident.node
        return Facts(
            nodes=nodes,
            evidence=evidence,
            peers=[int(rank) for rank in peers[:2]] if isinstance(peers, list) else [],
            profilable=self._profilable is None or not incident.job or ask(lambda: self._can_profile(incident), False),
            earlier=ask(lambda: self._incidents.earlier(node, incident.opened_at_ms), []) if node else (),
            actions=ask(lambda: self._actions.page(incident=incident.id, limit=5), []),
        )

    def _can_profile(self, incident: Incident) -> bool:
        return self._profilable is not None and self._profilable(incident.job or "")

    def _of_job(
        self, facts: Facts, incident: Incident, job: str, reads: AlertReads, store: Store, ask: _Asking, now_ms: int
    ) -> Facts:
        size = ask(lambda: job_size(store, incident.cluster, job), None)
        gpus = size.ranks if size is not None and size.ranks else None
        checkpoint = size.checkpoint_at_ms if size is not None else None
        took = ask(lambda: reads.start_seconds(job), None)
        cost = cost_of(
            loss_gpu_hours_per_hour=incident.loss_gpu_hours_per_hour, gpus=gpus or incident.gpus_affected,
            restart_minutes=took / 60 if took is not None else self._settings.restart_minutes,
            checkpoint_at_ms=checkpoint, now_ms=now_ms, horizon_hours=1.0,
        )  # fmt: skip
        return replace(
            facts, job_gpus=gpus, checkpoint_at_ms=checkpoint, cost=cost,
            owner=ask(lambda: reads.owner(job), None), coverage=ask(lambda: reads.coverage(job), None),
        )  # fmt: skip

    def _spares(self, store: Store, cluster: str, now_ms: int) -> int | None:
        """Return how many nodes report and have no job, as it was at most 30 s ago."""
        kept = self._spares_kept.get(cluster)
        if kept is None or not 0 <= now_ms - kept[0] < _SPARES_KEPT_MS:
            kept = self._spares_kept[cluster] = (now_ms, self._count_spares(store, cluster))
        return kept[1]

    def _count_spares(self, store: Store, cluster: str) -> int | None:
        """Return how many nodes report and have no job; None where nobody says which nodes have one."""
        busy = busy_nodes(store, cluster)
        if not busy:
            return None
        blamed = self._incidents.page(IncidentFilter(states=OPEN_STATES), limit=1000).items
        bad = {one.node for one in blamed if one.node}
        return len(reporting_nodes(store, cluster) - busy - bad)


class _Asking:
    """Runs one question after the other until the time is over; then every answer is the given one."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._until_s = clock, clock.monotonic_s() + seconds
        self.complete = True

    def __call__(self, question: Callable[[], T], otherwise: T) -> T:
        if self._clock.monotonic_s() >= self._until_s:
            self.complete = False
            return otherwise
        try:
            return question()
        except FlightwatchError as error:
            self.complete = False
            log.warning("a fact for a message could not be read: %s", error)
            return otherwise


def next_command(incident: Incident, facts: Facts) -> str:
    """Return the command to paste next."""
    waiting = next((one for one in facts.actions if one.state == "proposed" and one.mode == "approve"), None)
    if waiting is not None:
        return f"flightwatch action approve {shlex.quote(waiting.id)}"
    if incident.kind == FindingKind.BLIND.value:
        return "flightwatch status"
    slow = incident.kind in _SLOW and not incident.closed
    if slow and facts.profilable and incident.job and incident.rank is not None:
        ranks = ",".join(str(rank) for rank in (incident.rank, *facts.peers))
        return f"flightwatch profile start --job {shlex.quote(incident.job)} --ranks {ranks} --wait"
    return f"flightwatch incident show {shlex.quote(incident.id)}"
