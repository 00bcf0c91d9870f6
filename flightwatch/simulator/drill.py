"""How what was found compares with what was injected: the grade of a drill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flightwatch.core.clock import iso_utc
from flightwatch.core.vocabulary import FindingKind, FindingState, Severity
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import TELEMETRY_KINDS, TIMING_KINDS, Fault
from flightwatch.simulator.plan import jobs_of_node
from flightwatch.simulator.scenarios import guilty_nodes


@dataclass(frozen=True)
class Injected:
    """One injected fault as a grade sees it.

    Attributes
    ----------
    name: kind of fault. kinds: finding kinds that name it. targets: any of these names tells it. jobs: those it slows.
    begin_ms: when it began, milliseconds since the epoch.
    """

    name: str
    kinds: frozenset[str]
    targets: frozenset[str]
    jobs: frozenset[str]
    begin_ms: int

    @property
    def target(self) -> str:
        """One name for people."""
        return min(self.targets)


def injected_of(cluster: Cluster, jobs: Sequence[Job], fault: Fault, begin_ms: int) -> Injected:
    """Return what a right answer to a simulated fault may say."""
    nodes = guilty_nodes(fault, cluster)
    targets = set(nodes)
    first = cluster.inventory(0).drop_duplicates("node")
    for domain in ("rack", "cooling_zone", "leaf_switch"):
        members: dict[str, set[str]] = {}
        for node, name in zip(first["node"].tolist(), first[domain].tolist(), strict=True):
            members.setdefault(str(name), set()).add(str(node))
        # A domain is to blame when the fault holds all of it.
        targets |= {name for name, inside in members.items() if inside <= nodes}
    kind = FindingKind.SLOW.value if fault.kind in TIMING_KINDS else TELEMETRY_KINDS[fault.kind]
    touched = {job.name for node in range(cluster.nodes) if cluster.node_name(node) in nodes
               for job in jobs_of_node(cluster, jobs, node)}  # fmt: skip
    return Injected(fault.kind, frozenset((kind,)), frozenset(targets), frozenset(touched), begin_ms)


def grade_drill(injected: Sequence[Injected], findings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Grade rows of the findings table against what was injected.

    A finding is right when its kind and target tell a fault; it is related, and not graded, when it is about a target
    or job of a fault in other words (the job's step time, a symptom), or of severity info; any other is false.

    Returns
    -------
    faults (each with what was said first and after how long), precision and recall (None where nothing can be divided),
    counts, and what was false.
    """
    first: dict[str, Mapping[str, Any]] = {}
    for row in sorted(findings, key=lambda one: int(one["detected_at"])):
        if row["state"] != FindingState.CLEARED.value:
            first.setdefault(str(row["id"]), row)
    right: list[Mapping[str, Any]] = []
    related, false = 0, []
    found: dict[int, Mapping[str, Any]] = {}
    for row in first.values():
        told = [at for at, fault in enumerate(injected) if _tells(fault, row)]
        for at in told:
            found.setdefault(at, row)
        if told:
            right.append(row)
        elif row["severity"] == Severity.INFO.value or any(_touches(fault, row) for fault in injected):
            related += 1
        else:
            false.append(row)
    judged = len(right) + len(false)
    return {
        "faults": [_of_fault(fault, found.get(at)) for at, fault in enumerate(injected)],
        "found": len(found),
        "injected": len(injected),
        "recall": round(len(found) / len(injected), 4) if injected else None,
        "precision": round(len(right) / judged, 4) if judged else None,
        "right": len(right),
        "related": related,
        "false": [{"id": row["id"], "kind": row["kind"], "summary": row["summary"]} for row in false],
    }


def _tells(fault: Injected, row: Mapping[str, Any]) -> bool:
    return row["kind"] in fault.kinds and bool(_names(row) & fault.targets) and _in_time(fault, row)


def _touches(fault: Injected, row: Mapping[str, Any]) -> bool:
    return bool(_names(row) & fault.targets) or (row.get("job") in fault.jobs and not row.get("node"))


def _in_time(fault: Injected, row: Mapping[str, Any]) -> bool:
    return int(row["detected_at"]) >= fault.begin_ms


def _names(row: Mapping[str, Any]) -> set[str]:
    names = {str(row["node"])} if row.get("node") else set()
    for target in row.get("targets") or ():
        text = str(target)
        names |= {text, text.split("/")[0], text.split(" (")[0], text.split(" ")[0]}
    rank = row.get("rank")
    return names | ({f"rank {rank}"} if rank is not None else set())


def _of_fault(fault: Injected, row: Mapping[str, Any] | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "fault": fault.name,
        "target": fault.target,
        "began_at": iso_utc(fault.begin_ms),
        "found": row is not None,
        "detect_seconds": None,
        "stored_seconds": None,
        "summary": None,
    }
    if row is None:
        return told
    # The first counts in the data's time, the second until the finding could be read.
    stored = row.get("received_at")
    return told | {
        "detect_seconds": round((int(row["detected_at"]) - fault.begin_ms) / 1000, 1),
        "stored_seconds": None if stored is None else round((int(stored) - fault.begin_ms) / 1000, 1),
        "summary": row["summary"],
    }
