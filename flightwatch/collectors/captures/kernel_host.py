"""Kernel lines about the host: RDMA adapters, links, memory, processes, storage, panics."""

from __future__ import annotations

import re

from flightwatch.collectors.captures.kernel_event import PCI, KernelEvent, KernelState, words
from flightwatch.core.vocabulary import EventSeverity

_D, _I, _W, _E, _C = (
    EventSeverity.DEBUG, EventSeverity.INFO, EventSeverity.WARNING, EventSeverity.ERROR, EventSeverity.CRITICAL,
)  # fmt: skip
_LINK = re.compile(rf"(mlx5_core|bnxt_en|ionic|ice|i40e|irdma|mlx4_en) ({PCI})(?: (\S{{1,32}}?))?:? (?:\S{{1,32}}: )?"
                   r"(?:NIC |Port: \d{1,3} )?[Ll]ink (?:is )?([Uu]p|[Dd]own|UP|DOWN|ACTIVE)\b")  # fmt: skip
_MODULE = re.compile(rf"mlx5_core ({PCI}):.{{0,80}}Port module event(?:\[error\])?: module (\d{{1,3}}), (.{{1,80}})")
_OOM = re.compile(
    r"(?:[Oo]ut of memory|oom-kill)\S{0,40}:? ?(?:Killed|Kill) process (\d{1,10})"
    r"(?:, UID \d{1,10},)? \(([^)]{1,64})\)"
)
_OOM_CGROUP = re.compile(
    r"oom-kill:constraint=(\w{1,40}).{0,400}?task_memcg=([^,]{0,300}),task=([^,]{1,64}),pid=(\d{1,10})"
)
_SEGFAULT = re.compile(
    r"(\S{1,64})\[(\d{1,10})\]: segfault at ([0-9a-f]{1,16}) .{0,120}?error (\d{1,6})(?: in (\S{1,120}?)\[)?"
)
_PANIC = re.compile(r"Kernel panic - not syncing: ?(.{0,300})")
_DELIBERATE = re.compile(r"sysrq|crash_test|test panic|deliberate", re.IGNORECASE)
_HUNG = re.compile(r"task (\S{1,64}):(\d{1,10})(?: \S{1,40})? blocked for more than (\d{1,8}) seconds")
_LOCKUP = re.compile(r"(soft|hard) lockup - CPU#?(\d{1,5})|(hard) LOCKUP on cpu (\d{1,5})", re.IGNORECASE)
_VICTIM = re.compile(r"\[([^\[\]:\s]{1,64}):(\d{1,10})\]\s*$")
_MLX5: tuple[tuple[re.Pattern[str], str, EventSeverity], ...] = (
    (re.compile(r"insufficient power", re.I), "mlx5:insufficient_power", _E),
    (re.compile(r"health compromised|Fatal error \d+ detected|poll_health.{0,40}error|firmware fatal", re.I),
     "mlx5:health", _C),
    (re.compile(r"high temperature on sensors", re.I), "mlx5:hot", _E),
    (re.compile(r"TX timeout|transmit queue.{0,20}timed out", re.I), "mlx5:tx_timeout", _E),
    (re.compile(r"[Ee]rror cqe|Local protection error|Completion with error", re.I), "mlx5:cqe_error", _W),
    (re.compile(r"mlx5_cmd_out_err.{0,120}failed|cmd\w{0,30}.{0,60}timeout", re.I), "mlx5:command_failed", _W),
)  # fmt: skip
_STORAGE: tuple[tuple[re.Pattern[str], str, EventSeverity], ...] = (
    (re.compile(r"nvme\S{0,12}: .{0,80}(?:timeout, (?:reset|aborting)|controller is down)"),
     "storage:nvme_timeout", _E),
    (re.compile(r"nvme\S{0,12}: .{0,60}(?:Disabling device|Removing after probe failure)|no available path"),
     "storage:nvme_lost", _C),
    (re.compile(r"[Rr]emounting filesystem read-only"), "storage:read_only", _C),
    (re.compile(r"Buffer I/O error on dev|I/O error, dev |critical medium error|blk_update_request: I/O error"),
     "storage:io_error", _E),
    (re.compile(r"EXT4-fs error|XFS \(\S{1,40}\): .{0,60}(?:[Cc]orruption|error)|BTRFS error"),
     "storage:fs_error", _E),
    (re.compile(r"nfs: server \S{1,120} not responding"), "storage:nfs_timeout", _W),
    (re.compile(r"LustreError: .{0,120}(?:evict|timed out|operation .{0,40} failed)|"
                r"Lustre: .{0,80}Connection to \S{1,80}.{0,60}was lost"), "storage:lustre", _W),
)  # fmt: skip


