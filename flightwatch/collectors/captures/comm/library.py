"""Lines of the communication libraries themselves: NCCL, RCCL, MCCL, HCCL, MXCCL, CNCL, IXCCL; runtimes below them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from flightwatch.collectors.captures.log_prefix import Prefix
from flightwatch.core.vocabulary import EventSeverity

#: Longest part of a line looked at, in characters.
LINE_LIMIT = 16_000

TRIGGER = re.compile(
    r"[NRMHC](?:C|X)?N?CCL|IXCCL|CNCL |CUDA (?:error|out of memory)|CUDA failure|OutOfMemoryError|HW Exception by GPU|"
    r"Memory access fault by GPU|\bE[A-Z]\d{4}: |ERR\d{5}|exitcode: |gloo/|Timed out waiting \d+ms"
)
_LINE = re.compile(
    r"(?:(?P<host>[A-Za-z0-9_.\-]{1,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) )?\[(?P<dev>\d{1,4}|-1?)\] "
    r"(?:(?P<file>[\w/.\-]{1,120}:\d{1,6}) )?"
    r"(?P<lib>NCCL|RCCL|MCCL|HCCL|MXCCL|CNCL|IXCCL) (?P<level>INFO|WARN|ERROR|ABORT) (?P<text>.*)"
)
_INIT = re.compile(
    r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) n(?:R|r)anks (?P<nranks>\d{1,7})"
    r"(?: (?:cuda|hip|musa|maca)Dev (?P<dev>\d{1,4}))?(?: nvmlDev (?P<nvml>\d{1,4}))?"
    r"(?: busId (?P<bus>[0-9a-f]{1,16}))?"
    r"(?: (?:localSize|used)\S{0,20} \S{1,20})?(?: commId (?P<id>0x[0-9a-f]{1,32}))? - "
    r"(?P<what>Init COMPLETE|Init START|Abort COMPLETE|Destroy COMPLETE)",
    re.IGNORECASE,
)
_IB = re.compile(
    r"Got completion (?:from peer (?P<peer>[0-9a-fA-F.:\[\]]{2,60})(?:<\d{1,6}>)? )?"
    r"with (?:error|status)\s?=?\s?(?P<status>\d{1,3})"
    r"(?:\((?P<name>[\w ]{1,60})\))?(?:.{0,60}?vendor err (?P<vendor>\d{1,5}))?"
)
_ASYNC = re.compile(r"Got async (?:fatal )?(?:error )?event ?: ?(.{1,80})")
_CUDA_FAILURE = re.compile(r"(?:Cuda|CUDA|HIP|Musa) failure (?:\d{1,4} )?'([^']{1,120})'")
_TIMEOUT = re.compile(
    r"[Tt]imed? ?out|[Cc]onnection (?:closed|refused|reset)|socketProgress|Connect to|recv.{0,40}failed"
)
_HCCL = re.compile(
    r"\b(E[A-Z]\d{4}): (?:\[PID: \d{1,10}\] )?(?:\d{4}(?:-\d{2}){3}:\d{2}:\d{2}[\d.]{0,12}\s)?(.{1,1500})"
)
_HCCL_HEAD = re.compile(r"\(PID:(\d{1,10}), Device:(\d{1,4}), RankID:(\d{1,7})\)")
_HCCL_REMOTE = re.compile(r"remote rank: ?\[([\d, ]{1,400})\]")
_HCCL_TAG = re.compile(r"tag\[(\w{1,120})\]")
_CUDA = re.compile(r"CUDA error: ([^\n]{1,160})")
_ROCM = re.compile(r"HW Exception by GPU node-(\d{1,4}) \(Agent handle: (0x[0-9a-f]{1,16})\) reason ?: ?(.{1,80})")
_ROCM_FAULT = re.compile(r"Memory access fault by GPU node-(\d{1,4}) \(Agent handle: (0x[0-9a-f]{1,16})\)(.{0,200})")
_ELASTIC = re.compile(r"failed \(exitcode: (-?\d{1,4})\) local_rank: (\d{1,5}) \(pid: (\d{1,10})\)")
_GLOO = re.compile(
    r"gloo/.{0,120}(Connection closed by peer|Connection reset)|(Timed out waiting \d{1,12}ms for \w{1,20})"
)

#: InfiniBand work completion status: number to meaning.
IB_STATUS = {
    4: "local protection error", 5: "flushed after an earlier error", 8: "local access error",
    9: "remote invalid request", 10: "remote access error", 11: "remote operation error",
    12: "transport retries exceeded", 13: "receiver-not-ready retries exceeded", 22: "general error",
}  # fmt: skip

_E, _C, _W, _I = EventSeverity.ERROR, EventSeverity.CRITICAL, EventSeverity.WARNING, EventSeverity.INFO


@dataclass(slots=True)
class LibraryLine:
    """What one library or runtime message says.

    Attributes
    ----------
    code: event code ("nccl:init", "nccl:ib_completion", "cuda:error", ...).
    severity: as judged here, not as printed.
    message: the message without its prefix.
    host: node name as the library prints it.
    device: device index on the node.
    comm_rank: rank inside the communicator (not necessarily the global rank).
    global_rank, local_rank: from tags of the line.
    attrs: further details as text.
    """

    code: str
    severity: EventSeverity
    message: str
    host: str | None = None
    device: int | None = None
    comm_rank: int | None = None
    global_rank: int | None = None
    local_rank: int | None = None
    attrs: dict[str, str] = field(default_factory=dict)


def parse_library(prefix: Prefix) -> LibraryLine | None:
    """Read one line; None when it says nothing that should be kept (most INFO lines)."""
    text = prefix.message[:LINE_LIMIT]
    line = _library(text) or _runtime(text)
    if line is not None:
        line.global_rank = prefix.rank if line.global_rank is None else line.global_rank
        line.local_rank = prefix.local_rank if line.local_rank is None else line.local_rank
    return line


def _library(text: str) -> LibraryLine | None:
    found = _LINE.search(text)
    if found is None:
        return None
    body, lib = found["text"], found["lib"].lower()
    line = _said(body, lib, found["level"])
    if line is None:
        return None
    line.host = found["host"]
    if line.device is None and found["dev"].isdigit():
        line.device = int(found["dev"])
    for name in ("pid", "file"):
        if found[name]:
            line.attrs[name] = found[name]
    line.message = text[found.start() : found.start() + 2000].strip()
    return line


def _said(body: str, lib: str, level: str) -> LibraryLine | None:
    if init := _INIT.search(body):
        what = init["what"].lower()
        if what in ("init start", "destroy complete"):
            return None
        code = f"{lib}:init" if what == "init complete" else f"{lib}:abort"
        device = init["nvml"] or init["dev"]
        attrs = {"nranks": init["nranks"], "comm": init["comm"]}
        for name, group in (("comm_id", "id"), ("bus_id", "bus"), ("cuda_dev", "dev"), ("nvml_dev", "nvml")):
            if init[group] is not None:
                attrs[name] = init[group]
        severity = _I if what == "init complete" else _W
        return LibraryLine(code, severity, "", device=int(device) if device else None,
                           comm_rank=int(init["rank"]), attrs=attrs)  # fmt: skip
    if completion := _IB.search(body):
        status = int(completion["status"])
        attrs = {"status": str(status), "meaning": IB_STATUS.get(status, completion["name"] or "unknown")}
        for name, group in (("peer", "peer"), ("vendor_err", "vendor")):
            if completion[group]:
                attrs[name] = completion[group]
        return LibraryLine(f"{lib}:ib_completion", _W if status == 5 else _E, "", attrs=attrs)
    if event := _ASYNC.search(body):
        return LibraryLine(f"{lib}:async_event", _W, "", attrs={"event": event[1].strip()})
    if failure := _CUDA_FAILURE.search(body):
        return LibraryLine(f"{lib}:device_failure", _E, "", attrs={"error": failure[1]})
    if level == "INFO":
        return None
    if _TIMEOUT.search(body):
        return LibraryLine(f"{lib}:connection", _W, "")
    return LibraryLine(f"{lib}:warn", _W, "")


def _runtime(text: str) -> LibraryLine | None:
    message = text[:2000].strip()
    if found := _ROCM.search(text):
        attrs = {"gpu_node": found[1], "agent": found[2], "reason": found[3].strip()}
        return LibraryLine("rocm:gpu_hang", _C, text[found.start() :][:2000].strip(), attrs=attrs)
    if found := _ROCM_FAULT.search(text):
        attrs = {"gpu_node": found[1], "agent": found[2]}
        return LibraryLine("rocm:memory_fault", _E, text[found.start() :][:2000].strip(), attrs=attrs)
    if "out of memory" in text and ("CUDA" in text or "OutOfMemoryError" in text):
        return LibraryLine("cuda:out_of_memory", _E, message)
    if found := _CUDA.search(text):
        return LibraryLine("cuda:error", _E, message, attrs={"error": found[1].strip()})
    if found := _ELASTIC.search(text):
        attrs = {"exitcode": found[1], "pid": found[3]}
        return LibraryLine("elastic:rank_failed", _E, message, local_rank=int(found[2]), attrs=attrs)
    if found := _GLOO.search(text):
        return LibraryLine("gloo:connection" if found[1] else "gloo:timeout", _W, message)
    return _hccl(text)


def hccl_speaker(text: str) -> tuple[int, int] | None:
    """Return (global rank, device) of an Ascend error header, which may stand on the line before its message."""
    head = _HCCL_HEAD.search(text)
    return (int(head[3]), int(head[2])) if head else None


def _hccl(text: str) -> LibraryLine | None:
    if "hccl" in text and "task timeout occurred" in text:
        return LibraryLine("hccl:task_timeout", _E, text[:2000].strip())
    found = _HCCL.search(text)
    if found is None:
        return None
    code, body = found[1], found[2]
    line = LibraryLine(f"hccl:{code}", _E, text[found.start() :][:2000].strip())
    if remote := _HCCL_REMOTE.search(body):
        line.attrs["absent_ranks"] = ",".join(remote[1].replace(",", " ").split())
    if tag := _HCCL_TAG.search(body):
        line.attrs["tag"] = tag[1]
    if head := _HCCL_HEAD.search(text):
        line.attrs["pid"] = head[1]
        line.device, line.global_rank = int(head[2]), int(head[3])
    return line
