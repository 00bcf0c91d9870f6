"""Pins what the evidence of an incident looked like, so that it outlives the raw rows."""

from __future__ import annotations

from collections.abc import Sequence

from flightwatch.core.errors import NotFound
from flightwatch.core.incident import Incident
from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.detectors.joint import Places
from flightwatch.incidents.context import Context
from flightwatch.incidents.severity import SLOWING, STOPPING
from flightwatch.pipeline.control.evidence_pins import EvidencePins, Pin
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.control.projections import version_of
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.evidence_reads import Wanted, insert_evidence, role_peers, rows_around

BEFORE_MS, AFTER_MS = 30 * 60_000, 10 * 60_000
_MOST_TARGETS, _MOST_DOMAIN = 8, 8
#: One row of each target, peer and domain node in so many seconds.
_EVERY = {"target": 10, "peer": 30, "domain": 60}
_NETWORK = {Kind.RDMA.value, Kind.LINK_FLAP.value}
_TIMING = {kind.value for kind in (*SLOWING, *STOPPING, Kind.NONFINITE, Kind.LOSS_SPIKE, Kind.GRAD_NORM)}
_HEAT = {Kind.COOLING.value, Kind.OVERHEAT.value}


class Evidence:
    """A follower of the engine: reads rows around opening, peak and close and stores them with the incident.

    Targets are the nodes and devices of the incident (8 at most), peers two ranks in the same role of the same job,
    the domain 8 other nodes of the rack (of the cooling zone where heat is the matter).
    """

    name = "evidence"
    urgent = False

    def __init__(self, pins: EvidencePins, records: IncidentRecords, store: Store, context: Context) -> None:
        self._pins, self._records, self._store, self._context = pins, records, store, context

    def cycle(self, lease: Lease) -> None:
        """Pin what is due. Raises TransientError when the store is away; nothing is lost."""
        for pin in self._pins.due():
            self._pin(lease, pin)
            self._pins.done(lease, pin)

    def _pin(self, lease: Lease, pin: Pin) -> None:
        try:
            incident = self._records.get(pin.incident)
        except NotFound:
            return
        since, until = (pin.at_ms - BEFORE_MS, pin.at_ms) if pin.part == 0 else (pin.at_ms, pin.at_ms + AFTER_MS)
        found = [
            (wanted.role, wanted.table, row)
            for wanted in self._wanted(incident)
            for row in rows_around(self._store, wanted, since, until)
        ]
        insert_evidence(
            self._store, found, incident.id, incident.cluster, pin.moment, version_of(lease.epoch, 0),
            f"evidence:{pin.incident}:{pin.moment}:{pin.part}",
        )  # fmt: skip

    def _wanted(self, incident: Incident) -> list[Wanted]:
        places = self._context.view.places
        nodes = target_nodes(incident, places)
        peers: list[tuple[str, int]] = []
        if incident.job is not None and nodes:
            peers = role_peers(self._store, incident.job, nodes[0], incident.rank)
        domain = _domain_of(incident, nodes, [node for node, _ in peers], places)
        wanted = _of_nodes("target", nodes, incident, () if incident.device is None else (incident.device,))
        wanted += _of_nodes("peer", [node for node, _ in peers], incident, ())
        wanted += _of_nodes("domain", domain, incident, ())
        if nodes:
            wanted.append(Wanted("events", "target", nodes, 1))
        if incident.kind in _TIMING and incident.job is not None:
            if incident.rank is not None:
                wanted.append(Wanted("rank_steps", "target", (), 1, job=incident.job, ranks=(incident.rank,)))
            ranks = [rank for _, rank in peers] or [0]
            wanted.append(Wanted("rank_steps", "peer", (), 1, job=incident.job, ranks=ranks))
        return wanted


def target_nodes(incident: Incident, places: Places) -> list[str]:
    """Return the nodes that an incident is about, 8 at most."""
    if incident.node is not None:
        return [incident.node]
    named: set[str] = set()
    for target in incident.targets:
        named |= places.members(incident.scope, target) or ({target} if places.domains_of(target) else set())
    return sorted(named)[:_MOST_TARGETS]


def _of_nodes(role: str, nodes: Sequence[str], incident: Incident, devices: Sequence[int]) -> list[Wanted]:
    if not nodes:
        return []
    every = _EVERY[role]
    wanted = [Wanted("device_samples", role, nodes, every, devices), Wanted("node_samples", role, nodes, every)]
    if incident.kind in _NETWORK and role != "domain":
        wanted.append(Wanted("port_samples", role, nodes, every))
    return wanted


def _domain_of(incident: Incident, nodes: Sequence[str], peers: Sequence[str], places: Places) -> list[str]:
    if not nodes:
        return []
    domains = places.domains_of(nodes[0])
    kinds = ("cooling_zone", "rack") if incident.kind in _HEAT else ("rack", "leaf_switch", "cooling_zone")
    kind = next((one for one in kinds if one in domains), None)
    around = places.members(kind, domains[kind]) if kind is not None else frozenset[str]()
    return sorted(around - set(nodes) - set(peers))[:_MOST_DOMAIN]
