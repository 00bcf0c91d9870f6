"""Slurm: topology.conf and topology.yaml (tree and block), `scontrol show topology`, and `scontrol show job -d`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.collectors.captures.two_forms import read_json_or_text
from flightwatch.collectors.nodelist import expand_nodes, parse_indices
from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import CaptureContext, Note, Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource

_ENTRY = re.compile(r"\b(\w{1,40})=(\S+)")
_TOPOLOGY_LINE = re.compile(r"\s*(?:SwitchName|BlockName)=\S+", re.IGNORECASE)
_FIELD = re.compile(r"(?<!\S)([A-Za-z][\w/:.]{0,60})=(\S*)")
#: A GRES entry: gpu, an optional type, a count, and the indices of the devices.
_GRES = re.compile(r"(\w+)(?::([^:(,]+))?(?::(\d+))?\(IDX:([^)]*)\)")
#: Lines of topology.yaml that matter; an entry begins with "- switch:" or "- block:".
_YAML_ENTRY = re.compile(r"\s*-\s+(switch|block):\s*[\"']?([^\s\"'#]{1,200})")
_YAML_MEMBERS = re.compile(r"\s+(nodes|children):\s*[\"']?([^\s\"'#]{1,20000})")
_YAML_NAMES = {"switch": "switchname", "block": "blockname", "nodes": "nodes", "children": "switches"}
_BAD_STATES = {"FAILED": "error", "NODE_FAIL": "error", "OUT_OF_MEMORY": "error", "BOOT_FAIL": "error",
               "TIMEOUT": "warning", "DEADLINE": "warning", "PREEMPTED": "warning", "CANCELLED": "info"}  # fmt: skip


class SlurmTopologyParser:
    """Reads topology.conf, topology.yaml and `scontrol show topology`: switches over nodes, or blocks of nodes."""

    name: ClassVar[str] = "slurm-topology"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "inventory": ("leaf_switch", "attrs"),
        "links": ("from_target", "to_target", "kind"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "inventory.leaf_switch": "a block topology names blocks (attrs.block), not switches",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether a line begins with SwitchName= or BlockName=, or whether topology.yaml's keys stand here."""
        lines = head_text(head).split("\n")[:2000]
        if any(_TOPOLOGY_LINE.match(line) for line in lines):
            return True
        return any(_YAML_ENTRY.match(line) for line in lines) and any(_YAML_MEMBERS.match(line) for line in lines)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one inventory row a node and one link a membership."""
        lines, found = Lines(stream), False
        entry: dict[str, str] = {}
        begun = 0
        for number, line in lines:
            text, where = line.split("#", 1)[0].strip(), f"line {number}"
            if opened := _YAML_ENTRY.match(line):
                yield from self._entry(entry, begun, context)
                entry, begun, found = {_YAML_NAMES[opened[1]]: opened[2]}, number, True
                continue
            if entry:
                if members := _YAML_MEMBERS.match(line):
                    entry[_YAML_NAMES[members[1]]] = members[2]
                continue
            fields = {name.lower(): value for name, value in _ENTRY.findall(text)}
            name = fields.get("switchname") or fields.get("blockname")
            if name is None:
                # Keys of topology.yaml above the first entry name no switch.
                is_key = not found and (text.endswith(":") or text == "---" or re.fullmatch(r"-?\s*\w+:\s.*", text))
                if text and not is_key and not text.lower().startswith(("blocksizes", "topologyparam")):
                    yield Note("error", where, f"not a switch or block: {shown(text)}")
                continue
            found = True
            yield from self._entry(fields, number, context)
        yield from self._entry(entry, begun, context)
        if not found:
            yield Note("error", "", "no switch and no block was found")
        yield from lines.notes

    def _entry(self, fields: Mapping[str, str], number: int, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield what one entry of topology.yaml says; nothing for an empty one."""
        name = fields.get("switchname") or fields.get("blockname")
        if name is None:
            return
        try:
            yield from self._members(fields, name, context)
        except BadRecord as error:
            yield Note("error", f"line {number}", str(error))

    def _members(self, fields: Mapping[str, str], name: str, context: CaptureContext) -> Iterator[Row]:
        block = "blockname" in fields
        for node in _members(fields.get("nodes")):
            if not block and fields.get("switches"):
                break  # `scontrol show topology` repeats all nodes below upper switches
            place: dict[str, Value] = {"attrs": {"block": name}} if block else {"leaf_switch": name}
            yield make_row("inventory", self.CARRIES, context, {"node": node, **place})
            yield self._link(node, name, "block" if block else "switch", context)
        for switch in _members(fields.get("switches")):
            yield self._link(switch, name, "switch", context)

    def _link(self, low: str, high: str, kind: str, context: CaptureContext) -> Row:
        return make_row("links", self.CARRIES, context, {"from_target": low, "to_target": high, "kind": kind})


def _members(expression: str | None) -> list[str]:
    return [] if expression is None or expression in ("(null)", "N/A") else expand_nodes(expression)


@dataclass
class SlurmJob:
    """One job as `scontrol show job -d` prints it.

    Attributes
    ----------
    job: its id as the scheduler names it ("123", "120_3" for an array task).
    run: the number of restarts, as text: each is an attempt of its own.
    devices: node to the device indices allocated there; a node without entry has none known.
    """

    job: str
    run: str
    state: str
    name: str | None = None
    owner: str | None = None
    nodes: list[str] = field(default_factory=list)
    devices: dict[str, list[int]] = field(default_factory=dict)
    reason: str | None = None


