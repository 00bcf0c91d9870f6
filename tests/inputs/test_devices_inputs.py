"""Every recorded capture of sections a, b, c of the shared inputs against its right answer (inputs/LOG.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from flightwatch.collectors.captures.registry import parsers
from flightwatch.core.protocols import CaptureContext, Note, Row

INPUTS = Path(__file__).resolve().parents[3] / "shared" / "inputs"
pytestmark = [
    pytest.mark.inputs,
    pytest.mark.skipif(not INPUTS.is_dir(), reason="the folder ../shared/inputs is not beside this checkout"),
]
#: A moment after all captures, so that what is stale does not depend on the day of the test.
AT_MS = 1_790_000_000_000
MIB = 2**20


class Read:
    """What the parser that recognises a capture says about it."""

    def __init__(self, name: str, at_ms: int | None = None) -> None:
        path = INPUTS / name
        with path.open("rb") as stream:
            head = stream.read(65536)
            self.parser = next(parser for parser in parsers() if parser.recognise(head))
            stream.seek(0)
            found = list(self.parser.parse(stream, CaptureContext(name, at_ms)))
        self.rows = [item for item in found if isinstance(item, Row)]
        self.notes = [item for item in found if isinstance(item, Note)]

    def of(self, table: str) -> list[dict]:
        return [row.values for row in self.rows if row.table == table]

    @property
    def devices(self) -> list[dict]:
        return self.of("device_samples")

    @property
    def device(self) -> dict:
        assert len(self.devices) == 1
        return self.devices[0]

    @property
    def codes(self) -> list[object]:
        return [event["code"] for event in self.of("events")]

    @property
    def errors(self) -> list[str]:
        return [note.text for note in self.notes if note.level == "error"]

    def column(self, name: str) -> list[object]:
        return [device[name] for device in self.devices]

    def facts(self, name: str) -> set[object]:
        return {fact["value"] for fact in self.of("config_facts") if fact["name"] == name}


def expect(row: dict, **values: object) -> None:
    """Check columns of a row exactly; floats to 1e-6."""
    for name, value in values.items():
        assert row[name] == (pytest.approx(value) if isinstance(value, float) else value), name


# a) nvidia-smi


def test_a100_v12_one_gpu_of_four_with_gpu_power_not_module_power() -> None:
    read = Read("a_nvidia_smi/telegraf_a100-sxm4-v12.xml")
    gpus = [device for device in read.devices if device["mig_id"] is None]
    assert len(gpus) == 1
    expect(gpus[0], temp_c=27.0, mem_temp_c=44.0, power_w=67.03, voltage_mv=912.5, ecc_corrected_total=0,
           ecc_uncorrected_total=0, ecc_corrected_lifetime_total=0, remapped_rows_total=None,
           throttle_reasons=0)  # fmt: skip
    assert any("4 GPUs are attached and shows 1" in note.text for note in read.notes)
    assert read.of("inventory")[0]["attrs"]["pci_bus_id"] == "00000000:01:00.0"
    assert read.facts("driver") == {"535.54.03"}


def test_t4_voltage_and_remap_unknown_retired_pages_known() -> None:
    expect(Read("a_nvidia_smi/telegraf_tesla-t4.xml").device, voltage_mv=None, retired_pages_total=0,
           remapped_rows_total=None, remap_pending=None)  # fmt: skip


def test_small_report_without_driver_or_power() -> None:
    read = Read("a_nvidia_smi/telegraf_gtx-1070-ti.xml")
    expect(read.device, temp_c=39.0, power_w=None)
    assert not read.facts("driver")
    assert not read.errors


def test_driver_418_single_and_double_bit_layout() -> None:
    expect(Read("a_nvidia_smi/telegraf_quadro-p400.xml").device, ecc_corrected_total=None, ecc_uncorrected_total=None,
           ecc_mode=None, power_w=None, temp_c=33.0)  # fmt: skip


def test_driver_595_average_and_instant_power_and_deprecated_texts() -> None:
    read = Read("a_nvidia_smi/telegraf_rtx-3080-v13.xml")
    expect(read.device, power_w=139.62, power_instant_w=142.33, voltage_mv=None)
    assert not any("deprecated" in str(value).lower() for row in read.rows for value in row.values.values())


def test_mig_children_are_not_gpus_and_volatile_is_not_aggregate() -> None:
    read = Read("a_nvidia_smi/netdata_a100-sxm4-mig.xml")
    parent, *children = read.devices
    expect(parent, temp_c=36.0, mem_temp_c=44.0, power_w=66.92, voltage_mv=881.25, mig_id=None, parent_device=None,
           ecc_corrected_total=None, ecc_corrected_lifetime_total=0, ecc_uncorrected_lifetime_total=0)  # fmt: skip
    assert [(child["parent_device"], child["mig_id"]) for child in children] == [(0, 0), (0, 1)]
    assert all(child["temp_c"] is None and child["mem_total_bytes"] == 19968 * MIB for child in children)


def test_p100_aggregate_corrected_errors_are_no_alarm() -> None:
    read = Read("a_nvidia_smi/netdata_tesla-p100.xml")
    expect(read.device, ecc_corrected_lifetime_total=3, ecc_corrected_total=0, ecc_uncorrected_total=0)
    assert not read.codes


def test_tlimit_is_headroom_and_never_a_temperature() -> None:
    read = Read("a_nvidia_smi/netdata_rtx-4090-driver-535.xml")
    expect(read.device, temp_c=40.0, temp_headroom_c=43.0, ecc_mode="disabled")
    assert -7.0 not in read.device.values()


@pytest.mark.parametrize("kind", ["q.txt", "query_gpu.csv"])
def test_h200_under_load(kind: str) -> None:
    read = Read(f"a_nvidia_smi/capture_h200_590_load_{kind}")
    text = kind == "q.txt"
    expect(
        read.device, temp_c=52.0, temp_headroom_c=35.0, mem_temp_c=41.0 if text else 40.0,
        power_w=627.32 if text else 627.40, power_instant_w=625.24 if text else 626.26, power_limit_w=700.0,
        sm_clock_mhz=1980.0, throttle_reasons=0, throttle_power_us_total=0, throttle_thermal_us_total=0,
        remapped_rows_total=0, remap_pending=False, device=0,
    )  # fmt: skip
    assert not read.errors
    assert read.facts("driver") == {"590.48.01"}
    assert not any("[N/A]" in str(value) for row in read.rows for value in row.values.values())


def test_h200_idle_and_dmon_and_nvlink_and_topology() -> None:
    idle = Read("a_nvidia_smi/capture_h200_590_idle_q.txt").device
    assert idle["throttle_reasons"] == 1  # idle is a reason, no fault
    load = Read("a_nvidia_smi/capture_h200_590_load_dmon.txt")
    assert load.column("power_w") == [630, 628, 629, 632, 630]
    assert load.column("temp_c") == [53, 53, 53, 54, 54]
    links = Read("a_nvidia_smi/capture_h200_590_nvlink_s.txt").of("sensor_samples")
    states = [link for link in links if link["quantity"] == "state"]
    assert len(states) == 18
    assert all(link["chip"] == "nvlink" and link["value"] == 1.0 for link in states)
    topology = Read("a_nvidia_smi/capture_h200_590_topo_m.txt")
    assert topology.facts("numa_node") == {"0"}


def test_h100_under_load() -> None:
    expect(Read("a_nvidia_smi/capture_h100_sxm_590_load_q.txt").device, temp_c=59.0, temp_headroom_c=26.0,
           mem_temp_c=55.0, power_w=629.45, throttle_reasons=0)  # fmt: skip
    assert Read("a_nvidia_smi/capture_h100_sxm_590_load_query_gpu.csv").device["throttle_reasons"] == 0


@pytest.mark.parametrize("kind", ["q.txt", "query_gpu.csv"])
def test_l40s_power_capping_is_a_counter_not_a_present_throttle(kind: str) -> None:
    expect(Read(f"a_nvidia_smi/capture_l40s_595_load_{kind}").device, throttle_power_us_total=204_642_816,
           throttle_reasons=0, mem_temp_c=None)  # fmt: skip


def test_remap_pending_with_unreadable_ecc() -> None:
    read = Read("a_nvidia_smi/q_ecc_remap_pending_h100_550.txt")
    expect(read.device, remap_pending=True, remap_failure=False, remapped_rows_total=1, ecc_mode=None,
           ecc_corrected_total=None, ecc_uncorrected_total=None)  # fmt: skip
    assert read.device["extra"]["nvidia_smi.remap_banks_max"] == 2559
    assert read.device["extra"]["nvidia_smi.remap_banks_high"] == 1
    assert read.codes == ["ecc:unreadable", "remap:pending"]
    assert any(note.level == "warning" and "Unknown Error" in note.text for note in read.notes)


def test_corrected_errors_with_pending_remap() -> None:
    read = Read("a_nvidia_smi/q_xid63_pending_a100_510.txt")
    expect(read.device, ecc_corrected_total=177, ecc_corrected_lifetime_total=177, ecc_uncorrected_total=0,
           remap_pending=True, remap_failure=False)  # fmt: skip
    assert read.codes == ["remap:pending"]


# b) exporters


def test_dcgm_blank_sentinels_are_unknown() -> None:
    read = Read("b_dcgm/dcgm_1.4.6_blank_sentinel_k8s.prom")
    first, second = read.devices
    expect(first, temp_c=36.0, power_w=7.544, mem_temp_c=None, ecc_corrected_total=None, ecc_uncorrected_total=None,
           ecc_corrected_lifetime_total=None, retired_pages_total=None, link_errors_total=None)  # fmt: skip
    expect(second, temp_c=31.0, mem_temp_c=None)
    assert not any(value == 9223372036854775794 for device in read.devices for value in device.values())
    assert "gpu-rs-a" in {row["attrs"].get("pod") for row in read.of("inventory")}
    assert not read.errors


def test_dcgm_row_remap_failure_last_xid_and_units_from_help() -> None:
    read = Read("b_dcgm/netdata_metrics_valid.prom")
    gpu, child = read.devices
    expect(gpu, remap_failure=True, remapped_rows_total=7, mem_temp_c=None, throttle_thermal_us_total=5000,
           throttle_power_us_total=2000, util_pct=80.0, link_errors_total=4)  # fmt: skip
    expect(child, parent_device=0, mig_id=2, util_pct=60.0)
    xid = next(event for event in read.of("events") if event["code"] == "xid:31")
    assert xid["attrs"]["state"] == "last"
    assert "remap:failure" in read.codes


def test_dcgm_field_lists() -> None:
    default = Read("b_dcgm/dcgm_default-counters.csv")
    collected = {fact["name"] for fact in default.of("config_facts")}
    assert "dcgm_field:DCGM_FI_DEV_XID_ERRORS" in collected
    assert "dcgm_field:DCGM_FI_DEV_POWER_VIOLATION" not in collected
    assert any("POWER_VIOLATION: not collected" in note.text for note in default.notes)
    names = Read("b_dcgm/netdata_all_fields_nonlabel.txt")
    assert not names.rows
    assert any("kept in extra by name" in note.text for note in names.notes)


def test_nvidia_gpu_exporter_agrees_with_the_capture() -> None:
    one = Read("b_dcgm/smi_exporter_nvidia-h200__590.48.01__load.prom").device
    csv = Read("a_nvidia_smi/capture_h200_590_load_query_gpu.csv").device
    for name in ("device", "temp_c", "temp_headroom_c", "mem_temp_c", "power_w", "power_instant_w", "power_limit_w",
                 "sm_clock_mhz", "mem_clock_mhz", "util_pct", "mem_util_pct", "mem_used_bytes", "mem_total_bytes",
                 "throttle_reasons", "ecc_mode", "model"):  # fmt: skip
        assert one[name] == csv[name], name
    two = Read("b_dcgm/smi_exporter_demo__seeded.prom")
    assert two.column("device") == [0, 1]
    assert "xid:79" in two.codes


def test_xpu_timer_hanging_ranks() -> None:
    read = Read("b_dcgm/xpu_timer_hang_some.prom")
    hangs = [event for event in read.of("events") if event["code"] == "hang:xpu_timer"]
    assert sorted(event["rank"] for event in hangs) == [0, 2, 5]
    assert {op["job"] for op in read.of("op_timings")} == {"job-0001"}
    assert len(read.of("op_timings")) == 26


# c) other vendors


def test_mthreads_table_cut_after_the_third_gpu() -> None:
    read = Read("c_vendors/mthreads-gmi_s5000.txt")
    assert read.column("temp_c") == [52, 51, 52]
    assert read.column("mem_used_bytes") == [66641 * MIB, 64889 * MIB, 10 * MIB]
    assert set(read.column("mem_total_bytes")) == {81920 * MIB}
    assert read.column("pcie_width") == [16, 16, 16]
    assert read.column("ecc_mode") == ["enabled", "enabled", None]
    assert read.column("power_w") == [None] * 3
    assert read.facts("driver") == {"3.3.5-server"}
    assert read.facts("ecc_mode") == {"On-die, EDC"}


def test_mthreads_topology_two_groups() -> None:
    read = Read("c_vendors/gpustack_topology_output_mthreads_s5000.json")
    groups = [row["scale_up_domain"] for row in read.of("inventory")]
    assert groups == ["group0"] * 4 + ["group1"] * 4


def test_metax_table_and_temperatures() -> None:
    read = Read("c_vendors/mx-smi_c550_x8.txt")
    assert read.column("temp_c") == [29, 29, 30, 29, 30, 32, 32, 31]
    assert read.column("power_w") == [53, 53, 54, 54, 53, 55, 56, 56]
    assert set(read.column("power_limit_w")) == {450}
    assert read.facts("gpu_state") == {"Available"}
    show = Read("c_vendors/mx-smi_show-temperature.txt")
    assert show.column("hotspot_c") == [39.0, 39.25]
    inlets = [row["value"] for row in show.of("sensor_samples") if row["label"] == "air-inlet"]
    assert inlets == [28.75, 28.12]


def test_cambricon_ecc_not_available_against_zero() -> None:
    unknown = Read("c_vendors/cnmon_v5.10_mlu370_na_ecc.txt")
    assert unknown.column("temp_c") == [32, 39]
    assert unknown.column("power_w") == [106, 106]
    assert unknown.column("power_limit_w") == [250, 250]
    assert unknown.column("ecc_uncorrected_total") == [None, None]
    zero = Read("c_vendors/cnmon_v5.10.22_mlu370_ecc0.txt")
    assert zero.column("temp_c") == [28, 32]
    assert zero.column("power_w") == [107, 107]
    assert zero.column("ecc_uncorrected_total") == [0, 0]


def test_iluvatar_first_die_has_no_power_and_is_not_zero_watt() -> None:
    read = Read("c_vendors/ixsmi_bi-v150.txt")
    assert read.column("temp_c") == [32, 30]
    assert read.column("power_w") == [None, 93]
    assert read.column("power_limit_w") == [None, 350]


def test_npu_smi_values_before_their_chip_id() -> None:
    read = Read("c_vendors/npu-smi_info_t_usages_twochip.txt")
    assert read.column("util_pct") == [71, 69]
    assert [device["extra"]["npu_smi.hbmusagerate_pct"] for device in read.devices] == [42, 43]
    assert read.column("mem_util_pct") == [33, 31]
    ecc = Read("c_vendors/npu-smi_info_t_ecc_910b.txt").device
    expect(ecc, device=1, ecc_corrected_total=0, ecc_uncorrected_total=0, retired_pages_total=0)


def test_npu_exporter_samples_of_2020_are_stale() -> None:
    read = Read("c_vendors/ascend_npu-exporter.prom", AT_MS)
    assert read.column("device") == list(range(8))
    assert set(read.column("quality")) == {"stale"}
    assert not read.errors


def test_generic_detectors() -> None:
    ascend = Read("c_vendors/gpustack_detect_output_ascend_910b2.json")
    assert ascend.column("temp_c") == [47, 45, 45, 47, 44, 47, 45, 47]
    assert set(ascend.column("power_limit_w")) == {None}
    hygon = Read("c_vendors/gpustack_detect_output_hygon_k100ai.json")
    assert all(60 <= temp <= 65 for temp in hygon.column("temp_c"))  # type: ignore[operator]
    assert not hygon.codes
    assert not hygon.facts("driver")
    assert set(Read("c_vendors/gpustack_detect_output_amd_mi308x.json").column("power_limit_w")) == {650}


def test_hygon_json_that_is_none() -> None:
    read = Read("c_vendors/hy-smi_malformed_json_cases.txt")
    bare = next(device for device in read.devices if device["util_pct"] == 23)
    expect(bare, temp_c=41.0, power_w=80.0, sm_clock_mhz=1300.0)
    assert {0, 1} <= set(read.column("device"))
    assert "0x67e1" in read.column("model")
    assert not read.errors


def test_rocm_smi_across_releases() -> None:
    mi100 = Read("c_vendors/rocm-smi_mi100_rocm571.json")
    assert len(mi100.devices) == 6
    expect(mi100.devices[0], temp_c=31.0, hotspot_c=34.0, mem_temp_c=30.0, power_w=39.0, power_limit_w=290.0,
           voltage_mv=662.0, pcie_replay_total=0, quality=None)  # fmt: skip
    for release in ("430", "612"):
        expect(Read(f"c_vendors/rocm-smi_rx6700xt_rocm{release}.json").device, temp_c=45.0, hotspot_c=47.0,
               mem_temp_c=46.0, power_w=6.0, voltage_mv=6.0, quality="implausible")  # fmt: skip


def test_rocm_smi_without_json_means_not_collected() -> None:
    read = Read("c_vendors/rocm-smi_ras_no_json.txt")
    assert not read.rows
    assert not read.errors
    assert any("amd-smi metric -e" in note.text for note in read.notes)


def test_amd_smi_text_and_json() -> None:
    text = Read("c_vendors/amd-smi_metric_text.txt").device
    expect(text, voltage_mv=780.0, power_w=20.0, throttle_reasons=0)
    assert text["extra"]["amd_smi.soc_voltage_mv"] == 699
    assert text["extra"]["amd_smi.mem_voltage_mv"] == 666
    expect(Read("c_vendors/amd-smi_metric_usage.json").device, util_pct=42.0)


def test_every_capture_of_the_sections_is_read_without_errors_but_the_cut_one() -> None:
    broken = []
    for folder in ("a_nvidia_smi", "b_dcgm", "c_vendors"):
        for path in sorted((INPUTS / folder).iterdir()):
            if Read(f"{folder}/{path.name}").errors:
                broken.append(path.name)
    assert broken == ["mthreads-gmi_s5000.txt"]
