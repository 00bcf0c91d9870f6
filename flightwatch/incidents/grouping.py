"""Which findings have one cause: groups that grow as findings arrive, the same whatever the order.

A group is a connected set of findings. Three things connect: a causal rule of `detectors.joint` (each finding to the
one cause that explains it best), the same place (the same kind at the same device, node, port or job), and a crowd
(the same kind, unexplained, on several nodes of one rack, zone, switch or job within minutes). All three depend on
the set of findings only, so a cause that is found after its consequences takes them over, and a replay in another
order ends with the same groups under the same ids.

Costs a few dictionary look-ups a finding; memory grows with the findings held, which the caller bounds with `forget`.
"""

from __future__ import annotations

from collections.abc import Iterable

from flightwatch.core.vocabulary import FindingKind
from flightwatch.detectors.joint import RULES, Places, Rule
from flightwatch.incidents.members import FindingIndex, Group, Member, incident_id, place_key

__all__ = ["CROWD_DOMAINS", "Group", "Grouping", "Member", "incident_id", "place_key"]

#: Nodes of one domain with the same unexplained kind that make a crowd.
CROWD_NODES = 5
#: Findings of a crowd were detected within two neighbouring stretches of this length.
CROWD_MS = 600_000
#: Domains whose nodes can share a cause, besides the job.
CROWD_DOMAINS = ("rack", "cooling_zone", "power_zone", "leaf_switch")


