"""`ncclras` output (NCCL >= 2.24), text and JSON.

The report names the ranks of the smaller group, which may be the ranks AHEAD; it can say OK during a
timeout. So both groups are kept and no rank is called guilty here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, load_json, make_row, rejoin
from flightwatch.core.clock import parse_iso_utc
from flightwatch.core.protocols import CaptureContext, Note, Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource

#: Ranks listed in one event.
RANK_LIMIT = 4096

_VERSION = re.compile(r"NCCL version (\S{1,40})")
_TABLE_ROW = re.compile(
    r"\s*(\d{1,7})\s+(\d{1,7})\s+(\d{1,7})\s+(\d{1,7})(?:-\d{1,7})?\s+(\d{1,7})\s+(\d{1,9})\s+([A-Z/]{2,30})\s+([A-Z/]{2,40})\s*"
)
_COMM = re.compile(r"#(\d{1,7}-\d{1,7}) \(([0-9a-f]{1,32})\) ([A-Z]{2,30})")
_DIFFERENT = re.compile(r"ranks have different (.{1,60})")
_COUNT = re.compile(r"(\d{1,9}) ranks? (?:have|has) launched up to operation (\d{1,20})")
_ONE = re.compile(r"Rank (\d{1,7}) has launched up to operation (\d{1,20})")
_STATUS = re.compile(r"(\d{1,9}) ranks? (?:have|has) status ([A-Z]{2,20})")
_RANK = re.compile(r"Rank (\d{1,7}) -- GPU (\d{1,4}) managed by process (\d{1,10}) on node (\S{1,255})")
_MISSING = re.compile(r"The missing ranks?: ([\d, \-]{1,4000})")
_PROCESS = re.compile(r"Process (\d{1,10}) on node (\S{1,255}) managing GPUs? ([\d, ]{1,80})")
_WHERE = re.compile(r" -- GPU (\d{1,4}) managed by process (\d{1,10}) on node (\S{1,255})")


@dataclass(slots=True)
class RankGroup:
    """Ranks of one communicator that agree.

    Attributes
    ----------
    size: how many ranks.
    operation: last operation they launched; None for a status group.
    status: RUNNING, INIT, FINALIZE, ABORT, NOCOMM; None for an operation group.
    ranks: the ranks the report lists (usually only of the smaller group), as communicator ranks.
    """

    size: int
    operation: int | None = None
    status: str | None = None
    ranks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class RasCommunicator:
    """What the report says about one communicator.

    Attributes
    ----------
    name: "#0-0".
    hash: communicator hash, the commId of NCCL's own lines.
    error: MISMATCH or INCOMPLETE.
    size: ranks of the communicator, None when the summary row is missing.
    collective: which counts differ ("AllGather"); None when not said.
    groups: ranks by operation count or status.
    missing: ranks without data.
    where: rank to (node, device index, pid).
    """

    name: str
    hash: str
    error: str
    size: int | None = None
    collective: str | None = None
    groups: list[RankGroup] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    where: dict[int, tuple[str, int, int]] = field(default_factory=dict)

    def _split(self) -> tuple[list[RankGroup], list[RankGroup]]:
        counted = [group for group in self.groups if group.operation is not None]
        top = max((group.operation or 0 for group in counted), default=0)
        return [g for g in counted if g.operation == top], [g for g in counted if g.operation != top]

    @property
    def behind(self) -> list[int] | None:
        """Ranks with fewer operations; None when the report does not list them all and they cannot be inferred."""
        ahead, behind = self._split()
        return self._ranks_of(behind, ahead)

    @property
    def ahead(self) -> list[int] | None:
        """Ranks with the most operations; None when they cannot be told."""
        ahead, behind = self._split()
        return self._ranks_of(ahead, behind)

    def _ranks_of(self, wanted: list[RankGroup], others: list[RankGroup]) -> list[int] | None:
        listed = sorted(rank for group in wanted for rank in group.ranks)
        if len(listed) == sum(group.size for group in wanted):
            return listed
        known = {rank for group in others for rank in group.ranks}
        if self.size is None or self.size > RANK_LIMIT * 32 or len(known) != sum(group.size for group in others):
            return None
        rest = [rank for rank in range(self.size) if rank not in known and rank not in self.missing]
        return rest if len(rest) == sum(group.size for group in wanted) else None


@dataclass(slots=True)
class RasReport:
    """One `ncclras` report.

    Attributes
    ----------
    version: NCCL version.
    sizes: group number to ranks per communicator.
    communicators: those with something to say.
    dead: processes unreachable or considered dead: (pid, node, devices, word DEAD or INCOMPLETE).
    complete: the report came to its list of communicators.
    """

    version: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    statuses: list[tuple[str, str]] = field(default_factory=list)
    communicators: list[RasCommunicator] = field(default_factory=list)
    dead: list[tuple[int, str, str, str]] = field(default_factory=list)
    ts_ms: int | None = None
    complete: bool = False


def parse_report(lines: Iterable[tuple[int, str]]) -> RasReport:
    """Read the text form."""
    report, current, group, section = RasReport(), None, None, ""
    for _, line in lines:
        text = line[:4000]
        if version := _VERSION.search(text):
            report.version = version[1]
        elif row := _TABLE_ROW.fullmatch(text):
            report.sizes[row[1]] = int(row[5])
            report.complete = True
            report.statuses.append((row[7], row[8]))
        elif comm := _COMM.search(text):
            size = report.sizes.get(comm[1].split("-")[0])
            current, group = RasCommunicator(comm[1], comm[2], comm[3], size), None
            current.name = f"#{comm[1]}"
            report.communicators.append(current)
        elif process := _PROCESS.search(text):
            report.dead.append((int(process[1]), process[2], process[3].strip(), section))
        elif text.strip() in ("DEAD", "INCOMPLETE", "TIMEOUT"):
            section, current = text.strip(), None
        elif current is not None:
            group = _comm_line(text, current, group)
    absent = {comm.hash: comm.missing for comm in report.communicators if comm.missing}
    for comm_found in report.communicators:
        comm_found.missing = absent.get(comm_found.hash, comm_found.missing)
    return report


def _comm_line(text: str, comm: RasCommunicator, group: RankGroup | None) -> RankGroup | None:
    if different := _DIFFERENT.search(text):
        name = re.sub(r" ?operation counts?", "", different[1]).strip()
        comm.collective = None if name in ("collective", "status") else name
    elif one := _ONE.search(text):
        group = RankGroup(1, operation=int(one[2]), ranks=[int(one[1])])
        comm.groups.append(group)
        if where := _WHERE.search(text):
            comm.where[int(one[1])] = (where[3], int(where[1]), int(where[2]))
    elif count := _COUNT.search(text):
        group = RankGroup(int(count[1]), operation=int(count[2]))
        comm.groups.append(group)
    elif status := _STATUS.search(text):
        group = RankGroup(int(status[1]), status=status[2])
        comm.groups.append(group)
    elif missing := _MISSING.search(text):
        comm.missing.extend(_numbers(missing[1]))
    elif (rank := _RANK.search(text)) and group is not None:
        if len(group.ranks) < group.size:
            group.ranks.append(int(rank[1]))
        comm.where[int(rank[1])] = (rank[4], int(rank[2]), int(rank[3]))
    return group


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            last = int(high or low)
            if 0 <= last - int(low) < 1_000_000:
                found.extend(range(int(low), last + 1))
    return found


def report_of_json(value: Mapping[str, Any]) -> RasReport:
    """Read the JSON form (NCCL >= 2.28.7): counts are compared per collective, as the text form does."""
    report = RasReport(version=str(value.get("nccl_version")) if value.get("nccl_version") else None)
    report.complete = isinstance(value.get("communicators"), list)
    try:
        report.ts_ms = parse_iso_utc(str(value.get("timestamp")))
    except ValueError:
        report.ts_ms = None
    for index, comm in enumerate(_dicts(value.get("communicators"))):
        missing = [item["rank"] for item in _dicts(comm.get("missing_ranks")) if isinstance(item.get("rank"), int)]
        for item in _dicts(comm.get("missing_ranks")):
            word = "DEAD" if _mapping(item.get("status")).get("considered_dead") is True else "INCOMPLETE"
            if isinstance(item.get("pid"), int):
                report.dead.append((item["pid"], str(item.get("host")), str(item.get("cuda_dev")), word))
        report.communicators.extend(_json_communicator(index, comm, missing))
    return report


def _json_communicator(index: int, comm: Mapping[str, Any], missing: list[int]) -> Iterator[RasCommunicator]:
    size = comm.get("size") if isinstance(comm.get("size"), int) else None
    name, digest = f"#{index}-0", str(comm.get("hash", "")).removeprefix("0x")
    if missing:
        yield RasCommunicator(name, digest, "INCOMPLETE", size, missing=sorted(missing))
    by_op: dict[str, dict[int, list[int]]] = {}
    where: dict[int, tuple[str, int, int]] = {}
    for item in _dicts(comm.get("ranks")):
        rank = item.get("rank")
        if not isinstance(rank, int):
            continue
        if isinstance(item.get("cuda_dev"), int) and isinstance(item.get("pid"), int):
            where[rank] = (str(item.get("host")), item["cuda_dev"], item["pid"])
        for op, count in _mapping(item.get("collective_counts")).items():
            if isinstance(count, int):
                by_op.setdefault(op, {}).setdefault(count, []).append(rank)
    for op, counts in by_op.items():
        if len(counts) > 1:
            groups = [RankGroup(len(ranks), count, None, sorted(ranks)) for count, ranks in counts.items()]
            groups.sort(key=lambda group: -group.size)
            yield RasCommunicator(name, digest, "MISMATCH", size, op, groups, sorted(missing), where)


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class NcclRas:
    """Parser of `ncclras` output."""

    name: ClassVar[str] = "ncclras"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "events": ("device", "rank", "source", "code", "severity", "message", "attrs"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "ts": "the text report carries no time",
        "rank": "the report speaks about groups of ranks (in attrs)",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether this is a RAS report."""
        text = head_text(head)
        if text.lstrip().startswith("{"):
            return '"communicators"' in text and '"nccl_version"' in text
        return "Communicators..." in text or (
            "ranks have different" in text and "launched up to operation" in text and _COMM.search(text) is not None
        )

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one event per communicator or process with something to say; "ncclras:ok" when there is none."""
        head = stream.read(1 << 12)
        if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
            value, notes = load_json(rejoin(head, stream))
            yield from notes
            if not isinstance(value, dict):
                return
            yield from self.rows(report_of_json(value), context)
            return
        lines = Lines(rejoin(head, stream))
        yield from self.rows(parse_report(lines), context)
        yield from lines.notes

    def rows(self, report: RasReport, context: CaptureContext) -> Iterator[Row | Note]:
        """Turn a report into events."""
        base: dict[str, Value] = {"ts": report.ts_ms, "source": EventSource.COMM.value}
        for comm in report.communicators:
            severity = EventSeverity.ERROR if comm.error == "INCOMPLETE" else EventSeverity.WARNING
            yield make_row("events", self.CARRIES, context, {
                **base, "code": f"ncclras:{comm.error.lower()}", "severity": severity.value,
                "message": _sentence(comm), "attrs": _attrs(comm, report),
            })  # fmt: skip
        for pid, node, devices, word in report.dead:
            state = "is considered dead" if word == "DEAD" else "does not answer"
            device = int(devices) if devices.isdigit() and len(devices) < 4 else None
            yield make_row("events", self.CARRIES, context, {
                **base, "code": f"ncclras:{'dead' if word == 'DEAD' else 'unresponsive'}",
                "severity": EventSeverity.ERROR.value, "node": node, "device": device,
                "message": f"process {pid} on {node} (GPU {devices}) {state}",
                "attrs": {"pid": str(pid), "gpus": devices},
            })  # fmt: skip
        if report.communicators or report.dead:
            return
        words = ", ".join(sorted({f"{status} {error}" for status, error in report.statuses})) or "no communicator"
        wrong = sorted({error for _, error in report.statuses} - {"OK"})
        severity = EventSeverity.WARNING if wrong else EventSeverity.INFO
        if report.complete:
            yield make_row("events", self.CARRIES, context, {
                **base, "code": f"ncclras:{wrong[0].lower() if wrong else 'ok'}", "severity": severity.value,
                "message": words, "attrs": {"nccl_version": report.version or ""},
            })  # fmt: skip
        else:
            yield Note("error", "", "the report ends before its list of communicators")


def _sentence(comm: RasCommunicator) -> str:
    if comm.error == "INCOMPLETE":
        return f"communicator {comm.name}: no data from ranks {_listed(comm.missing)}"
    parts = [
        f"{group.size} at {'operation ' + str(group.operation) if group.operation is not None else group.status}"
        for group in comm.groups
    ]
    what = f"{comm.collective} counts" if comm.collective else "ranks"
    return f"communicator {comm.name}: {what} differ: " + ", ".join(parts)


def _attrs(comm: RasCommunicator, report: RasReport) -> dict[str, str]:
    attrs = {"communicator": comm.name, "comm_id": comm.hash}
    optional = {
        "nccl_version": report.version,
        "op": comm.collective,
        "ranks": str(comm.size) if comm.size is not None else None,
        "missing_ranks": _listed(comm.missing) if comm.missing else None,
    }
    if any(group.operation is not None for group in comm.groups):
        for name, ranks in (("ahead_ranks", comm.ahead), ("behind_ranks", comm.behind)):
            optional[name] = _listed(ranks) if ranks is not None else None
        top = max(group.operation or 0 for group in comm.groups)
        optional["operation"] = str(top)
        optional["behind_count"] = str(sum(g.size for g in comm.groups if g.operation != top))
    attrs.update({name: value for name, value in optional.items() if value})
    return attrs


def _listed(ranks: list[int]) -> str:
    return ",".join(str(rank) for rank in ranks[:RANK_LIMIT])
