"""Live vendor collectors: commands with their pauses and failures, libraries with what they do not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.registry import COLLECTORS, Entry
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.tree import FolderTree
from flightwatch.collectors.vendors.amd import AmdCollector, load_amdsmi
from flightwatch.collectors.vendors.ascend import AscendCollector
from flightwatch.collectors.vendors.metax import MetaxCollector
from flightwatch.collectors.vendors.mthreads import MthreadsCollector, load_mtml
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import Row

SAMPLES = Path(__file__).parents[1] / "captures" / "devices" / "samples"
NOW_MS = 1_790_000_000_000
#: What each vendor's first command prints.
PRINTED = {
    "ascend": ("npu-smi", "npu_smi_info.txt"), "metax": ("mx-smi", "mx_smi.txt"), "cambricon": ("cnmon", "cnmon.txt"),
    "iluvatar": ("ixsmi", "ixsmi.txt"), "hygon": ("hy-smi", "hy_smi.txt"),
    "intel": ("xpu-smi", "xpu_smi_dump.csv"),
    "amd": ("amd-smi", "amd_smi.json"), "mthreads": ("mthreads-gmi", "mthreads_gmi.txt"),
}  # fmt: skip


class Commands:
    """Stands for the machine's programs."""

    def __init__(self, printed: dict[str, bytes | Exception]) -> None:
        self.printed = printed
        self.asked: list[Sequence[str]] = []

    def __call__(self, words: Sequence[str], timeout_seconds: float) -> bytes:
        self.asked.append(words)
        answer = self.printed.get(words[0], NoData(f"{words[0]} is not installed"))
        if isinstance(answer, Exception):
            raise answer
        return answer


def environment(commands: Callable[[Sequence[str], float], bytes], live: bool = True) -> Environment:
    return Environment(FolderTree("/"), live, AgentSettings(), commands)


def no_library() -> Any:
    raise NoData("no library")


def devices(rows: Any) -> list[dict]:
    return [row.values for row in rows if row.table == "device_samples"]


@pytest.mark.parametrize("vendor", sorted(PRINTED))
def test_a_vendors_command_becomes_rows(vendor: str) -> None:
    program, sample = PRINTED[vendor]
    commands = Commands({program: (SAMPLES / sample).read_bytes()})
    surroundings = environment(commands)
    entry = next(Entry(*row[:3]) for row in COLLECTORS if row[0] == vendor)
    collector: Any = entry.make(surroundings)
    if vendor in ("amd", "mthreads"):
        collector = {"amd": AmdCollector, "mthreads": MthreadsCollector}[vendor](surroundings, no_library)
    rows = list(collector.collect(NOW_MS))
    assert devices(rows)
    for row in rows:
        assert isinstance(row, Row)
        assert row.table != "config_facts"
        assert isinstance(row.values["ts"], int)
    assert getattr(collector, "own_thread", False)


@pytest.mark.parametrize("vendor", sorted(PRINTED))
def test_absent_tools_and_recorded_trees_are_no_data(vendor: str) -> None:
    entry = next(Entry(*row[:3]) for row in COLLECTORS if row[0] == vendor)
    with pytest.raises(NoData):
        entry.make(environment(Commands({}))).collect(NOW_MS)
    with pytest.raises(NoData):
        entry.make(environment(Commands({}), live=False)).collect(NOW_MS)


def test_commands_are_never_run_more_often_than_every_30_seconds() -> None:
    assert AscendCollector(environment(Commands({}))).interval_seconds >= 30
    commands = Commands({"amd-smi": (SAMPLES / "amd_smi.json").read_bytes()})
    now = [0.0]
    collector = AmdCollector(environment(commands), no_library, lambda: now[0])
    assert devices(collector.collect(NOW_MS))
    now[0] = 29.0
    assert not list(collector.collect(NOW_MS + 29_000))
    now[0] = 31.0
    assert devices(collector.collect(NOW_MS + 31_000))
    assert len(commands.asked) == 2


def test_the_next_command_is_tried_when_one_is_not_installed() -> None:
    commands = Commands({"rocm-smi": (SAMPLES / "rocm_smi.json").read_bytes()})
    rows = AmdCollector(environment(commands), no_library).collect(NOW_MS)
    assert devices(rows)[0]["power_w"] == 431.0
    assert [words[0] for words in commands.asked] == ["amd-smi", "rocm-smi"]


def test_a_failing_further_command_keeps_the_first_ones_rows() -> None:
    class Picky(Commands):
        def __call__(self, words: Sequence[str], timeout_seconds: float) -> bytes:
            if "--show-temperature" in words:
                raise TransientError("mx-smi did not answer")
            return super().__call__(words, timeout_seconds)

    rows = MetaxCollector(environment(Picky({"mx-smi": (SAMPLES / "mx_smi.txt").read_bytes()}))).collect(NOW_MS)
    assert devices(rows)[0]["temp_c"] == 31.0


