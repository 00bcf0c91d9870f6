"""From groups of findings to rows of incidents: opening, renaming, merging, splitting, changing, closing again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flightwatch.core.incident import AlertReason, IncidentState, Progress
from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.incidents.grouping import Group
from flightwatch.incidents.statements import Known
from flightwatch.incidents.view import VISIBLE, members_of, why, worse
from flightwatch.pipeline.control.engine_writes import ENGINE, EngineTransaction, encoded
from flightwatch.pipeline.control.incident_rows import OPEN_STATES

#: After these, in milliseconds from a moment, its evidence is read: what came before it, and what followed.
EVIDENCE_PARTS_MS = (20_000, 660_000)
#: A group with more findings is looked at as a whole at most once in this time.
_LARGE, _LARGE_PAUSE_MS = 300, 2_000
#: Figures reach the store's projection at most this often; losses, which always grow, less often.
_PROJECT_MS, _PROJECT_LOSS_MS = 15_000, 300_000
_SHOWN = {"title", "summary", "targets", "findings_count", "gpus_affected"}
_FIGURES = _SHOWN | {"lost_gpu_hours", "runner_up", "confidence", "loss_gpu_hours_per_hour"}
#: That evidence lasts is written down this often.
_SEEN_MS = 60_000
_HOUR_MS = 3_600_000

View = Callable[[Group], Mapping[str, Any]]


class Settlement:
    """Brings the rows of incidents in line with the groups.

    Parameters
    ----------
    view: columns of the incident that a group is.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        #: The group that each incident is, by the incident's id.
        self.group_of: dict[str, Group] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        #: Findings of each incident that are not in memory any more.
        self.given_up: Counter[str] = Counter()
        self._settled_ms: dict[str, int] = {}
        self._later: dict[int, Group] = {}

    def settle(
        self, tx: EngineTransaction, changed: Sequence[Group], fresh: Sequence[Known]
    ) -> tuple[list[str], list[Group]]:
        """Settle changed groups; return ids of incidents that opened or opened again, and the groups looked at.

        Parameters
        ----------
        fresh: findings of this batch: of a large group that only grew they are placed at once, the rest later.
        """
        groups = {id(group): group for group in (*self._later.values(), *changed) if group.members}
        self._later.clear()
        due: list[Group] = []
        for group in groups.values():
            if self._may_wait(group, tx.now_ms):
                self._later[id(group)] = group
            else:
                due.append(group)
        for known in fresh:
            if known.group is not None and id(known.group) in self._later:
                known.incident = known.group.incident_id
        due.sort(key=lambda group: group.anchor.order)
        claimed = {group.incident_id for group in due}
        claimed |= {id_ for id_, group in self.group_of.items() if group.members and id(group) not in groups}
        claimed |= {group.incident_id for group in self._later.values()}
        olds = {id(group): sorted({one.incident for one in members_of(group) if one.incident}) for group in due}
        self._load(tx, [*(group.incident_id for group in due), *(id_ for ids in olds.values() for id_ in ids)])
        opened: list[str] = []
        for group in due:
            opened += self._settle(tx, group, olds[id(group)], claimed)
        self.group_of = {id_: group for id_, group in self.group_of.items() if group.members}
        return opened, due

    def refresh(self, tx: EngineTransaction, id_: str) -> None:
        """Look at the group of an open incident again: losses and progress change without findings."""
        self._apply(tx, self.rows[id_], self._view(self.group_of[id_]))

    def place(self, tx: EngineTransaction, groups: Iterable[Group], written: set[str]) -> None:
        """Store in which incident findings are and what explains them, but for those just written."""
        rows = []
        for group in groups:
            for one in members_of(group):
                now = (one.incident, None if one.parent is None else one.parent.id)
                if one.placed != now:
                    one.placed = now
                    if one.id not in written:
                        rows.append({"of": one.id, "incident": now[0] or "", "parent": now[1], "why": why(one)})
        tx.place_findings(rows)

    def load_open(self, tx: EngineTransaction) -> None:
        """Read the rows of all live incidents again: people change them too."""
        self._load(tx, [*self.group_of])

    def resolve(self, tx: EngineTransaction, id_: str) -> dict[str, Any]:
        """Close an incident whose evidence is gone."""
        row = self.rows[id_]
        values = {"state": IncidentState.RESOLVED.value, "closed_at_ms": tx.now_ms, "closed_by": ENGINE}
        values |= lost_until(row, row["evidence_at_ms"], None)
        self.rows[id_] = row = tx.change(row, values, "resolved", {"evidence_until": row["evidence_at_ms"]})
        worst = max(members_of(self.group_of[id_]), key=lambda one: (one.score, one.stated_at), default=None)
        if worst is not None:
            tx.pin_evidence(id_, "peak", worst.stated_at, EVIDENCE_PARTS_MS)
        tx.pin_evidence(id_, "close", tx.now_ms, EVIDENCE_PARTS_MS)
        if row["thread"]:
            tx.need(row, AlertReason.RESOLVED)
        return row

    def _may_wait(self, group: Group, now_ms: int) -> bool:
        if len(group.members) <= _LARGE or self.group_of.get(group.incident_id) is not group:
            return False
        return now_ms - self._settled_ms.get(group.incident_id, 0) < _LARGE_PAUSE_MS

    def _load(self, tx: EngineTransaction, ids: Iterable[str]) -> None:
        wanted = sorted(set(ids))
        while wanted:
            found = tx.incidents(wanted)
            self.rows |= found
            for id_ in wanted:
                if id_ not in found:
                    self.rows.pop(id_, None)
            wanted = sorted({str(row["merged_into"]) for row in found.values() if row["merged_into"]} - set(self.rows))

    def _settle(self, tx: EngineTransaction, group: Group, olds: Sequence[str], claimed: set[str]) -> list[str]:
        id_ = self._final_id(group.incident_id, claimed)
        ending = [old for old in olds if old != id_ and old not in claimed and self._is_own(old)]
        claimed.add(id_)
        row = self.rows.get(id_)
        opened: list[str] = []
        if row is None and not any(one.severe for one in members_of(group)) and not ending:
            return []
        view = self._view(group)
        if row is None and ending:
            first = min(ending, key=lambda old: (self.rows[old]["opened_at_ms"], old))
            row = self._rename(tx, self.rows[first], id_, group.anchor.detected_at)
            ending = [old for old in ending if old != first]
        if row is None:
            row = self._open(tx, group, id_, view)
            opened.append(id_)
        elif row["merged_into"] is not None:
            row = self._revive(tx, row)
        for old in ending:
            self._merge(tx, self.rows[old], row)
        if row["state"] not in OPEN_STATES and self._is_news(row, group):
            row = self._reopen(tx, row, group)
            opened.append(id_)
        for one in members_of(group):
            one.incident = id_
        self.rows[id_] = row
        self.group_of[id_] = group
        self._settled_ms[id_] = tx.now_ms
        self._apply(tx, row, view)
        return opened

    def _final_id(self, id_: str, claimed: set[str]) -> str:
        """Follow merges, as long as the incident at their end is not another group of its own."""
        row = self.rows.get(id_)
        while row is not None and row["merged_into"] is not None and row["merged_into"] not in claimed:
            id_ = row["merged_into"]
            row = self.rows.get(id_)
        return id_

    def _is_own(self, id_: str) -> bool:
        row = self.rows.get(id_)
        return row is not None and row["merged_into"] is None

    def _open(self, tx: EngineTransaction, group: Group, id_: str, view: Mapping[str, Any]) -> dict[str, Any]:
        anchor = group.anchor
        row = _blank(id_, anchor.cluster, anchor.detected_at, tx.now_ms)
        if "title" not in view:
            # Over before it was taken in: what it was is told all the same.
            root = max(members_of(group), key=lambda one: (one.severe, -one.detected_at))
            row |= {"severity": root.severity.value, "kind": root.kind.value, "class_": root.class_,
                    "scope": root.scope.value, "title": root.summary[:200], "summary": root.summary, "node": root.node,
                    "device": root.device, "job": root.job, "root_finding": root.id, "stale": root.stale}  # fmt: skip
        row |= view
        row["peak_severity"] = row["severity"]
        row["loss_counted_at_ms"] = min(one.first_seen_at or one.detected_at for one in members_of(group))
        new = tx.open(row, {"root": row["root_finding"]})
        tx.pin_evidence(id_, "opening", row["opened_at_ms"], EVIDENCE_PARTS_MS)
        return new

    def _rename(self, tx: EngineTransaction, old: dict[str, Any], id_: str, detected_at: int) -> dict[str, Any]:
        """Give an incident the id of a finding that was detected earlier; people's thread of messages goes on."""
        fresh = {"id": id_, "revision": old["revision"] + 1, "opened_at_ms": min(old["opened_at_ms"], detected_at)}
        new = tx.open(old | fresh, {"before": old["id"]}, event="renamed")
        ended = {"merged_into": id_, "state": IncidentState.RESOLVED.value, "closed_by": ENGINE,
                 "closed_at_ms": old["closed_at_ms"] or tx.now_ms}  # fmt: skip
        self.rows[old["id"]] = tx.change(old, ended, "renamed", {"into": id_})
        self.group_of.pop(old["id"], None)
        tx.rename_needs(old["id"], id_)
        self._move(tx, old["id"], id_)
        return new

    def _merge(self, tx: EngineTransaction, old: dict[str, Any], into: dict[str, Any]) -> None:
        """End an incident whose findings turned out to belong to another one."""
        ended = {"merged_into": into["id"], "state": IncidentState.RESOLVED.value, "closed_by": ENGINE,
                 "closed_at_ms": old["closed_at_ms"] or tx.now_ms}  # fmt: skip
        self.rows[old["id"]] = new = tx.change(old, ended, "merged_into", {"into": into["id"]})
        self.group_of.pop(old["id"], None)
        self._move(tx, old["id"], into["id"])
        unheard = tx.drop_needs(old["id"])
        if new["thread"] and new["thread"] != into["thread"] and not unheard:
            tx.need(new, AlertReason.RESOLVED, {"merged_into": into["id"]})

    def _move(self, tx: EngineTransaction, old: str, new: str) -> None:
        """Move all findings of an incident, those not in memory too."""
        tx.move_findings(old, new)
        self.given_up[new] += self.given_up.pop(old, 0)

    def _revive(self, tx: EngineTransaction, row: dict[str, Any]) -> dict[str, Any]:
        values = {"merged_into": None, "state": IncidentState.OPEN.value, "closed_at_ms": None, "closed_by": None}
        return tx.change(row, values, "split", {"from": row["merged_into"]})

    def _is_news(self, row: Mapping[str, Any], group: Group) -> bool:
        """Say whether a closed incident has evidence that opens it again; what a person closed needs new evidence."""
        if row["state"] == IncidentState.FALSE_POSITIVE.value:
            return False
        since = row["closed_at_ms"] if row["closed_by"] != ENGINE else 0
        return any(one.active and one.severe and one.raised_ms > since for one in members_of(group))

    def _reopen(self, tx: EngineTransaction, row: dict[str, Any], group: Group) -> dict[str, Any]:
        values = {"state": IncidentState.OPEN.value, "closed_at_ms": None, "closed_by": None, "acknowledged_by": None,
                  "acknowledged_at_ms": None, "reopened": row["reopened"] + 1,
                  "loss_counted_at_ms": tx.now_ms}  # fmt: skip
        new = tx.change(row, values, "reopened")
        heard = new["thread"] and not new["silenced_by"] and not new["inhibited_by"]
        if heard and any(one.active and one.severe and not one.stale for one in members_of(group)):
            tx.need(new, AlertReason.REOPENED)
        return new

    def _apply(self, tx: EngineTransaction, row: dict[str, Any], view: Mapping[str, Any]) -> None:
        """Write what differs: a new revision for what people act on, figures otherwise."""
        count = view["findings_count"] + self.given_up[row["id"]]
        if row["state"] not in OPEN_STATES:
            figures = {"findings_count": count}
            if figures["findings_count"] != row["findings_count"]:
                self.rows[row["id"]] = tx.touch(row, figures, project=True)
            return
        until = view["evidence_at_ms"]
        values = dict(view) | lost_until(row, until, view["loss_gpu_hours_per_hour"]) | {"findings_count": count}
        changes = {name: [row[name], values[name]] for name in VISIBLE if name in values and values[name] != row[name]}
        if "severity" in values and worse(values["severity"], row["peak_severity"]):
            values["peak_severity"] = values["severity"]
            tx.pin_evidence(row["id"], "peak", tx.now_ms, EVIDENCE_PARTS_MS)
        if changes:
            event = next((name for name in ("severity", "root_finding", "progress") if name in changes), "changed")
            self.rows[row["id"]] = tx.change(row, values, event, changes)
            return
        age_ms = tx.now_ms - (row["projected_at_ms"] or 0)
        different = {name for name in _FIGURES if name in values and values[name] != row[name]}
        seen = values["evidence_at_ms"] - row["evidence_at_ms"] >= _SEEN_MS
        if different or seen:
            project = bool(different) and age_ms >= (_PROJECT_MS if different & _SHOWN else _PROJECT_LOSS_MS)
            self.rows[row["id"]] = tx.touch(row, values, project=project)


