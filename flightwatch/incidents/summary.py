"""Incidents of recorded findings: the engine's grouping with the clock of the data, without a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flightwatch.core.clock import iso_utc
from flightwatch.core.vocabulary import FindingKind, FindingState, Severity
from flightwatch.detectors.contract import Finding, Frames
from flightwatch.detectors.joint import Places
from flightwatch.incidents.context import ClusterView
from flightwatch.incidents.grouping import Group, Grouping
from flightwatch.incidents.settings import IncidentSettings
from flightwatch.incidents.severity import HOUR_MS, JobState
from flightwatch.incidents.statements import GRAVITY, Known, known_of, restate, statement_of_finding
from flightwatch.incidents.view import members_of, rank_roots, view_of, why

#: Endings are looked for this often, in milliseconds of the data.
_LOOK_MS = 60_000
_SHOWN = ("severity", "kind", "title", "summary", "node", "device", "rank", "job", "run", "confidence", "runner_up",
          "blames_hardware", "progress", "gpus_affected", "loss_gpu_hours_per_hour")  # fmt: skip


@dataclass
class SummarisedIncident:
    """One incident of a recording. Times in milliseconds since the epoch; `closed_at_ms` None while it lasts.

    Attributes
    ----------
    columns: as in the store's table of incidents, at the time when it was gravest.
    consequences: finding, kind, summary and why, for each finding that another one explains.
    """

    id: str
    opened_at_ms: int
    closed_at_ms: int | None
    columns: Mapping[str, Any]
    findings: Sequence[str]
    consequences: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    lost_gpu_hours: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values, times as ISO-8601 UTC."""
        head = {"id": self.id, "opened_at": iso_utc(self.opened_at_ms), "closed_at": iso_utc(self.closed_at_ms)}
        return head | {
            **{name: self.columns.get(name) for name in _SHOWN},
            "class": self.columns.get("class_"),
            "root": self.columns.get("root_finding"),
            "consequences": [dict(one) for one in self.consequences],
            "findings": list(self.findings),
            "lost_gpu_hours": None if self.lost_gpu_hours is None else round(self.lost_gpu_hours, 3),
        }

    def as_text(self) -> str:
        """Return a few lines for a person."""
        until = "lasts" if self.closed_at_ms is None else f"until {iso_utc(self.closed_at_ms)}"
        lost = "" if self.lost_gpu_hours is None else f", {self.lost_gpu_hours:.1f} GPU-hours lost"
        lines = [
            f"{self.columns['severity']} {self.columns['title']}",
            f"   {iso_utc(self.opened_at_ms)} {until}{lost}; {len(self.findings)} findings, {self.id}",
            f"   {self.columns['summary']}",
        ]
        lines += [f"   -> {one['summary']} ({one['why']})" for one in self.consequences[:8]]
        if len(self.consequences) > 8:
            lines.append(f"   -> and {len(self.consequences) - 8} more")
        return "\n".join(lines)


def summarise(
    findings: Sequence[Finding], frames: Frames, settings: IncidentSettings | None = None
) -> list[SummarisedIncident]:
    """Return the incidents that the engine would have made, in order of opening.

    Parameters
    ----------
    findings: statements as detectors make them: raised, changed, cleared. frames: `inventory` and `placements`
    say which nodes belong together; losses are those that detectors expect to win.
    """
    return _Replay(settings or IncidentSettings(), cluster_of(frames)).run(findings)


def cluster_of(frames: Frames) -> ClusterView:
    """Return the picture of the cluster that recorded tables give."""
    jobs: dict[str, JobState] = {}
    node_job: dict[str, str] = {}
    placements = frames.get("placements")
    if placements is not None and {"job", "rank"} <= set(placements.columns):
        known = placements.dropna(subset=["job", "rank"])
        for job, rows in known.groupby(known["job"].astype(str), observed=True):
            ranks = rows.groupby("run", observed=True)["rank"].nunique() if "run" in rows else None
            jobs[str(job)] = JobState(str(job), int(ranks.max() if ranks is not None and len(ranks) else
                                                    rows["rank"].nunique()))  # fmt: skip
            if "node" in rows:
                node_job |= dict.fromkeys((str(node) for node in rows["node"].dropna().unique()), str(job))
    devices: dict[str, int] = {}
    inventory = frames.get("inventory")
    if inventory is not None and {"node", "device"} <= set(inventory.columns):
        listed = inventory.dropna(subset=["node", "device"])
        counts = listed.groupby(listed["node"].astype(str), observed=True)["device"].nunique()
        devices = {str(node): int(count) for node, count in counts.items()}
    return ClusterView(Places.of_frames(frames), jobs, node_job, devices)