class HostMatcher:
    """Reads messages about adapters, links, the memory killer, crashes, lockups and storage."""

    TRIGGER = (
        r"mlx5|[Ll]ink (?:is )?(?:[Uu]p|[Dd]own|DOWN)|oom-kill|ut of memory|segfault|Kernel panic|sysrq"
        r"|blocked for more|lockup|LOCKUP"
        r"|rcu\S{0,30} (?:self-)?detected|nvme|I/O error|medium error|-fs error|XFS|BTRFS|read-only"
        r"|not responding|Lustre|NETDEV WATCHDOG|transmit queue"
    )

    def __init__(self) -> None:
        self._killed: KernelEvent | None = None
        self._deliberate = False

    def match(self, message: str, state: KernelState) -> KernelEvent | bool | None:
        """Return the event of one line."""
        return (
            _link(message, state)
            or self._memory(message)
            or self._panic(message)
            or _process(message)
            or _listed(message)
        )

    def _memory(self, message: str) -> KernelEvent | bool | None:
        if group := _OOM_CGROUP.search(message):
            attrs = {"process": group[3], "pid": group[4], "cgroup": group[2], "constraint": group[1]}
            self._killed = KernelEvent("oom:kill", _E, words(message), attrs)
            return self._killed
        if found := _OOM.search(message):
            # Newer kernels print both lines for one kill.
            if self._killed is not None and self._killed.attrs.get("pid") == found[1]:
                return True
            self._killed = KernelEvent("oom:kill", _E, words(message), {"process": found[2], "pid": found[1]})
            return self._killed
        return None

    def _panic(self, message: str) -> KernelEvent | None:
        if found := _PANIC.search(message):
            deliberate = self._deliberate or bool(_DELIBERATE.search(found[1]))
            attrs = {"reason": words(found[1]), "deliberate": str(deliberate).lower()}
            return KernelEvent("panic", _I if deliberate else _C, words(message), attrs)
        if "sysrq" in message.lower() and "crash" in message.lower():
            self._deliberate = True
        return None


def _link(message: str, state: KernelState) -> KernelEvent | bool | None:
    if found := _LINK.search(message):
        pci, name = found[2].lower(), (found[3] or "").rstrip(":")
        if found[4].lower() in ("up", "active"):
            state.learn_link(pci)
            return True
        was_up = pci in state.links_up
        attrs = {"pci_bus_id": pci, "driver": found[1], "seen_up": str(was_up).lower()}
        if name:
            attrs["interface"] = name
        return KernelEvent("net:link_down", _W if was_up else _I, words(message), attrs)
    if module := _MODULE.search(message):
        pci, what = module[1].lower(), module[3].strip().lower()
        attrs = {"pci_bus_id": pci, "module": module[2]}
        if "unplugged" in what:
            # A port that never had a link is an unused port.
            was_up = pci in state.links_up
            attrs["seen_up"] = str(was_up).lower()
            return KernelEvent("mlx5:cable_unplugged", _W if was_up else _I, words(message), attrs)
        if "plugged" in what:
            return True
        if "temperature" in what:
            return KernelEvent("mlx5:module_hot", _E, words(message), attrs)
        return KernelEvent("mlx5:module_error", _W, words(message), attrs)
    return None


def _process(message: str) -> KernelEvent | None:
    if found := _SEGFAULT.search(message):
        library = found[5]
        attrs = {"process": found[1], "pid": found[2], "address": found[3], "error": found[4]}
        if library:
            attrs["library"] = library
        comm = re.match(r"lib(nccl|rccl|mccl|hccl|cncl|mxccl|ixccl)", library or "")
        if comm:
            return KernelEvent(f"segfault:lib{comm[1]}", _E, words(message), attrs)
        return KernelEvent("segfault", _W, words(message), attrs)
    if hung := _HUNG.search(message):
        attrs = {"process": hung[1], "pid": hung[2], "seconds": hung[3]}
        return KernelEvent("host:hung_task", _W, words(message), attrs)
    if lockup := _LOCKUP.search(message):
        kind = (lockup[1] or lockup[3]).lower()
        attrs = {"cpu": lockup[2] or lockup[4]}
        if victim := _VICTIM.search(message):
            attrs.update(process=victim[1], pid=victim[2])
        return KernelEvent(f"host:{kind}_lockup", _E, words(message), attrs)
    if re.search(r"rcu\S{0,30} (?:self-)?detected stall", message):
        return KernelEvent("host:rcu_stall", _E, words(message))
    return None


def _listed(message: str) -> KernelEvent | None:
    is_mlx5 = "mlx5" in message or "transmit queue" in message
    for pattern, code, severity in _MLX5 if is_mlx5 else _STORAGE:
        if pattern.search(message):
            address = re.search(PCI, message)
            return KernelEvent(code, severity, words(message), {"pci_bus_id": address[0].lower()} if address else {})
    return None