def parse_jobs(text: str) -> Iterator[SlurmJob | Note]:
    """Yield the jobs of `scontrol show job [-d]`; a Note of level "error" for what cannot be read."""
    fields: dict[str, str] = {}
    allocations: list[tuple[str, str, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("JobId="):
            if fields:
                yield from _job(fields, allocations)
            fields, allocations = {}, []
        words = dict(_FIELD.findall(line))
        if line.lstrip().startswith("Nodes="):
            gres = re.search(r"GRES=(\S+)", line)
            allocations.append((words.get("Nodes", ""), gres[1] if gres else "", f"line {number}"))
        else:
            for name, value in words.items():
                fields.setdefault(name, value)
    if fields.get("JobId"):
        yield from _job(fields, allocations)


def _job(fields: Mapping[str, str], allocations: list[tuple[str, str, str]]) -> Iterator[SlurmJob | Note]:
    identifier = fields.get("JobId", "")
    if not identifier:
        return
    if fields.get("ArrayTaskId", "").isdecimal():
        identifier = f"{fields.get('ArrayJobId', identifier)}_{fields['ArrayTaskId']}"
    job = SlurmJob(identifier, fields.get("Restarts", "0"), fields.get("JobState", ""))
    job.name, job.owner = fields.get("JobName"), fields.get("UserId", "").split("(")[0] or None
    job.reason = fields.get("Reason")
    try:
        job.nodes = _members(fields.get("NodeList"))
    except BadRecord as error:
        yield Note("error", f"job {identifier}", str(error))
    for nodes, gres, where in allocations:
        try:
            indices = gpu_indices(gres)
            for node in expand_nodes(nodes):
                job.devices.setdefault(node, []).extend(indices)
        except BadRecord as error:
            yield Note("error", where, str(error))
    yield job


def gpu_indices(gres: str) -> list[int]:
    """Return the device indices of a GRES text ("gpu:h100:4(IDX:0-2,5)"); other kinds of GRES are passed over."""
    return [
        index
        for kind, _, _, indices in _GRES.findall(gres)
        if kind in ("gpu", "npu", "mlu", "gcu", "dcu", "xpu", "accelerator")
        for index in parse_indices(indices)
    ]


class SlurmJobParser:
    """Reads `scontrol show job -d` (text, or --json)."""

    name: ClassVar[str] = "slurm-job"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "events": ("device", "job", "run", "source", "code", "severity", "message", "attrs"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "events.device": "the job's indices on the node stand in attrs.devices; -d is needed to print them",
        "events.ts": "Slurm prints local times without a zone",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has Slurm's job record, as text or JSON."""
        text = head_text(head)
        if text.lstrip().startswith("{"):
            return '"job_state"' in text and '"job_id"' in text and ('"nodes"' in text or '"jobs"' in text)
        return bool(re.search(r"^[ \t]*JobId=\d+ ", text, re.MULTILINE)) and "JobState=" in text

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one event a job and node: which devices it holds there and in which state it is."""
        documents, text, notes = read_json_or_text(stream)
        yield from notes
        found = False
        for item in [*_json_jobs(documents), *parse_jobs(text)]:
            if isinstance(item, Note):
                yield item
                continue
            found = True
            yield from self._rows(item, context)
        if not found:
            yield Note("error", "", "no job was found")

    def _rows(self, job: SlurmJob, context: CaptureContext) -> Iterator[Row]:
        severity = EventSeverity(_BAD_STATES.get(job.state.split("+")[0], "info"))
        nodes: list[str | None] = [*job.nodes] or [None]
        for node in nodes:
            devices = job.devices.get(node or "", [])
            attrs = {"state": job.state, "nodes": str(len(job.nodes))}
            if devices:
                attrs["devices"] = ",".join(str(index) for index in devices)
            attrs |= {key: value for key, value in (("name", job.name), ("owner", job.owner), ("reason", job.reason))
                      if value and value not in ("None", "(null)")}  # fmt: skip
            holds = f" with devices {attrs['devices']}" if devices else ""
            yield make_row(
                "events",
                self.CARRIES,
                context,
                {
                    "node": node,
                    "job": job.job,
                    "run": job.run,
                    "source": EventSource.SCHEDULER.value,
                    "code": f"job:{job.state.lower() or 'unknown'}",
                    "severity": severity.value,
                    "attrs": attrs,
                    "message": f"job {job.job} is {job.state or 'in an unknown state'} on {node or 'no node'}{holds}",
                },
            )


def _json_jobs(documents: list[Any]) -> Iterator[SlurmJob | Note]:
    """Yield the jobs of Slurm's JSON; numbers may be wrapped as {"number": 3, "set": true}."""
    for document in documents:
        jobs = document.get("jobs") if isinstance(document, dict) else None
        for index, entry in enumerate(jobs if isinstance(jobs, list) else []):
            if not isinstance(entry, dict) or _plain(entry.get("job_id")) is None:
                yield Note("error", f"jobs[{index}]", "the job has no job_id")
                continue
            state = entry.get("job_state")
            job = SlurmJob(str(_plain(entry["job_id"])), str(_plain(entry.get("restart_cnt")) or 0),
                           str(state[0] if isinstance(state, list) and state else state or ""))  # fmt: skip
            job.name, job.owner = _text(entry.get("name")), _text(entry.get("user_name"))
            try:
                job.nodes = _members(_text(entry.get("nodes")))
                details = entry.get("gres_detail")
                for node, gres in zip(job.nodes, details if isinstance(details, list) else [], strict=False):
                    job.devices[node] = gpu_indices(str(gres))
            except BadRecord as error:
                yield Note("error", f"jobs[{index}]", str(error))
            yield job


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return value.get("number") if value.get("set", True) else None
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
