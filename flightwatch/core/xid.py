"""Catalogue of NVIDIA driver error codes: Xid (GPU) and SXid (NVSwitch), as data.

Parsers give events a severity from it, detectors group events and name the action with it. Meanings
follow NVIDIA's public Xid catalogue and Fabric Manager guide, in own words; codes that NVIDIA lists as
unused are not listed, and an unlisted code is treated as a warning that is kept as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.vocabulary import EventSeverity

_D, _I, _W, _E, _C = (
    EventSeverity.DEBUG, EventSeverity.INFO, EventSeverity.WARNING, EventSeverity.ERROR, EventSeverity.CRITICAL,
)  # fmt: skip

#: What a person should do: key to one sentence.
ACTIONS = {
    "none": "no action needed",
    "watch": "no action now; watch whether it repeats on this device",
    "restart_job": "restart the job; if it repeats on this device with other programs, run a GPU diagnostic",
    "check_program": "look at the program first (out-of-range access, bad kernel); hardware only if it follows the GPU",
    "reset_gpu": "drain the node, stop all processes on the GPU and reset it",
    "reset_idle": "reset the GPU when the node is idle, so that the row remap takes effect",
    "drain_reset": "drain the node and the GPU's peers, then reset the GPU",
    "drain_peers": "drain work that uses this GPU's peer-to-peer links",
    "reboot_node": "drain and reboot the node",
    "power_cycle": "drain the node and power-cycle it (a warm reboot is not enough); check seating if it returns",
    "isolate_rma": "isolate the node; the GPU has to be replaced (RMA)",
    "check_link": "drain the node, reset the GPUs on this link and check it (cable, tray, NVSwitch); RMA if it returns",
    "check_power": "check the power cables and supplies of the GPU",
    "reset_fabric": "drain the node, reset all GPUs and NVSwitches together and restart the fabric manager",
    "bus_reset": "drain the node and reset the GPU's PCIe bus",
    "recover_imex": "recover the IMEX domain of this GPU",
    "update_software": "update driver or firmware, then restart",
    "support": "collect a bug report (nvidia-bug-report.sh) and contact support if it repeats",
}

#: Recovery actions that Xid 154 carries (NVML's numbering): number to (driver's words, key of ACTIONS).
RECOVERY_ACTIONS: dict[int, tuple[str, str]] = {
    0: ("None", "none"),
    1: ("GPU Reset Required", "reset_gpu"),
    2: ("Node Reboot Required", "reboot_node"),
    3: ("Drain P2P", "drain_peers"),
    4: ("Drain and Reset", "drain_reset"),
    5: ("Recover IMEX Domain", "recover_imex"),
    6: ("Bus Reset", "bus_reset"),
    7: ("System Reboot", "reboot_node"),
}

#: In `Code.follows`: a consequence of any other error on the device, never a cause.
ANY = frozenset({-1})


@dataclass(frozen=True, slots=True)
class Code:
    """One driver error code.

    Attributes
    ----------
    number: the code as printed.
    name: short meaning.
    kind: hardware, application, link, firmware, or notice (says something about another event).
    severity: of an event with this code.
    action: key of ACTIONS.
    follows: codes of which this one is commonly a consequence when they occur close together on one device;
        ANY: of all.
    """

    number: int
    name: str
    kind: str
    severity: EventSeverity
    action: str
    follows: frozenset[int] = frozenset()


_MEMORY = frozenset({48, 95, 140, 171, 172})
_DEAD = frozenset({79, 119, 120, 158, 167})
_NVLINK5 = frozenset(range(144, 151))


def _engines(name: str, numbers: tuple[int, ...]) -> tuple[Code, ...]:
    return tuple(Code(number, name, "application", _E, "restart_job", _DEAD | _MEMORY) for number in numbers)


_XIDS: tuple[Code, ...] = (
    Code(8, "channel made no progress", "application", _E, "restart_job", _DEAD | _MEMORY),
    Code(11, "corrupted command stream", "application", _E, "check_program", _DEAD | _MEMORY),
    Code(13, "graphics or compute engine exception", "application", _W, "check_program", _DEAD | _MEMORY),
    Code(14, "driver test error", "notice", _I, "none"),
    Code(25, "invalid command stream", "application", _E, "check_program", _DEAD | _MEMORY),
    Code(31, "GPU memory page fault (MMU)", "application", _W, "check_program", _DEAD | _MEMORY),
    Code(32, "corrupted command buffer (PBDMA)", "application", _E, "check_program", _DEAD | _MEMORY),
    Code(37, "driver firmware method not implemented", "firmware", _W, "watch"),
    Code(38, "driver firmware watchdog", "firmware", _E, "restart_job"),
    *_engines("copy engine exception", (39, 40, 41, 70, 71, 72, 75, 76, 77, 85)),
    Code(43, "GPU stopped processing a channel", "application", _W, "restart_job", ANY),
    Code(44, "engine fault during a context switch", "application", _E, "restart_job", _DEAD | _MEMORY),
    Code(45, "channels removed after an earlier error", "notice", _W, "watch", ANY),
    Code(46, "GPU stopped processing (timeout)", "hardware", _E, "reset_gpu", _DEAD | _MEMORY),
    Code(48, "uncorrectable memory error (double-bit ECC)", "hardware", _C, "reset_gpu"),
    Code(54, "auxiliary power not connected", "hardware", _C, "check_power"),
    Code(56, "display engine error", "application", _W, "watch"),
    Code(57, "link training error of memory", "hardware", _C, "reset_gpu"),
    Code(58, "unstable video memory interface", "hardware", _C, "reset_gpu"),
    Code(60, "security or video processor exception", "application", _E, "restart_job", _DEAD),
    Code(61, "internal microcontroller breakpoint", "firmware", _E, "reset_gpu"),
    Code(62, "internal microcontroller halt (PMU)", "firmware", _C, "reset_gpu"),
    Code(63, "memory row remapped or page retired", "hardware", _W, "reset_idle", _MEMORY | {92, 94}),
    Code(64, "row remap or page retirement FAILED", "hardware", _C, "isolate_rma", _MEMORY | {92}),
    Code(65, "video processor exception", "application", _E, "restart_job", _DEAD),
    Code(66, "illegal access by the driver", "application", _W, "watch"),
    Code(67, "illegal access by the driver", "application", _W, "watch"),
    *_engines("video engine exception", (68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142)),
    Code(69, "engine class error", "application", _E, "check_program", _DEAD | _MEMORY),
    Code(73, "video encoder exception", "application", _E, "restart_job", _DEAD),
    Code(74, "NVLink error", "link", _C, "check_link", frozenset({79, 145, 149})),
    Code(78, "virtual GPU failed to start", "application", _E, "update_software"),
    Code(79, "GPU has fallen off the bus", "hardware", _C, "power_cycle"),
    Code(80, "corrupted data sent to the GPU", "hardware", _E, "restart_job", frozenset({79})),
    Code(81, "display subsystem error", "application", _W, "watch"),
    Code(92, "high rate of corrected memory errors", "hardware", _W, "watch"),
    Code(93, "InfoROM wear limit", "notice", _I, "watch"),
    Code(94, "memory error, contained to one program", "hardware", _E, "restart_job", frozenset({48, 171, 172})),
    Code(95, "memory error, NOT contained", "hardware", _C, "reset_gpu", frozenset({48, 171, 172})),
    Code(106, "management bus test message", "notice", _D, "none"),
    Code(107, "management bus test message", "notice", _D, "none"),
    Code(109, "context switch timeout", "application", _E, "reset_gpu", frozenset({13, 31, 69}) | _DEAD | _MEMORY),
    Code(110, "security fault", "hardware", _C, "reset_gpu"),
    Code(119, "GPU system processor (GSP) does not answer", "firmware", _C, "reset_gpu", frozenset({79, 120})),
    Code(120, "GPU system processor (GSP) error", "firmware", _C, "reset_gpu", frozenset({79})),
    Code(121, "chip-to-chip link error, corrected", "link", _W, "watch"),
    Code(122, "SPI management bus failure", "firmware", _W, "support"),
    Code(123, "SPI management bus failure", "firmware", _W, "support"),
    *_engines("copy engine exception", tuple(range(126, 136))),
    Code(136, "link training failed", "link", _C, "check_link"),
    Code(137, "NVLink privilege error", "link", _W, "watch", frozenset({31, 79, 94, 95, 145, 149})),
    Code(140, "unrecovered memory error", "hardware", _C, "reset_gpu"),
    Code(141, "fast path error", "application", _W, "restart_job"),
    Code(143, "GPU failed to initialise", "hardware", _C, "reset_gpu"),
    Code(144, "NVLink error (SAW)", "link", _E, "check_link"),
    Code(145, "NVLink error (RLW)", "link", _E, "check_link"),
    Code(146, "NVLink error (TLW)", "link", _E, "check_link"),
    Code(147, "NVLink error (TREX)", "link", _E, "check_link"),
    Code(148, "NVLink error (control)", "link", _E, "check_link"),
    Code(149, "NVLink error (NETIR, link event)", "link", _E, "check_link"),
    Code(150, "NVLink error (MSE)", "link", _E, "check_link"),
    Code(151, "key rotation error", "firmware", _E, "support"),
    Code(152, "accelerator memory-unit fault", "application", _W, "watch"),
    Code(153, "accelerator timeout", "application", _W, "watch"),
    Code(154, "recovery action changed", "notice", _W, "reset_gpu", ANY),
    Code(155, "NVLink error (software defined)", "link", _E, "check_link", _NVLINK5),
    Code(156, "a faulty unit was retired", "hardware", _E, "reset_gpu", _MEMORY),
    Code(157, "retiring a faulty unit failed", "hardware", _C, "isolate_rma", _MEMORY),
    Code(158, "GPU fatal timeout", "hardware", _C, "reset_gpu", frozenset({79})),
    Code(159, "chip-to-chip protocol error", "link", _E, "support"),
    Code(160, "memory channel retired", "hardware", _E, "reset_gpu", _MEMORY),
    Code(161, "retiring a memory channel failed", "hardware", _C, "isolate_rma", _MEMORY),
    Code(162, "power smoothing re-engaged", "notice", _I, "none"),
    Code(163, "power smoothing disengaged", "notice", _W, "watch"),
    Code(164, "power smoothing circuit near its end of life", "hardware", _W, "watch"),
    Code(165, "power smoothing circuit worn out", "hardware", _E, "support"),
    Code(166, "NVLink secure traffic before the link was ready", "link", _E, "check_link"),
    Code(167, "PCIe fatal timeout", "hardware", _C, "reboot_node", frozenset({79})),
    Code(168, "GPU memory capacity reduced by errors", "hardware", _C, "support"),
    Code(169, "internal microcontroller halt (SEC2)", "firmware", _C, "reset_gpu"),
    Code(170, "NVLink secure-mode interrupt", "link", _E, "check_link"),
    Code(171, "uncorrectable DRAM error", "hardware", _C, "reset_gpu", frozenset({48})),
    Code(172, "uncorrectable SRAM error", "hardware", _C, "reset_gpu", frozenset({48})),
)
#: All listed Xid codes by number.
XIDS: dict[int, Code] = {code.number: code for code in _XIDS}


def xid(number: int) -> Code:
    """Return what is known about an Xid; an unlisted code becomes a warning without a recommended repair."""
    return XIDS.get(number) or Code(number, "unlisted driver error", "notice", _W, "support")


def recovery_action(number: int) -> str:
    """Return the key of ACTIONS for the recovery action that an Xid 154 names; "support" for an unknown number."""
    return RECOVERY_ACTIONS.get(number, ("", "support"))[1]


_SXID_CORRECTED = frozenset({
    11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068,
    19071, 24001, 24002, 24003,
})  # fmt: skip
_SXID_ALWAYS_FATAL = frozenset({12020, 22003, 22011, *range(23001, 23018), 10001, 10002, 10003, 10004})
_SXID_NAMES = {
    10001: "host privilege error", 10002: "host privilege timeout",
    11001: "ingress invalid command", 11004: "ingress invalid access control", 11009: "ingress invalid virtual channel",
    11013: "ingress header memory error", 12001: "egress crossbar overflow", 12002: "egress packet route error",
    12020: "egress sequence number error", 12022: "egress input memory error", 12024: "egress output memory error",
    12028: "egress non-posted privilege error", 12032: "egress flit type mismatch", 14017: "transaction timeout",
    15006: "route transaction count error", 19084: "link heartbeat timeout", 20001: "link replay",
    20009: "link short error rate", 20012: "inconsistent connection", 20034: "link fault",
    22003: "link controller halt", 22011: "link controller error", 22012: "link controller interrupt",
    22013: "link controller request", 24004: "tracking memory error", 24007: "transaction tracking timeout",
}  # fmt: skip


def sxid(number: int, fatal: bool | None) -> Code:
    """Return what is known about an NVSwitch error.

    Parameters
    ----------
    fatal: what the message itself said; None when it said nothing.
    """
    name = _SXID_NAMES.get(number, "NVSwitch error")
    if number in _SXID_CORRECTED:
        return Code(number, "NVSwitch memory error, corrected", "link", _I, "none")
    if fatal or (fatal is None and number in _SXID_ALWAYS_FATAL):
        return Code(number, name, "link", _C, "reset_fabric")
    return Code(number, name, "link", _W, "watch")
