"""Kernel lines of every driver into events."""

from __future__ import annotations

from typing import Any

import pytest

from flightwatch.collectors.captures.kernel import OPEN_LINES, KernelLines, parse_kernel_line
from flightwatch.collectors.captures.log_prefix import split
from flightwatch.core.clock import parse_iso_utc
from flightwatch.core.protocols import CaptureContext, Note, Row


def test_memory_error_chain(sample: Any) -> None:
    found = sample("kernel_xid.log", at_ms=parse_iso_utc("2026-04-01T00:00:00Z"))
    assert found.codes[:5] == ["xid:48", "xid:63", "xid:94", "xid:45", "xid:154"]
    first = found.event("xid:48")
    assert first["ts"] == parse_iso_utc("2026-03-03T04:11:09Z")
    assert (first["node"], first["severity"], first["source"]) == ("gpu-17", "critical", "kernel")
    assert first["device"] is None
    assert first["attrs"]["pci_bus_id"] == "0000:4e:00"
    assert first["attrs"]["uuid"] == "GPU-11111111-2222-3333-4444-555555555555"
    assert first["attrs"]["uptime_s"] == "91234.10012"
    assert found.event("xid:94")["attrs"]["mig_gpu_instance"] == "2"
    recovery = found.event("xid:154")
    assert recovery["attrs"]["action"] == "drain_reset"
    assert recovery["attrs"]["recovery_to"] == "Drain and Reset"


def test_links_and_switches(sample: Any) -> None:
    found = sample("kernel_xid.log")
    fatal = found.event("xid:149")
    assert (fatal["severity"], fatal["attrs"]["link"], fatal["attrs"]["subcode"]) == (
        "critical",
        "05",
        "NETIR_LINK_EVT",
    )
    assert found.event("xid:45", 1)["attrs"]["caused_by_xid"] == "149"
    nvlink = found.event("xid:74")
    assert nvlink["attrs"]["link"] == "7"
    assert nvlink["attrs"]["reg[2]"] == "0x20000"
    assert "reg[0]" not in nvlink["attrs"]
    switch = found.event("sxid:24007")
    assert (switch["severity"], switch["attrs"]["nvswitch"], switch["attrs"]["link"]) == ("critical", "2", "30")
    assert "Severity 1" in switch["attrs"]["detail"]
    assert found.codes.count("sxid:24007") == 1
    assert found.event("sxid:11012")["severity"] == "info"


def test_a_rejected_line_is_a_note_and_no_event(sample: Any) -> None:
    found = sample("kernel_xid.log")
    assert [note.where for note in found.notes if "valid device address" in note.text] == ["line 14"]
    assert "xid:79" not in found.codes


@pytest.mark.parametrize(
    ("line", "code", "pci"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "xid:14", "0000:03:00"),
        ("NVRM: Xid (PCI:000d:00:00): 31, pid=3234, Ch 1", "xid:31", "000d:00:00"),
        ("NVRM: Xid (PCI:00000001:9B:00.0): 79, x", "xid:79", "00000001:9b:00.0"),
        ("ticket;NVRM: Xid (PCI:0000:37:00): 95, pid=5, Uncontained: FBHUB. RST: Yes", "xid:95", "0000:37:00"),
    ],
)  # fmt: skip
def test_layouts(line: str, code: str, pci: str) -> None:
    (row,) = parse_kernel_line(line, CaptureContext())
    assert isinstance(row, Row)
    attrs = row.values["attrs"]
    assert isinstance(attrs, dict)
    assert (row.values["code"], attrs["pci_bus_id"]) == (code, pci)


@pytest.mark.parametrize(
    "line", ["NVRM: Xid (invalid): some error", "NVRM: Xid (PCI:0000:01:00): garbled", "NVRM: Xid error: x"]
)
def test_lines_without_address_or_code(line: str) -> None:
    (note,) = parse_kernel_line(line, CaptureContext())
    assert isinstance(note, Note)
    assert note.level == "info"