class Grouping:
    """Holds findings and keeps their groups. Not thread-safe.

    Parameters
    ----------
    places: which nodes racks, zones, switches and jobs hold.
    """

    def __init__(self, places: Places, crowd_nodes: int = CROWD_NODES) -> None:
        self._places, self._crowd_nodes = places, crowd_nodes
        self.members: dict[str, Member] = {}
        self._index = FindingIndex(places)
        #: Hubs connect all their members: same place, pin, crowd.
        self._hubs: dict[tuple[object, ...], dict[str, Member]] = {}
        self._crowds: dict[tuple[object, ...], dict[str, int]] = {}
        self._effects: dict[str, dict[str, Member]] = {}
        self._dirty: dict[int, Group] = {}
        self._torn: dict[int, Group] = {}

    def add(self, member: Member) -> None:
        """Take a finding in and connect it; one that is held already is left as it is."""
        if member.id in self.members:
            return
        self.members[member.id] = member
        self._new_group({member.id: member})
        self._index.add(member)
        self._join_hub(("place", *place_key(member)), member)
        if member.pin is not None:
            self._join_hub(("pin", member.pin), member)
        self._find_parent(member)
        if member.parent is None:
            self._join_crowds(member)
        self._explain_others(member)

    def earlier(self, member: Member, detected_at: int) -> None:
        """Note that a finding was detected earlier than known: its order among causes may change."""
        if detected_at >= member.detected_at:
            return
        self.forget([member.id])
        member.detected_at = detected_at
        self.add_again(member)

    def add_again(self, member: Member) -> None:
        """Take a forgotten finding in again after what it says has changed."""
        member.parent, member.rule, member.group = None, len(RULES), None
        self.add(member)

    def touch(self, member: Member) -> None:
        """Let the group of a finding show among the changed ones: what it says has changed, not where it belongs."""
        self._dirty[id(_group(member))] = _group(member)

    def leaves(self) -> list[Member]:
        """Return the findings that are explained and explain nothing: their groups hold together without them."""
        return [
            one
            for one in self.members.values()
            if one.parent is not None
            and not self._effects.get(one.id)
            and one.pin is None
            and _group(one).anchor is not one
        ]

    def moved(self, places: Places) -> Grouping:
        """Return the same findings grouped anew after the places have changed; this one must not be used any more."""
        fresh = Grouping(places, self._crowd_nodes)
        for member in self.members.values():
            fresh.add_again(member)
        return fresh

    def of_kind(self, kind: FindingKind) -> list[Member]:
        """Return the findings of a kind."""
        return self._index.of_kind(kind)

    def pin(self, finding: str, name: str) -> None:
        """Keep a finding together with all others that have the same pin."""
        member = self.members.get(finding)
        if member is not None and member.pin != name:
            member.pin = name
            self._join_hub(("pin", name), member)

    def forget(self, findings: Iterable[str]) -> None:
        """Drop findings; what they alone had connected falls apart at the next `changed`."""
        for id_ in findings:
            member = self.members.pop(id_, None)
            if member is None:
                continue
            self._index.remove(member)
            self._leave_hub(("place", *place_key(member)), member)
            if member.pin is not None:
                self._leave_hub(("pin", member.pin), member)
            if member.parent is None:
                self._leave_crowds(member)
            else:
                self._effects[member.parent.id].pop(id_, None)
            for effect in list(self._effects.pop(id_, {}).values()):
                effect.parent, effect.rule = None, len(RULES)
                self._find_parent(effect)
                if effect.parent is None:
                    self._join_crowds(effect)
            group = _group(member)
            del group.members[id_]
            self._torn[id(group)] = group

    def changed(self) -> list[Group]:
        """Return the groups that changed since the last call, each once, in the order of their anchors."""
        for group in list(self._torn.values()):
            self._split(group)
        self._torn.clear()
        alive = [group for group in self._dirty.values() if group.members]
        self._dirty.clear()
        return sorted(alive, key=lambda group: group.anchor.order)

    def groups(self) -> list[Group]:
        """Return all groups. Call `changed` before."""
        return list({id(_group(member)): _group(member) for member in self.members.values()}.values())

    def _new_group(self, members: dict[str, Member]) -> None:
        group = Group(members, min(members.values(), key=lambda one: one.order))
        for member in members.values():
            member.group = group
        self._dirty[id(group)] = group

    def _connect(self, a: Member, b: Member) -> None:
        big, small = _group(a), _group(b)
        if big is small:
            return
        if len(big.members) < len(small.members):
            big, small = small, big
        for member in small.members.values():
            member.group = big
        big.members |= small.members
        big.anchor = min(big.anchor, small.anchor, key=lambda one: one.order)
        small.members = {}
        self._dirty.pop(id(small), None)
        self._dirty[id(big)] = big
        if self._torn.pop(id(small), None) is not None:
            self._torn[id(big)] = big

    # -- causes

    def _find_parent(self, effect: Member) -> None:
        for place, rule in _RULES_OF_EFFECT.get(effect.kind, ()):
            if rule.effect_class is not None and effect.class_ != rule.effect_class:
                continue
            best: Member | None = None
            for cause in self._index.near(rule, effect, rule.cause):
                if cause is effect or (best is not None and best.order < cause.order):
                    continue
                if self._matches(rule, cause, effect):
                    best = cause
            if best is not None:
                self._set_parent(effect, best, place)
                return

    def _explain_others(self, cause: Member) -> None:
        """Take over the findings that this one explains better than what explains them now."""
        for place, rule in _RULES_OF_CAUSE.get(cause.kind, ()):
            for kind in rule.effects:
                for effect in list(self._index.near(rule, cause, kind)):
                    if effect is cause or (effect.rule, _order(effect.parent)) <= (place, cause.order):
                        continue
                    if rule.effect_class is not None and effect.class_ != rule.effect_class:
                        continue
                    if self._matches(rule, cause, effect):
                        self._release(effect)
                        self._set_parent(effect, cause, place)

    def _matches(self, rule: Rule, cause: Member, effect: Member) -> bool:
        return (
            cause.cluster == effect.cluster
            and (rule.cause_class is None or cause.class_ == rule.cause_class)
            and self._places.match(rule, cause, effect)
        )

    def _set_parent(self, effect: Member, cause: Member, place: int) -> None:
        effect.parent, effect.rule = cause, place
        self._effects.setdefault(cause.id, {})[effect.id] = effect
        self._connect(effect, cause)
        self._dirty[id(_group(effect))] = _group(effect)

    def _release(self, effect: Member) -> None:
        if effect.parent is None:
            self._leave_crowds(effect)
        else:
            self._effects[effect.parent.id].pop(effect.id, None)
            self._torn[id(_group(effect))] = _group(effect)

    # -- hubs and crowds

    def _join_hub(self, key: tuple[object, ...], member: Member) -> None:
        hub = self._hubs.setdefault(key, {})
        if hub:
            self._connect(member, next(iter(hub.values())))
        hub[member.id] = member

    def _leave_hub(self, key: tuple[object, ...], member: Member) -> None:
        hub = self._hubs.get(key, {})
        hub.pop(member.id, None)
        if not hub:
            self._hubs.pop(key, None)

    def _join_crowds(self, member: Member) -> None:
        for key in self._crowd_keys(member):
            nodes = self._crowds.setdefault(key, {})
            was = len(nodes) >= self._crowd_nodes
            nodes[str(member.node)] = nodes.get(str(member.node), 0) + 1
            hub = self._hubs.setdefault(key, {})
            hub[member.id] = member
            if len(nodes) < self._crowd_nodes:
                continue
            first = next(iter(hub.values()))
            for one in (member,) if was else tuple(hub.values()):
                self._connect(one, first)

    def _leave_crowds(self, member: Member) -> None:
        for key in self._crowd_keys(member):
            nodes = self._crowds.get(key)
            if nodes is None or member.id not in self._hubs.get(key, {}):
                continue
            if len(nodes) >= self._crowd_nodes:
                self._torn[id(_group(member))] = _group(member)
            nodes[str(member.node)] -= 1
            if not nodes[str(member.node)]:
                del nodes[str(member.node)]
            if not nodes:
                del self._crowds[key]
            self._leave_hub(key, member)

    def _crowd_keys(self, member: Member) -> list[tuple[object, ...]]:
        if member.node is None or not member.severe:
            return []
        what = (member.kind.value, member.class_, member.cluster)
        domains = self._places.domains_of(member.node)
        named = [(kind, domains[kind]) for kind in CROWD_DOMAINS if kind in domains]
        if member.job is not None:
            named.append(("job", member.job))
        stretch = member.detected_at // CROWD_MS
        return [("crowd", *what, *domain, first) for domain in named for first in (stretch - 1, stretch)]

    def _hub_keys(self, member: Member) -> list[tuple[object, ...]]:
        """Return the hubs that connect a member now."""
        keys: list[tuple[object, ...]] = [("place", *place_key(member))]
        if member.pin is not None:
            keys.append(("pin", member.pin))
        if member.parent is None:
            keys += [key for key in self._crowd_keys(member) if len(self._crowds.get(key, ())) >= self._crowd_nodes]
        return keys

    def _split(self, group: Group) -> None:
        """Cut a group into what is still connected."""
        rest = dict(group.members)
        self._dirty.pop(id(group), None)
        parts: list[dict[str, Member]] = []
        while rest:
            _, start = rest.popitem()
            part, waiting, passed = {start.id: start}, [start], set[tuple[object, ...]]()
            while waiting:
                for other in self._neighbours(waiting.pop(), passed):
                    if other.id in rest:
                        del rest[other.id]
                        part[other.id] = other
                        waiting.append(other)
            parts.append(part)
        group.members = {}
        for part in parts:
            self._new_group(part)

    def _neighbours(self, member: Member, passed: set[tuple[object, ...]]) -> Iterable[Member]:
        if member.parent is not None:
            yield member.parent
        yield from self._effects.get(member.id, {}).values()
        for key in self._hub_keys(member):
            if key not in passed:
                passed.add(key)
                yield from self._hubs.get(key, {}).values()


def _group(member: Member) -> Group:
    if member.group is None:
        raise ValueError(f"finding {member.id} is in no group")
    return member.group


def _order(member: Member | None) -> tuple[int, str]:
    return (0, "") if member is None else member.order


_RULES_OF_EFFECT: dict[FindingKind, list[tuple[int, Rule]]] = {}
_RULES_OF_CAUSE: dict[FindingKind, list[tuple[int, Rule]]] = {}
for _place, _rule in enumerate(RULES):
    _RULES_OF_CAUSE.setdefault(_rule.cause, []).append((_place, _rule))
    for _kind in _rule.effects:
        _RULES_OF_EFFECT.setdefault(_kind, []).append((_place, _rule))
