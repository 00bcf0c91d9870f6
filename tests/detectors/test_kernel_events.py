"""Events into incidents: root, consequences, action."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flightwatch.core.protocols import Value
from flightwatch.core.xid import ACTIONS, RECOVERY_ACTIONS, XIDS, sxid, xid
from flightwatch.detectors.device_signs import signs_of
from flightwatch.detectors.event_rules import ACTION_RANK, ALL_ACTIONS, rule_of
from flightwatch.detectors.kernel_events import Incident, group_events


def event(
    code: str, ts: int | None = 0, *, pci: str = "", node: str | None = "n1", severity: str = "error", **attrs: str
) -> dict[str, Value]:
    device = attrs.pop("device", None)
    known = {**attrs, **({"pci_bus_id": pci} if pci else {})}
    return {
        "ts": ts, "node": node, "device": int(device) if device else None, "code": code, "severity": severity,
        "message": code, "attrs": known,
    }  # fmt: skip


def group(*events: dict[str, Value], source: str = "x") -> list[Incident]:
    return group_events((source, values) for values in events)


A, B = "0000:4e:00", "0000:0f:00"


def test_memory_error_chain_is_one_incident() -> None:
    (one,) = group(
        event("xid:48", 1000, pci=A, severity="critical"), event("xid:63", 1004, pci=A), event("xid:94", 1025, pci=A)
    )
    assert (one.root, one.consequences, one.device, one.count) == ("xid:48", ["xid:63", "xid:94"], A, 3)
    assert one.action_key == "reset_gpu"
    assert one.blames_hardware


def test_order_of_arrival_does_not_matter() -> None:
    events = [
        event("xid:48", 1000, pci=A),
        event("xid:63", 1004, pci=A),
        event("xid:94", 1025, pci=A),
        event("xid:45", 1030, pci=A),
    ]
    expected = [(i.root, i.consequences) for i in group(*events)]
    for seed in range(10):
        random.Random(seed).shuffle(events)
        assert [(i.root, i.consequences) for i in group(*events)] == expected


def test_a_remap_without_the_error_before_it_is_a_root() -> None:
    (one,) = group(event("xid:63", pci=A, severity="warning"))
    assert (one.root, one.action_key) == ("xid:63", "reset_idle")


def test_a_failed_remap_means_replacement() -> None:
    (one,) = group(event("xid:48", 0, pci=A), event("xid:64", 5, pci=A, severity="critical"))
    assert (one.root, one.consequences, one.action_key) == ("xid:48", ["xid:64"], "isolate_rma")


def test_45_names_its_cause() -> None:
    first, second = group(
        event("xid:45", None, pci=A, caused_by_xid="149", severity="warning"),
        event("xid:45", None, pci=B, caused_by_xid="145", severity="warning"),
        event("xid:45", None, pci=B, severity="warning"),
    )
    assert {first.root, second.root} == {"xid:149", "xid:145"}
    assert first.consequences == second.consequences == ["xid:45"]
    assert first.action_key == "check_link"
    assert first.severity == "error"


def test_45_after_another_error_is_a_consequence() -> None:
    (one,) = group(event("xid:45", 10, pci=A, severity="warning"), event("xid:79", 5, pci=A, severity="critical"))
    assert (one.root, one.consequences) == ("xid:79", ["xid:45"])


def test_45_on_a_peer_belongs_to_the_error_on_the_node() -> None:
    (one,) = group(event("xid:74", 0, pci=A, severity="critical"), event("xid:45", 300, pci=B, severity="warning"))
    assert (one.root, one.device, one.bystanders) == ("xid:74", A, [B])


def test_154_gives_the_action() -> None:
    (one,) = group(
        event("xid:119", 0, pci=A, severity="critical"),
        event("xid:154", 50, pci=A, severity="critical", action="reboot_node", recovery_to="Node Reboot Required"),
    )
    assert (one.root, one.consequences, one.action_key) == ("xid:119", ["xid:154"], "reboot_node")
    assert "Node Reboot Required" in one.action


def test_154_alone_is_told_with_what_its_driver_said() -> None:
    (one,) = group(
        event("nvrm:gsp_timeout", 0),
        event("xid:154", 400, pci=A, severity="critical", action="reset_gpu", recovery_to="GPU Reset Required"),
        event("nvrm:reset_required", 300_000),
    )
    assert (one.root, one.device, one.action_key) == ("xid:154", A, "reset_gpu")
    assert one.consequences == ["nvrm:gsp_timeout", "nvrm:reset_required"]


def test_repetitions_are_one_incident_until_they_pause() -> None:
    repeated = [event("xid:119", n * 180_000, pci=A, severity="critical", device="4") for n in range(5)]
    (one,) = group(*repeated)
    assert (one.count, one.device) == (5, 4)
    assert len(group(*repeated, event("xid:119", 10**8, pci=A))) == 2


def test_a_program_error_before_a_timeout_stays_the_root() -> None:
    (one,) = group(event("xid:13", 0, pci=A, severity="warning"), event("xid:109", 5000, pci=A))
    assert (one.root, one.consequences) == ("xid:13", ["xid:109"])
    assert not one.blames_hardware
    assert "program" in one.action


def test_a_page_fault_beside_a_memory_error_is_its_consequence() -> None:
    (one,) = group(event("xid:31", 0, pci=A, severity="warning"), event("xid:48", 0, pci=A, severity="critical"))
    assert (one.root, one.consequences) == ("xid:48", ["xid:31"])


def test_nodes_and_devices_are_kept_apart() -> None:
    incidents = group(
        event("xid:79", 0, pci=A, node="n1"), event("xid:79", 1, pci=A, node="n2"), event("xid:79", 2, pci=B, node="n1")
    )
    assert sorted((i.node, i.device) for i in incidents) == [("n1", B), ("n1", A), ("n2", A)]


def test_captures_without_node_names_are_kept_apart() -> None:
    both = [("a.log", event("xid:79", 0, pci=A, node=None)), ("b.log", event("xid:79", 1, pci=A, node=None))]
    assert len(group_events(both)) == 2


def test_writings_of_one_address_are_one_device() -> None:
    (one,) = group(event("xid:48", 0, pci="00000000:4E:00.0"), event("xid:94", 5, pci="0000:4e:00"))
    assert one.consequences == ["xid:94"]


def test_the_first_uncorrectable_error_is_the_source() -> None:
    (one,) = group(
        event("ras:ue", 0, pci="0000:1c:00.0", severity="critical"),
        event("ras:aca", 15, pci="0000:42:00.0", severity="warning"),
        event("ras:aca", 23, pci="0000:55:00.0", severity="warning"),
    )
    assert (one.root, one.device) == ("ras:ue", "0000:1c:00.0")
    assert one.bystanders == ["0000:42:00.0", "0000:55:00.0"]


def test_a_failed_reset_asks_for_a_power_cycle() -> None:
    (one,) = group(
        event("ras:ue", 0, pci="0000:08:00.0", severity="critical"),
        event("amdgpu:reset", 100, severity="warning"),
        event("amdgpu:reset_failed", 22_000, severity="critical", ret="-62"),
    )
    assert (one.root, one.action_key) == ("ras:ue", "power_cycle")
    assert "reset returned -62" in one.details


def test_harmless_events_open_nothing() -> None:
    assert group(event("ras:ce", severity="info", pci=A), event("net:link_down", severity="info", pci=A)) == []


def test_a_deliberate_panic_needs_no_action() -> None:
    (one,) = group(event("panic", severity="info", deliberate="true"))
    assert (one.root, one.action_key, one.blames_hardware) == ("panic", "deliberate", False)


def test_times_since_boot_are_compared() -> None:
    events = [event("xid:63", None, pci=A, uptime_s="10.004"), event("xid:48", None, pci=A, uptime_s="10.000")]
    assert group(*events)[0].root == "xid:48"
    far = [event("xid:48", None, pci=A, uptime_s="10"), event("xid:94", None, pci=A, uptime_s="5000")]
    assert len(group(*far)) == 2


def test_clocks_without_a_date_are_compared() -> None:
    events = [event("ras:ue", None, pci=A, clock="16:32:32"), event("amdgpu:reset_failed", None, clock="16:32:54")]
    assert len(group(*events)) == 1


def test_the_worst_come_first() -> None:
    incidents = group(
        event("pcie:aer_correctable", 0, pci=B, severity="warning"), event("xid:64", 10**7, pci=A, severity="critical")
    )
    assert [i.root for i in incidents] == ["xid:64", "pcie:aer_correctable"]


def test_unknown_codes_are_told_too() -> None:
    (one,) = group(event("vendor:something", severity="critical"))
    assert one.root == "vendor:something"
    assert one.action == ALL_ACTIONS["look"]


@pytest.mark.parametrize(
    "values",
    [{}, {"code": None, "attrs": None}, {"code": "xid:", "ts": "x", "node": 3, "attrs": {"caused_by_xid": "9"}}],
)
def test_odd_rows_are_survived(values: dict[str, Any]) -> None:
    assert len(group(values)) == 1


def test_no_events_no_incidents() -> None:
    assert group() == []


def test_many_events_stay_quick() -> None:
    events = [event("xid:13", n, pci=f"0000:{n % 200:02x}:00", node=f"n{n % 50}") for n in range(20_000)]
    assert len(group(*events)) <= 10_000


@pytest.mark.parametrize(
    ("table", "values", "codes"),
    [
        ("device_samples", {"remap_pending": True, "remap_failure": False}, ["remap:pending"]),
        ("device_samples", {"remap_pending": None, "ecc_uncorrected_total": 0, "temp_headroom_c": 12.0}, []),
        ("device_samples", {"ecc_uncorrected_lifetime_total": 9}, []),
        (
            "device_samples",
            {"temp_headroom_c": -1.0, "ecc_uncorrected_total": 2},
            ["ecc:uncorrected", "device:no_headroom"],
        ),
        (
            "sensor_samples",
            {"status": "critical", "label": "Fan 3", "quantity": "state", "chip": "ipmi"},
            ["fan:failed"],
        ),
        ("sensor_samples", {"status": "ok", "label": "Fan 3", "quantity": "fan"}, []),
        ("node_samples", {"edac_uncorrected_total": 4}, ["edac:ue"]),
        ("port_samples", {"symbol_errors_total": 4}, []),
    ],
)
def test_measurements_that_state_a_fault(table: str, values: dict[str, Value], codes: list[str]) -> None:
    assert [sign["code"] for sign in signs_of(table, values)] == codes


def test_catalogue() -> None:
    for code in XIDS.values():
        assert code.action in ACTIONS
        assert code.kind in ("hardware", "application", "link", "firmware", "notice")
        assert code.number not in code.follows
    assert all(action in ACTIONS for _, action in RECOVERY_ACTIONS.values())
    assert set(ACTION_RANK) == set(ALL_ACTIONS)
    assert xid(99_999).action == "support"
    assert sxid(11012, fatal=False).severity.value == "info"
    assert sxid(12028, fatal=False).severity.value == "warning"
    assert sxid(20034, fatal=True).action == "reset_fabric"
    assert (xid(31).severity.value, xid(48).severity.value) == ("warning", "critical")


def test_host_memory_errors_are_not_gpu_errors() -> None:
    assert rule_of("ras:ce", {"bank": "17"}).family == "rasdaemon"
    assert rule_of("ras:ce", {"block": "umc"}).family == "amdgpu"


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("repair:channel_pending", "repair_pending"),
        ("repair:tpc_pending", "repair_pending"),
        ("retire:pending", "retire_pending"),
        ("memory:unrepairable", "replace_memory"),
        ("sram:threshold_exceeded", "replace_sram"),
        ("reset:required", "reset_gpu"),
        ("memory:status", "check_device"),
        ("metax:state", "check_device"),
    ],
)
def test_what_device_reports_ask_for_has_an_action(code: str, action: str) -> None:
    (one,) = group(event(code, pci=A))
    assert one.action_key == action
    assert one.meaning


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("Reset", "reset_gpu"),
        ("GPU Reset Required", "reset_gpu"),
        ("Reboot", "reboot_node"),
        ("Drain P2P", "drain_peers"),
        ("Drain and Reset", "drain_reset"),
        ("Bus Reset", "bus_reset"),
        ("Recover IMEX Domain", "recover_imex"),
        ("Something New", "look"),
    ],
)
def test_recovery_action_of_a_device_report(words: str, action: str) -> None:
    assert rule_of("recovery_action", {"action": words}).action == action


def test_worn_out_memory_is_the_root_of_what_is_pending() -> None:
    (one,) = group(
        event("remap:pending", pci=A), event("recovery_action", pci=A, action="Reboot"),
        event("sram:threshold_exceeded", pci=A, severity="critical"), event("ecc:uncorrected", pci=A),
    )  # fmt: skip
    assert (one.root, one.action_key) == ("sram:threshold_exceeded", "replace_sram")


def test_index_and_address_of_one_device_are_one_place() -> None:
    (one,) = group(
        event("repair:channel_pending", pci=A, device="0"), event("ecc:uncorrected", device="0"),
    )  # fmt: skip
    assert (one.root, one.consequences, one.device) == ("repair:channel_pending", ["ecc:uncorrected"], 0)
    # Without a node the index of another capture is another machine's.
    both = group_events([("x", event("repair:channel_pending", pci=A, device="0", node=None)),
                         ("y", event("ecc:uncorrected", device="0", node=None))])  # fmt: skip
    assert len(both) == 2


def test_an_index_with_two_addresses_stays_an_index() -> None:
    assert len(group(
        event("repair:channel_pending", pci=A, device="0"), event("retire:pending", pci=B, device="0"),
        event("ecc:uncorrected", device="0"),
    )) == 3  # fmt: skip


def test_a_repetition_joins_what_it_began() -> None:
    first, second = group(
        event("remap:pending", pci=A), event("repair:channel_pending", pci=A), event("reset:required", pci=A),
        event("remap:pending", pci=A),
    )  # fmt: skip
    assert {(i.root, i.count) for i in (first, second)} == {("remap:pending", 2), ("repair:channel_pending", 2)}
