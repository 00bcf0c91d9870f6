"""Every recorded capture of sections d, e, i, k of the shared inputs against its right answer (inputs/LOG.md)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from flightwatch.collectors.captures.registry import parsers, tree_parsers
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.protocols import CaptureContext, Note, Row

INPUTS = Path(__file__).resolve().parents[3] / "shared" / "inputs"
pytestmark = [
    pytest.mark.inputs,
    pytest.mark.skipif(not INPUTS.is_dir(), reason="the folder ../shared/inputs is not beside this checkout"),
]


class Found:
    """Rows and notes of one capture."""

    def __init__(self, items: list[Row | Note]) -> None:
        self.rows = [item for item in items if isinstance(item, Row)]
        self.notes = [item for item in items if isinstance(item, Note)]

    def of(self, table: str) -> list[dict]:
        return [row.values for row in self.rows if row.table == table]

    @property
    def errors(self) -> list[str]:
        return [note.text for note in self.notes if note.level == "error"]

    @property
    def codes(self) -> list[object]:
        return [row["code"] for row in self.of("events")]

    def sensor(self, label: str, quantity: str) -> dict:
        return next(row for row in self.of("sensor_samples") if (row["label"], row["quantity"]) == (label, quantity))


def read(name: str) -> Found:
    path = INPUTS / name
    with path.open("rb") as stream:
        head = stream.read(65536)
        parser = next(parser for parser in parsers() if parser.recognise(head))
        stream.seek(0)
        return Found(list(parser.parse(stream, CaptureContext(name))))


def read_tree(name: str, folder: Path) -> Found:
    with tarfile.open(INPUTS / name) as archive:
        archive.extractall(folder, filter="data")
        names = [member.name.removeprefix("./") for member in archive.getmembers() if member.isfile()]
    items: list[Row | Note] = []
    for parser in tree_parsers():
        if parser.recognise_tree(names):
            items += parser.parse_tree(FolderTree(str(folder)), CaptureContext(name))
    return Found(items)


# d) RDMA


def test_ports_without_performance_agent_are_unknown_and_full_registers_are_noted(tmp_path: Path) -> None:
    found = read_tree("d_rdma/sysfs_infiniband_node_exporter.tar.gz", tmp_path)
    ports = {(row["hca"], row["port"]): row for row in found.of("port_samples")}
    assert len(ports) == 3
    silent = ports["i40iw0", 1]
    assert [
        silent[name] for name in ("rx_bytes_total", "tx_packets_total", "symbol_errors_total", "xmit_wait_total")
    ] == [None] * 4
    first = ports["mlx4_0", 1]
    assert (first["xmit_wait_total"], first["xmit_discards_total"]) == (4294967295, 5)
    assert (first["rx_bytes_total"], first["rate_gbps"]) == (4631917 * 4, 40.0)
    assert any("saturated" in note.text for note in found.notes)
    assert ports["mlx4_0", 2]["rx_packets_total"] is None
    assert any("N/A (no PMA)" in note.text for note in found.notes)


def test_procfs_ports_keep_every_hardware_counter(tmp_path: Path) -> None:
    found = read_tree("d_rdma/sysfs_infiniband_procfs.tar.gz", tmp_path)
    ports = {(row["hca"], row["port"]): row for row in found.of("port_samples")}
    mlx5 = ports["mlx5_0", 1]
    assert (mlx5["ack_timeout_total"], mlx5["retransmits_total"], mlx5["out_of_sequence_total"]) == (131, 99, 1)
    extra = mlx5["extra_counters"]
    counts = {name.partition(".")[2]: count for name, count in extra.items()}
    assert (counts["duplicate_request"], counts["req_cqe_error"], counts["resp_cqe_error"]) == (41, 3481, 8109)
    assert counts["roce_slow_restart_cnps"] == 131
    assert "lifespan" not in counts
    assert (mlx5["rate_gbps"], ports["hfi1_0", 1]["rate_gbps"]) == (25.0, 100.0)
    assert mlx5["tx_bytes_total"] == 2880761508848 * 4


def test_amd_rdma_statistic_and_link() -> None:
    ports = {row["hca"]: row for row in read("d_rdma/amd_nic_rdma_statistic_j.txt").of("port_samples")}
    assert set(ports) == {"rocep132s0", "rocep68s0", "ionic_1"}
    idle = ports["rocep132s0"]
    assert [idle[name] for name in ("cnp_sent_total", "ecn_marked_total", "out_of_sequence_total")] == [0, 0, 0]
    assert ports["ionic_1"]["extra_counters"]["rdma.req_rx_dup_response"] == 34
    links = read("d_rdma/amd_nic_rdma_link.txt").of("port_samples")
    assert [(row["hca"], row["port"], row["state"]) for row in links] == [
        ("rocep68s0", 1, "ACTIVE"),
        ("rocep132s0", 1, "ACTIVE"),
        ("ionic_1", 1, "ACTIVE"),
    ]


def test_mlx5_rdma_statistic() -> None:
    (port,) = read("d_rdma/rdma_statistic_mlx5.json").of("port_samples")
    assert port["extra_counters"]["rdma.rx_write_requests"] == 2331678
    assert port["extra_counters"]["rdma.rx_read_requests"] == 1161608
    assert [
        port[name] for name in ("cnp_sent_total", "cnp_handled_total", "ecn_marked_total", "retransmits_total")
    ] == [0] * 4


def test_nicctl_numbers_as_strings() -> None:
    first, second = read("d_rdma/amd_nic_nicctl_show_port_statistics_j.txt").of("port_samples")
    assert (first["symbol_errors_total"], second["symbol_errors_total"]) == (7, 0)
    assert first["link_downed_total"] == second["link_downed_total"] == 11
    assert first["rx_packets_total"] == 283924078435


def test_ethtool_counts_ports_and_leaves_pause_unknown_where_it_is_not_printed() -> None:
    (ionic,) = read("d_rdma/amd_nic_ethtool_S_enp132s0.txt").of("port_samples")
    assert (ionic["hca"], ionic["rx_bytes_total"], ionic["pfc_rx_pause_total"]) == ("enp132s0", 75542062581996, 0)
    (mlx5,) = read("d_rdma/ethtool_S_mlx5_connectx4.txt").of("port_samples")
    assert (mlx5["pfc_rx_pause_total"], mlx5["pfc_tx_pause_total"]) == (None, None)
    assert (mlx5["rx_bytes_total"], mlx5["tx_packets_total"]) == (2195783498134, 896117891)


def test_perfquery_words_are_bytes_and_an_empty_file_is_a_failed_query() -> None:
    (port,) = read("d_rdma/perfquery_0x0002c90300000001.out").of("port_samples")
    assert (port["tx_bytes_total"], port["rx_bytes_total"]) == (9049592493976 * 4, 9752484588300 * 4)
    first, second = read("d_rdma/perfquery_0x0002c90300000002.out").of("port_samples")
    assert (first["port"], first["xmit_wait_total"]) == (1, 22730501)
    assert (second["port"], second["xmit_wait_total"]) == (2, 36510964)
    (third,) = read("d_rdma/perfquery_0x0002c90300000003.out").of("port_samples")
    assert third["rx_packets_total"] == 100583719365
    from flightwatch.collectors.captures.perfquery import PerfqueryParser

    with (INPUTS / "d_rdma/perfquery_0x0002c90300000004.out").open("rb") as stream:
        empty = Found(list(PerfqueryParser().parse(stream, CaptureContext())))
    assert not empty.rows
    assert empty.errors


@pytest.mark.parametrize("name", ["00001-1", "00002-1", "00002-2", "00003-1"])
def test_perfquery_error_details(name: str) -> None:
    (port,) = read(f"d_rdma/perfquery_rcverr_0x0002c903000{name}.out").of("port_samples")
    assert port["port"] == int(name[-1])
    assert port["rx_bytes_total"] is None
    assert port["extra_counters"]["perfquery.PortLocalPhysicalErrors"] == 0


def test_ibswinfo_foo_is_unknown_and_a_failed_fan_is_an_event() -> None:
    good = read("d_rdma/ibswinfo_test1.out")
    assert good.codes == ["fan:failed"]
    assert good.sensor("temperature", "temperature")["value"] == 45.0
    supplies = [row for row in good.of("sensor_samples") if row["chip"].startswith("psu") and row["label"] == "status"]
    assert [row["status"] for row in supplies] == ["ok", "ok"]
    power = read("d_rdma/ibswinfo_test-err1.out")
    assert power.sensor("psu0 power", "power")["value"] is None
    assert power.of("node_samples")[0]["psu_w"] is None
    heat = read("d_rdma/ibswinfo_test-err2.out")
    assert heat.sensor("temperature", "temperature")["value"] is None
    for found in (power, heat):
        assert not found.codes
        assert any("foo" in note.text and note.level == "warning" for note in found.notes)


def test_port_list_has_ports_without_peer() -> None:
    found = read("d_rdma/ibnetdiscover_1.out")
    leaves = {row["node"]: row["leaf_switch"] for row in found.of("inventory") if row["hca"]}
    assert leaves == {"o0001": "ib-i1l1s01", "o0002": "ib-i1l1s01", "p0001": "ib-i4l1s01"}
    assert len(found.of("links")) == 4
    assert sum("has no peer" in note.text for note in found.notes) == 2


# e) host sensors


def test_ipmitool_pages() -> None:
    sdr = read("e_hwmon_edac_ipmi/ipmitool_sdr_v1.txt")
    assert sdr.sensor("Ambient Temp", "temperature")["value"] == 20.0
    assert sdr.sensor("Fan 1A Tach", "fan")["value"] == 2610.0
    assert sdr.sensor("Planar 12V", "voltage")["value"] == 12.04
    assert sdr.sensor("Fan 1", "state")["value"] is None
    assert sdr.of("node_samples")[0]["psu_w"] == 210.0
    elist = read("e_hwmon_edac_ipmi/ipmitool_sdr_elist_v2.txt")
    (node,) = elist.of("node_samples")
    assert (node["inlet_c"], node["fan_rpm_min"], node["psu_w"]) == (25.0, 5040.0, 110.0)
    assert elist.sensor("Current 1", "current")["value"] == 7.2
    errors = read("e_hwmon_edac_ipmi/ipmitool_sdr_v1_err.txt")
    unread = [row for row in errors.of("sensor_samples") if row["label"].startswith("ECC")]
    assert [row["value"] for row in unread] == [None, None]
    assert any("Invalid argument" in note.text for note in errors.notes)
    assert not errors.codes
    dcmi = read("e_hwmon_edac_ipmi/ipmitool_dcmi_power.txt")
    assert [row["value"] for row in dcmi.of("sensor_samples")] == [167.0, 124.0, 422.0, 156.0]
    assert dcmi.of("node_samples")[0]["psu_w"] == 167.0


def test_ipmitool_sensor_keeps_equal_names_apart_and_empty_units_unknown() -> None:
    dell = read("e_hwmon_edac_ipmi/ipmitool_sensor_dell_dup_names.txt")
    assert (dell.sensor("Temp#1", "temperature")["value"], dell.sensor("Temp#2", "temperature")["value"]) == (
        30.0,
        27.0,
    )
    (node,) = dell.of("node_samples")
    assert (node["inlet_c"], node["psu_w"]) == (18.0, 98.0)
    near = read("e_hwmon_edac_ipmi/ipmitool_sensor_near_critical.txt")
    heat = {row["label"]: row for row in near.of("sensor_samples") if row["quantity"] == "temperature"}
    assert max(heat, key=lambda label: heat[label]["value"] or 0) == "TR3 Temperature"
    assert (heat["TR3 Temperature"]["value"], heat["TR3 Temperature"]["status"]) == (81.0, "ok")
    assert heat["TR4 Temperature"]["value"] == 79.0
    assert near.sensor("TR3 Temperature", "temperature_max")["value"] == 90.0
    assert all(row["value"] is None for row in near.of("sensor_samples") if row["label"] == "CPU2 Temperature")
    assert not near.codes


def test_hwmon_and_edac_tree(tmp_path: Path) -> None:
    found = read_tree("e_hwmon_edac_ipmi/sysfs_hwmon_edac_node_exporter.tar.gz", tmp_path)
    assert found.sensor("Composite", "temperature")["value"] == 43.85
    assert found.sensor("Composite", "temperature_crit")["value"] == 94.85
    assert found.sensor("Sensor 1", "temperature_max")["value"] is None
    counts = {
        (row["label"], row["quantity"]): row["counter"]
        for row in found.of("sensor_samples")
        if row["chip"] == "edac.mc0"
    }
    assert (counts["total", "corrected"], counts["total", "uncorrected"]) == (1, 5)
    assert (counts["noinfo", "corrected"], counts["noinfo", "uncorrected"]) == (2, 6)
    assert [counts[f"csrow{row}", "uncorrected"] for row in range(3)] == [4, 4, 5]
    assert found.codes == ["edac:ue"]
    assert found.of("events")[0]["severity"] == "critical"


def test_rasdaemon_names_the_repeating_dimm_and_no_disk_noise() -> None:
    errors = read("e_hwmon_edac_ipmi/ras-mc-ctl_errors_umc_ce.txt")
    assert errors.codes == ["ras:ce"] * 3 + ["ras:ce_repeating"]
    assert "0x319deb440" in errors.of("events")[-1]["message"]
    assert errors.of("events")[-1]["attrs"]["count"] == "3"
    aer = read("e_hwmon_edac_ipmi/ras-mc-ctl_summary_pcie_aer.txt")
    sums: dict[str, int] = {}
    for event in aer.of("events"):
        sums[event["code"]] = sums.get(event["code"], 0) + int(event["attrs"]["count"])
    assert sums == {"aer:corrected": 10, "aer:fatal": 6, "aer:nonfatal": 4}
    noise = read("e_hwmon_edac_ipmi/ras-mc-ctl_summary_disk_noise.txt")
    assert not noise.rows
    assert not noise.errors


def test_machine_check_without_status_has_unknown_severity() -> None:
    (event,) = read("e_hwmon_edac_ipmi/dmesg_mce_bank9_zero.log").of("events")
    assert (event["severity"], event["attrs"]["severity"], event["attrs"]["bank"]) == ("debug", "unknown", "9")


def test_redfish_keeps_units_and_flags_what_cannot_be() -> None:
    thermal = read("e_hwmon_edac_ipmi/redfish_dell_thermal.json")
    assert thermal.sensor("CPU1 Temp", "temperature")["value"] == 40.0
    assert thermal.sensor("CPU1 Temp", "temperature_crit")["value"] == 93.0
    assert thermal.sensor("System Board Fan1A", "fan")["value"] == 17760.0
    power = read("e_hwmon_edac_ipmi/redfish_dell_power.json")
    assert power.sensor("PS1 Status input", "power")["value"] == 900.0
    assert power.sensor("PS1 Status output", "power")["value"] == 203.0
    assert power.sensor("PS1 Status input", "voltage")["value"] == 206.0
    assert power.sensor("PS1 Status last output", "power")["value"] is None
    assert any("cannot both be right" in note.text for note in power.notes)
    hp = read("e_hwmon_edac_ipmi/redfish_hp_thermal.json")
    assert hp.sensor("01-Inlet Ambient", "temperature")["value"] == 19.0
    assert hp.sensor("44-P/S 2 Zone", "temperature")["value"] == 34.0
    fan = hp.sensor("Fan 1", "fan")
    assert (fan["value"], fan["unit"]) == (23.0, "%")
    assert hp.of("node_samples")[0]["fan_rpm_min"] is None


# i) storage


def test_diskstats_of_every_width() -> None:
    found = read("i_storage/proc_diskstats_node_exporter")
    disks = {row["target"]: row for row in found.of("storage_samples")}
    nvme = disks["nvme0n1"]
    assert (nvme["read_ops_total"], nvme["write_ops_total"], nvme["inflight"]) == (47114, 1078320, 0)
    assert nvme["write_ms"] == pytest.approx(0.94, abs=0.005)
    assert len(disks) == 51 or len(found.of("storage_samples")) == 51
    assert disks["ram0"]["read_ms"] is None
    assert disks["sdc"]["read_ops_total"] == 126552
    assert not found.errors


def test_mountstats_round_trip() -> None:
    first = read("i_storage/mountstats_node_exporter").of("storage_samples")[0]
    assert (first["target"], first["read_ops_total"]) == ("/mnt/nfs/test", 1298)
    assert first["read_ms"] == pytest.approx(61.2, abs=0.05)
    assert first["write_ms"] is None


def test_a_loaded_lustre_target_is_not_a_broken_one(tmp_path: Path) -> None:
    found = read_tree("i_storage/lustre_client_proc.tar.gz", tmp_path)
    targets = {row["target"]: row for row in found.of("storage_samples")}
    loaded = targets["lustrefs-OST0000"]
    assert loaded["inflight"] == 8
    assert loaded["write_ms"] == pytest.approx(6.056, abs=0.001)
    waits = {row["label"]: row["value"] for row in found.of("sensor_samples") if row["quantity"] == "wait"}
    assert waits["lustrefs-OST0000"] == 6054
    assert all(331 <= waits[f"lustrefs-OST000{index}"] <= 354 for index in range(1, 7))
    assert found.sensor("lustrefs-OST0000", "write_longest")["value"] == 1348857
    assert found.sensor("lustrefs-OST0000", "write_rate")["value"] == 592.2
    assert [targets[f"lustrefs-OST000{index}"]["write_ms"] for index in range(1, 7)] == [None] * 6
    assert not found.codes
    assert any("it is loaded" in note.text for note in found.notes)


# k) topology


def test_slurm_blocks() -> None:
    found = read("k_topology/slurm_topology.conf")
    blocks = {row["node"]: row["attrs"]["block"] for row in found.of("inventory")}
    assert len(blocks) == 32
    assert blocks["node10"] == "b3"
    assert sorted(set(blocks.values())) == [f"b{number}" for number in range(1, 9)]


def test_nccl_topology_pairs_devices_with_adapters() -> None:
    found = read("k_topology/nccl_ndv5-topo.xml")
    devices = [row for row in found.of("inventory") if row["device"] is not None]
    assert [row["attrs"]["near_nic"] for row in devices] == [f"nic{index}" for index in range(8)]
    assert len(found.of("links")) == 8


def test_fabric_scans_and_netq() -> None:
    scan = read("k_topology/ibnetdiscover_topograph_cut.out")
    leaves = {(row["node"], row["hca"]): row["leaf_switch"] for row in scan.of("inventory") if row["hca"]}
    assert leaves["a08-p1-dgx-04-c01", "mlx5_5"] == "A09-P1-IBLEAF-04-04"
    assert not any("Aggregation" in str(node) for node, _ in leaves)
    small = read("k_topology/ibnetdiscover_superbench.txt")
    hosts = {row["node"]: row["leaf_switch"] for row in small.of("inventory") if row["hca"]}
    assert hosts["RMD701091901003"] == "rmd70-0101-0919-01ib0"
    assert len(hosts) == 10
    netq = read("k_topology/netq_topologyGraph.json")
    rails = {(row["node"], row["hca"]): row["leaf_switch"] for row in netq.of("inventory") if row["hca"]}
    assert rails["dgx-05", "ens4f0np0"] == "net-unit-l2"
    assert len(netq.of("links")) == 79


def test_every_file_of_these_sections_is_covered_and_none_is_malformed() -> None:
    for section in ("d_rdma", "e_hwmon_edac_ipmi", "i_storage", "k_topology"):
        for path in sorted((INPUTS / section).iterdir()):
            if path.suffix == ".gz" or path.stat().st_size == 0:
                continue
            assert not read(f"{section}/{path.name}").errors, path.name