@pytest.mark.parametrize("answer", [b"", b"Segmentation fault\n", TransientError("npu-smi did not answer in 20 s")])
def test_a_broken_answer_is_a_failure_and_not_no_device(answer: bytes | Exception) -> None:
    with pytest.raises(TransientError, match="npu-smi"):
        AscendCollector(environment(Commands({"npu-smi": answer}))).collect(NOW_MS)


def test_local_time_in_the_output_is_not_taken_for_utc() -> None:
    text = (SAMPLES / "mx_smi.txt").read_bytes().replace(b"06:24:52 2024", b"22:26:40 2026").replace(
        b"Mon Sep 23", b"Mon Sep 21")  # fmt: skip
    # The tool's clock runs 8 h ahead of UTC: NOW_MS is 2026-09-21T14:13:20Z, printed 13 min 20 s later in UTC+8.
    now_ms = NOW_MS + 800_000 + 5_000
    rows = MetaxCollector(environment(Commands({"mx-smi": text}))).collect(now_ms)
    assert abs(devices(rows)[0]["ts"] - now_ms) <= 5_000


class FakeAmd:
    """Stands for the amdsmi module: one device that knows some things, one that knows nothing."""

    class AmdSmiException(Exception):
        pass

    AmdSmiTemperatureType = SimpleNamespace(EDGE=0, HOTSPOT=1, VRAM=3)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    AmdSmiClkType = SimpleNamespace(GFX=1, MEM=5)

    def __init__(self) -> None:
        self.shut_down = False

    def amdsmi_init(self) -> None:
        self.shut_down = False

    def amdsmi_shut_down(self) -> None:
        self.shut_down = True

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["known", "silent"]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Any] = {
            "amdsmi_get_gpu_asic_info": {"market_name": "MI300X", "asic_serial": "0xS1"},
            "amdsmi_get_gpu_driver_info": {"driver_version": "6.10"},
            "amdsmi_get_gpu_device_uuid": "u-1",
            "amdsmi_get_gpu_device_bdf": "0000:05:00.0",
            "amdsmi_get_power_info": {"socket_power": 410, "average_socket_power": "N/A", "current_socket_power": 411,
                                      "gfx_voltage": 65535},
            "amdsmi_get_power_cap_info": {"power_cap": 750_000_000},
            "amdsmi_get_energy_count": {"energy_accumulator": 2_000_000, "counter_resolution": 15.0},
            "amdsmi_get_gpu_activity": {"gfx_activity": 93, "umc_activity": "N/A"},
            "amdsmi_get_clock_info": {"clk": 2100},
            "amdsmi_get_gpu_vram_usage": {"vram_used": 1024, "vram_total": 196592},
            "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 5, "uncorrectable_count": 0},
            "amdsmi_get_pcie_info": {"pcie_metric": {"pcie_width": 16, "pcie_speed": 32000, "pcie_replay_count": 2}},
            "amdsmi_get_gpu_process_list": [{"pid": 70, "mem": 1}, {"pid": 71}, {"pid": 70}, "handle", {"name": "N/A"}],
            "amdsmi_get_link_metrics": {"num_links": 2, "links": [{"read": 3, "write": 4}, {"read": 5, "write": 6},
                                          {}]},
        }  # fmt: skip

        def call(handle: str, *arguments: Any) -> Any:
            if handle == "silent":
                raise self.AmdSmiException("not supported")
            if name == "amdsmi_get_temp_metric":
                if arguments[0] == 0:
                    raise self.AmdSmiException("no edge sensor")
                return 60 + arguments[0]
            return answers[name]

        return call


def test_amdsmi_readings_units_and_unknowns() -> None:
    library = FakeAmd()
    surroundings = environment(Commands({}))
    collector = AmdCollector(surroundings, lambda: library)
    rows = list(collector.collect(NOW_MS))
    known, silent = devices(rows)
    assert known["device"] == 0
    assert (known["temp_c"], known["hotspot_c"], known["mem_temp_c"]) == (None, 61.0, 63.0)
    assert (known["power_w"], known["power_instant_w"], known["power_limit_w"]) == (410.0, 411.0, 750.0)
    assert known["energy_j_total"] == pytest.approx(30.0)
    assert (known["util_pct"], known["mem_util_pct"], known["voltage_mv"]) == (93.0, None, None)
    assert known["mem_total_bytes"] == 196592 * 2**20
    assert (known["pcie_gen"], known["pcie_width"], known["pcie_replay_total"]) == (5, 16, 2)
    assert (known["link_rx_bytes_total"], known["link_tx_bytes_total"]) == (8 * 1024, 10 * 1024)
    assert [value for name, value in silent.items() if name not in ("ts", "node", "device", "vendor")] == [None] * (
        len(silent) - 4
    )
    assert surroundings.facts.all()[0, "driver.amd"] == "6.10"
    assert sum(row.table == "inventory" for row in rows) == 1
    assert surroundings.devices.processes() == {70: [0], 71: [0]}
    assert surroundings.devices.index_of("0000:05:00.0") == 0
    assert not any(row.table == "inventory" for row in collector.collect(NOW_MS + 1000))
    collector.close()
    assert library.shut_down
    assert not surroundings.devices.processes()