def lost_until(row: Mapping[str, Any], until_ms: int, rate: float | None) -> dict[str, Any]:
    """Return the loss counted up to a time at the rate so far, and the rate from then on.

    A first known rate counts from the onset of the evidence: it began to be lost before it was measured.
    """
    since, before = row["loss_counted_at_ms"] or until_ms, row["loss_gpu_hours_per_hour"]
    found: dict[str, Any] = {"loss_gpu_hours_per_hour": rate}
    if before is not None:
        lost = (row["lost_gpu_hours"] or 0.0) + before * max(0, until_ms - since) / _HOUR_MS
        return found | {"lost_gpu_hours": lost, "loss_counted_at_ms": max(since, until_ms)}
    if row["lost_gpu_hours"] is None:
        if rate is None:
            return found
        return found | {"lost_gpu_hours": rate * max(0, until_ms - since) / _HOUR_MS, "loss_counted_at_ms": until_ms}
    return found | {"loss_counted_at_ms": max(since, until_ms)}


def _blank(id_: str, cluster: str, opened_at_ms: int, now_ms: int) -> dict[str, Any]:
    return {
        "id": id_, "revision": 1, "cluster": cluster, "state": IncidentState.OPEN.value,
        "severity": Severity.P4.value, "kind": FindingKind.ANOMALY.value, "class_": None,
        "scope": FindingScope.PIPELINE.value, "title": "", "summary": "", "node": None, "device": None, "rank": None,
        "job": None, "run": None, "tenant": None, "targets": encoded([]), "opened_at_ms": opened_at_ms,
        "updated_at_ms": now_ms, "evidence_at_ms": opened_at_ms, "closed_at_ms": None, "closed_by": None,
        "root_finding": None, "confidence": None, "runner_up": None, "blames_hardware": False,
        "progress": Progress.UNKNOWN.value, "gpus_affected": None, "loss_gpu_hours_per_hour": None,
        "lost_gpu_hours": None, "loss_counted_at_ms": None, "assignee": None, "acknowledged_by": None,
        "acknowledged_at_ms": None, "silenced_by": None, "inhibited_by": None, "reopened": 0, "stale": False,
        "findings_count": 0, "merged_into": None, "thread": "", "announced_severity": None,
        "peak_severity": Severity.P4.value, "projected_at_ms": now_ms,
    }  # fmt: skip


def targets_of(row: Mapping[str, Any]) -> list[str]:
    """Return the targets of a row, parsed."""
    return list(json.loads(row["targets"]))
