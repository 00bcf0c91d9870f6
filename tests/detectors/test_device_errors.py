from __future__ import annotations

import pandas as pd

from flightwatch.core.vocabulary import FindingKind, Severity
from flightwatch.detectors.device_errors import DeviceErrorDetector


def event(
    ts: float, code: str, severity: str, node: str = "n1", device: float = 3.0, source: str = "kernel"
) -> dict[str, object]:
    return {"ts": ts, "cluster": "c", "node": node, "device": device, "code": code, "severity": severity,
            "message": code, "source": source, "attrs.pci_bus_id": "0000:1b:00"}  # fmt: skip


def test_three_codes_of_one_memory_error_are_one_finding() -> None:
    rows = [event(1e12, "xid:48", "critical"), event(1e12 + 10, "xid:63", "error"), event(1e12 + 25, "xid:94", "error")]
    (found,) = DeviceErrorDetector().score({"events": pd.DataFrame(rows)})
    assert (found.kind, found.node, found.device, found.evidence["root"]) == (FindingKind.ECC, "n1", 3, "xid:48")
    assert set(found.evidence["consequences"]) == {"xid:63", "xid:94"}


def test_a_device_that_fell_off_the_bus_is_serious() -> None:
    (found,) = DeviceErrorDetector().score({"events": pd.DataFrame([event(1e12, "xid:79", "critical")])})
    assert (found.kind, found.severity, found.blames_hardware) == (FindingKind.DEVICE_ERROR, Severity.P2, True)


def test_faults_of_applications_and_other_sources_are_not_told() -> None:
    rows = [event(1e12, "xid:31", "warning"), event(1e12, "xid:79", "critical", source="probe")]
    assert DeviceErrorDetector().score({"events": pd.DataFrame(rows)}) == []


def test_what_a_devices_own_tool_reports_is_told() -> None:
    rows = [
        event(1e12, "sram:threshold_exceeded", "critical", source="agent"),
        event(1e12, "reset:required", "error", source="agent"),
        event(1e12, "metax:state", "error", node="n2", source="agent"),
        event(1e12, "remap:pending", "error", node="n3", source="agent"),
        event(1e12, "agent:stuck", "error", node="n4", source="agent"),
        event(1e12, "fan:failed", "error", node="n5", source="agent"),
    ]
    first, second = DeviceErrorDetector().score({"events": pd.DataFrame(rows)})
    assert {(found.node, found.kind, found.evidence["root"]) for found in (first, second)} == {
        ("n1", FindingKind.ECC, "sram:threshold_exceeded"), ("n2", FindingKind.DEVICE_ERROR, "metax:state"),
    }  # fmt: skip


def test_a_recovery_action_without_its_cause_is_told() -> None:
    row = {**event(1e12, "xid:154", "critical"), "attrs.action": "reset_gpu", "attrs.recovery_to": "GPU Reset Required"}
    (found,) = DeviceErrorDetector().score({"events": pd.DataFrame([row])})
    assert (found.evidence["action"], found.severity, found.blames_hardware) == ("reset_gpu", Severity.P3, False)
    quiet = {**row, "attrs.action": "none", "severity": "info"}
    assert DeviceErrorDetector().score({"events": pd.DataFrame([quiet])}) == []
    assert DeviceErrorDetector().score({"events": pd.DataFrame([event(1e12, "xid:45", "warning")])}) == []


def test_columns_may_arrive_as_categories_as_the_store_gives_them() -> None:
    rows = pd.DataFrame([event(1e12, "reset:required", "error", source="agent"), event(1e12, "xid:79", "critical")])
    plain = DeviceErrorDetector().score({"events": rows})
    for name in ("code", "source", "node", "severity", "cluster"):
        rows[name] = rows[name].astype("category")
    assert [one.id for one in DeviceErrorDetector().score({"events": rows})] == [one.id for one in plain] != []
