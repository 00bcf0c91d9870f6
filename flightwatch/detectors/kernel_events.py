"""Groups events of nodes and devices into incidents: one root, its consequences, one recommended action.

Pure and without third-party packages: `flightwatch inspect` and live detection both use it. An
uncorrectable memory error logs Xid 48, 63 and 94 within milliseconds: that is one incident with root 48.
Xid 45 is a consequence, never a cause; its line may name the cause. Xid 154 carries the driver's own
recovery action. The first device with an uncorrectable RAS error is the source; others that only log
their error banks are bystanders. Nodes are never mixed. It does not compare clocks of two nodes, and it
does not see causes that left no event.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flightwatch.core.protocols import Value
from flightwatch.core.vocabulary import EventSeverity
from flightwatch.core.xid import xid
from flightwatch.detectors.event_places import Places, address
from flightwatch.detectors.event_rules import ACTION_RANK, ALL_ACTIONS, Rule, rule_of, text_of

#: The same event on the same device within this time is a repetition, in milliseconds.
REPEAT_MS = 30 * 60_000
#: A consequence on the same device comes within this time, in milliseconds.
RELATED_MS = 60_000
#: Notices of the driver about an earlier error come within this time, in milliseconds.
NOTICE_MS = 10 * 60_000

_SEVERITY_RANK = {severity.value: rank for rank, severity in enumerate(EventSeverity)}
_WARNING = _SEVERITY_RANK[EventSeverity.WARNING.value]
#: Events that are told even when they are harmless.
_ALWAYS = frozenset({"panic"})
_CLOCK = re.compile(r"(?:(?:([A-Z][a-z]{2}) (\d{1,2})|(\d{2})-(\d{2})) )?(\d{2}):(\d{2}):(\d{2})")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


@dataclass(slots=True)
class Incident:
    """Events with one cause.

    Attributes
    ----------
    root: code of the cause ("xid:48").
    consequences: other codes in the order in which they appeared.
    node: node name, None when the events carry none.
    device: index when known, else the PCI address, else None.
    pci_bus_id: address as the events write it, "" when they have none.
    first_ts, last_ts: milliseconds since the epoch; None when the events carry no time.
    count: events in the incident.
    severity: the worst of its events.
    kind: class of the root (hardware, link, firmware, application, host, storage, comm, notice).
    action_key, action: recommended action, as a key of `event_rules.ALL_ACTIONS` and as text.
    meaning: what the root means, in words.
    details: facts of the root worth showing ("link 14", "process python3").
    bystanders: other devices on which only consequences were seen.
    sources: captures the events came from.
    moment: when it began, as the capture prints it, for events without a full time ("13850.9 s after boot").
    """

    root: str
    consequences: list[str]
    node: str | None
    device: int | str | None
    pci_bus_id: str
    first_ts: int | None
    last_ts: int | None
    count: int
    severity: str
    kind: str
    action_key: str
    action: str
    meaning: str
    details: list[str] = field(default_factory=list)
    bystanders: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    moment: str = ""

    @property
    def blames_hardware(self) -> bool:
        """True when a person should act on hardware."""
        return self.kind in ("hardware", "link", "firmware") and ACTION_RANK.get(self.action_key, 1) >= 3

    def as_json(self, first_ts: str | None) -> dict[str, object]:
        """Return the shape of `flightwatch inspect --summary --format json`; the caller renders the time."""
        return {
            "root": self.root, "consequences": self.consequences, "node": self.node, "device": self.device,
            "first_ts": first_ts, "action": self.action, "severity": self.severity, "kind": self.kind,
            "meaning": self.meaning, "count": self.count, "pci_bus_id": self.pci_bus_id or None,
            "details": self.details, "bystanders": self.bystanders, "sources": self.sources,
        }  # fmt: skip


@dataclass(slots=True)
class _Event:
    order: int
    domain: tuple[str, ...]
    moment_ms: float
    node: str | None
    place: str
    device: int | None
    pci: str
    code: str
    severity: str
    message: str
    ts: int | None
    attrs: Mapping[str, str]
    rule: Rule
    rank: int | None
    source: str


@dataclass(slots=True)
class _Group:
    place: str
    family: str
    events: list[_Event]

    @property
    def last_ms(self) -> float:
        return self.events[-1].moment_ms

    @property
    def codes(self) -> set[str]:
        return {event.code for event in self.events}


def group_events(events: Iterable[tuple[str, Mapping[str, Value]]]) -> list[Incident]:
    """Group events into incidents.

    Parameters
    ----------
    events: (name of the capture or stream, values of an `events` row), in any order of time. Events without
        a time are ordered as given and are compared only inside their capture.

    Returns
    -------
    Incidents, the worst first, then by node and time.
    """
    found = [_event(order, source, values) for order, (source, values) in enumerate(events)]
    places = Places()
    for event in found:
        places.learn(event.node or event.source, event.device, event.pci)
    for event in found:
        machine = event.node or event.source
        event.place = places.name(machine, event.device, event.pci, event.rule.family, event.attrs)
    incidents: list[Incident] = []
    domains: dict[tuple[str | None, tuple[str, ...]], list[_Event]] = {}
    for event in found:
        domains.setdefault((event.node, event.domain), []).append(event)
    for members in domains.values():
        members.sort(key=lambda event: (event.moment_ms, event.order))
        incidents.extend(_incident(group) for group in _groups(members))
    incidents.sort(key=_urgency)
    return incidents


def _urgency(incident: Incident) -> tuple[int, int, str, int]:
    drastic = ACTION_RANK.get(incident.action_key, 1)
    return -_SEVERITY_RANK.get(incident.severity, 2), -drastic, incident.node or "", incident.first_ts or 0


def _event(order: int, source: str, values: Mapping[str, Value]) -> _Event:
    raw = values.get("attrs")
    attrs = {str(name): str(value) for name, value in raw.items()} if isinstance(raw, Mapping) else {}
    ts, device, node = values.get("ts"), values.get("device"), values.get("node")
    code = text_of(values.get("code"))
    pci = attrs.get("pci_bus_id", "")
    stamp = ts if isinstance(ts, int) and not isinstance(ts, bool) else None
    index = device if isinstance(device, int) and not isinstance(device, bool) else None
    name = node if isinstance(node, str) else None
    domain, moment_ms = _moment(order, source, name, stamp, attrs)
    rule = rule_of(code, attrs)
    return _Event(
        order, domain, moment_ms, name, "", index, pci, code,
        text_of(values.get("severity")) or "warning", text_of(values.get("message")), stamp, attrs, rule,
        rank if isinstance(rank := values.get("rank"), int) else None, source,
    )  # fmt: skip


def _moment(
    order: int, source: str, node: str | None, ts: int | None, attrs: Mapping[str, str]
) -> tuple[tuple[str, ...], float]:
    """Return the clock an event is timed by, and its time on that clock in milliseconds."""
    uptime = attrs.get("uptime_s", "")
    if re.fullmatch(r"\d{1,12}(?:\.\d{1,12})?", uptime):
        # Finer than a wall clock of whole seconds, and not disturbed when that is set.
        return ("uptime", source), float(uptime) * 1000
    if ts is not None:
        # Without node names two captures may be of two machines.
        return ("wall", "" if node else source), float(ts)
    clock = _CLOCK.search(attrs.get("clock", ""))
    if clock:
        month = _MONTHS.find(clock[1]) // 3 + 1 if clock[1] else int(clock[3] or 0)
        day = int(clock[2] or clock[4] or 0)
        seconds = int(clock[5]) * 3600 + int(clock[6]) * 60 + int(clock[7])
        return ("clock", source), ((month * 31 + day) * 86_400 + seconds) * 1000.0
    return ("order", source), float(order)


def _groups(events: Sequence[_Event]) -> list[_Group]:
    groups: list[_Group] = []
    harmless: list[_Event] = []
    for event in events:
        if _SEVERITY_RANK.get(event.severity, _WARNING) < _WARNING and event.code not in _ALWAYS:
            harmless.append(event)
            continue
        home = _home(event, groups)
        if home is None:
            groups.append(_Group(event.place, event.rule.family, [event]))
        else:
            home.events.append(event)
            home.place = home.place or event.place
    for event in harmless:
        for group in groups:
            near = abs(group.events[0].moment_ms - event.moment_ms) <= RELATED_MS
            if near and group.family == event.rule.family and group.place == event.place and event.place:
                group.events.append(event)
                break
    return groups


def _home(event: _Event, groups: Sequence[_Group]) -> _Group | None:
    """Find the group an event belongs to: the one that it began, else the latest that fits."""
    for group in reversed(groups[-200:]):
        began = group.events[0].code == event.code and group.place == event.place
        if began and group.family == event.rule.family and event.moment_ms - group.last_ms <= REPEAT_MS:
            return group
    for group in reversed(groups[-200:]):
        if group.family != event.rule.family:
            continue
        gap = event.moment_ms - group.last_ms
        same_place = event.place == group.place
        if same_place and event.code in group.codes and gap <= REPEAT_MS:
            return group
        if same_place and gap <= (NOTICE_MS if _is_notice(event) else RELATED_MS) and _related(event, group):
            return group
        # What names no device belongs to what its driver last reported, and the other way round.
        if not event.place and not event.rule.needs_device and gap <= NOTICE_MS:
            return group
        if not group.place and event.place and gap <= RELATED_MS:
            return group
    if event.code in ("ras:aca", "xid:45", "xid:43"):
        return _source_of(event, groups)
    return None


def _source_of(event: _Event, groups: Sequence[_Group]) -> _Group | None:
    """Find the group of another device on the node whose error this bystander reports."""
    for group in reversed(groups[-200:]):
        serious = any(member.rule.kind in ("hardware", "link", "firmware") for member in group.events)
        if group.family == event.rule.family and serious and event.moment_ms - group.last_ms <= RELATED_MS:
            return group
    return None


def _is_notice(event: _Event) -> bool:
    return event.rule.kind == "notice" or "*" in event.rule.follows


def _related(event: _Event, group: _Group) -> bool:
    mine = event.rule.follows
    if "*" in mine or mine & group.codes:
        return True
    return any("*" in member.rule.follows or event.code in member.rule.follows for member in group.events)


def _incident(group: _Group) -> Incident:
    events = sorted(group.events, key=lambda event: (event.moment_ms, event.order))
    codes = list(dict.fromkeys(event.code for event in events))
    causes = [f"xid:{event.attrs['caused_by_xid']}" for event in events if "caused_by_xid" in event.attrs]
    root_event = _root(events)
    root, rule = root_event.code, root_event.rule
    if causes and (root == "xid:45" or causes[0] not in codes):
        # The consequence names its cause, whose own line is not in this log.
        root, rule = causes[0], rule_of(causes[0], {})
    stamps = [event.ts for event in events if event.ts is not None]
    key, action = _action(rule, root_event, events)
    words = [event.severity for event in events]
    if root.startswith("xid:") and root not in codes:
        words.append(xid(int(root[4:])).severity.value)
    severity = max(words, key=lambda word: _SEVERITY_RANK.get(word, _WARNING))
    pci = root_event.pci or next((event.pci for event in events if event.pci), "")
    place = address(pci) if pci else ""
    indices = [
        event.device for event in events if event.device is not None and event.place in (place, root_event.place)
    ]
    others = dict.fromkeys(event.pci for event in events if event.pci and address(event.pci) != place)
    return Incident(
        root=root,
        consequences=[code for code in codes if code != root],
        node=root_event.node,
        device=indices[0] if indices else (pci or None),
        pci_bus_id=pci,
        first_ts=min(stamps) if stamps else None,
        last_ts=max(stamps) if stamps else None,
        count=len(events),
        severity=severity,
        kind=rule.kind,
        action_key=key,
        action=action,
        meaning=rule.meaning,
        details=_facts(root_event, events),
        bystanders=list(others),
        sources=list(dict.fromkeys(event.source for event in events))[:16],
        moment=_printed_time(events[0].attrs),
    )


def _printed_time(attrs: Mapping[str, str]) -> str:
    if "clock" in attrs:
        return f"{attrs['clock']} (date incomplete in the capture)"
    return f"{attrs['uptime_s']} s after boot" if "uptime_s" in attrs else ""


def _root(events: Sequence[_Event]) -> _Event:
    """The earliest event that is no consequence of another code in the group; else the most serious."""
    codes = {event.code for event in events}
    free = [
        event for event in events
        if _SEVERITY_RANK.get(event.severity, _WARNING) >= _WARNING or event.code in _ALWAYS
        if not ("*" in event.rule.follows and len(codes) > 1) and not event.rule.follows & (codes - {event.code})
    ]  # fmt: skip
    if free:
        return free[0]
    # All are consequences: what speaks for the device itself explains more than lines without a device.
    return min(events, key=lambda event: (not event.place, -_SEVERITY_RANK.get(event.severity, _WARNING), event.order))


def _action(rule: Rule, root: _Event, events: Sequence[_Event]) -> tuple[str, str]:
    if root.attrs.get("deliberate") == "true":
        return "deliberate", ALL_ACTIONS["deliberate"]
    recovery = [event for event in events if event.code == "xid:154" and "action" in event.attrs]
    most = max((event.rule.action for event in events), key=lambda key: ACTION_RANK.get(key, 1))
    chosen = rule.action
    if recovery and recovery[-1].attrs["action"] != "none":
        key = recovery[-1].attrs["action"]
        text = (
            f"{ALL_ACTIONS.get(key, ALL_ACTIONS['support'])} (the driver asks for: {recovery[-1].attrs['recovery_to']})"
        )
        if ACTION_RANK.get(chosen, 1) > ACTION_RANK.get(key, 1):
            return chosen, f"{ALL_ACTIONS[chosen]} (the driver asks for: {recovery[-1].attrs['recovery_to']})"
        return key, text
    text = ALL_ACTIONS[chosen]
    if ACTION_RANK.get(most, 1) > ACTION_RANK.get(chosen, 1):
        if rule.kind in ("hardware", "firmware", "link"):
            return most, ALL_ACTIONS[most]
        return most, f"{text}; and {ALL_ACTIONS[most]}"
    return chosen, text


#: Facts worth showing: name in attrs to the words before it.
_FACTS = (
    ("link", "link"), ("registers", "registers"), ("subcode", ""), ("block", "block"), ("error", ""), ("errors", ""),
    ("unit", "unit"), ("port", "switch port"), ("nvswitch", "NVSwitch"), ("process", "process"), ("pid", "pid"),
    ("library", "in"), ("ret", "returned"), ("bank", "bank"), ("status", "status"), ("layer", ""), ("section_type", ""),
    ("seq", "collective"), ("op", ""), ("peer", "peer"), ("meaning", ""), ("reason", ""),
    ("absent_ranks", "absent ranks"),
    ("ahead_ranks", "ahead: ranks"), ("behind_count", "ranks behind:"), ("missing_ranks", "missing ranks"),
    ("stuck_s", "stuck for seconds:"), ("local_rank", "local rank"), ("detail", ""),
)  # fmt: skip


def _facts(root: _Event, events: Sequence[_Event]) -> list[str]:
    facts = []
    for name, words in _FACTS:
        value = root.attrs.get(name)
        if (
            value
            and not (name == "meaning" and root.code.startswith(("xid:", "sxid:")))
            and not (name == "error" and value.isdigit())
        ):
            facts.append(f"{words} {value[:120]}".strip())
    ranks = sorted({event.rank for event in events if event.rank is not None})
    if ranks:
        facts.append("ranks " + ",".join(str(rank) for rank in ranks[:64]))
    for event in events:
        if event.code == "amdgpu:reset_failed" and "ret" in event.attrs and event is not root:
            facts.append(f"reset returned {event.attrs['ret']}")
    return facts
