"""Recorded logs of sections f, g, j of the shared inputs against their right answers (inputs/LOG.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.inspect import Inspection
from flightwatch.core.clock import parse_iso_utc
from flightwatch.core.protocols import Note, Row
from flightwatch.detectors.kernel_events import Incident, group_events

INPUTS = Path(__file__).resolve().parents[3] / "shared" / "inputs"
pytestmark = [
    pytest.mark.inputs,
    pytest.mark.skipif(not INPUTS.is_dir(), reason="the folder ../shared/inputs is not beside this checkout"),
]


class Read:
    """Rows, notes and incidents of one input."""

    def __init__(self, name: str) -> None:
        items = list(Inspection().run([str(INPUTS / name)]))
        self.rows = [item.what for item in items if isinstance(item.what, Row)]
        self.notes = [item.what for item in items if isinstance(item.what, Note)]
        self.incidents: list[Incident] = group_events(
            (item.source, item.what.values)
            for item in items
            if isinstance(item.what, Row) and item.what.table == "events"
        )

    def of(self, table: str) -> list[dict[str, Any]]:
        return [row.values for row in self.rows if row.table == table]

    @property
    def codes(self) -> list[str]:
        return [event["code"] for event in self.of("events")]

    def scalar(self, step: int | None, name: str) -> Any:
        return next(row["value"] for row in self.of("training_scalars") if (row["step"], row["name"]) == (step, name))


@pytest.mark.parametrize(
    ("name", "node", "device", "root", "consequences", "action"),
    [
        ("xid_74_nvlink_regs.log", None, "0003:00:00", "xid:74", [], "check_link"),
        ("xid_154_talos_prefix.log", "10.0.0.119", "0000:0b:00", "xid:154",
         ["nvrm:gsp_timeout", "nvrm:reset_required"], "reset_gpu"),
        ("dmesg_xid119_gsp.log", None, 4, "xid:119", ["nvrm:gsp_timeout"], "reset_gpu"),
        ("xid_31_48_hexdomain.log", None, "000d:00:00", "xid:48", ["xid:31"], "reset_gpu"),
        ("xid_95_ticket_inspur.txt", None, "0000:37:00", "xid:95", [], "reset_gpu"),
        ("fabricmanager_nvswitch.log", None, "00000000:86:00.0", "sxid:12028", [], "watch"),
        ("amdgpu_mi300x_athub.log", None, "0000:1c:00.0", "ras:ue", ["ras:aca"], "reset_amd"),
        ("amdgpu_mi50_reset_wedge.log", None, "0000:08:00.0", "ras:ue",
         ["ras:ce", "amdgpu:reset", "amdgpu:psp_failed", "amdgpu:reset_failed"], "power_cycle"),
        ("aer_correctable_badtlp.log", "node-01", "0000:00:03.1", "pcie:aer_correctable", [], "watch_rate"),
        ("ghes_apei_pcie_corrected.log", None, "0000:20:03.1", "apei:corrected", [], "watch_rate"),
        ("dmesg_decode_iso_libnccl_segfault.log", None, None, "segfault:libnccl", [], "library_crash"),
        ("pstore_panic_mlx5.log", None, None, "panic", [], "deliberate"),
    ],
)  # fmt: skip
def test_one_incident(
    name: str, node: str | None, device: Any, root: str, consequences: list[str], action: str
) -> None:
    (one,) = Read(f"f_kernel/{name}").incidents
    assert (one.node, one.device, one.root, one.consequences) == (node, device, root, consequences)
    assert one.action_key == action


def test_remap_and_failed_remap_on_two_nodes() -> None:
    failed, pending = Read("f_kernel/xid_63_64_idefics_before_spike.log").incidents
    assert (failed.node, failed.root, failed.action_key) == ("node-02", "xid:64", "isolate_rma")
    assert (pending.node, pending.root, pending.action_key) == ("node-01", "xid:63", "reset_idle")


def test_45_is_never_the_cause() -> None:
    read = Read("f_kernel/xid_45_caused_by_145_149.log")
    assert {(i.device, i.root) for i in read.incidents} == {
        ("0000:dc:00", "xid:149"), ("0000:ed:00", "xid:145"), ("0000:ba:00", "xid:145"), ("0000:97:00", "xid:145"),
    }  # fmt: skip
    assert all(i.consequences == ["xid:45"] for i in read.incidents)


def test_program_errors() -> None:
    program, peer = Read("f_kernel/xid_13_109_userapp.log").incidents
    assert (program.root, program.consequences, program.blames_hardware) == ("xid:13", ["xid:109"], False)
    assert peer.root == "peermem:error"


def test_mixed_layouts() -> None:
    read = Read("f_kernel/xid_mixed_formats_63_79_94.log")
    assert read.codes == ["xid:63", "xid:94", "xid:94", "xid:79", "xid:14", "xid:79"]
    assert [note.where for note in read.notes] == ["line 7"]


def test_details_of_kernel_lines() -> None:
    assert Read("f_kernel/xid_74_nvlink_regs.log").of("events")[0]["attrs"]["reg[2]"] == "0x10000"
    gsp = Read("f_kernel/dmesg_xid119_gsp.log")
    assert gsp.codes.count("xid:119") == 5
    assert gsp.of("events")[0]["ts"] == parse_iso_utc("2025-02-23T16:24:18Z")
    crash = Read("f_kernel/dmesg_decode_iso_libnccl_segfault.log")
    assert [event["attrs"]["pid"] for event in crash.of("events")] == ["2536443", "2536443"]
    assert Read("f_kernel/aer_correctable_badtlp.log").codes == ["pcie:aer_correctable"] * 2
    unplugged = Read("f_kernel/pstore_panic_mlx5.log").of("events")[0]
    assert (unplugged["code"], unplugged["severity"]) == ("mlx5:cable_unplugged", "info")


@pytest.mark.parametrize(
    ("name", "ranks", "seqs"),
    [
        ("watchdog_all_same_seq_8gpu.log", [0, 4, 0, 3], {"1580"}),
        ("watchdog_rank7_behind.log", [0, 0, 0, 0, 7], {"96120", "96117", "96125", "64088"}),
        ("watchdog_newformat_2.6_rank118.log", [118, 118], {"2398459"}),
        ("watchdog_v100_torch1x.log", [1, 3, 2, 6, 7], {"469508"}),
        ("hccl_watchdog_workhccl.log", [1, 0], {"196"}),
    ],
)
def test_watchdogs(name: str, ranks: list[int], seqs: set[str]) -> None:
    events = Read(f"g_hang/{name}").of("events")
    assert [event["rank"] for event in events] == ranks
    assert {event["attrs"]["seq"] for event in events} == seqs


def test_watchdog_numbers() -> None:
    status = Read("g_hang/watchdog_newformat_2.6_rank118.log").of("events")[1]["attrs"]
    assert (status["enqueued"], status["completed"]) == ("2398578", "2398458")
    assert Read("g_hang/watchdog_all_same_seq_8gpu.log").of("events")[2]["attrs"]["completed"] == "1579"
    (stuck,) = Read("g_hang/watchdog_stuck_heartbeat.log").of("events")
    assert (stuck["rank"], stuck["code"], stuck["attrs"]["stuck_s"]) == (6, "watchdog:stuck", "480")


def test_ras_suspects_are_not_the_listed_ranks() -> None:
    attrs = Read("g_hang/ncclras_mismatch_two_ahead.txt").of("events")[0]["attrs"]
    behind = attrs["behind_ranks"].split(",")
    assert attrs["ahead_ranks"] == "12,13"
    assert len(behind) == 30
    assert "12" not in behind


def test_library_start_and_transport_error() -> None:
    read = Read("g_hang/nccl_info_init_64ranks.log")
    started = {e["rank"]: e["device"] for e in read.of("events") if e["code"] == "nccl:init"}
    assert started == {36: 4, 34: 2, 32: 0, 35: 3}
    (error,) = [e for e in read.of("events") if e["code"] == "nccl:ib_completion"]
    assert (error["attrs"]["status"], error["attrs"]["vendor_err"], error["attrs"]["peer"]) == (
        "12",
        "129",
        "10.0.0.182",
    )


def test_crashes_and_stacks() -> None:
    assert Read("g_hang/rocm_hw_exception_gpu_hang.log").codes == ["rocm:gpu_hang"] * 3
    (cuda,) = Read("g_hang/bloom_gpu_crash_cudaerror.log").of("events")
    assert (cuda["code"], cuda["attrs"]["local_rank"]) == ("cuda:error", "3")
    assert Read("g_hang/pyspy_rank0_dataloader.txt").of("events")[0]["attrs"]["waits_for"] == "input"
    assert Read("g_hang/pyspy_h100_backward_stuck.txt").of("events")[0]["attrs"]["waits_for"] == "device"


def test_the_spike() -> None:
    read = Read("j_training/bloom176B_spike_iter31219.log")
    steps = sorted({row["step"] for row in read.of("training_scalars")})
    assert steps == [*range(31214, 31223), 31250, 31251]
    assert read.scalar(31219, "loss") == pytest.approx(5.098124)
    assert [read.scalar(step, "grad_norm") for step in (31215, 31217, 31218, 31219)] == [
        0.947,
        15.886,
        145.119,
        960.351,
    ]
    assert read.scalar(31250, "loss") == pytest.approx(2.216, abs=1e-3)
    assert read.scalar(31250, "grad_norm") == pytest.approx(0.267)
    times = [row["dur_us"] for row in read.of("op_timings")]
    assert all(100e6 < time < 110e6 for time in times)


def test_skipped_iterations_and_timers() -> None:
    read = Read("j_training/megatron_lossscale_skip10_timers.log")
    assert read.scalar(10, "skipped_iterations") == 10.0
    timers = {row["op"]: row["dur_us"] for row in read.of("op_timings")}
    assert timers["forward-compute"] == pytest.approx(193_770.0)
    assert timers["batch-generator"] == pytest.approx(25_270.0)
    assert not read.of("events")


def test_steady_training_and_host_prefixes() -> None:
    steady = Read("j_training/megatron_llama_steady_iter122.log")
    assert steady.scalar(122, "loss") == pytest.approx(2.50422)
    prefixed = Read("j_training/superbench_megatron_deepspeed.log")
    steps = {row["step"]: row["dur_us"] for row in prefixed.of("op_timings") if row["op"] == "step"}
    assert sorted(steps) == [1, 2, 3, 4, 5]
    assert steps[1] == pytest.approx(76_015_300.0)
    assert steps[4] == pytest.approx(75_182_400.0)
    assert {row["node"] for row in prefixed.of("op_timings") if row["op"] == "step"} == {"node-14"}


def test_benchmarks() -> None:
    table = Read("j_training/nccl_allreduce_bench.log")
    busbw = {row["label"]: row["value"] for row in table.of("sensor_samples")}
    assert busbw["all_reduce 8589934592 B out-of-place"] == 235.26
    assert 68.4048 not in busbw.values()
    results = Read("j_training/superbench_results_nodes.jsonl")
    assert len({row["node"] for row in results.of("sensor_samples")}) == 3