def test_a_device_index_is_remembered() -> None:
    reader = KernelLines(CaptureContext())
    rows = [
        item
        for number, line in enumerate([
            "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, Timeout after 6s of waiting for RPC response from GPU4 GSP!",
            "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "NVRM: Xid (PCI:0000:9c:00): 79, x",
        ])
        for item in reader.feed(number, split(line))
    ]  # fmt: skip
    rows += list(reader.flush())
    assert [row.values["device"] for row in rows if isinstance(row, Row)] == [4, 4, None]


def test_ring_buffer_records(sample: Any) -> None:
    found = sample("kernel_kmsg.log")
    assert found.codes == ["xid:79", "nvrm:off_bus", "oom:kill"]
    assert found.event("xid:79")["ts"] is None
    assert found.event("xid:79")["attrs"]["uptime_s"] == "77000.000123"
    assert found.event("oom:kill")["attrs"]["pid"] == "5123"


def test_amd_negations_zero_and_implausible_counts(sample: Any) -> None:
    found = sample("kernel_amd.log")
    odd = found.event("ras:ue", 0)
    assert (odd["severity"], odd["attrs"]["implausible"]) == ("info", "true")
    assert any("1048560" in note.text for note in found.notes)
    assert found.codes == ["ras:ue", "ras:ue", "ras:ue", "ras:aca", "amdgpu:reset", "amdgpu:reset_failed"]
    assert found.event("ras:ue", 1)["attrs"]["block"] == "athub"
    assert found.event("ras:ue", 2)["attrs"]["count"] == "2"
    assert found.event("ras:aca")["attrs"]["aca_status"] == "0x9800080000000000"
    assert found.event("amdgpu:reset_failed")["attrs"]["ret"] == "-110"


def test_platform_errors(sample: Any) -> None:
    found = sample("kernel_platform.log")
    corrected = found.event("pcie:aer_correctable")
    assert corrected["attrs"]["pci_bus_id"] == "0000:81:00.0"
    assert corrected["attrs"]["errors"] == "RxErr"
    assert found.event("pcie:aer_fatal")["severity"] == "critical"
    assert found.event("apei:recoverable")["attrs"]["section_type"] == "memory error"
    assert found.event("mce:uncorrected")["attrs"]["bank"] == "7"
    assert found.event("mce:corrected")["attrs"]["cpu"] == "13"
    assert found.event("edac:ce")["attrs"]["count"] == "3"


def test_a_machine_check_without_valid_bit_has_unknown_severity(text: Any) -> None:
    found = text("[ 1.5] mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 9: 0000000000000000\n")
    assert found.event("mce:unknown")["attrs"]["severity"] == "unknown"


def test_links_that_were_never_up_raise_no_alarm(sample: Any) -> None:
    found = sample("kernel_platform.log")
    assert found.event("net:link_down")["severity"] == "warning"
    assert [found.event("mlx5:cable_unplugged", n)["severity"] for n in (0, 1)] == ["warning", "info"]


def test_host_events(sample: Any) -> None:
    found = sample("kernel_platform.log")
    assert found.codes.count("oom:kill") == 1
    assert found.event("oom:kill")["attrs"]["cgroup"] == "/kubepods/pod1/c1"
    assert found.event("segfault:librccl")["attrs"]["library"] == "librccl.so.1"
    assert found.event("host:hung_task")["attrs"]["process"] == "jfsmount"
    assert found.event("host:soft_lockup")["attrs"]["pid"] == "2257"
    assert "storage:nvme_timeout" in found.codes
    assert found.event("panic")["attrs"]["deliberate"] == "true"
    assert found.event("panic")["severity"] == "info"


def test_a_real_panic_is_critical(text: Any) -> None:
    found = text("<0>[ 5.0] Kernel panic - not syncing: Fatal exception in interrupt\n")
    assert found.event("panic")["severity"] == "critical"


def test_fabric_manager(sample: Any) -> None:
    found = sample("fabric_manager.log")
    assert found.codes == ["sxid:20034", "fabric:gpu_missing"]
    assert found.event("sxid:20034")["attrs"]["port"] == "33"
    assert found.event("sxid:20034")["ts"] == parse_iso_utc("2026-01-08T09:00:05Z")