def test_a_library_that_answers_nothing_is_a_failure_and_started_again() -> None:
    library = FakeAmd()
    handles = [["silent"], ["known"]]
    library.amdsmi_get_processor_handles = lambda: handles.pop(0)  # type: ignore[method-assign]
    collector = AmdCollector(environment(Commands({})), lambda: library)
    with pytest.raises(TransientError, match="no longer answers"):
        collector.collect(NOW_MS)
    assert library.shut_down
    assert devices(collector.collect(NOW_MS + 1000))[0]["power_w"] == 410.0


class FakeMtml:
    """Stands for the pymtml module of mthreads-ml-py."""

    class MTMLError(Exception):
        pass

    MTML_MEMORY_ECC_ENABLE = 1
    MTML_MEMORY_LOCATION_DRAM = 1
    MTML_MEMORY_ERROR_TYPE_CORRECTED, MTML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    MTML_VOLATILE_ECC, MTML_AGGREGATE_ECC = 0, 1
    MTML_MTLINK_STATE_UP = 1
    fail_init = False

    def mtmlLibraryInit(self) -> None:  # noqa: N802
        if self.fail_init:
            raise self.MTMLError("driver not loaded")

    def mtmlMemoryGetEccErrorCounter(self, memory: str, kind: int, counter: int, place: int) -> int:  # noqa: N802
        return 10 * counter + kind

    def mtmlDeviceGetMtLinkState(self, device: str, link: int) -> int:  # noqa: N802
        return 1 if link == 0 else 2

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Any] = {
            "mtmlLibraryCountDevice": 1, "mtmlLibraryInitDeviceByIndex": "dev", "mtmlDeviceInitMemory": "mem",
            "mtmlDeviceGetName": "MTT S5000", "mtmlDeviceGetUUID": "u-5", "mtmlDeviceGetSerialNumber": b"SN5\0",
            "mtmlGpuGetTemperature": 57, "mtmlDeviceGetPowerUsage": 412_500, "mtmlGpuGetUtilization": 88,
            "mtmlMemoryGetUtilization": 20, "mtmlGpuGetClock": 1700, "mtmlMemoryGetUsed": 4 << 30,
            "mtmlMemoryGetTotal": 80 << 30, "mtmlMemoryGetEccMode": (1, 1), "mtmlLibraryShutDown": None,
            "mtmlDeviceGetPciInfo": SimpleNamespace(pciCurGen=5, pciCurWidth=16, busId=b"0000:2a:00.0"),
            "mtmlMemoryGetRetiredPagesCount": SimpleNamespace(singleBitEcc=1, doubleBitEcc=2),
            "mtmlDeviceGetMtLinkSpec": SimpleNamespace(linkNum=2),
        }  # fmt: skip

        def call(*arguments: Any) -> Any:
            if name not in answers:
                raise self.MTMLError(f"{name} is not supported")
            return answers[name]

        return call


def test_mtml_readings_units_and_unknowns() -> None:
    rows = list(MthreadsCollector(environment(Commands({})), FakeMtml).collect(NOW_MS))
    (gpu,) = devices(rows)
    assert (gpu["temp_c"], gpu["power_w"], gpu["util_pct"], gpu["mem_clock_mhz"]) == (57.0, 412.5, 88.0, None)
    assert gpu["mem_total_bytes"] == 80 << 30
    assert (gpu["ecc_mode"], gpu["ecc_uncorrected_total"], gpu["ecc_corrected_lifetime_total"]) == ("enabled", 1, 10)
    assert (gpu["retired_pages_total"], gpu["pcie_gen"], gpu["serial"]) == (3, 5, "SN5")
    states = {row.values["label"]: row.values["status"] for row in rows if row.table == "sensor_samples"}
    assert states == {"0": "up", "1": "downgraded"}


def test_a_library_without_driver_falls_back_to_the_command_and_is_tried_again() -> None:
    library = FakeMtml()
    library.fail_init = True
    now = [0.0]
    commands = Commands({"mthreads-gmi": (SAMPLES / "mthreads_gmi.txt").read_bytes()})
    collector = MthreadsCollector(environment(commands), lambda: library, lambda: now[0])
    assert devices(collector.collect(NOW_MS))[0]["temp_c"] == 49.0
    library.fail_init = False
    now[0] = 61.0
    assert devices(collector.collect(NOW_MS + 61_000))[0]["temp_c"] == 57.0


def test_libraries_are_absent_here() -> None:
    with pytest.raises(NoData, match="amdsmi"):
        load_amdsmi()
    with pytest.raises(NoData, match="mthreads-ml-py"):
        load_mtml()
