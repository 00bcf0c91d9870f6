"""Lines of torch's collective watchdog, across torch 1.x to 2.9 and the vendors' ports of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flightwatch.collectors.captures.log_prefix import Prefix

#: Longest part of a line looked at, in characters.
LINE_LIMIT = 16_000
#: Sequence numbers above this are uninitialised memory that some torch versions print.
SEQUENCE_LIMIT = 1 << 48

TRIGGER = re.compile(
    r"[Ww]atchdog|WorkNCCL|Work[A-Z]{3,6}\(|last enqueued|Last enqueued|Heartbeat monitor|collective #\d|dump signal"
)
_WORK = re.compile(
    r"Work([A-Z]{3,6})\(\s?(?:SeqNum=(\d{1,20}), ?)?OpType=([A-Z0-9_a-z]{1,40})"
    r"(?:, ?(?:TensorShape=\[[\d, ]{0,200}\]|NumelIn=(\d{1,20}), ?NumelOut=(\d{1,20})))?"
    r"(?:, ?Timeout\(ms\)=(\d{1,15}))?"
)
_RAN = re.compile(r"ran for (\d{1,15}) milliseconds")
_AT_WORK = re.compile(
    r"(?:Timeout at (?:NCCL )?work: |detected by watchdog at work: |watchdog at work sequence id: )(\d{1,20})"
)
_ENQUEUED = re.compile(r"[Ll]ast enqueued (?:[A-Z]{3,6} )?work: (-?\d{1,20})")
_COMPLETED = re.compile(r"[Ll]ast completed (?:[A-Z]{3,6} )?work: (-?\d{1,20})")
_STUCK = re.compile(r"watchdog got stuck for (\d{1,9}) seconds|Heartbeat monitor timed out")
_DUMP_SIGNAL = re.compile(r"dump signal due to a collective timeout from (?:this local rank|rank (\d{1,7}))")
_GLOBAL = re.compile(r"\[rank(\d{1,7})\]")
_GROUP = re.compile(r"\[(?:PG (?:ID )?(\d{1,9}) (?:PG GUID ([\w\-:.]{1,80})\(([\w\-:. ]{0,80})\) )?)?Rank (\d{1,7})\]")
_GLOG = re.compile(r"\[[EWIF](?P<month>\d{1,2})(?P<day>\d{2}) (?P<time>\d{2}:\d{2}:\d{2})\.\d{1,9} (?P<file>\S{1,80})")
_DESYNC = re.compile(
    r"\[([\d, ]{1,4000})\] (joined but didn't finish|finished) collective #(\d{1,20})"
    r"(?:,? but didn't join collective #(\d{1,20}))?"
)


@dataclass(slots=True)
class WatchdogLine:
    """What one watchdog message says.

    Attributes
    ----------
    kind: "timeout" (one work timed out), "status" (failed, enqueued and completed work of one rank),
        "stuck" (the watchdog itself makes no progress: host side), "dump_signal", "desync" (torch's own
        report of lagging ranks) or "terminated" (repeats the message as the process ends).
    backend: "NCCL", "HCCL", "GLOO", ...; None when the line does not say.
    global_rank: from a `[rankN]` tag of torch or a launcher; None without one.
    group_rank: from `[Rank N]`: the rank inside the process group, which is the global rank only in
        groups that hold every rank.
    group_id, group_desc: process group number and description as printed ("0", "default_pg").
    seq: sequence number of the work that failed.
    op: "ALLREDUCE", ...
    numel_in, numel_out: elements.
    timeout_ms, ran_ms: limit and time waited.
    enqueued, completed: last work numbers of the rank; None when absent, negative or garbage.
    stuck_s: seconds without progress of the watchdog thread.
    ranks: global ranks a desync report names.
    clock: "month-day time" of torch's own log header.
    """

    kind: str
    backend: str | None = None
    global_rank: int | None = None
    group_rank: int | None = None
    group_id: str | None = None
    group_desc: str | None = None
    seq: int | None = None
    op: str | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    timeout_ms: int | None = None
    ran_ms: int | None = None
    enqueued: int | None = None
    completed: int | None = None
    stuck_s: int | None = None
    ranks: tuple[int, ...] = ()
    clock: str | None = None
    message: str = ""

    @property
    def rank(self) -> int | None:
        """Best known global rank: the tag, else the group's rank when the group is the default one or unnamed."""
        if self.global_rank is not None:
            return self.global_rank
        if self.group_id in (None, "0") or self.group_desc == "default_pg":
            return self.group_rank
        return None


