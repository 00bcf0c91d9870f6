"""Lustre client and server statistics: import, stats, rpc_stats, brw_stats, llite; as a tree or as `lctl get_param`.

One storage_samples row a target (OST, MDT, mount). Times are per operation, and the row carries the
average number of requests in flight beside them: a target that all writes go to waits longer because it
is loaded, and is not a broken peer of the idle ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, make_row, read_document, to_float, to_int
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.collectors.captures.storage_files import STORAGE_COLUMNS
from flightwatch.collectors.tree import Tree
from flightwatch.core.protocols import CaptureContext, Note, Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource, StorageKind

ROOTS = ("proc/fs/lustre", "sys/kernel/debug/lustre", "sys/fs/lustre")
DEVICES = ("osc", "mdc", "llite", "obdfilter", "mdt")
FILES = ("import", "stats", "rpc_stats", "brw_stats")
CARRIES: Mapping[str, tuple[str, ...]] = {
    "storage_samples": STORAGE_COLUMNS,
    "sensor_samples": ("chip", "label", "quantity", "unit", "value", "counter", "status"),
    "events": ("source", "code", "severity", "message", "attrs"),
}
NULL_NOTES: Mapping[str, str] = {
    "storage_samples.read_ms": "no read went to this target (pings are not reads)",
    "storage_samples.queue_depth": "the files hold no histogram or average of requests in flight",
}
_STAT = re.compile(r"(\w+)\s+(\d{1,20}) samples \[(\w+)\](?:\s+(\d{1,20})\s+(\d{1,20})\s+(\d{1,24}))?")
_SNAPSHOT = re.compile(r"snapshot_time:?\s+(\d{1,11}\.\d+)")
_PARAMETER = re.compile(r"^(osc|mdc|llite|obdfilter|mdt)\.([^\s=]+)\.(import|stats|rpc_stats|brw_stats)=(.*)$")
_BUCKET = re.compile(r"\s*(\d{1,12})([KMG]?):\s+(\d{1,20})\s+\d+\s+\d+\s*(?:\|\s+(\d{1,20})\s+\d+\s+\d+)?")
_SECTION = re.compile(r"(rpcs in flight|I/O time \(1/1000s\)|disk I/Os in flight)")
_TIMES = {"read_ms": ("ost_read", "read"), "write_ms": ("ost_write", "write")}
_BYTES = {"read": "read_bytes", "write": "write_bytes"}
#: Import states in which a target serves requests, or has nothing to do.
_GOOD_STATES = ("FULL", "IDLE")


@dataclass
class Target:
    """What is known about one OST, MDT or mount."""

    name: str
    device: str
    statistics: dict[str, tuple[int, str, int | None, int | None]] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    histograms: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    ts: int | None = None
    notes: list[Note] = field(default_factory=list)

    def take(self, kind: str, text: str, where: str) -> None:
        """Read one file of the target."""
        if not text.strip():
            self.notes.append(Note("error", where, "the file is empty"))
        elif kind == "import":
            self._import(text)
        elif kind == "stats":
            self._stats(text, where)
        else:
            self._histograms(text)
        if (match := _SNAPSHOT.search(text)) and self.ts is None:
            self.ts = int(float(match[1]) * 1000)

    def _import(self, text: str) -> None:
        for line in text.split("\n"):
            name, separator, value = line.strip().partition(":")
            if separator and value.strip():
                self.fields.setdefault(name.strip(), value.strip())

    def _stats(self, text: str, where: str) -> None:
        for number, line in enumerate(text.split("\n"), 1):
            match = _STAT.match(line)
            if match and int(match[2]) < 2**64:
                largest, total = match[5], match[6]
                self.statistics[match[1]] = (
                    int(match[2]), match[3], int(largest) if largest else None, int(total) if total else None,
                )  # fmt: skip
            elif line.strip() and not line.startswith(("snapshot_time", "start_time", "elapsed_time")):
                self.notes.append(Note("error", f"{where} line {number}", f"not a statistics line: {shown(line)}"))

    def _histograms(self, text: str) -> None:
        section = ""
        for line in text.split("\n"):
            if match := _BUCKET.match(line):
                if section:
                    size = int(match[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match[2]]
                    self.histograms.setdefault(section, []).append((size, int(match[3]), int(match[4] or 0)))
            elif line.strip():
                found = _SECTION.search(line)
                section = found[1] if found else ""

    def storage_values(self) -> dict[str, Value]:
        """Return the target's storage_samples columns."""
        values: dict[str, Value] = {"target": self.name, "kind": StorageKind.LUSTRE.value}
        for column, names in _TIMES.items():
            for name in names:
                count, unit, _, total = self.statistics.get(name, (0, "", None, None))
                if unit == "usec" and count and total is not None:
                    values[column] = total / count / 1000
                    break
        for direction, name in _BYTES.items():
            if name in self.statistics:
                count, _, _, total = self.statistics[name]
                values[f"{direction}_ops_total"] = count
                values[f"{direction}_bytes_total"] = total if total is not None and total < 2**64 else None
        values["queue_depth"] = self._queue_depth()
        inflight = to_int(self.fields.get("inflight", ""))
        values["inflight"] = inflight if inflight is not None and 0 <= inflight < 2**32 else None
        return {**values, **self._from_brw()}

    def _queue_depth(self) -> float | None:
        count, _, _, total = self.statistics.get("req_active", (0, "", None, None))
        if count and total is not None:
            return total / count
        for section in ("rpcs in flight", "disk I/Os in flight"):
            buckets = self.histograms.get(section, [])
            requests = sum(read + write for _, read, write in buckets)
            if requests:
                return sum(size * (read + write) for size, read, write in buckets) / requests
        return None

    def _from_brw(self) -> dict[str, Value]:
        """Return times of a server's brw_stats, whose buckets only bound them from above."""
        buckets = self.histograms.get("I/O time (1/1000s)", [])
        values: dict[str, Value] = {}
        for index, direction in ((1, "read"), (2, "write")):
            count = sum(bucket[index] for bucket in buckets)
            if count:
                values[f"{direction}_ms"] = sum(bucket[0] * bucket[index] for bucket in buckets) / count
                values[f"{direction}_ops_total"] = count
        if values:
            self.notes.append(
                Note("warning", self.name, "times come from a histogram: each is at most the printed one")
            )
        return values

    def rows(self, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield the storage row, readings that have no column of their own, an event for a lost connection, notes."""
        at = {"ts": context.at_ms if context.at_ms is not None else self.ts}
        yield make_row("storage_samples", CARRIES, context, {**self.storage_values(), **at})
        for quantity, unit, value in self._readings():
            yield make_row(
                "sensor_samples",
                CARRIES,
                context,
                {"chip": "lustre", "label": self.name, "quantity": quantity, "unit": unit, "value": value, **at},
            )
        state = self.fields.get("state")
        if state and state not in _GOOD_STATES:
            yield make_row("events", CARRIES, context, {
                "source": EventSource.KERNEL.value, "code": "lustre:disconnected",
                "severity": EventSeverity.ERROR.value,
                "message": f"{self.name} is not connected: state {state[:40]}",
                "attrs": {"target": self.name, "state": state[:40]}, **at})  # fmt: skip
        yield from self.notes

    def _readings(self) -> Iterator[tuple[str, str, float]]:
        wait = re.match(r"(\d{1,15}) usec", self.fields.get("avg_waittime", ""))
        if wait:
            yield "wait", "us", float(wait[1])
        for direction, names in (("read", ("ost_read", "read")), ("write", ("ost_write", "write"))):
            for name in names:
                _, unit, largest, _ = self.statistics.get(name, (0, "", None, None))
                if unit == "usec" and largest is not None:
                    yield f"{direction}_longest", "us", float(largest)
                    break
        rate, timeouts = to_float(self.fields.get("MB_per_sec", "")), to_int(self.fields.get("timeouts", ""))
        if rate is not None:
            yield "write_rate", "MB/s", rate
        if timeouts is not None:
            yield "timeouts", "events", float(timeouts)


def target_name(name: str) -> str:
    """Return "fs-OST0000" of "fs-OST0000-osc-ffff88105db50000"; a mount keeps its file system's name."""
    return re.sub(r"(?:-(?:osc|mdc)(?:-\w+)?|-[0-9a-f]{16})$", "", name)


def targets_of(tree: Tree) -> list[Target]:
    """Read every target of a tree, whichever of the three roots its files are below."""
    targets: dict[tuple[str, str], Target] = {}
    for root in ROOTS:
        for device in DEVICES:
            for name in list(tree.listdir(f"{root}/{device}"))[:10_000]:
                for kind in FILES:
                    path = f"{root}/{device}/{name}/{kind}"
                    content = tree.read(path)
                    if content is not None:
                        target = targets.setdefault((device, name), Target(target_name(name), device))
                        target.take(kind, content.decode("utf-8", "replace"), path)
    return list(targets.values())


class LustreTreeParser:
    """Reads recorded /proc/fs/lustre and /sys/kernel/debug/lustre trees."""

    name: ClassVar[str] = "lustre-tree"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = CARRIES
    NULL_NOTES: ClassVar[Mapping[str, str]] = NULL_NOTES

    def recognise_tree(self, names: Sequence[str]) -> bool:
        """Say whether a file of a Lustre device is among the names."""
        return any(self.claims(name) for name in names)

    def claims(self, name: str) -> bool:
        """Say whether a path lies below one of Lustre's roots."""
        return any(f"{root}/" in f"/{name}" for root in ROOTS)

    def parse_tree(self, tree: Tree, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield the rows of each target, and who carries the load."""
        targets = targets_of(tree)
        for target in targets:
            yield from target.rows(context)
        yield from load_notes(targets)


class LustreParamParser:
    """Reads `lctl get_param osc.*.stats ...`, or one import, stats, rpc_stats or brw_stats file."""

    name: ClassVar[str] = "lustre-lctl"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = CARRIES
    NULL_NOTES: ClassVar[Mapping[str, str]] = NULL_NOTES

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has parameter lines or the body of one of the files."""
        text = head_text(head)
        return bool(re.search(_PARAMETER.pattern, text, re.MULTILINE)) or _kind_of(text) is not None

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield the rows of each target named in the text; a single file takes its name from its path."""
        text, notes = read_document(stream)
        yield from notes
        targets: dict[tuple[str, str], Target] = {}
        for device, name, kind, body, where in _parameters(text, context):
            target = targets.setdefault((device, name), Target(target_name(name), device))
            target.take(kind, body, where)
        for target in targets.values():
            yield from target.rows(context)
        yield from load_notes(list(targets.values()))
        if not targets:
            yield Note("error", "", "no Lustre parameter was found")


def _parameters(text: str, context: CaptureContext) -> Iterator[tuple[str, str, str, str, str]]:
    current: tuple[str, str, str, int] | None = None
    body: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        match = _PARAMETER.match(line)
        if match:
            if current:
                yield (*current[:3], "\n".join(body), f"line {current[3]}")
            current, body = (match[1], match[2], match[3], number), [match[4]]
        else:
            body.append(line)
    if current:
        yield (*current[:3], "\n".join(body), f"line {current[3]}")
    elif (kind := _kind_of(text)) is not None:
        parts = context.source.replace("!", "/").split("/")
        inside = re.search(r"^\s+name: (\S+)", text, re.MULTILINE)
        name = inside[1] if inside else parts[-2] if len(parts) > 1 and parts[-1] in FILES else parts[-1] or "unknown"
        yield "osc", name, kind, text, ""


def _kind_of(text: str) -> str | None:
    if re.match(r"\s*import:\s*\n\s+name:", text):
        return "import"
    if "snapshot_time" not in text[:200]:
        return None
    if re.search(r"pages per bulk r/w|disk I/Os in flight", text):
        return "brw_stats"
    if re.search(r"RPCs in flight|pages per rpc", text):
        return "rpc_stats"
    return "stats" if re.search(r"^(?:req_waittime|read_bytes|write_bytes|open|obd_ping)\s+\d+ samples \[", text,
                                re.MULTILINE) else None  # fmt: skip


def load_notes(targets: Sequence[Target]) -> Iterator[Note]:
    """Say which target carries the writes or reads, when one of several does: its latency is load."""
    data = [target for target in targets if target.device == "osc"]
    for direction in ("read", "write"):
        counts = {target.name: target.statistics.get(f"{direction}_bytes", (0, "", None, None))[0] for target in data}
        total = sum(counts.values())
        for name, count in counts.items():
            if len(counts) > 1 and total and count > 0.9 * total:
                yield Note(
                    "info",
                    name,
                    f"{100 * count / total:.0f} % of all {direction}s go to {name}: it is loaded, "
                    "which is no fault; compare its time per operation with its own past, not with idle targets",
                )
