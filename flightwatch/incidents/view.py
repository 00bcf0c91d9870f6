"""What a group of findings says, as the columns of its incident."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope, Severity
from flightwatch.detectors.joint import RULES
from flightwatch.incidents.context import ClusterView
from flightwatch.incidents.grouping import CROWD_DOMAINS, Group
from flightwatch.incidents.settings import IncidentSettings
from flightwatch.incidents.severity import SLOWING, judge
from flightwatch.incidents.statements import GRAVITY, Known
from flightwatch.incidents.titles import WORDS, place_of, title_of
from flightwatch.pipeline.control.engine_writes import encoded

#: Columns whose change is a new revision; the others are figures.
VISIBLE = ("severity", "kind", "class_", "scope", "node", "device", "rank", "job", "run", "tenant", "root_finding",
           "progress", "blames_hardware", "stale")  # fmt: skip
_MOST_TARGETS = 256

Slowdown = Callable[[str, int], float | None]


def members_of(group: Group) -> list[Known]:
    """Return the findings of a group that the engine made of statements."""
    return cast(list[Known], list(group.members.values()))


def why(known: Known) -> str:
    """Return the words of the rule that explains a finding, "" when none does."""
    return "" if known.parent is None else RULES[known.rule].words


def rank_roots(members: Sequence[Known]) -> list[Known]:
    """Return the findings that nothing explains, the most likely cause first.

    What is stated now comes before what is over, what explains more before what explains less, then the graver, then
    the earlier. Information is a cause only where there is nothing else.
    """
    explains: Counter[str] = Counter()
    for one in members:
        root = one.parent
        for _ in range(len(RULES)):
            if root is None or root.parent is None:
                break
            root = root.parent
        if root is not None:
            explains[root.id] += 1
    roots = [one for one in members if one.parent is None] or list(members)
    return sorted(
        roots,
        key=lambda one: (not one.severe, not one.active, -explains[one.id], -GRAVITY[one.severity], one.order),
    )


def view_of(
    group: Group, cluster: ClusterView, slowdown: Slowdown, settings: IncidentSettings, now_ms: int
) -> dict[str, Any]:
    """Return columns of the incident; only counts and times when none of its findings is stated any more."""
    members = members_of(group)
    active = [one for one in members if one.active and one.severe]
    if not active:
        over = max((one.cleared_at or one.stated_at for one in members), default=now_ms)
        return {"findings_count": len(members), "evidence_at_ms": over, "loss_gpu_hours_per_hour": None}
    roots = rank_roots(members)
    root = roots[0]
    crowd = [one for one in roots if (one.kind, one.class_) == (root.kind, root.class_)]
    job_name = _job(root, members, cluster)
    job = cluster.jobs.get(job_name) if job_name is not None else None
    onset = root.first_seen_at or root.detected_at
    measured = slowdown(job_name, onset) if job_name and any(one.kind in SLOWING for one in active) else None
    impact = judge(members, root, job, measured, _gpus(root, crowd, cluster), settings, now_ms)
    rest = next((one for one in roots if one.severe and one not in crowd), None)
    columns: dict[str, Any] = {
        "severity": impact.severity.value, "kind": root.kind.value, "class_": root.class_, "scope": root.scope.value,
        "node": root.node, "device": root.device, "rank": root.rank, "job": job_name,
        "run": root.run or (job.run if job is not None else None), "tenant": job.tenant if job is not None else None,
        "targets": encoded(list(root.targets)), "summary": root.summary, "root_finding": root.id,
        "confidence": root.confidence, "blames_hardware": root.blames_hardware, "progress": impact.progress.value,
        "runner_up": None if rest is None else f"{place_of(rest)}: {WORDS[rest.kind]}",
        "gpus_affected": impact.gpus_affected, "loss_gpu_hours_per_hour": impact.loss_gpu_hours_per_hour,
        "evidence_at_ms": now_ms, "stale": all(one.stale for one in active), "findings_count": len(members),
    }  # fmt: skip
    domain = None
    if len({one.node for one in crowd if one.node is not None}) > 1:
        columns |= _wide(crowd, job_name, cluster)
        domain = columns.pop("domain")
    columns["title"] = title_of(root, crowd, domain, len(members) - len(crowd))
    return columns


def _job(root: Known, members: Sequence[Known], cluster: ClusterView) -> str | None:
    if root.kind is Kind.BLIND:
        return None
    if root.job is not None:
        return root.job
    if root.node is not None:
        return cluster.node_job.get(root.node)
    named = Counter(one.job or cluster.node_job.get(one.node or "") for one in members)
    del named[None]
    if not named:
        # A rack or zone without consequences yet: whose nodes most of its are.
        named = Counter(cluster.node_job[node] for node in cluster.places.nodes(root) if node in cluster.node_job)
    return min(named, key=lambda name: (-named[name], name or ""), default=None)


def _gpus(root: Known, crowd: Sequence[Known], cluster: ClusterView) -> int | None:
    """Return the accelerators of the places that the cause is about."""
    if root.scope is FindingScope.DEVICE and len(crowd) == 1:
        return 1
    nodes = {one.node for one in crowd if one.node is not None} or set(cluster.places.nodes(root))
    known = [cluster.devices[node] for node in nodes if node in cluster.devices]
    return sum(known) if known else None


def _wide(crowd: Sequence[Known], job: str | None, cluster: ClusterView) -> dict[str, Any]:
    """Return what a crowd's incident says of its place: what all its nodes share, and the nodes."""
    nodes = sorted({one.node for one in crowd if one.node is not None})
    found: dict[str, Any] = {
        "node": None, "device": None, "rank": None, "domain": None, "targets": encoded(nodes[:_MOST_TARGETS]),
    }  # fmt: skip
    shared = [cluster.places.domains_of(node) for node in nodes]
    for kind in CROWD_DOMAINS:
        names = {domains.get(kind) for domains in shared}
        if len(names) == 1 and None not in names:
            name = names.pop()
            targets = encoded([name, *nodes[:_MOST_TARGETS]])
            return found | {"domain": f"{kind.replace('_', ' ')} {name}", "scope": kind, "targets": targets}
    if job is not None:
        return found | {"domain": job, "scope": FindingScope.JOB.value}
    return found


def worse(new: str, old: str | None) -> bool:
    """Say whether a severity is graver than another one."""
    return old is None or GRAVITY[Severity(new)] > GRAVITY[Severity(old)]