def parse_watchdog(text: str, prefix: Prefix | None = None) -> WatchdogLine | None:
    """Read one (unwrapped) line; None when it is no watchdog message, or one that waits for its rest.

    Parameters
    ----------
    text: the line; a progress bar may stand before the message.
    prefix: what was already peeled off it.
    """
    text = text[:LINE_LIMIT]
    found = _kind(text)
    if found is None:
        return None
    line, position = found
    _add_identity(line, text, position, prefix)
    _add_numbers(line, text)
    start = text.rfind("[rank", 0, position)
    start = start if start >= 0 else max(text.rfind("[E", 0, position), text.rfind("[Rank", 0, position), 0)
    line.message = text[start : start + 2000].strip()
    return line


def incomplete(text: str) -> bool:
    """Say whether a line begins a watchdog message that goes on in the next line (wrapped by a terminal)."""
    if "collective operation timeout" in text:
        return not _RAN.search(text) and "before timing out" not in text
    if _AT_WORK.search(text) or "atchdog at work" in text:
        return not _COMPLETED.search(text)
    return False


def _kind(text: str) -> tuple[WatchdogLine, int] | None:
    if "CUDA error: " in text:
        return None  # the device's failure, which the library reader takes; that a thread ended of it says less
    if "watchdog thread terminated with exception" in text or re.search(r"what\(\):.{0,80}[Ww]atchdog", text):
        return WatchdogLine("terminated"), text.find("atchdog")
    work = _WORK.search(text)
    if work and _RAN.search(text):
        line = WatchdogLine("timeout", backend=work[1], op=work[3])
        line.seq = int(work[2]) if work[2] else None
        line.numel_in = int(work[4]) if work[4] else None
        line.numel_out = int(work[5]) if work[5] else None
        line.timeout_ms = int(work[6]) if work[6] else None
        at = text.find("Watchdog caught")
        return line, at if at >= 0 else work.start()
    if (at_work := _AT_WORK.search(text)) and _COMPLETED.search(text):
        return WatchdogLine("status", seq=int(at_work[1])), at_work.start()
    if stuck := _STUCK.search(text):
        return WatchdogLine("stuck", stuck_s=int(stuck[1]) if stuck[1] else None), stuck.start()
    if signal := _DUMP_SIGNAL.search(text):
        line = WatchdogLine("dump_signal", ranks=(int(signal[1]),) if signal[1] else ())
        return line, signal.start()
    if desync := _DESYNC.search(text):
        ranks = tuple(int(part) for part in desync[1].replace(",", " ").split())
        seq = int(desync[4] or desync[3])
        return WatchdogLine("desync", ranks=ranks, seq=seq), desync.start()
    return None


def _add_identity(line: WatchdogLine, text: str, position: int, prefix: Prefix | None) -> None:
    before = text[:position]
    tags = list(_GLOBAL.finditer(before))
    if tags:
        line.global_rank = int(tags[-1][1])
    elif prefix is not None and prefix.rank is not None:
        line.global_rank = prefix.rank
    groups = list(_GROUP.finditer(before)) or list(_GROUP.finditer(text[position : position + 200]))
    if groups:
        group = groups[-1]
        line.group_id, line.group_desc, line.group_rank = group[1], group[3] or group[2], int(group[4])
    if header := _GLOG.search(before):
        line.clock = f"{int(header['month']):02d}-{header['day']} {header['time']}"
    if line.backend is None:
        backend = re.search(r"\b(?:ProcessGroup)?([NRHMCG][A-Z]{1,4}CL)\b", text)
        line.backend = backend[1] if backend else None


def _add_numbers(line: WatchdogLine, text: str) -> None:
    if ran := _RAN.search(text):
        line.ran_ms = int(ran[1])
    for name, pattern in (("enqueued", _ENQUEUED), ("completed", _COMPLETED)):
        if found := pattern.search(text):
            value = int(found[1])
            setattr(line, name, value if 0 <= value < SEQUENCE_LIMIT else None)
    if line.completed is not None and line.enqueued is not None and line.completed > line.enqueued:
        # Some torch versions print uninitialised memory as the completed number.
        line.completed = None
