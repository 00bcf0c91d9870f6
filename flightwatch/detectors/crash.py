"""Crash: which rank, device or link ended a job.

A job's process ended, or reported a device error that no process survives. What happened on the job's
nodes shortly before is searched for the first cause that follows from nothing else, in this order: a
hardware fault that the kernel reports on the node of a rank that ended, a fault of the program or of host
memory, a process that ended by a signal of its own, a broken transport, a hardware fault on another
node of the job, and then the first process that ended. Processes that were terminated, or aborted by a
watchdog, are consequences. The first ranks to end on two nodes are told apart only when their clocks
leave no doubt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from flightwatch.core.protocols import Value
from flightwatch.core.vocabulary import EventSource, FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.crash_evidence import CrashEvent, Placed, crash_events
from flightwatch.detectors.kernel_events import Incident, group_events


@dataclass(frozen=True)
class CrashThresholds:
    """Defaults, in seconds.

    Attributes
    ----------
    before_s: how long before the first exit a cause may lie. settle_s: how long after it events still count.
    same_s: exits so close together are one crash. clock_s: clocks of two nodes are not trusted below this.
    """

    before_s: float = 600.0
    settle_s: float = 30.0
    same_s: float = 600.0
    clock_s: float = 2.0


@dataclass(frozen=True)
class _Root:
    """What ended the job, in words, with what names it."""

    cause: str
    words: str
    confidence: float
    event: CrashEvent | None = None
    incident: Incident | None = None


class CrashDetector:
    """Finds kind `crash` (scope rank where one is known, else node or job).

    Blames hardware only where a kernel or driver reported a fault that asks for action. Does not see: jobs whose end
    nobody reports (see `dead_node`, `hang`), a rank that ended with status 0, causes that left no event.
    """

    name = "crash"
    version = "1"
    needs = Needs(
        {
            "events": ("ts", "cluster", "node", "device", "job", "run", "rank", "source", "code", "severity",
                       "message", "attrs"),
            "placements": ("ts", "node", "job", "run", "rank", "device", "valid_until"),
            "rank_steps": ("ts", "job", "run", "step", "rank"),
        },
        seconds=3600,
    )  # fmt: skip

    def __init__(self, thresholds: CrashThresholds | None = None) -> None:
        self.thresholds = thresholds or CrashThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        events, placed = crash_events(frames, 1000 * self.thresholds.settle_s)
        by_job: dict[tuple[str | None, str | None, str | None], list[CrashEvent]] = defaultdict(list)
        for event in events:
            # Without a job, a node is all that holds events together.
            by_job[(event.job, event.run, event.node if event.job is None else None)].append(event)
        found: list[Finding] = []
        for (job, run, _), members in sorted(by_job.items(), key=str):
            ends = [one for one in members if one.is_exit or (one.is_deadly and not one.kernel)]
            if not ends:
                continue
            nodes = {one.node for one in members if one.node} | (placed.nodes(job, run) if job else set())
            steps = _steps_of(frames, job)
            for crash in self._crashes(ends, steps):
                found += self._of_crash(crash, members, [one for one in events if one.node in nodes], placed, steps)
        return sorted(found, key=lambda one: (one.detected_at or 0, one.id))

    def _crashes(self, ends: Sequence[CrashEvent], steps: pd.DataFrame) -> Iterator[list[CrashEvent]]:
        """Split exits into crashes: a pause, or steps in between, begins a new one."""
        crash: list[CrashEvent] = []
        for event in ends:
            if crash:
                quiet = event.ts - crash[-1].ts > 1000 * self.thresholds.same_s
                resumed = _resumed_ms(steps, crash[0].ts + 1000 * self.thresholds.settle_s)
                if quiet or (resumed is not None and resumed < event.ts):
                    yield crash
                    crash = []
            crash.append(event)
        if crash:
            yield crash

    def _of_crash(
        self,
        crash: list[CrashEvent],
        members: Sequence[CrashEvent],
        around: Sequence[CrashEvent],
        placed: Placed,
        steps: pd.DataFrame,
    ) -> Iterable[Finding]:
        limits, first = self.thresholds, crash[0].ts
        begin, end = first - 1000 * limits.before_s, first + 1000 * limits.settle_s
        ended = [one for one in crash if one.ts <= end]
        seen = [one for one in members if begin <= one.ts <= end]
        kernel = [one for one in around if begin <= one.ts <= end and one.kernel and one.job in (None, crash[0].job)]
        root = self._root(ended, seen, kernel)
        raised = self._say(root, ended, max(one.ts for one in (*ended, *kernel)), placed, steps)
        yield raised
        resumed = _resumed_ms(steps, end)
        if resumed is not None:
            text = f"{raised.job or 'The job'} makes steps again after its crash: over."
            yield replace(raised, state=FindingState.CLEARED, detected_at=resumed, summary=text)

    def _root(self, ended: Sequence[CrashEvent], seen: Sequence[CrashEvent], kernel: Sequence[CrashEvent]) -> _Root:
        """Return the first cause that follows from nothing else."""
        nodes = {one.node for one in ended}
        faults = [one for one in group_events(_for_grouping(kernel)) if one.blames_hardware and one.node]
        faults.sort(key=lambda one: (one.first_ts or 0, str(one.node), str(one.device)))
        for incident in faults:
            if incident.node in nodes:
                return _Root("hardware", f"{incident.root}, {incident.meaning}", 0.9, None, incident)
        programs = [one for one in (*seen, *kernel) if one.is_program and (not one.kernel or one.node in nodes)]
        if programs:
            event = min(programs, key=lambda one: (one.is_deadly, one.ts, one.node or "", one.code))
            return _Root("program", f"{event.code}, {event.rule.meaning or event.message[:80]}", 0.8, event)
        exits = sorted((one for one in ended if one.is_exit), key=lambda one: (one.exit_tier, one.ts, one.node or ""))
        if exits and exits[0].exit_tier == 0:
            return _Root("exit", f"it {exits[0].exit_words()}", self._clear(exits, 0.8), exits[0])
        transport = [one for one in seen if one.is_transport]
        if transport:
            event = transport[0]
            return _Root("transport", f"{event.code}, {event.rule.meaning}", 0.6, event)
        if faults:
            return _Root("hardware", f"{faults[0].root}, {faults[0].meaning}", 0.6, None, faults[0])
        if any(one.is_timeout for one in seen) and (not exits or exits[0].exit_tier >= 1):
            return _Root("timeout", "a collective had timed out; the hang names its root", 0.4)
        if exits:
            best = 0.7 if exits[0].exit_tier == 1 else 0.4
            return _Root("exit", f"it {exits[0].exit_words()}", self._clear(exits, best), exits[0])
        return _Root("exit", f"{ended[0].code}, {ended[0].rule.meaning}", 0.5, ended[0])

    def _clear(self, exits: Sequence[CrashEvent], best: float) -> float:
        """Return `best`, or less when a rank of another node ended as soon by its clock."""
        first = exits[0]
        rivals = [one for one in exits[1:] if one.exit_tier == first.exit_tier and one.node != first.node]
        close = any(one.ts - first.ts <= 1000 * self.thresholds.clock_s for one in rivals)
        return min(best, 0.4) if close else best

    def _say(
        self, root: _Root, ended: Sequence[CrashEvent], at_ms: int, placed: Placed, steps: pd.DataFrame
    ) -> Finding:
        first = ended[0]
        node, device, rank = _where(root, ended)
        hardware = root.cause == "hardware"
        scope = FindingScope.RANK if rank is not None else FindingScope.NODE if node else FindingScope.JOB
        name = f"rank {rank}" if rank is not None else node or "no rank can be named"
        if rank is not None and node is not None:
            name += f" ({node})"
        job = first.job or "A job"
        verb = "names the device that failed" if hardware else "is where it began"
        text = f"{job} crashed: {name}" + (f" {verb}" if node or rank is not None else "") + f": {root.words}."
        step = _last_step(steps, first.ts)
        # The id rests on the job alone: evidence that arrives later may move the root, not make a second crash.
        base = Finding(
            detector=self.name,
            detector_version=self.version,
            kind=FindingKind.CRASH,
            scope=FindingScope.JOB,
            summary=text.replace("..", "."),
            score=float(len(ended)),
            severity=Severity.P1 if hardware else Severity.P2,
            detected_at=at_ms,
            first_seen_at=first.ts,
            job=first.job,
            run=first.run,
            first_step=step,
            detected_step=step,
            blames_hardware=hardware,
            confidence=root.confidence,
            evidence=_evidence(root, ended, placed),
            aspect="" if first.job else str(first.node),
        )
        everyone = tuple(dict.fromkeys(f"rank {one.rank}" for one in ended if one.rank is not None))[:16]
        targets = (f"rank {rank}",) if rank is not None else (node,) if node else everyone
        return replace(base, scope=scope, node=node, device=device, rank=rank, targets=targets, id=base.id)


def _where(root: _Root, ended: Sequence[CrashEvent]) -> tuple[str | None, int | None, int | None]:
    """Return node, device and rank of the root."""
    if root.incident is not None:
        device = root.incident.device if isinstance(root.incident.device, int) else None
        mine = [one for one in ended if one.node == root.incident.node and one.rank is not None]
        exact = [one.rank for one in mine if device is not None and one.device == device]
        return root.incident.node, device, exact[0] if exact else None
    if root.event is None:
        return None, None, None
    return root.event.node, root.event.device, root.event.rank


def _evidence(root: _Root, ended: Sequence[CrashEvent], placed: Placed) -> dict[str, object]:
    first, event, incident = ended[0], root.event, root.incident
    return {
        "cause": root.cause,
        "code": incident.root if incident is not None else event.code if event is not None else None,
        "action": incident.action if incident is not None else None,
        "exit_code": event.exit_code if event is not None else None,
        "message": event.message[:200] if event is not None and event.message else None,
        "ended": [
            {"rank": one.rank, "node": one.node, "code": one.code, "exit_code": one.exit_code, "ts": one.ts}
            for one in ended[:16]
        ],
        "ranks_ended": len({(one.node, one.rank, one.attrs.get("local_rank")) for one in ended}),
        "nodes": len(placed.nodes(first.job, first.run)) or None,
    }


def _for_grouping(events: Iterable[CrashEvent]) -> Iterator[tuple[str, Mapping[str, Value]]]:
    for one in events:
        yield "events", {
            "ts": one.ts, "node": one.node, "device": one.device, "code": one.code, "severity": one.severity,
            "message": one.message, "source": EventSource.KERNEL.value, "attrs": dict(one.attrs),
        }  # fmt: skip


def _steps_of(frames: Frames, job: str | None) -> pd.DataFrame:
    rows = frames.get("rank_steps")
    if rows is None or rows.empty or job is None or not {"ts", "job"} <= set(rows.columns):
        return pd.DataFrame({"ts": [], "step": []})
    return rows.loc[rows["job"] == job, [name for name in ("ts", "step") if name in rows]]


def _resumed_ms(steps: pd.DataFrame, after_ms: float) -> int | None:
    """Return when the first step after a moment was reported, None when none was."""
    later = steps["ts"][steps["ts"] > after_ms]
    return int(later.min()) if len(later) else None


def _last_step(steps: pd.DataFrame, until_ms: float) -> int | None:
    if "step" not in steps:
        return None
    done = steps["step"][steps["ts"] <= until_ms].dropna()
    return int(done.iloc[-1]) if len(done) == 1 else int(done.max()) if len(done) else None
