"""What single events mean: class, recommended action, and of what they are a consequence. Data only.

Xid and SXid codes come from `core.xid`; the others are listed here. A code without a rule is taken at
its severity and gets the action "look at the message".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flightwatch.core.protocols import Value
from flightwatch.core.xid import ACTIONS, ANY, sxid, xid

#: Further actions: key to one sentence.
_MORE_ACTIONS = {
    "look": "look at the message",
    "reset_amd": "drain the node and reset the GPU; replace it if the error returns",
    "replace_amd": "isolate the node; the GPU has to be replaced (RMA): its bad-page limit is reached",
    "watch_rate": "no action for single errors; watch the rate, and check seating, riser or cable when it grows",
    "check_pcie": "drain the node; check the PCIe slot, riser and device at this address",
    "repair_host": "drain the node and repair the host (memory, CPU or board as the message names it)",
    "replace_dimm": "drain the node and replace the memory module",
    "watch_dimm": "watch the module; plan its replacement when errors on one address repeat",
    "check_mce": "severity unknown: read the firmware's event log for this CPU bank",
    "deliberate": "no action needed: the crash was triggered on purpose",
    "crash": "find out why the host crashed (stack in the log) before it takes work again",
    "library_crash": "restart the job; collect a core dump and check versions of the communication library and driver",
    "program_crash": "look at the program that crashed",
    "memory_limit": "raise the memory limit or lower the job's host memory use; restart the job",
    "check_cable": "check the cable and the switch port",
    "check_adapter": "drain the node; check the network adapter (firmware, slot, temperature)",
    "cool_module": "check cooling and the optical module",
    "check_disk": "drain the node; check the disk",
    "check_storage": "check the storage server and the network to it",
    "host_stall": "look at what the host was doing (driver, storage); reboot the node if it does not recover",
    "fabric": "drain the node, reset GPUs and NVSwitches, restart the fabric manager",
    "hang": "find the rank that is behind: run `flightwatch hang` on the logs and dumps of all ranks",
    "host_side": "look at this rank's host: its stack (py-spy), CPU, storage; the network is not the cause",
    "comm_path": "check the network path to the peer named in the message: port, cable, switch",
    "ras_compare": "ask again after some seconds; ranks whose count stays behind are the ones to look at",
    "ras_missing": "look at the process and node that do not answer",
    "device_error": "look at the kernel log of that node for the cause",
    "gpu_hang": "drain the node, read its kernel log, reset the GPU (power-cycle when the reset fails)",
    "oom_device": "lower the batch or sequence size; restart the job",
    "remap_pending": "drain the node and reset the GPU, so that the row remap takes effect",
    "remap_failed": "isolate the node; the GPU has to be replaced (RMA): a row remap failed",
    "repair_pending": "drain the node and reset the GPU, so that the repair takes effect",
    "retire_pending": "drain the node and reset the GPU, so that the bad pages are retired",
    "replace_memory": "isolate the node; the GPU has to be replaced (RMA): its memory can no longer be repaired",
    "replace_sram": "isolate the node; the GPU has to be replaced (RMA): its SRAM error limit is reached",
    "ecc_uncorrected": "drain the node and reset the GPU; run a GPU diagnostic before it takes work again",
    "ecc_unreadable": "drain the node and reset the GPU: its ECC state cannot be read, so it may be faulty",
    "check_fan": "check the fan and the airflow",
    "check_supply": "check the power supply and its feed",
    "check_device": "drain the node and look at the device's own health report; reset it, replace it if that fails",
    "check_sensor": "check the sensor's subject: it is beyond its limit",
    "cool": "check cooling and airflow of the device; lower its load until then",
}
ALL_ACTIONS: Mapping[str, str] = {**ACTIONS, **_MORE_ACTIONS}

#: How drastic an action is; of several in one incident the most drastic is named too.
ACTION_RANK: Mapping[str, int] = {
    key: rank
    for rank, keys in enumerate((
        ("none", "deliberate"),
        ("watch", "watch_rate", "watch_dimm", "look", "ras_compare"),
        ("restart_job", "check_program", "program_crash", "library_crash", "memory_limit", "oom_device",
         "update_software", "support", "check_mce", "hang", "host_side", "comm_path", "device_error", "ras_missing"),
        ("reset_idle", "check_cable", "cool_module", "check_storage", "check_fan", "check_supply", "check_sensor",
         "cool", "host_stall", "crash", "recover_imex", "drain_peers"),
        ("reset_gpu", "drain_reset", "bus_reset", "reset_amd", "check_link", "reset_fabric", "fabric", "check_adapter",
         "check_disk", "check_pcie", "check_power", "remap_pending", "repair_pending",
         "retire_pending", "ecc_uncorrected", "ecc_unreadable",
         "gpu_hang", "check_device"),
        ("reboot_node", "repair_host", "replace_dimm"),
        ("power_cycle",),
        ("isolate_rma", "replace_amd", "remap_failed", "replace_memory", "replace_sram"),
    ))
    for key in keys
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """What an event with one code means.

    Attributes
    ----------
    family: events of different families are never grouped.
    kind: hardware, link, firmware, application, host, storage, comm or notice.
    action: key of ALL_ACTIONS.
    follows: codes of which it is a consequence; {"*"}: of any in its family.
    needs_device: False when the event belongs to its node as a whole, or to whatever its family last reported.
    meaning: short phrase; "" when the code says enough.
    """

    family: str
    kind: str
    action: str
    follows: frozenset[str] = frozenset()
    needs_device: bool = True
    meaning: str = ""


_ANY = frozenset({"*"})
#: The memory is beyond repair: what is pending, and what was counted, follows from it.
_WORN_OUT = frozenset({"remap:failure", "memory:unrepairable", "sram:threshold_exceeded"})
#: A repair was prepared: the errors that led to it are the same story.
_PENDING = frozenset({"remap:pending", "repair:channel_pending", "repair:tpc_pending", "retire:pending"})


def _free(family: str, kind: str, action: str, follows: frozenset[str] = frozenset(), meaning: str = "") -> Rule:
    return Rule(family, kind, action, follows, False, meaning)


_RULES: Mapping[str, Rule] = {
    "nvrm:gsp_timeout": _free("nvidia", "notice", "reset_gpu", _ANY, "GPU system processor does not answer"),
    "nvrm:reset_required": _free("nvidia", "notice", "reset_gpu", _ANY, "GPU reset required"),
    "nvrm:off_bus": _free("nvidia", "hardware", "power_cycle", frozenset({"xid:79"}), "GPU has fallen off the bus"),
    "nvrm:init_failed": _free("nvidia", "hardware", "reset_gpu", _ANY, "GPU failed to initialise"),
    "peermem:error": _free("peermem", "notice", "watch", meaning="GPU peer-memory registration error"),
    "ras:ue": Rule("amdgpu", "hardware", "reset_amd", meaning="uncorrectable hardware error"),
    "ras:poison": Rule("amdgpu", "hardware", "reset_amd", frozenset({"ras:ue"}), meaning="poisoned data consumed"),
    "ras:de": Rule("amdgpu", "hardware", "watch", frozenset({"ras:ue"}), meaning="deferred hardware error"),
    "ras:ce": Rule("amdgpu", "hardware", "watch_rate", frozenset({"ras:ue"}), meaning="corrected hardware error"),
    "ras:aca": _free("amdgpu", "notice", "watch", _ANY, "error banks logged"),
    "ras:bad_page_limit": Rule("amdgpu", "hardware", "replace_amd", meaning="bad-page limit reached"),
    "amdgpu:off_bus": Rule("amdgpu", "hardware", "power_cycle", meaning="GPU lost from the bus"),
    "amdgpu:ring_timeout": _free("amdgpu", "application", "reset_amd", frozenset({"ras:ue", "amdgpu:off_bus"}), "hang"),
    "amdgpu:hang": _free("amdgpu", "firmware", "reset_amd", frozenset({"ras:ue", "amdgpu:off_bus"}), "GPU hang"),
    "amdgpu:page_fault": _free("amdgpu", "application", "check_program", frozenset({"ras:ue"}), "memory page fault"),
    "amdgpu:reset": _free("amdgpu", "notice", "watch", _ANY, "GPU reset begun"),
    "amdgpu:reset_done": _free("amdgpu", "notice", "none", _ANY, "GPU reset done"),
    "amdgpu:psp_failed": _free("amdgpu", "firmware", "power_cycle", _ANY, "security processor did not come back"),
    "amdgpu:reset_failed": _free("amdgpu", "firmware", "power_cycle", _ANY, "GPU reset FAILED"),
    "pcie:aer_correctable": Rule("pcie", "link", "watch_rate", meaning="PCIe error, corrected"),
    "pcie:aer_nonfatal": Rule("pcie", "link", "check_pcie", meaning="PCIe error, not fatal"),
    "pcie:aer_fatal": Rule("pcie", "link", "check_pcie", meaning="PCIe error, fatal"),
    "pcie:dpc": Rule("pcie", "link", "check_pcie", meaning="PCIe port contained an error and cut the link"),
    "apei:corrected": Rule("apei", "hardware", "watch_rate", meaning="platform error, corrected by hardware"),
    "apei:recoverable": Rule("apei", "hardware", "check_pcie", meaning="platform error, recoverable"),
    "apei:fatal": Rule("apei", "hardware", "repair_host", meaning="platform error, fatal"),
    "mce:corrected": _free("mce", "hardware", "watch_rate", meaning="machine check, corrected"),
    "mce:uncorrected": _free("mce", "hardware", "repair_host", meaning="machine check, uncorrected"),
    "mce:unknown": _free("mce", "hardware", "check_mce", meaning="machine check without a valid status"),
    "edac:ce": _free("edac", "hardware", "watch_dimm", frozenset({"edac:ue"}), "host memory error, corrected"),
    "edac:ue": _free("edac", "hardware", "replace_dimm", meaning="host memory error, uncorrected"),
    "cpu:throttled": _free("cpu", "hardware", "cool", meaning="CPU throttled by temperature"),
    "panic": _free("panic", "host", "crash", meaning="kernel panic"),
    "oom:kill": _free("oom", "host", "memory_limit", meaning="a process was killed for lack of memory"),
    "segfault": _free("segfault", "application", "program_crash", meaning="a program crashed"),
    "host:hung_task": _free("stall", "host", "host_stall", meaning="a task is blocked"),
    "host:soft_lockup": _free("stall", "host", "host_stall", meaning="a CPU does not schedule"),
    "host:hard_lockup": _free("stall", "host", "host_stall", meaning="a CPU does not answer"),
    "host:rcu_stall": _free("stall", "host", "host_stall", meaning="the kernel stalls"),
    "net:link_down": Rule("network", "link", "check_cable", meaning="network link down"),
    "mlx5:cable_unplugged": Rule("network", "link", "check_cable", meaning="cable unplugged"),
    "mlx5:module_hot": Rule("network", "link", "cool_module", meaning="optical module too hot"),
    "mlx5:hot": Rule("network", "hardware", "check_adapter", meaning="network adapter too hot"),
    "mlx5:module_error": Rule("network", "link", "check_cable", meaning="optical module error"),
    "mlx5:health": Rule("network", "hardware", "check_adapter", meaning="network adapter's firmware failed"),
    "mlx5:insufficient_power": Rule("network", "hardware", "check_adapter", meaning="network adapter lacks slot power"),
    "mlx5:tx_timeout": Rule("network", "hardware", "check_adapter", meaning="network adapter stopped sending"),
    "mlx5:cqe_error": Rule("network", "link", "comm_path", meaning="RDMA completion error"),
    "mlx5:command_failed": Rule("network", "firmware", "watch", meaning="network adapter command failed"),
    "storage:nvme_lost": _free("storage", "storage", "check_disk", meaning="NVMe disk lost"),
    "storage:nvme_timeout": _free("storage", "storage", "check_disk", meaning="NVMe disk timed out"),
    "storage:read_only": _free("storage", "storage", "check_disk", _ANY, "file system became read-only"),
    "storage:io_error": _free("storage", "storage", "check_disk", frozenset({"storage:nvme_lost"}), "disk I/O error"),
    "storage:fs_error": _free("storage", "storage", "check_disk", frozenset({"storage:io_error"}), "file system error"),
    "storage:nfs_timeout": _free("storage", "storage", "check_storage", meaning="NFS server does not answer"),
    "storage:lustre": _free("storage", "storage", "check_storage", meaning="Lustre connection trouble"),
    "watchdog:timeout": _free("comm", "comm", "hang", frozenset({"nccl:ib_completion", "rocm:gpu_hang"}),
                              "a collective timed out"),
    "watchdog:status": _free("comm", "comm", "hang", _ANY, "a rank reported its last collectives"),
    "watchdog:desync": _free("comm", "comm", "hang", frozenset({"watchdog:timeout"}), "ranks out of step"),
    "watchdog:stuck": _free("comm", "host", "host_side", meaning="the watchdog thread makes no progress"),
    "ncclras:mismatch": _free("ncclras", "comm", "ras_compare", frozenset({"ncclras:dead", "ncclras:incomplete"}),
                              "ranks launched different numbers of collectives"),
    "ncclras:incomplete": _free("ncclras", "comm", "ras_missing", frozenset({"ncclras:dead", "ncclras:unresponsive"}),
                                "ranks without data"),
    "ncclras:dead": _free("ncclras", "comm", "ras_missing", meaning="a process is considered dead"),
    "ncclras:unresponsive": _free("ncclras", "comm", "ras_missing", meaning="a process does not answer"),
    "rocm:gpu_hang": _free("comm", "hardware", "gpu_hang", meaning="GPU hang"),
    "rocm:memory_fault": _free("comm", "application", "check_program", meaning="GPU memory access fault"),
    "cuda:error": _free("comm", "application", "device_error", meaning="CUDA error"),
    "cuda:out_of_memory": _free("comm", "application", "oom_device", meaning="device memory exhausted"),
    "elastic:rank_failed": _free("comm", "application", "device_error", _ANY, "a rank failed"),
    "remap:pending": _free("ecc", "hardware", "remap_pending", _WORN_OUT,
                           "a memory row remap waits for a reset"),
    "remap:failure": _free("ecc", "hardware", "remap_failed", meaning="a memory row remap failed"),
    "ecc:uncorrected": _free("ecc", "hardware", "ecc_uncorrected", _WORN_OUT | _PENDING,
                             "uncorrected memory errors"),
    "ecc:unreadable": _free("ecc", "hardware", "ecc_unreadable", _WORN_OUT | _PENDING,
                            "ECC state cannot be read"),
    "repair:channel_pending": _free("ecc", "hardware", "repair_pending", _WORN_OUT,
                                    "a memory channel repair waits for a reset"),
    "repair:tpc_pending": _free("ecc", "hardware", "repair_pending", _WORN_OUT,
                                "a repair of a processor cluster waits for a reset"),
    "retire:pending": _free("ecc", "hardware", "retire_pending", _WORN_OUT, "page retirement waits for a reset"),
    "memory:unrepairable": _free("ecc", "hardware", "replace_memory", meaning="the memory can no longer be repaired"),
    "sram:threshold_exceeded": _free("ecc", "hardware", "replace_sram",
                                     meaning="too many uncorrectable SRAM errors over the device's life"),
    "reset:required": _free("ecc", "hardware", "reset_gpu", _ANY, "the device asks for a reset"),
    "memory:status": Rule("device", "hardware", "check_device", meaning="the detector reports the memory as not well"),
    "metax:state": Rule("device", "hardware", "check_device", meaning="the device is not available"),
    "device:unreadable": Rule("device", "hardware", "gpu_hang", meaning="the device does not answer its tool"),
    "nvml:lost": Rule("device", "hardware", "gpu_hang", meaning="the device no longer answers the driver"),
    "npu:health": Rule("device", "hardware", "check_device", meaning="the device reports itself unhealthy"),
    "npu:unhealthy": Rule("device", "hardware", "check_device", meaning="the device reports itself unhealthy"),
    "ras:ce_repeating": _free("rasdaemon", "hardware", "watch_dimm", meaning="corrected errors repeat on one place"),
    "ras:mce": _free("mce", "hardware", "check_mce", meaning="machine check"),
    "ras:disk": _free("storage", "storage", "check_disk", meaning="disk error counted by rasdaemon"),
    "aer:corrected": _free("pcie", "link", "watch_rate", meaning="PCIe errors, corrected"),
    "aer:nonfatal": _free("pcie", "link", "check_pcie", frozenset({"aer:fatal"}), "PCIe errors, not fatal"),
    "aer:fatal": _free("pcie", "link", "check_pcie", meaning="PCIe errors, fatal"),
    "lustre:disconnected": _free("storage", "storage", "check_storage", meaning="Lustre target disconnected"),
    "psu:failed": _free("sensor", "hardware", "check_supply", meaning="a power supply failed"),
    "psu:warning": _free("sensor", "hardware", "check_supply", meaning="a power supply warns"),
    "fan:warning": _free("sensor", "hardware", "check_fan", meaning="a fan warns"),
    "sensor:warning": _free("sensor", "hardware", "check_sensor", meaning="a sensor is beyond its warning limit"),
    "device:no_headroom": Rule("thermal", "hardware", "cool", meaning="at or beyond the slowdown temperature"),
    "fan:failed": _free("sensor", "hardware", "check_fan", meaning="a fan failed"),
    "sensor:critical": _free("sensor", "hardware", "check_sensor", meaning="a sensor is beyond its critical limit"),
    "hang": _free("comm", "comm", "hang", meaning="a rank hangs"),
}  # fmt: skip

#: rasdaemon's memory-controller records use the codes of GPU errors.
_HOST_RAS: Mapping[str, Rule] = {
    "ras:ce": _free("rasdaemon", "hardware", "watch_dimm", frozenset({"ras:ue", "ras:ce_repeating"}),
                    "host memory or CPU error, corrected"),
    "ras:ue": _free("rasdaemon", "hardware", "repair_host", meaning="host memory or CPU error, uncorrected"),
}  # fmt: skip
_FAMILIES: tuple[tuple[str, Rule], ...] = (
    ("ascend:", Rule("device", "hardware", "check_device", meaning="the device reports an error code")),
    ("segfault:", _free("segfault", "application", "library_crash", meaning="the communication library crashed")),
    ("fabric:", _free("fabric", "link", "fabric", meaning="NVSwitch fabric trouble")),
    ("hccl:", _free("comm", "comm", "hang", meaning="Ascend communication error")),
    ("watchdog:", _free("comm", "comm", "hang", _ANY)),
    ("gloo:", _free("comm", "comm", "comm_path", frozenset({"watchdog:timeout"}))),
    ("edac:", _free("edac", "hardware", "watch_dimm")),
    ("hang:", _free("comm", "comm", "hang", meaning="a rank hangs")),
)
#: Words of the driver's recovery action to an action, the first that fits.
_ASKED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), action)
    for pattern, action in (
        (r"drain.*reset", "drain_reset"), (r"drain", "drain_peers"), (r"imex", "recover_imex"),
        (r"bus reset", "bus_reset"), (r"reboot", "reboot_node"), (r"reset", "reset_gpu"), (r"^none$", "none"),
    )
)  # fmt: skip
_LIBRARY = {
    "ib_completion": _free("comm", "link", "comm_path", meaning="RDMA transport error"),
    "async_event": _free("comm", "link", "comm_path", meaning="RDMA port event"),
    "device_failure": _free("comm", "application", "device_error", meaning="device failure seen by the library"),
    "connection": _free("comm", "comm", "comm_path", frozenset({"*"}), "connection trouble"),
    "abort": _free("comm", "comm", "hang", frozenset({"*"}), "communicator aborted"),
    "warn": _free("comm", "comm", "look", frozenset({"*"}), "library warning"),
}


def rule_of(code: str, attrs: Mapping[str, str]) -> Rule:
    """Return what an event means; never raises on unknown codes."""
    prefix, _, rest = code.partition(":")
    if prefix == "xid" and rest.isdigit() and len(rest) < 6:
        entry = xid(int(rest))
        follows = _ANY if entry.follows == ANY else frozenset(f"xid:{number}" for number in entry.follows)
        return Rule("nvidia", entry.kind, entry.action, follows, True, entry.name)
    if prefix == "sxid" and rest.isdigit() and len(rest) < 8:
        fatal = {"true": True, "false": False}.get(attrs.get("fatal", ""))
        switch = sxid(int(rest), fatal)
        return Rule("nvswitch", switch.kind, switch.action, frozenset(), True, switch.name)
    if code == "recovery_action":
        return _free("ecc", "hardware", _asked_for(attrs.get("action", "")), _ANY, "the driver asks for an action")
    if code in _HOST_RAS and ("mcgstatus" in attrs or "bank" in attrs or "place" in attrs):
        return _HOST_RAS[code]
    if code in _RULES:
        return _RULES[code]
    if prefix in ("nccl", "rccl", "mccl", "mxccl", "cncl", "ixccl") and rest in _LIBRARY:
        return _LIBRARY[rest]
    for start, rule in _FAMILIES:
        if code.startswith(start):
            return rule
    return Rule(prefix, "notice", "look", needs_device=False)


def _asked_for(words: str) -> str:
    """Return the action that `nvidia-smi -q` names as "GPU Recovery Action"; its words differ between drivers."""
    said = re.sub(r"[^a-z0-9]+", " ", words.lower()).strip()
    for pattern, action in _ASKED:
        if pattern.search(said):
            return action
    return "look"


def text_of(value: Value) -> str:
    """Return an event's text cell, "" when it is NULL."""
    return value if isinstance(value, str) else ""
