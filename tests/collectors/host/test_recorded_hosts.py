"""Recorded /sys and /proc of other people's machines against their right answers; skipped where they are absent."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.disks import parse_diskstats
from flightwatch.collectors.edac import find_counters, read_edac, totals
from flightwatch.collectors.hwmon import read_hwmon
from flightwatch.collectors.infiniband import read_infiniband
from flightwatch.collectors.mountstats import parse_mountstats
from flightwatch.collectors.storage_rates import StorageCounters
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.protocols import Note, Row

INPUTS = Path(__file__).parents[4] / "shared" / "inputs"
pytestmark = [
    pytest.mark.inputs,
    pytest.mark.skipif(not INPUTS.is_dir(), reason="the recorded inputs are not beside the checkout"),
]


def _tree(folder: Path, archive: str) -> FolderTree:
    with tarfile.open(INPUTS / archive) as tar:
        tar.extractall(folder, filter="data")
    return FolderTree(str(folder))


def _rows(items: Any) -> list[dict[str, Any]]:
    return [item.values for item in items if isinstance(item, Row)]


def test_ports_without_a_performance_agent_and_with_full_registers(tmp_path: Path) -> None:
    items = list(read_infiniband(_tree(tmp_path, "d_rdma/sysfs_infiniband_node_exporter.tar.gz")))
    ports = {(row["hca"], row["port"]): row for row in _rows(items)}
    silent = ports["i40iw0", 1]
    assert all(value is None for name, value in silent.items() if name.endswith("_total"))
    assert "extra_counters" not in silent
    assert any("N/A (no PMA)" in item.text for item in items if isinstance(item, Note))
    first = ports["mlx4_0", 1]
    assert (first["xmit_wait_total"], first["xmit_discards_total"]) == (4294967295, 5)
    assert any("saturated" in item.text for item in items if isinstance(item, Note))
    assert (first["rx_bytes_total"], first["rate_gbps"], first["state"]) == (4631917 * 4, 40.0, "ACTIVE")
    assert ports["mlx4_0", 2].get("rx_packets_total") is None


def test_hardware_counters(tmp_path: Path) -> None:
    rows = _rows(read_infiniband(_tree(tmp_path, "d_rdma/sysfs_infiniband_procfs.tar.gz")))
    ports = {(row["hca"], row["port"]): row for row in rows}
    port = ports["mlx5_0", 1]
    assert (port["ack_timeout_total"], port["retransmits_total"], port["out_of_sequence_total"]) == (131, 99, 1)
    extra = port["extra_counters"]
    assert {name: extra[f"infiniband.{name}"] for name in
            ("duplicate_request", "req_cqe_error", "resp_cqe_error", "roce_slow_restart_cnps")} == {
        "duplicate_request": 41, "req_cqe_error": 3481, "resp_cqe_error": 8109, "roce_slow_restart_cnps": 131,
    }  # fmt: skip
    assert "infiniband.lifespan" not in extra
    assert (ports["hfi1_0", 1]["rate_gbps"], port["rate_gbps"]) == (100.0, 25.0)


def test_sensors_and_memory_errors(tmp_path: Path) -> None:
    tree = _tree(tmp_path, "e_hwmon_edac_ipmi/sysfs_hwmon_edac_node_exporter.tar.gz")
    # The archive lacks the links of /sys/class/hwmon: the folders are given.
    nvme = "sys/devices/pci0000:00/0000:00:02.1/0000:01:00.0/nvme/nvme0/hwmon3"
    sensors = {row["label"]: row for row in _rows(read_hwmon(tree, folders=[nvme]))}
    assert (sensors["Composite"]["chip"], sensors["Composite"]["value"]) == ("nvme", 43.85)
    assert sensors["Composite"]["status"] == "ok"
    assert sensors["Sensor 1"]["status"] is None, "a limit of 65,261 C is none"
    counters = {(row["label"], row["quantity"]): row["counter"] for row in _rows(read_edac(tree))}
    assert counters["total", "corrected"] == 1
    assert counters["total", "uncorrected"] == 5
    assert (counters["noinfo", "corrected"], counters["noinfo", "uncorrected"]) == (2, 6)
    assert [counters[f"csrow{number}", "uncorrected"] for number in range(3)] == [4, 4, 5]
    assert totals(counter.read(tree, None) for counter in find_counters(tree)) == {
        "edac_corrected_total": 1,
        "edac_uncorrected_total": 5,
    }


def _since_boot(items: list[StorageCounters | Note]) -> list[dict[str, Any]]:
    return _rows(item.row(None, None, None) for item in items if isinstance(item, StorageCounters))


def test_disks_and_mounts() -> None:
    items = list(parse_diskstats((INPUTS / "i_storage/proc_diskstats_node_exporter").read_bytes()))
    disks = {row["target"]: row for row in _since_boot(items)}
    assert not [item for item in items if isinstance(item, Note)]
    assert len(disks) == 51
    assert disks["nvme0n1"]["write_ms"] == pytest.approx(0.94, abs=0.005)
    assert (disks["nvme0n1"]["read_ops_total"], disks["nvme0n1"]["inflight"]) == (47114, 0)
    assert disks["ram0"]["read_ms"] is None
    mounts = _since_boot(list(parse_mountstats((INPUTS / "i_storage/mountstats_node_exporter").read_bytes())))
    assert mounts[0]["target"] == "/mnt/nfs/test"
    assert mounts[0]["read_ms"] == pytest.approx(61.2, abs=0.05)
    assert mounts[0]["write_ms"] is None
