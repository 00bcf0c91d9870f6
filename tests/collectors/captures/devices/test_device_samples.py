"""Each device format against a small hand-written look-alike: what is read, what stays unknown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from flightwatch.collectors.captures.registry import DEVICE_PARSERS, parsers
from flightwatch.core.catalogue import TABLES
from flightwatch.core.protocols import CaptureContext, Note, Row

SAMPLES = Path(__file__).parent / "samples"
MIB = 2**20
#: A moment 10 s after the samples of npu_exporter.prom.
AT_MS = 1_790_000_000_000

#: Which parser reads which sample.
PARSER_OF = {
    "nvidia_smi_q_535_mig.txt": "nvidia-smi-q", "nvidia_smi_610.xml": "nvidia-smi-xml",
    "nvidia_query_nounits.csv": "nvidia-smi-csv", "nvidia_smi_table.txt": "nvidia-smi-table",
    "nvidia_dmon.txt": "nvidia-dmon", "nvidia_nvlink.txt": "nvidia-nvlink", "nvidia_topo.txt": "nvidia-topo",
    "nvidia_list.txt": "nvidia-smi-list", "dcgm.prom": "openmetrics", "other.prom": "openmetrics",
    "npu_exporter.prom": "openmetrics", "xpu_timer.prom": "openmetrics", "amd_exporter.prom": "openmetrics",
    "dcgm_counters.csv": "dcgm-counter-list", "rocm_smi.json": "rocm-smi-json", "rocm_table.txt": "rocm-smi-table",
    "hy_table.txt": "rocm-smi-table", "hy_smi.txt": "hy-smi-json", "amd_smi.json": "amd-smi-json",
    "amd_smi.txt": "amd-smi-text", "amd_monitor.csv": "amd-smi-csv", "npu_smi_info.txt": "npu-smi-info",
    "npu_smi_common.txt": "npu-smi-type", "mthreads_gmi.txt": "mthreads-gmi", "mthreads_gmi_q.txt": "mthreads-gmi-q",
    "mx_smi.txt": "mx-smi", "mx_smi_show.txt": "mx-smi-show", "cnmon.txt": "cnmon", "ixsmi.txt": "ixsmi",
    "xpu_smi_dump.csv": "xpu-smi-dump", "xpu_smi_stats.json": "xpu-smi-json", "gpustat.json": "detector-json",
    "amd_smi_table.txt": "amd-smi-table", "mx_smi_list.txt": "mx-smi-list", "mx_topo.txt": "nvidia-topo",
    "rocm_smi_a.txt": "rocm-smi-text",
    "detector.json": "detector-json", "topology.json": "detector-topology-json",
}  # fmt: skip


class Read:
    """Rows and notes of one sample."""

    def __init__(self, name: str, at_ms: int | None = None) -> None:
        path = SAMPLES / name
        parser = next(parser for parser in parsers() if parser.name == PARSER_OF[name])
        with path.open("rb") as stream:
            found = list(parser.parse(stream, CaptureContext(name, at_ms)))
        self.rows = [item for item in found if isinstance(item, Row)]
        self.notes = [item for item in found if isinstance(item, Note)]

    def of(self, table: str) -> list[dict]:
        return [row.values for row in self.rows if row.table == table]

    @property
    def devices(self) -> list[dict]:
        return self.of("device_samples")

    @property
    def codes(self) -> list[object]:
        return [event["code"] for event in self.of("events")]

    def reason(self, column: str) -> str:
        return next(note.text for note in self.notes if column in note.text.split(":")[0])

    def sensors(self, chip: str) -> dict[tuple[object, object], object]:
        return {
            (row["label"], row["quantity"]): row["counter"] if row["counter"] is not None else row["value"]
            for row in self.of("sensor_samples") if row["chip"] == chip
        }  # fmt: skip


def expect(row: dict, **values: object) -> None:
    """Check columns of a row exactly; floats to 1e-6."""
    for name, value in values.items():
        assert row[name] == (pytest.approx(value) if isinstance(value, float) else value), name


def test_every_sample_is_recognised_by_its_parser_alone() -> None:
    assert set(PARSER_OF) == {path.name for path in SAMPLES.iterdir()}
    device_parsers = {name for name, _ in DEVICE_PARSERS}
    assert set(PARSER_OF.values()) == device_parsers
    for name, wanted in PARSER_OF.items():
        head = (SAMPLES / name).read_bytes()[:65536]
        assert next(parser.name for parser in parsers() if parser.recognise(head)) == wanted, name


@pytest.mark.parametrize("name", [name for name, _ in DEVICE_PARSERS])
def test_declarations_name_catalogue_columns(name: str) -> None:
    parser = next(parser for parser in parsers() if parser.name == name)
    for table, columns in parser.CARRIES.items():
        assert len(set(columns)) == len(columns), table
        assert set(columns) <= set(TABLES[table].column_names), table
    for column in parser.NULL_NOTES:
        table, _, short = column.rpartition(".")
        known = TABLES[table].column_names if table else TABLES["device_samples"].column_names
        assert short in known, column


@pytest.mark.parametrize("name", sorted(PARSER_OF))
def test_rows_carry_exactly_what_is_declared(name: str) -> None:
    parser = next(parser for parser in parsers() if parser.name == PARSER_OF[name])
    read = Read(name)
    assert read.rows or read.notes
    for row in read.rows:
        carried = set(row.values) - {"ts", "node"}
        assert any(carried == set(columns) for table, columns in parser.CARRIES.items() if table == row.table) or (
            parser.name == "openmetrics" and carried <= set(parser.CARRIES[row.table])
        )


def test_nvidia_text_sections_mig_and_alarms() -> None:
    read = Read("nvidia_smi_q_535_mig.txt")
    gpu, first, second, other = read.devices
    expect(gpu, device=0, temp_c=88.0, mem_temp_c=91.0, power_w=403.55, power_limit_w=400.0, pcie_width=8, pcie_gen=4,
           pcie_replay_total=12, mem_used_bytes=78 * MIB, sm_clock_mhz=1155.0, throttle_reasons=0x4 | 0x8 | 0x40,
           ecc_mode="enabled", ecc_corrected_total=5, ecc_uncorrected_total=0, ecc_corrected_lifetime_total=100,
           ecc_uncorrected_lifetime_total=3, remapped_rows_total=7, remap_failure=True, fan_pct=None,
           temp_headroom_c=None, ts=1_709_611_506_000)  # fmt: skip
    assert gpu["extra"]["nvidia_smi.module_power_w"] == 999
    expect(first, parent_device=0, mig_id=0, mem_used_bytes=37 * MIB, ecc_uncorrected_total=2, temp_c=None)
    expect(second, parent_device=0, mig_id=1, mem_used_bytes=41 * MIB, ecc_uncorrected_total=None)
    expect(other, device=1, temp_c=31.0, voltage_mv=737.5, power_w=None)
    assert read.codes == ["remap:failure"]
    assert any("power_w: could not be read" in note.text for note in read.notes)


def test_nvidia_xml_of_a_newer_driver() -> None:
    read = Read("nvidia_smi_610.xml")
    (gpu,) = read.devices
    expect(gpu, power_w=912.4, power_instant_w=912.4, power_limit_w=1000.0, temp_headroom_c=24.0, temp_c=61.0,
           ecc_uncorrected_total=7, throttle_reasons=0x20, throttle_thermal_us_total=1750, pcie_gen=6,
           mem_clock_mhz=None, remap_pending=True, remapped_rows_total=1)  # fmt: skip
    assert read.codes == ["remap:pending", "repair:channel_pending", "recovery_action"]
    assert "deprecated" in read.reason("mem_clock_mhz")


def test_nvidia_csv_without_units() -> None:
    first, second = Read("nvidia_query_nounits.csv").devices
    expect(first, device=0, mem_used_bytes=1234 * MIB, mem_total_bytes=81559 * MIB, power_w=512.75, power_limit_w=700.0,
           sm_clock_mhz=1755.0, ecc_corrected_total=12, throttle_reasons=0x44, remap_pending=True)  # fmt: skip
    expect(second, temp_c=None, power_w=None, ecc_corrected_total=None, throttle_reasons=1)


def test_nvidia_default_table_with_a_lost_device() -> None:
    read = Read("nvidia_smi_table.txt")
    first, second = read.devices
    expect(first, temp_c=38.0, power_w=55.0, power_limit_w=300.0, mem_used_bytes=610 * MIB, util_pct=7.0,
           ecc_uncorrected_total=3, fan_pct=None)  # fmt: skip
    expect(second, temp_c=None, power_w=None, util_pct=None, ecc_uncorrected_total=None)
    assert read.codes == ["device:unreadable"]


def test_dmon_by_header_with_date() -> None:
    first, second = Read("nvidia_dmon.txt").devices
    expect(first, device=0, power_w=301.0, temp_c=55.0, mem_temp_c=None, mem_used_bytes=40536 * MIB,
           ts=1_772_366_401_000)  # fmt: skip
    assert first["extra"]["dmon.rxpci_mb_per_s"] == 120
    expect(second, device=1, mem_temp_c=33.0)


def test_nvlink_errors_state_and_traffic_with_sums() -> None:
    read = Read("nvidia_nvlink.txt")
    sensors = read.sensors("nvlink")
    assert sensors[("0", "replays")] == 3
    assert sensors[("0", "crc_errors")] == 5
    assert sensors[("1", "state")] == 0.0
    assert sensors[("2", "tx_bytes")] == 2048 * 1024
    expect(read.devices[0], link_errors_total=8, link_tx_bytes_total=2048 * 1024, link_rx_bytes_total=1024 * 1024)


def test_topology_matrix_and_device_list() -> None:
    links = {(row["from_target"], row["to_target"]): row["kind"] for row in Read("nvidia_topo.txt").of("links")}
    assert links == {("gpu0", "gpu1"): "nvlink", ("gpu0", "mlx5_0"): "pcie", ("gpu1", "mlx5_0"): "pcie"}
    listed = Read("nvidia_list.txt").of("inventory")
    assert [row["device"] for row in listed] == [0, 0, 1]
    assert listed[1]["attrs"]["mig_profile"] == "3g.40gb"


def test_dcgm_units_sentinels_links_and_last_xid() -> None:
    read = Read("dcgm.prom")
    first, second = read.devices
    expect(first, device=0, node="node-7", job="4711", model="NVIDIA H100", temp_c=63.0, throttle_power_us_total=1750,
           throttle_thermal_us_total=None, energy_j_total=81264135.0, mem_used_bytes=512 * MIB, link_errors_total=9,
           tensor_active_ratio=0.4375, retired_pages_total=None)  # fmt: skip
    assert first["extra"]["dcgm.thermal_violation"] == 4000
    assert "no unit" in read.reason("throttle_thermal_us_total")
    expect(second, device=1, temp_c=None)
    assert read.sensors("nvlink") == {("3", "crc_errors"): 7}
    (xid,) = read.of("events")
    assert xid["code"] == "xid:79"
    assert xid["attrs"] == {"state": "last", "err_msg": "GPU has fallen off the bus"}


def test_unknown_exporter_keeps_readings_by_name() -> None:
    read = Read("other.prom")
    (node,) = read.of("node_samples")
    assert node["load1"] == 4.25
    assert node["extra_counters"] == {"node.context_switches_total": 9007199254740999}
    (sensor,) = read.of("sensor_samples")
    assert sensor["counter"] == 18446744073709551000
    assert sensor["label"] == "device=eth0"
    assert [note.where for note in read.notes if note.level == "error"] == ["line 9"]


def test_npu_exporter_units_events_and_hccs() -> None:
    read = Read("npu_exporter.prom", AT_MS)
    (npu,) = read.devices
    expect(npu, device=2, temp_c=51.0, voltage_mv=910.0, mem_total_bytes=65536 * MIB, mem_used_bytes=3400 * MIB,
           ecc_uncorrected_total=1, link_errors_total=10, quality=None, ts=1_789_999_990_000)  # fmt: skip
    assert read.codes == ["npu:unhealthy", "ascend:80e18400"]
    assert Read("npu_exporter.prom", AT_MS + 700_000).devices[0]["quality"] == "stale"


def test_xpu_timer_ops_and_hang() -> None:
    read = Read("xpu_timer.prom")
    (op,) = read.of("op_timings")
    expect(op, rank=9, device=1, kind="comm", op="AllReduce/bf16/level3", dur_us=812.5, max_us=990.0, min_us=None)
    assert [event["rank"] for event in read.of("events")] == [9]


def test_table_driven_exporters() -> None:
    amd, mlu = Read("amd_exporter.prom").devices
    expect(amd, vendor="amd", device=3, node="amd-1", hotspot_c=71.0, util_pct=99.0, mem_used_bytes=1024 * MIB)
    expect(mlu, vendor="cambricon", device=1, util_pct=35.0, serial="M1")


def test_amd_reports() -> None:
    read = Read("rocm_smi.json")
    expect(read.devices[0], hotspot_c=58.0, temp_c=None, power_w=431.0, power_instant_w=431.0, power_limit_w=750.0,
           sm_clock_mhz=2100.0, util_pct=88.0, mem_util_pct=31.0, pcie_gen=5, pcie_width=16,
           voltage_mv=None)  # fmt: skip
    assert read.of("links")[0]["kind"] == "xgmi"
    first, second = Read("rocm_table.txt").devices
    expect(first, vendor="amd", temp_c=36.0, power_w=142.0, power_limit_w=750.0, sm_clock_mhz=133.0, util_pct=7.0)
    expect(second, temp_c=None, power_w=None, power_limit_w=None, sm_clock_mhz=None)
    read = Read("amd_smi.json")
    expect(read.devices[0], util_pct=64.0, mem_util_pct=None, power_w=511.0, hotspot_c=66.0, mem_temp_c=57.0,
           pcie_gen=5,
           ecc_corrected_total=18, ecc_uncorrected_total=1, mem_total_bytes=196592 * MIB, throttle_reasons=None,
           link_rx_bytes_total=12 * 1024, link_tx_bytes_total=34 * 1024)  # fmt: skip
    assert read.sensors("xgmi")[("1", "tx_bytes")] == 34 * 1024
    expect(Read("amd_smi.txt").devices[0], device=1, power_w=212.0, hotspot_c=55.0, temp_c=None, throttle_reasons=0,
           ecc_corrected_total=6, voltage_mv=None)  # fmt: skip
    first, second = Read("amd_smi_table.txt").devices
    expect(first, device=0, temp_c=39.0, power_w=143.0, power_limit_w=750.0, util_pct=61.0, mem_util_pct=5.0,
           mem_used_bytes=283 * MIB, mem_total_bytes=196592 * MIB, ecc_uncorrected_total=0)  # fmt: skip
    expect(second, device=1, temp_c=None, power_w=None, ecc_uncorrected_total=2)
    first, second = Read("rocm_smi_a.txt").devices
    expect(first, device=0, temp_c=35.0, hotspot_c=37.5, sm_clock_mhz=807.0, power_w=41.0, util_pct=3.0,
           pcie_replay_total=5)  # fmt: skip
    expect(second, device=1, temp_c=None)
    first, second = Read("amd_monitor.csv").devices
    expect(first, ts=1_770_000_000_000, power_w=144.0, hotspot_c=52.0, util_pct=97.0, mem_used_bytes=2048 * MIB)
    expect(second, device=1, power_w=None, util_pct=None)


def test_hygon_reports() -> None:
    first, second = Read("hy_smi.txt").devices
    expect(first, vendor="hygon", hotspot_c=61.5, util_pct=77.0, power_w=210.0, serial=None)
    expect(second, hotspot_c=None, util_pct=0.0, model="0x66a1")
    (table,) = Read("hy_table.txt").devices
    expect(table, vendor="hygon", temp_c=50.0, power_w=89.0, util_pct=41.5, power_limit_w=300.0)


def test_ascend_reports() -> None:
    read = Read("npu_smi_info.txt")
    first, second = read.devices
    expect(first, device=0, temp_c=36.0, power_w=178.9, util_pct=12.0, mem_used_bytes=3412 * MIB)
    expect(second, device=1, temp_c=37.0, power_w=None, mem_total_bytes=65536 * MIB)
    assert read.codes == ["npu:health"]
    read = Read("npu_smi_common.txt")
    expect(read.devices[0], device=3, temp_c=46.0, power_w=130.4, util_pct=6.0, sm_clock_mhz=1800.0)
    assert read.sensors("npu-mcu") == {("board", "temperature"): 40.0}


def test_moore_threads_reports() -> None:
    expect(Read("mthreads_gmi.txt").devices[0], temp_c=49.0, util_pct=17.0, mem_used_bytes=212 * MIB, pcie_width=4,
           ecc_mode=None)  # fmt: skip
    read = Read("mthreads_gmi_q.txt")
    expect(read.devices[0], device=0, model="MTT S4000", temp_c=66.0, power_w=310.25, util_pct=83.0, mem_util_pct=12.0,
           sm_clock_mhz=1500.0, mem_total_bytes=49152 * MIB)  # fmt: skip
    assert [row["status"] for row in read.of("sensor_samples")] == ["Up", "Down"]


def test_metax_cambricon_iluvatar_reports() -> None:
    expect(Read("mx_smi.txt").devices[0], temp_c=31.0, power_w=44.0, power_limit_w=None, mem_used_bytes=810 * MIB)
    expect(Read("mx_smi_show.txt").devices[0], hotspot_c=47.5, mem_temp_c=51.0, power_w=188.0)
    cut = next(note for note in Read("mx_smi_show.txt").notes if note.where == "attached gpus")
    assert "2 GPUs" in cut.text
    cambricon = Read("cnmon.txt")
    expect(cambricon.devices[0], temp_c=32.0, power_w=30.0, power_limit_w=150.0, mem_used_bytes=7 * MIB, util_pct=8.0,
           ecc_mode="enabled", ecc_corrected_total=None, ecc_uncorrected_total=None)  # fmt: skip
    assert cambricon.devices[0]["extra"]["cambricon.ecc_errors"] == 5
    expect(Read("ixsmi.txt").devices[0], temp_c=37.0, fan_pct=None, power_w=None, power_limit_w=None, util_pct=11.0)


def test_intel_and_generic_reports() -> None:
    first, second = Read("xpu_smi_dump.csv").devices
    expect(first, parent_device=0, mig_id=1, util_pct=87.5, power_w=271.1, mem_used_bytes=4096 * MIB,
           sm_active_ratio=0.5, throttle_reasons=0, ts=1_705_312_800_123)  # fmt: skip
    expect(second, util_pct=None, temp_c=None, throttle_reasons=0x40)
    (stats,) = Read("xpu_smi_stats.json").devices
    expect(stats, device=2, power_w=301.5, temp_c=59.0, mem_used_bytes=256 * MIB)
    (nvidia,) = Read("gpustat.json").devices
    expect(nvidia, vendor="nvidia", temp_c=44.0, power_w=61.0, power_limit_w=150.0, fan_pct=None)
    read = Read("detector.json")
    expect(read.devices[0], vendor="cambricon", power_limit_w=None, power_w=221.5, temp_c=48.0)
    assert read.codes == ["memory:status"]
    groups = [row["attrs"]["topology_group"] for row in Read("topology.json").of("inventory")]
    assert groups == ["0", "0", "1"]


def test_counter_list_says_what_is_not_collected() -> None:
    read = Read("dcgm_counters.csv")
    assert [row["name"] for row in read.of("config_facts")] == [
        "dcgm_field:DCGM_FI_DEV_GPU_TEMP", "dcgm_field:DCGM_FI_DEV_POWER_USAGE",
    ]  # fmt: skip
    assert "not collected" in read.notes[0].text


def test_the_metax_list_names_a_lost_device() -> None:
    read = Read("mx_smi_list.txt")
    assert [row["device"] for row in read.of("inventory")] == [0, 3]
    (event,) = read.of("events")
    assert (event["device"], event["code"], event["severity"]) == (3, "metax:state", "error")


def test_a_matrix_pasted_with_spaces_keeps_its_links() -> None:
    read = Read("mx_topo.txt")
    links = {(row["from_target"], row["to_target"]): row["kind"] for row in read.of("links")}
    assert links["gpu0", "gpu1"] == "metaxlink"
    assert links["gpu1", "gpu2"] == "pcie"
    assert len(links) == 6
    facts = {(row["device"], row["name"]): row["value"] for row in read.of("config_facts")}
    assert facts[2, "numa_node"] == "1"
    assert facts[2, "cpu_affinity"] == "16-31"


@pytest.mark.parametrize(("distance", "kind"), [(5, "scale_up"), (10, "pcie")])
def test_the_distance_says_whose_link_it_is(distance: int, kind: str) -> None:
    parser = next(parser for parser in parsers() if parser.name == "detector-topology-json")
    matrix = [[0, distance, 40], [distance, 0, 40], [40, 40, 0]]
    text = json.dumps([{"manufacturer": "nvidia", "devices_distances": matrix}]).encode()
    rows = [item for item in parser.parse(io.BytesIO(text), CaptureContext("x")) if isinstance(item, Row)]
    assert [row.values["kind"] for row in rows if row.table == "links"] == [kind]