def test_newest_first_files_are_turned_round(sample: Any) -> None:
    assert sample("kernel_reverse.log").codes == ["xid:48", "xid:63", "xid:45"]


def test_machines_in_one_log_do_not_share_memory(text: Any) -> None:
    found = text(
        "Mar  3 04:11:09 a kernel: mlx5_core 0000:c1:00.0: Link up\n"
        "Mar  3 04:11:10 b kernel: mlx5_core 0000:c1:00.0: Link down\n"
    )
    assert found.event("net:link_down")["severity"] == "info"


def test_events_are_released_while_a_log_goes_on() -> None:
    reader = KernelLines(CaptureContext())
    assert not list(reader.feed(1, split("NVRM: Xid (PCI:0000:01:00): 79, x")))
    released = [item for n in range(OPEN_LINES + 1) for item in reader.feed(n + 2, split("quiet"))]
    assert len(released) == 1


def test_journal_exports(sample: Any) -> None:
    binary = sample("journal.export")
    assert binary.parser == "journal"
    assert binary.codes == ["xid:79", "xid:62"]
    assert binary.event("xid:62")["node"] == "gpu-6"
    assert binary.event("xid:62")["ts"] == 1767862801123
    lines = sample("journal.json")
    assert (lines.parser, lines.codes) == ("journal", ["xid:31"])


def test_the_capture_time_and_node_fill_what_lines_lack(text: Any) -> None:
    found = text("[ 10.0] NVRM: Xid (PCI:0000:01:00): 79, x\n", at_ms=5000, node="gpu-1")
    assert (found.event("xid:79")["ts"], found.event("xid:79")["node"]) == (5000, "gpu-1")


def test_a_gpu_off_the_bus_in_a_sentence_of_three_lines(text: Any) -> None:
    found = text(
        "[ 5.1] NVRM: The NVIDIA GPU 0000:3a:00.0\n[ 5.1] NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "[ 5.1] NVRM: fallen off the bus and is not responding to commands.\n"
        "[ 9.9] NVRM: GPU has fallen off the bus.\n"
    )
    assert [row["attrs"].get("pci_bus_id") for row in found.of("events")] == ["0000:3a:00.0", None]


def test_an_uncorrected_pcie_error_without_its_details(text: Any) -> None:
    found = text(
        "[ 5.1] pcieport 0000:80:01.0: AER: Uncorrected (Fatal) error received: 0000:81:00.0\n"
        "[ 5.1] pcieport 0000:80:01.0: DPC: containment event, status:0x1f01 source:0x0000\n"
        "[ 6.0] pcieport 0000:90:01.0: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:91:00.0\n"
        "[ 6.0] nvme 0000:91:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, "
        "(Requester ID)\n"
        "[ 7.0] pcieport 0000:90:01.0: AER: Corrected error received: 0000:91:00.0\n"
    )
    assert found.codes == ["pcie:aer_fatal", "pcie:dpc", "pcie:aer_nonfatal"]
    assert found.of("events")[0]["attrs"]["pci_bus_id"] == "0000:81:00.0"
    assert found.of("events")[2]["attrs"]["layer"] == "Transaction Layer"


def test_infiniband_link_and_adapter_heat(text: Any) -> None:
    found = text(
        "[ 1.0] mlx5_core 0000:5c:00.0 mlx5_0: Port: 1 Link ACTIVE\n"
        "[ 5.0] mlx5_core 0000:5c:00.0 mlx5_0: Port: 1 Link DOWN\n"
        "[ 6.0] mlx5_core 0000:5c:00.0: temp_warn:248:(pid 0): High temperature on sensors with bit set 0 1\n"
    )
    assert [(row["code"], row["severity"]) for row in found.of("events")] == [
        ("net:link_down", "warning"), ("mlx5:hot", "error"),
    ]  # fmt: skip


def test_damaged_nvlink_registers_are_left_out(text: Any) -> None:
    found = text(
        "NVRM: Xid (PCI:0000:4f:00): 74, pid=1, NVLink: fatal error detected on link 6(0x0, 0x00x0, 0x10000)\n"
    )
    assert found.codes == ["xid:74"]
    assert "registers" not in found.event("xid:74")["attrs"]
