"""Errors that kernels, drivers and vendors' tools report about devices: one finding per group with one cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from flightwatch.core.protocols import Value
from flightwatch.core.vocabulary import EventSeverity, EventSource, FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.event_rules import ACTION_RANK, rule_of
from flightwatch.detectors.kernel_events import Incident, group_events

#: Classes of causes that are about hardware; applications and notices are not.
HARDWARE = ("hardware", "link", "firmware")
#: Roots that say the device's memory is at fault.
MEMORY_ROOTS = ("xid:48", "xid:63", "xid:64", "xid:92", "xid:94", "xid:95", "ras:ue", "ras:ce",
                "repair:channel_pending", "retire:pending", "memory:unrepairable", "sram:threshold_exceeded",
                "memory:status")  # fmt: skip
#: Families of what a device's own tool reports, which the agent sends as events.
REPORTED = ("ecc", "device")
#: Told by the detector of memory errors from the values of samples.
TOLD_ELSEWHERE = ("remap:pending", "remap:failure", "ecc:uncorrected")


class DeviceErrorDetector:
    """Finds kinds `device_error` and, for memory errors, `ecc` from events of kernels and of devices' own tools.

    Grouping, root and recommended action are those of `kernel_events`. Says nothing about faults of
    applications (Xid 13, 31, 43, ...) and about correctable noise that asks for no action. A notice of the
    driver whose cause left no line (Xid 154 alone) is told when it asks for a reset or more.
    """

    name = "device_errors"
    version = "1"
    needs = Needs(
        {"events": ("ts", "cluster", "node", "device", "source", "code", "severity", "message", "attrs")}, seconds=7200
    )

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        events = frames.get("events")
        if events is None or events.empty or not {"ts", "code"} <= set(events.columns):
            return []
        found = [self._finding(one) for one in group_events(_rows(events)) if one.node and _is_told(one)]
        return sorted(found, key=lambda one: (one.detected_at or 0, one.id))

    def _finding(self, incident: Incident) -> Finding:
        device = incident.device if isinstance(incident.device, int) else None
        where = str(incident.node)
        if incident.device is not None:
            where += f" device {incident.device}"
        follows = f" ({', '.join(incident.consequences)} followed)" if incident.consequences else ""
        return Finding(
            detector=self.name,
            detector_version=self.version,
            kind=FindingKind.ECC if incident.root in MEMORY_ROOTS else FindingKind.DEVICE_ERROR,
            scope=FindingScope.NODE if incident.device is None else FindingScope.DEVICE,
            summary=f"{where}: {incident.root}, {incident.meaning}{follows}; {incident.action}.".replace("..", "."),
            score=float(incident.count),
            severity=_severity(incident),
            detected_at=incident.last_ts,
            first_seen_at=incident.first_ts,
            node=incident.node,
            device=device,
            targets=(where,),
            blames_hardware=incident.blames_hardware,
            confidence=0.9 if incident.blames_hardware else 0.6,
            evidence={
                "root": incident.root,
                "consequences": incident.consequences,
                "action": incident.action_key,
                "pci_bus_id": incident.pci_bus_id or None,
                "details": incident.details,
                "bystanders": incident.bystanders,
            },
            aspect=incident.root,
        )


def _is_told(incident: Incident) -> bool:
    return incident.kind in HARDWARE or _asks_for_reset(incident)


def _asks_for_reset(incident: Incident) -> bool:
    return incident.kind == "notice" and ACTION_RANK.get(incident.action_key, 1) >= ACTION_RANK["reset_gpu"]


def _severity(incident: Incident) -> Severity:
    if _asks_for_reset(incident):
        return Severity.P3
    if not incident.blames_hardware:
        return Severity.P4
    return Severity.P2 if incident.severity == EventSeverity.CRITICAL.value else Severity.P3


def _is_reported(code: object) -> bool:
    return str(code) not in TOLD_ELSEWHERE and rule_of(str(code), {}).family in REPORTED


def _rows(events: pd.DataFrame) -> Iterator[tuple[str, Mapping[str, Value]]]:
    """Yield the events as `group_events` wants them, in order of time, each once."""
    rows = events[events["ts"].notna() & events["code"].notna()]
    if "source" in rows:
        source = rows["source"].astype(object)
        # The store's columns arrive as categories, on which a comparison gives no truth values.
        reported = (source == EventSource.AGENT.value) & rows["code"].astype(object).map(_is_reported).astype(bool)
        rows = rows[source.isna() | (source == EventSource.KERNEL.value) | reported]
    keys = [name for name in ("ts", "node", "device", "code", "message") if name in rows]
    rows = rows.drop_duplicates(keys).sort_values(keys, kind="stable")
    attributes = [str(name) for name in rows.columns if str(name).startswith("attrs.")]
    for record in rows.to_dict("records"):
        known = {str(name): value for name, value in record.items() if value is not None and value == value}
        values: dict[str, Value] = {
            "ts": int(known["ts"]), "node": known.get("node"), "code": str(known["code"]),
            "device": int(known["device"]) if "device" in known else None,
            "severity": str(known.get("severity", EventSeverity.WARNING.value)),
            "message": str(known.get("message", "")), "source": EventSource.KERNEL.value,
            "attrs": {name[6:]: str(known[name]) for name in attributes if name in known},
        }  # fmt: skip
        yield "events", values
