"""Joint analysis: which finding explains which others.

A small graph of causal rules, each "findings of this kind, at this place, explain findings of those kinds".
A finding with a cause is its consequence; a finding without one is a root. Causes are sought from the
widest place to the narrowest, so a warming zone explains the throttled device that explains the slow rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope, FindingState
from flightwatch.detectors.contract import Finding, Frames
from flightwatch.detectors.layout import domain_of_nodes


@dataclass(frozen=True)
class Rule:
    """One arrow of the graph.

    Attributes
    ----------
    cause, effects: kinds. place: "device", "node", "domain" (the cause's rack or zone holds the effect's node),
    "job" or "any". before_s, after_s: how long before and after the cause the effect may begin.
    cause_class, effect_class: required class, None any. words: why, for people.
    """

    cause: Kind
    effects: tuple[Kind, ...]
    place: str
    words: str
    before_s: float = 300.0
    after_s: float = 3600.0
    cause_class: str | None = None
    effect_class: str | None = None


RULES: tuple[Rule, ...] = (
    Rule(Kind.COOLING, (Kind.OVERHEAT, Kind.THROTTLE, Kind.SLOW, Kind.ANOMALY), "domain",
         "its rack or zone warms", 900),
    Rule(Kind.DEAD_NODE, (Kind.SENSOR, Kind.LINK_FLAP, Kind.RDMA, Kind.HANG, Kind.CRASH), "node", "its node is gone"),
    Rule(Kind.OVERHEAT, (Kind.THROTTLE, Kind.SLOW, Kind.ANOMALY), "device", "the device is too hot", 900),
    Rule(Kind.THROTTLE, (Kind.SLOW, Kind.ANOMALY), "device", "its clocks are held down"),
    Rule(Kind.POWER, (Kind.SLOW, Kind.THROTTLE, Kind.ANOMALY), "device", "its power is limited"),
    Rule(Kind.ECC, (Kind.SLOW, Kind.SDC_PRECURSOR, Kind.NONFINITE, Kind.CRASH), "device", "its memory has errors"),
    Rule(Kind.DEVICE_ERROR, (Kind.SLOW, Kind.HANG, Kind.CRASH, Kind.ECC, Kind.SDC_PRECURSOR, Kind.NONFINITE), "device",
         "the driver reported an error of the device"),
    Rule(Kind.DEVICE_ERROR, (Kind.GRAD_NORM, Kind.LOSS_SPIKE), "job", "a device of the job reported an error"),
    Rule(Kind.LINK_FLAP, (Kind.RDMA, Kind.SLOW, Kind.HANG), "node", "its link went down and came back"),
    Rule(Kind.RDMA, (Kind.SLOW,), "node", "its port has errors or congestion", effect_class="link"),
    Rule(Kind.STORAGE, (Kind.SLOW,), "any", "its storage is slow", effect_class="storage"),
    Rule(Kind.CONFIG_DRIFT, (Kind.SLOW, Kind.POWER), "node", "its configuration differs", 86_400, 86_400),
    Rule(Kind.NONFINITE, (Kind.LOSS_SPIKE, Kind.GRAD_NORM), "job", "non-finite values began on one rank"),
    Rule(Kind.REPLICA_DIGEST, (Kind.LOSS_SPIKE, Kind.GRAD_NORM, Kind.NONFINITE), "job", "a replica holds other bits"),
    Rule(Kind.GRAD_NORM, (Kind.LOSS_SPIKE,), "job", "the gradient norm rose first"),
    Rule(Kind.NUMERICS, (Kind.LOSS_SPIKE, Kind.GRAD_NORM, Kind.NONFINITE), "job", "its FP8 values left their range"),
    Rule(Kind.SLOW, (Kind.FAIL_SLOW, Kind.JOB_REGRESSION), "job", "a slow target holds the job back"),
    Rule(Kind.FAIL_SLOW, (Kind.JOB_REGRESSION,), "job", "its steps became longer during the run"),
    Rule(Kind.HANG, (Kind.CRASH,), "job", "it hung before it ended"),
    Rule(Kind.SENSOR, (Kind.ANOMALY,), "device", "a sensor cannot be trusted"),
)  # fmt: skip


@dataclass
class Cause:
    """A root finding with what follows from it.

    Attributes
    ----------
    root: the finding nothing explains. consequences: explained findings, each with the reason.
    """

    root: Finding
    consequences: list[tuple[Finding, str]] = field(default_factory=list)


def explain(findings: Sequence[Finding], frames: Frames | None = None) -> list[Cause]:
    """Group raised findings by cause.

    Parameters
    ----------
    findings: any findings; the last statement of each id counts, cleared ones are left out.
    frames: `inventory` (which nodes a rack or zone holds) and `placements` (which nodes a job uses) are read.

    Returns
    -------
    Causes in order of their root's detection; every finding appears once.
    """
    last = {finding.id: finding for finding in findings}
    open_ = [finding for finding in last.values() if finding.state != FindingState.CLEARED]
    open_.sort(key=lambda one: (one.detected_at or 0, one.id))
    places = Places.of_frames(frames or {})
    parent: dict[str, tuple[Finding, str]] = {}
    for rule in RULES:
        for effect in open_:
            if effect.id in parent or effect.kind not in rule.effects:
                continue
            if rule.effect_class is not None and effect.class_ != rule.effect_class:
                continue
            for cause in open_:
                if cause.kind == rule.cause and cause.id != effect.id and places.match(rule, cause, effect):
                    parent[effect.id] = (cause, rule.words)
                    break
    causes = {one.id: Cause(one) for one in open_ if one.id not in parent}
    for effect in open_:
        if effect.id in parent:
            root, words = _root_of(effect, parent)
            causes[root.id].consequences.append((effect, words))
    return list(causes.values())


def _root_of(effect: Finding, parent: dict[str, tuple[Finding, str]]) -> tuple[Finding, str]:
    cause, words = parent[effect.id]
    # Rules are acyclic in kind; the bound guards against a rule added wrongly.
    for _ in range(len(RULES)):
        if cause.id not in parent:
            break
        cause = parent[cause.id][0]
    return cause, words


class Located(Protocol):
    """What the rules ask of a finding: where and when it is."""

    @property
    def scope(self) -> FindingScope:
        """What kind of thing it is about."""

    @property
    def node(self) -> str | None:
        """Node, None when it is about something else."""

    @property
    def device(self) -> int | None:
        """Device index."""

    @property
    def job(self) -> str | None:
        """Job."""

    @property
    def targets(self) -> tuple[str, ...]:
        """All targets."""

    @property
    def first_seen_at(self) -> int | None:
        """Start of the evidence."""

    @property
    def detected_at(self) -> int | None:
        """When it was said."""


#: Scopes that hold nodes, and the column of the inventory that says which.
DOMAINS = ("rack", "cooling_zone", "power_zone", "leaf_switch")


class Places:
    """Which places belong together.

    Parameters
    ----------
    domains: kind of domain to node to the name of its domain. job_nodes: job to the nodes it uses.
    """

    def __init__(self, domains: Mapping[str, Mapping[str, str]], job_nodes: Mapping[str, Iterable[str]]) -> None:
        self._domains = {kind: dict(domains.get(kind, {})) for kind in DOMAINS}
        self._members: dict[tuple[str, str], set[str]] = {}
        for kind, names in self._domains.items():
            for node, name in names.items():
                self._members.setdefault((kind, name), set()).add(node)
        self._job_nodes = {job: set(nodes) for job, nodes in job_nodes.items()}
        self._jobs: dict[str, set[str]] = {}
        for job, nodes in self._job_nodes.items():
            for node in nodes:
                self._jobs.setdefault(node, set()).add(job)

    @classmethod
    def of_frames(cls, frames: Frames) -> Places:
        """Read `inventory` and `placements`; either may be absent."""
        job_nodes: dict[str, set[str]] = {}
        placements = frames.get("placements")
        if placements is not None and {"job", "node"} <= set(placements.columns):
            pairs = placements[["job", "node"]].astype(object).dropna().drop_duplicates()
            for job, node in pairs.itertuples(index=False):
                job_nodes.setdefault(str(job), set()).add(str(node))
        return cls({kind: domain_of_nodes(frames, kind) for kind in DOMAINS}, job_nodes)

    def same(self, other: Places) -> bool:
        """Say whether both hold the same."""
        return self._domains == other._domains and self._job_nodes == other._job_nodes

    def domains_of(self, node: str) -> dict[str, str]:
        """Return kind of domain to name, of the domains that a node is in."""
        return {kind: names[node] for kind, names in self._domains.items() if node in names}

    def members(self, kind: str, name: str) -> frozenset[str]:
        """Return the nodes of a domain."""
        return frozenset(self._members.get((kind, name), ()))

    def jobs_of(self, node: str) -> frozenset[str]:
        """Return the jobs that use a node."""
        return frozenset(self._jobs.get(node, ()))

    def nodes_of_job(self, job: str) -> frozenset[str]:
        """Return the nodes that a job uses."""
        return frozenset(self._job_nodes.get(job, ()))

    def match(self, rule: Rule, cause: Located, effect: Located) -> bool:
        """Say whether a rule's place and time hold between two findings."""
        begin, start = cause.first_seen_at or cause.detected_at, effect.first_seen_at or effect.detected_at
        if begin is not None and start is not None:
            gap_s = (start - begin) / 1000
            if gap_s < -rule.before_s or gap_s > rule.after_s:
                return False
        if rule.place == "any":
            return True
        if rule.place == "job":
            return self._same_job(cause, effect)
        if rule.place == "domain":
            return self._in_domain(cause, effect)
        if cause.node is None or cause.node not in self.nodes(effect):
            return False
        alike = cause.device is None or effect.device is None or cause.device == effect.device
        return rule.place == "node" or alike

    def nodes(self, finding: Located) -> Set[str]:
        """Return the nodes that a finding is about; a facility's are all, and are not listed."""
        if finding.node is not None:
            return {finding.node}
        kind = finding.scope.value
        if kind in self._domains:
            held = [self._members[kind, name] for name in finding.targets if (kind, name) in self._members]
            # Matching asks this for every pair: the one set of a large domain is not copied.
            return held[0] if len(held) == 1 else set().union(*held)
        return set(finding.targets) if finding.scope in (FindingScope.LINK, FindingScope.NODE) else set()

    def _in_domain(self, cause: Located, effect: Located) -> bool:
        if cause.scope == FindingScope.FACILITY:
            return True
        inside = self.nodes(cause)
        return bool(inside & self.nodes(effect)) or (effect.scope == cause.scope and effect.targets == cause.targets)

    def _same_job(self, cause: Located, effect: Located) -> bool:
        if effect.job is None:
            return False
        if cause.job is not None:
            return cause.job == effect.job
        return cause.node is not None and cause.node in self._job_nodes.get(effect.job, set())
