"""Hang evidence out of files: dumps, library and watchdog logs, RAS reports, stacks. Every other file is ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from flightwatch.collectors.captures import flight_recorder
from flightwatch.collectors.captures.base import DOCUMENT_LIMIT, Lines
from flightwatch.collectors.captures.comm.library import LibraryLine
from flightwatch.collectors.captures.comm.lines import CommLines
from flightwatch.collectors.captures.comm.ras import NcclRas, RasCommunicator, RasReport, parse_report, report_of_json
from flightwatch.collectors.captures.comm.stacks import PySpyDump, StackDump, parse_stacks, stacks_of_json
from flightwatch.collectors.captures.comm.watchdog import WatchdogLine
from flightwatch.collectors.captures.last_line import WholeLines
from flightwatch.collectors.captures.log_prefix import split
from flightwatch.core.errors import BadRecord
from flightwatch.core.hang_evidence import (
    AbsentRank,
    CallMismatch,
    HangEvidence,
    ProgressReport,
    RankDump,
    RankFault,
    RankStack,
    RasMismatch,
)
from flightwatch.core.protocols import CaptureContext, Note

#: Codes of library messages that mean "this device failed".
DEVICE_CODES = re.compile(r"rocm:|cuda:error|.*:device_failure$")
#: InfiniBand completion status of exhausted retries: the other side or the path is gone.
RETRIES_EXCEEDED = ("12", "13")
_DESYNC = re.compile(
    r"\[([\d, ]{1,4000})\] (?:finished collective #\d{1,20},? but didn't join|didn't join) collective #(\d{1,20})"
)
_BARRIER = re.compile(r"\b[Rr]anks? (\d{1,7}(?:, ?\d{1,7}){0,500}) failed to pass monitoredBarrier")
_UNIQUE_ID = re.compile(r"\[(\d{1,7})\] is setting up \w{3,6} communicator and retrieving \w{1,20} from \[(\d{1,7})\]")
_FINGERPRINT = (
    r"Rank (\d{1,7}) is running (?:\w{1,20} )?collective: CollectiveFingerPrint\(SequenceNumber=(\d{1,20}), ?"
    r"OpType=(\w{1,60})(?:, ?TensorShape=\[([\d, ]{0,200})\])?"
)
_DIFFERENT = re.compile(_FINGERPRINT + r".{0,2000}?but " + _FINGERPRINT)
#: Words that stand in every line which torch itself writes about ranks that did not come.
_OWN_WORDS = ("collective #", "monitoredBarrier", "is setting up ", "CollectiveFingerPrint")
_RANK_OF_FILE = re.compile(r"(?<!node_)(?<!local_)(?<!node)(?<!local)rank[_\-.]?(\d{1,7})", re.I)
_JOINED = re.compile(r"\[([\d, ]{1,4000})\] joined but didn't finish collective #\d{1,20}")


class HangFiles:
    """Collects evidence from members; `recognised` counts the files that held any.

    Attributes
    ----------
    evidence: what was found so far.
    notes: (file, note) of what could not be read; level "error" means a malformed file.
    """

    def __init__(self) -> None:
        self.recognised = 0
        self.notes: list[tuple[str, Note]] = []
        self._dumps: dict[int, RankDump] = {}
        self.evidence = HangEvidence(dumps=self._dumps)
        self._ranks_by_process: dict[tuple[str | None, str], int] = {}

    def read(self, name: str, head: bytes, stream: BinaryIO) -> bool:
        """Take one file.

        Parameters
        ----------
        name: its path; a rank is read from it where the content carries none.
        head: its first bytes, 64 KiB where it has as many.
        stream: all its bytes, from the start.

        Returns whether it held evidence.
        """
        if flight_recorder.recognise(head) or flight_recorder.named_as_dump(name, head):
            found = self._dump(name, stream)
        elif NcclRas().recognise(head):
            found = self._ras(name, stream, head)
        elif PySpyDump().recognise(head):
            found = self._stacks(name, stream, head)
        else:
            found = b"\0" not in head and self._log(name, stream)  # a log is text
        self.recognised += found
        return found

    def _dump(self, name: str, stream: BinaryIO) -> bool:
        rank = flight_recorder.rank_of_name(name)
        if rank is None:
            self.notes.append(
                (name, Note("error", "", "a flight-recorder dump whose file name does not tell its rank"))
            )
            return True
        try:
            dump = flight_recorder.parse_dump(_bounded(stream), rank)
        except BadRecord as error:
            self.notes.append((name, Note("error", error.where, error.reason)))
            dump = RankDump(rank, "unreadable")
        known = self._dumps.get(rank)
        # Of several dumps of one rank (attempts, repeated captures) the newest tells the end.
        if known is None or (dump.status == "ok", dump.newest_ns or 0) > (known.status == "ok", known.newest_ns or 0):
            self._dumps[rank] = dump
        return True

    def _ras(self, name: str, stream: BinaryIO, head: bytes) -> bool:
        if head.lstrip().startswith(b"{"):
            document = self._json(name, stream)
            if not isinstance(document, dict):
                return True
            report = report_of_json(document)
        else:
            report = parse_report(Lines(stream))
        self._take_report(report)
        return True

    def _take_report(self, report: RasReport) -> None:
        for comm in report.communicators:
            mismatch = _mismatch(comm)
            if mismatch is not None:
                self.evidence.ras.append(mismatch)
            for rank in comm.missing:
                if comm.size is None or rank < comm.size:  # the report can print garbage ranks
                    source = f"RAS has no data from it in communicator {comm.name}"
                    self.evidence.absent.append(AbsentRank(rank, None, (), source))

    def _stacks(self, name: str, stream: BinaryIO, head: bytes) -> bool:
        found = re.search(r"rank[_\-]?(\d{1,7})", name.rsplit("/", 1)[-1], re.I)
        named = int(found.group(1)) if found else None
        if head.lstrip().startswith(b"["):
            dumps = stacks_of_json(self._json(name, stream))
        else:
            dumps = parse_stacks(Lines(stream))
        for dump in _main_threads(dumps):
            rank = dump.rank if dump.rank is not None else named
            self.evidence.stacks.append(RankStack(rank, tuple(dump.frames), dump.waits_for))
        return True

    def _json(self, name: str, stream: BinaryIO) -> object:
        import json

        try:
            return json.loads(_bounded(stream))
        except (ValueError, RecursionError, BadRecord) as error:
            self.notes.append((name, Note("error", "", f"not valid JSON: {error}")))
            return None

    def _log(self, name: str, stream: BinaryIO) -> bool:
        before = self._count()
        named = _RANK_OF_FILE.findall(name.replace("!", "/").rsplit("/", 1)[-1])
        writer = int(named[0]) if len(named) == 1 else None
        reader = CommLines(CaptureContext())
        whole = WholeLines(stream, "number")
        lines = Lines(whole.stream)
        said = False
        for number, text in lines:
            if any(words in text for words in _OWN_WORDS):
                self._take_own_words(text)
            for _, item, _ in reader.objects(number, split(text)):
                said = True
                if isinstance(item, WatchdogLine):
                    self._take_watchdog(item, writer)
                else:
                    self._take_library(item)
        found = said or before < self._count()
        if found and whole.note is not None:
            self.notes.append((name, whole.note))
        return found

    def _count(self) -> int:
        found = self.evidence
        return len(found.progress) + len(found.faults) + len(found.absent) + len(found.mismatches)

    def _take_own_words(self, text: str) -> None:
        """Take torch's own reports of ranks that did not join, or that called something else."""
        for match in _BARRIER.finditer(text):
            for rank in _ranks(match.group(1)):
                self.evidence.absent.append(
                    AbsentRank(rank, None, (), "torch says that it failed to pass monitoredBarrier")
                )
        for match in _UNIQUE_ID.finditer(text):
            waits, wanted = int(match.group(1)), int(match.group(2))
            source = "others wait for it to set up their communicator"
            self.evidence.absent.append(AbsentRank(wanted, None, (waits,), source))
        for match in _DIFFERENT.finditer(text):
            one, seq, op, shape, other, _, other_op, other_shape = match.groups()
            self.evidence.mismatches.append(
                CallMismatch((int(one), op, shape or ""), (int(other), other_op, other_shape or ""), int(seq))
            )
        waiting = tuple(rank for match in _JOINED.finditer(text) for rank in _ranks(match.group(1)))
        for match in _DESYNC.finditer(text):
            for rank in _ranks(match.group(1)):
                source = f"torch's desync report says that it did not join collective {match.group(2)}"
                self.evidence.absent.append(AbsentRank(rank, int(match.group(2)), waiting, source))

    def _take_watchdog(self, line: WatchdogLine, writer: int | None) -> None:
        """Take one line of a file whose name tells the rank `writer`, where it does."""
        known = line.rank if line.rank is not None else writer
        rank = known if known is not None else line.group_rank
        if line.kind == "stuck":
            text = "its watchdog thread got stuck" + (f" for {line.stuck_s} s" if line.stuck_s else "")
            self.evidence.faults.append(RankFault("host", known, text))
        elif rank is None:
            return
        elif line.kind in ("timeout", "status"):
            self.evidence.progress.append(
                ProgressReport(
                    rank=rank,
                    global_rank=known is not None,
                    group=line.group_desc or (f"PG {line.group_id}" if line.group_id else ""),
                    op=line.op or "",
                    stuck_seq=line.seq,
                    enqueued_seq=line.enqueued,
                    completed_seq=line.completed,
                )
            )

    def _take_library(self, line: LibraryLine) -> None:
        process = (line.host, line.attrs.get("pid", ""))
        if line.code.endswith(":init") and line.comm_rank is not None:
            self._ranks_by_process[process] = line.comm_rank
            size = int(line.attrs.get("nranks", 0))
            self.evidence.world_size = max(size, self.evidence.world_size or 0) or None
        rank = line.global_rank if line.global_rank is not None else self._ranks_by_process.get(process)
        if "absent_ranks" in line.attrs:
            for absent in _ranks(line.attrs["absent_ranks"]):
                waiting = (rank,) if rank is not None else ()
                source = f"{line.code.upper()} names it as the remote rank that did not come"
                self.evidence.absent.append(AbsentRank(absent, None, waiting, source))
        elif DEVICE_CODES.match(line.code):
            local = f" (local rank {line.local_rank})" if line.local_rank is not None and rank is None else ""
            self.evidence.faults.append(RankFault("device", rank, f"{line.message[:160]}{local}", line.local_rank))
        elif line.code == "cuda:out_of_memory":
            self.evidence.faults.append(RankFault("process", rank, line.message[:160], line.local_rank))
        elif line.code.endswith(":ib_completion") and line.attrs.get("status") in RETRIES_EXCEEDED:
            peer = f" toward {line.attrs['peer']}" if "peer" in line.attrs else ""
            self.evidence.faults.append(RankFault("link", rank, f"{line.attrs['meaning']}{peer}"))


