"""Findings as grouping holds them, and an index over them by kind, node, job and targets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from flightwatch.core.vocabulary import FindingKind, FindingScope
from flightwatch.detectors.joint import RULES, Places, Rule

#: Kinds that tell the same of one device.
_FAMILIES = {FindingKind.ECC: "device", FindingKind.DEVICE_ERROR: "device"}


@dataclass(slots=True, eq=False)
class Member:
    """What grouping needs of a finding. Times in milliseconds since the epoch; `detected_at` of its first statement.

    Attributes
    ----------
    severe: the finding may open an incident (information may only belong to one).
    incident: the incident it is stored in, None for none yet. pin: findings with the same pin stay together.
    parent, rule: the finding that explains it and the place of the rule in the graph.
    """

    id: str
    kind: FindingKind
    class_: str | None
    scope: FindingScope
    cluster: str
    node: str | None
    device: int | None
    hca: str | None
    job: str | None
    targets: tuple[str, ...]
    first_seen_at: int | None
    detected_at: int
    severe: bool = True
    incident: str | None = None
    pin: str | None = None
    parent: Member | None = None
    rule: int = len(RULES)
    group: Group | None = None

    @property
    def order(self) -> tuple[int, str]:
        """Sort key: who was detected first; the id breaks ties."""
        return (self.detected_at, self.id)


@dataclass(slots=True, eq=False)
class Group:
    """Findings with one cause.

    Attributes
    ----------
    anchor: the member detected first: it gives the group its id.
    """

    members: dict[str, Member]
    anchor: Member

    @property
    def incident_id(self) -> str:
        """Id of the incident that this group is."""
        return incident_id(self.anchor.cluster, self.anchor.id)


def incident_id(cluster: str, finding: str) -> str:
    """Return the id of the incident that a finding opens when it was detected first."""
    return "i" + hashlib.sha256(f"{cluster}|{finding}".encode()).hexdigest()[:16]


class FindingIndex:
    """Findings by kind and by node, job, targets, so that a rule asks only those that can match."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._all: dict[FindingKind, dict[str, Member]] = {}
        self._by: dict[tuple[object, ...], dict[str, Member]] = {}

    def add(self, member: Member) -> None:
        """Take a finding in."""
        self._all.setdefault(member.kind, {})[member.id] = member
        for key in self._keys(member):
            self._by.setdefault(key, {})[member.id] = member

    def remove(self, member: Member) -> None:
        """Drop a finding."""
        self._all.get(member.kind, {}).pop(member.id, None)
        for key in self._keys(member):
            held = self._by.get(key, {})
            held.pop(member.id, None)
            if not held:
                self._by.pop(key, None)

    def of_kind(self, kind: FindingKind) -> list[Member]:
        """Return the findings of a kind."""
        return list(self._all.get(kind, {}).values())

    def near(self, rule: Rule, one: Member, kind: FindingKind) -> Iterable[Member]:
        """Return findings of a kind that a rule may connect with `one`, as cause or effect; some will not match."""
        if rule.place == "any" or (rule.place == "domain" and one.scope == FindingScope.FACILITY):
            return self._all.get(kind, {}).values()
        if rule.place == "job":
            return self._near_job(one, kind)
        found: dict[str, Member] = {}
        for node in self._places.nodes(one):
            found |= self._by.get((kind, "node", node), {})
        if rule.place == "domain":
            found |= self._by.get((kind, "targets", one.scope, one.targets), {})
            found |= self._by.get((kind, "facility"), {})
        return found.values()

    def _near_job(self, one: Member, kind: FindingKind) -> Iterable[Member]:
        found: dict[str, Member] = {}
        jobs = [one.job] if one.job is not None else self._places.jobs_of(one.node) if one.node is not None else ()
        for job in jobs:
            found |= self._by.get((kind, "job", job), {})
        if one.job is not None:
            homeless = self._by.get((kind, "homeless"), {})
            nodes = self._places.nodes_of_job(one.job)
            found |= {other.id: other for other in homeless.values() if other.node in nodes}
        return found.values()

    def _keys(self, member: Member) -> list[tuple[object, ...]]:
        keys: list[tuple[object, ...]] = [(member.kind, "node", node) for node in self._places.nodes(member)]
        if member.node is None:
            keys.append((member.kind, "targets", member.scope, member.targets))
        if member.scope == FindingScope.FACILITY:
            keys.append((member.kind, "facility"))
        keys.append((member.kind, "homeless") if member.job is None else (member.kind, "job", member.job))
        return keys


def place_key(member: Member) -> tuple[object, ...]:
    """Return what two findings share that tell the same of the same place."""
    if member.kind == FindingKind.BLIND:
        # Whoever notices it, there is one blindness.
        return (member.kind.value,)
    family = _FAMILIES.get(member.kind, member.kind.value)
    what = (family, member.class_ if member.kind == FindingKind.SLOW else None, member.cluster)
    if member.node is not None:
        return (*what, "node", member.node, member.device, member.hca)
    if member.job is not None:
        return (*what, "job", member.job, member.targets)
    return (*what, member.scope.value, member.targets)
