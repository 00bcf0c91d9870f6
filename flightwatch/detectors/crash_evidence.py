"""Events of a crash: which job they belong to, which rank they are about, and what they can be.

An event is a way to die (a process exited, a device error no process survives), a cause (a program's or
the host's own fault, a broken transport), or a consequence (a collective that timed out, a process that
was terminated because another one failed).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from flightwatch.core.vocabulary import EventSource
from flightwatch.detectors.contract import Frames
from flightwatch.detectors.event_rules import Rule, rule_of

#: Codes that say that a process of the job ended, whoever reports them.
_EXIT = re.compile(
    r"^(?:elastic|process|rank|task|probe|scheduler|slurm|k8s):(?:rank_failed|failed|exit|exited|killed)$"
)
#: Errors no training process survives.
_DEADLY = re.compile(r"^(?:cuda:error|rocm:memory_fault|rocm:gpu_hang|\w+:device_failure)$")
#: Faults of a program or of its host that end a process.
_PROGRAM = re.compile(r"^(?:oom:kill|segfault.*|cuda:out_of_memory|panic|amdgpu:page_fault|xid:(?:13|31|68|69|109))$")
_NAMES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
#: Signals a program brings on itself; SIGKILL comes from the kernel, a launcher or a person.
_OWN, _ABORTED, _TERMINATED = (4, 7, 8, 11), 6, 15


@dataclass(frozen=True, slots=True)
class CrashEvent:
    """One event that may belong to a crash; `rank` is a global rank, `exit_code` as a shell tells it or negative."""

    ts: int
    code: str
    node: str | None
    device: int | None
    rank: int | None
    job: str | None
    run: str | None
    kernel: bool
    severity: str
    message: str
    attrs: Mapping[str, str]
    rule: Rule

    @property
    def is_exit(self) -> bool:
        """True when a process ended, and not well."""
        return bool(_EXIT.match(self.code)) and self.exit_code != 0

    @property
    def is_deadly(self) -> bool:
        """True when the process that reported it cannot go on."""
        return bool(_DEADLY.match(self.code))

    @property
    def is_program(self) -> bool:
        """True for a fault of the program or the host's memory."""
        return bool(_PROGRAM.match(self.code)) or self.is_deadly

    @property
    def is_transport(self) -> bool:
        """True for a communication error that follows from no other one."""
        return not self.kernel and self.rule.kind == "link" and not self.rule.follows

    @property
    def is_timeout(self) -> bool:
        """True when a collective did not finish: the job hung before it ended."""
        return self.code in ("watchdog:timeout", "hccl:task_timeout", "gloo:timeout")

    @property
    def exit_code(self) -> int | None:
        """The exit status, None when nobody said it."""
        for name in ("exitcode", "exit_code", "status"):
            text = self.attrs.get(name, "")
            if re.fullmatch(r"-?\d{1,4}", text):
                return int(text)
        return None

    @property
    def signal(self) -> int | None:
        """The signal that ended the process, None when none did."""
        code = self.exit_code
        if code is None or code >= 0:
            return code - 128 if code is not None and 128 < code < 160 else None
        return -code

    @property
    def exit_tier(self) -> int:
        """How little this exit explains itself: 0 its own doing, 1 unknown, 2 aborted, 3 terminated by others."""
        signal = self.signal
        if signal == _TERMINATED:
            return 3
        if signal == _ABORTED:
            return 2
        return 0 if signal in _OWN else 1

    def exit_words(self) -> str:
        """Say how the process ended."""
        if self.signal is not None:
            return f"was ended by {_NAMES.get(self.signal, f'signal {self.signal}')}"
        return "failed" if self.exit_code is None else f"failed with exit code {self.exit_code}"