def _mismatch(comm: RasCommunicator) -> RasMismatch | None:
    """Return who launched least and who launched most; None where that cannot be told.

    The report lists the ranks of the smaller groups, which can be those ahead.
    """
    counted = sorted(
        (group for group in comm.groups if group.operation is not None), key=lambda one: one.operation or 0
    )
    if len(counted) < 2 or not comm.size or counted[0].operation == counted[-1].operation:
        return None
    least, most = counted[0], counted[-1]
    behind = least.ranks if len(least.ranks) >= least.size else []
    others = [rank for group in counted[1:] for rank in group.ranks]
    if behind:
        listed, listed_seq, other_seq = behind, least.operation, most.operation
    elif others:
        listed, listed_seq, other_seq = others, most.operation, least.operation
    else:
        return None
    ranks = tuple(sorted({rank for rank in listed if rank < comm.size}))
    return RasMismatch(comm.name, comm.collective or "", ranks, listed_seq or 0, other_seq or 0, comm.size)


def _ranks(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d{1,7}", text)]


def _bounded(stream: BinaryIO) -> bytes:
    data = stream.read(DOCUMENT_LIMIT + 1)
    if len(data) > DOCUMENT_LIMIT:
        raise BadRecord(f"larger than {DOCUMENT_LIMIT // 1_000_000} MB")
    return data


def _main_threads(dumps: Iterable[StackDump]) -> Iterator[StackDump]:
    """Yield the main thread of each process; the first thread where none is called so."""
    by_process: dict[tuple[int | None, int | None], list[StackDump]] = {}
    for dump in dumps:
        by_process.setdefault((dump.pid, dump.rank), []).append(dump)
    for threads in by_process.values():
        yield next((thread for thread in threads if thread.is_main), threads[0])