class _Replay:
    def __init__(self, settings: IncidentSettings, cluster: ClusterView) -> None:
        self._settings, self._cluster = settings, cluster
        self._grouping = Grouping(cluster.places, settings.crowd_nodes)
        self._gravest: dict[str, dict[str, Any]] = {}
        self._done: dict[str, SummarisedIncident] = {}

    def run(self, findings: Sequence[Finding]) -> list[SummarisedIncident]:
        statements = [statement_of_finding(one, "", one.detected_at or 0) for one in findings]
        looked_ms = 0
        for one in sorted(statements, key=lambda each: (each.detected_at, each.id)):
            if one.detected_at - looked_ms >= _LOOK_MS:
                self._look(one.detected_at)
                looked_ms = one.detected_at
            known = self._grouping.members.get(one.id)
            if isinstance(known, Known):
                restate(known, one, one.detected_at, stale=False)
                self._grouping.touch(known)
            elif one.state is not FindingState.CLEARED:
                self._grouping.add(known_of(one, one.detected_at, stale=False))
        self._look(looked_ms)
        for group in self._grouping.groups():
            self._finish(group, None)
        return sorted(self._done.values(), key=lambda one: (one.opened_at_ms, one.id))

    def _look(self, now_ms: int) -> None:
        """Remember how grave incidents are, and end those whose evidence has been gone for good."""
        for group in self._grouping.changed():
            self._remember(group, now_ms)
        hold = 1000 * (self._settings.resolve_after_seconds + self._settings.flap_hold_seconds)
        for group in self._grouping.groups():
            members = members_of(group)
            if any(one.active for one in members):
                continue
            over = max(one.cleared_at or 0 for one in members)
            if now_ms - over > hold:
                self._finish(group, over)
                self._grouping.forget(list(group.members))
        self._grouping.changed()

    def _remember(self, group: Group, now_ms: int) -> None:
        view = view_of(group, self._cluster, lambda job, onset: None, self._settings, now_ms)
        before = self._gravest.get(group.incident_id)
        if "severity" not in view:
            return
        if before is None or _gravity(view) >= _gravity(before) or before["kind"] != view["kind"]:
            self._gravest[group.incident_id] = dict(view)

    def _finish(self, group: Group, over_ms: int | None) -> None:
        members = members_of(group)
        if not any(one.severe for one in members):
            return
        if over_ms is None and not any(one.active for one in members):
            over_ms = max(one.cleared_at or 0 for one in members)
        columns = self._gravest.get(group.incident_id) or _of_root(rank_roots(members)[0])
        onset = min(one.first_seen_at or one.detected_at for one in members)
        newest = max(one.stated_at for one in members)
        rate = columns.get("loss_gpu_hours_per_hour")
        lost = None if rate is None else rate * max(0, (over_ms or newest) - onset) / HOUR_MS
        made = SummarisedIncident(
            group.incident_id, group.anchor.detected_at, over_ms, columns,
            [one.id for one in sorted(members, key=lambda one: one.order)],
            [
                {"finding": one.id, "kind": one.kind.value, "summary": one.summary, "why": why(one)}
                for one in sorted(members, key=lambda one: one.order) if one.parent is not None
            ],
            lost,
        )  # fmt: skip
        earlier = self._done.get(made.id)
        if earlier is not None:
            # The same finding came back after the hold: the incident is the same one, opened again.
            made.opened_at_ms = earlier.opened_at_ms
            made.findings = list(dict.fromkeys((*earlier.findings, *made.findings)))
            made.lost_gpu_hours = _sum(earlier.lost_gpu_hours, made.lost_gpu_hours)
        self._done[made.id] = made


def _gravity(view: Mapping[str, Any]) -> int:
    return GRAVITY[Severity(view["severity"])]


def _of_root(root: Known) -> dict[str, Any]:
    """Return columns of an incident that was over before it was looked at."""
    return {
        "severity": root.severity.value, "kind": FindingKind(root.kind).value, "class_": root.class_,
        "title": root.summary[:200], "summary": root.summary, "node": root.node, "device": root.device,
        "rank": root.rank, "job": root.job, "run": root.run, "root_finding": root.id, "confidence": root.confidence,
        "blames_hardware": root.blames_hardware,
    }  # fmt: skip


def _sum(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else a + b