class Placed:
    """Where ranks run, from `placements`; the newest row that began before an event holds."""

    def __init__(self, placements: pd.DataFrame | None) -> None:
        self._rows: list[tuple[float, float, str | None, str | None, int, str, int | None]] = []
        if placements is not None and {"node", "rank"} <= set(placements.columns):
            for row in placements.dropna(subset=["node", "rank"]).to_dict("records"):
                begin, end = _float(row.get("ts"), float("-inf")), _float(row.get("valid_until"), float("inf"))
                device = _whole(row.get("device"))
                job, run = _word(row.get("job")), _word(row.get("run"))
                self._rows.append((begin, end, job, run, int(row["rank"]), str(row["node"]), device))
        self._rows.sort(key=lambda one: (one[0], one[2] or "", one[3] or "", one[4]))
        self._by_node: dict[str, list[int]] = {}
        self._by_rank: dict[tuple[str | None, int], list[int]] = {}
        for i, one in enumerate(self._rows):
            self._by_node.setdefault(one[5], []).append(i)
            self._by_rank.setdefault((one[2], one[4]), []).append(i)

    def complete(self, event: CrashEvent, late_ms: float) -> CrashEvent:
        """Fill in job, run, rank, node and device as far as placements tell them without doubt.

        Parameters
        ----------
        late_ms: a placement that ended so shortly before the event is still the one it is about.
        """
        if event.node is None and event.rank is not None:
            found = self._latest(self._by_rank.get((event.job, event.rank), []), event, late_ms)
            if found is None:
                return event
            device = event.device if event.device is not None else found[6]
            return replace(event, node=found[5], device=device, run=event.run or found[3])
        rows = [self._rows[i] for i in self._by_node.get(event.node or "", []) if self._holds(i, event, late_ms)]
        if event.job is None:
            owners = {(one[2], one[3]) for one in rows}
            if len({job for job, _ in owners}) == 1:
                job = rows[-1][2]
                event = replace(event, job=job, run=rows[-1][3])
        elif event.run is None and rows:
            event = replace(event, run=rows[-1][3])
        device = event.device if event.device is not None else _whole(event.attrs.get("local_rank"))
        if event.rank is None and device is not None:
            at = [one for one in rows if one[6] == device and one[2] == event.job]
            event = event if not at else replace(event, rank=at[-1][4], device=device)
        elif event.rank is not None and event.device is None:
            at = [one for one in rows if one[4] == event.rank and one[2] == event.job]
            event = event if not at else replace(event, device=at[-1][6])
        return event

    def nodes(self, job: str | None, run: str | None) -> set[str]:
        """Return the nodes of a job's run."""
        return {one[5] for one in self._rows if one[2] == job and (run is None or one[3] in (run, None))}

    def _holds(self, i: int, event: CrashEvent, late_ms: float) -> bool:
        begin, end, job = self._rows[i][:3]
        return begin <= event.ts <= end + late_ms and event.job in (None, job)

    def _latest(
        self, rows: list[int], event: CrashEvent, late_ms: float
    ) -> tuple[float, float, str | None, str | None, int, str, int | None] | None:
        held = [i for i in rows if self._holds(i, event, late_ms)]
        return self._rows[held[-1]] if held else None


def crash_events(frames: Frames, late_ms: float) -> tuple[list[CrashEvent], Placed]:
    """Return all events with a time and a code, in order of time, each once, completed by placements."""
    placed = Placed(frames.get("placements"))
    events = frames.get("events")
    if events is None or events.empty or not {"ts", "code"} <= set(events.columns):
        return [], placed
    rows = events[events["ts"].notna() & events["code"].notna()]
    keys = [name for name in ("ts", "node", "device", "rank", "code", "message") if name in rows]
    rows = rows.drop_duplicates(keys).sort_values(keys, kind="stable")
    attributes = [str(name) for name in rows.columns if str(name).startswith("attrs.")]
    return [placed.complete(one, late_ms) for one in _read(rows.to_dict("records"), attributes)], placed


def _read(records: Iterable[Mapping[Any, Any]], attributes: list[str]) -> Iterable[CrashEvent]:
    for row in records:
        attrs = {name[6:]: str(row[name]) for name in attributes if _word(row[name]) is not None}
        code, source = str(row["code"]), _word(row.get("source"))
        # A rank inside a communicator or group is no global rank.
        rank = None if "rank_scope" in attrs else _whole(row.get("rank"))
        rule = rule_of(code, attrs)
        kernel = source == EventSource.KERNEL.value or (source is None and rule.family != "comm")
        yield CrashEvent(
            int(row["ts"]), code, _word(row.get("node")), _whole(row.get("device")), rank, _word(row.get("job")),
            _word(row.get("run")), kernel, str(row.get("severity") or ""),
            str(row.get("message") or ""), attrs, rule,
        )  # fmt: skip


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    number = _float(value, float("nan"))
    return int(number) if number == number and 0 <= number < 2**31 else None


def _float(value: object, otherwise: float) -> float:
    try:
        number = float(str(value))
    except ValueError:
        return otherwise
    return number if number == number else otherwise
