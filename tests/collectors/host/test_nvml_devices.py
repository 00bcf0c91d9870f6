from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.collectors.nvml import NvmlCollector, load_nvml
from flightwatch.collectors.nvml_device import NVML_COLUMNS, Fields, Library
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import Row


class Machine:
    """A collector over the stand-in library, and its clock."""

    def __init__(self, nvml: Any, environment: Any) -> None:
        self.nvml, self.environment, self.now_s = nvml, environment, 100.0
        self.collector = NvmlCollector(
            environment, load=lambda: Library(nvml, nvml.field_values), monotonic_s=lambda: self.now_s
        )

    def rows(self, table: str = "device_samples") -> list[dict[str, Any]]:
        return [row.values for row in self.collector.collect(1234) if row.table == table]


@pytest.fixture
def machine(fake_nvml: Any, tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> Machine:
    return Machine(fake_nvml, environment_of(tree_of({"x": ""}), live=True))


def test_every_column_nvml_offers_in_its_unit(machine: Machine) -> None:
    first = machine.rows()[0]
    assert first == {
        "ts": 1234, "device": 0, "vendor": "nvidia", "model": "NVIDIA H200", "uuid": "GPU-0", "serial": "0123456789",
        "temp_c": 52, "temp_headroom_c": 35, "mem_temp_c": 41, "power_w": 627.32, "power_instant_w": 625.24,
        "power_limit_w": 700.0, "energy_j_total": 9000.5, "sm_clock_mhz": 1980, "mem_clock_mhz": 3201,
        "util_pct": 100, "mem_util_pct": 40, "mem_used_bytes": 5 << 30, "mem_total_bytes": 141 << 30, "fan_pct": None,
        "ecc_mode": "enabled", "ecc_corrected_total": 0, "ecc_uncorrected_total": 0, "ecc_corrected_lifetime_total": 3,
        "ecc_uncorrected_lifetime_total": 0, "retired_pages_total": None, "remapped_rows_total": 3,
        "remap_pending": True, "remap_failure": False, "throttle_reasons": 4, "throttle_thermal_us_total": 3,
        "throttle_power_us_total": 204_642_816, "pcie_replay_total": 7, "pcie_gen": 5, "pcie_width": 16,
        "pcie_rx_bytes_total": 1 << 41, "pcie_tx_bytes_total": 1 << 40, "link_rx_bytes_total": 20 * 1024,
        "link_tx_bytes_total": 10 * 1024, "link_errors_total": 3,
    }  # fmt: skip


def test_the_documented_columns_are_those_of_the_rows(machine: Machine) -> None:
    assert set(machine.rows()[0]) | {"parent_device", "mig_id", "quality"} == {*NVML_COLUMNS, "ts"}


def test_what_is_not_supported_is_null_and_not_asked_again_at_once(machine: Machine) -> None:
    machine.rows()
    machine.nvml.calls.clear()
    machine.now_s += 40
    machine.rows()
    assert "FanSpeed" not in machine.nvml.calls
    machine.nvml.answers["FanSpeed"] = 30
    machine.nvml.fields[29] = machine.nvml.fields[30] = 1
    machine.now_s += 601
    row = machine.rows()[0]
    assert (row["fan_pct"], row["retired_pages_total"]) == (30, 2)


def test_old_drivers_without_the_fields_call(machine: Machine) -> None:
    machine.nvml.fields.clear()
    del machine.nvml.answers["CurrentClocksEventReasons"]
    machine.nvml.answers["CurrentClocksThrottleReasons"] = 32
    row = machine.rows()[0]
    assert (row["power_w"], row["power_instant_w"], row["throttle_reasons"]) == (100.0, None, 32)
    assert row["ecc_corrected_total"] is None


def test_a_lost_device_keeps_its_row_and_says_so_once(machine: Machine) -> None:
    machine.rows()
    machine.nvml.broken[1] = 15
    events = machine.rows("events")
    assert [(event["device"], event["code"], event["severity"]) for event in events] == [(1, "nvml:lost", "critical")]
    assert machine.rows("events") == []
    rows = machine.rows()
    assert rows[0]["temp_c"] == 52
    assert rows[1] == {"ts": 1234, "device": 1, "vendor": "nvidia", "model": "NVIDIA H200", "uuid": "GPU-1",
                       "serial": "0123456789", "quality": "partial"}  # fmt: skip
    machine.nvml.broken.clear()
    machine.now_s += 61
    assert machine.rows()[1]["temp_c"] == 52


def test_an_error_of_one_device_hides_no_other(machine: Machine) -> None:
    machine.rows()
    machine.nvml.broken[0] = 999
    found = list(machine.collector.collect(5))
    assert [row.values.get("temp_c") for row in found if row.table == "device_samples"] == [None, 52]
    assert [row.values["code"] for row in found if row.table == "events"] == ["nvml:error"]


def test_a_driver_that_goes_away_is_started_again(machine: Machine) -> None:
    machine.rows()
    machine.nvml.count = 0
    machine.now_s += 61
    with pytest.raises(NoData, match="no device"):
        machine.rows()
    machine.nvml.start_error = 18
    machine.collector.close()
    assert not machine.environment.nvml_answers
    with pytest.raises(TransientError, match="does not start"):
        machine.rows()
    machine.nvml.start_error, machine.nvml.count = 0, 2
    assert len(machine.rows()) == 2
    assert machine.environment.nvml_answers


@pytest.mark.parametrize("code", [9, 12])
def test_no_driver_is_no_data(machine: Machine, code: int) -> None:
    machine.nvml.start_error = code
    with pytest.raises(NoData):
        machine.rows()


def test_mig_children(machine: Machine) -> None:
    machine.nvml.answers["MigMode"] = [1, 1]
    machine.nvml.mig[0] = ["MIG-a", "", "MIG-c"]
    children = [row for row in machine.rows() if "mig_id" in row]
    assert [(row["device"], row["parent_device"], row["mig_id"], row["uuid"]) for row in children] == [
        (0, 0, 0, "GPU-MIG-a"),
        (0, 0, 2, "GPU-MIG-c"),
    ]
    assert "power_w" not in children[0]


def test_links_one_by_one_at_their_own_interval(machine: Machine) -> None:
    links = [row for row in machine.rows("sensor_samples") if row["device"] == 0]
    assert [(row["label"], row["quantity"], row.get("value"), row.get("counter")) for row in links] == [
        ("0", "state", 1.0, None),
        ("1", "state", 0.0, None),
        ("0", "tx_bytes", None, 10 * 1024),
        ("0", "rx_bytes", None, 20 * 1024),
        ("0", "crc_errors", None, 2),
        ("0", "replays", None, 0),
    ]
    assert machine.rows("sensor_samples") == []
    machine.now_s += 15.1
    assert {row["device"] for row in machine.rows("sensor_samples")} == {1}
    machine.now_s += 15.1
    assert {row["device"] for row in machine.rows("sensor_samples")} == {0}
    machine.now_s += 100
    assert {row["device"] for row in machine.rows("sensor_samples")} == {0, 1}


def test_facts_reach_the_board(machine: Machine) -> None:
    machine.rows()
    facts = machine.environment.facts.all()
    assert facts[None, "driver.nvidia"] == "590.48.01"
    assert facts[1, "vbios"] == "96.00.A5"
    assert facts[0, "power_limit"] == "700 W"
    assert facts[0, "mig_mode"] == "disabled"


def test_a_machine_without_the_library_is_no_data() -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        with pytest.raises(NoData, match=r"no NVIDIA driver library"):
            load_nvml()
    else:
        assert hasattr(load_nvml().module, "nvmlInit")


def test_a_recorded_tree_asks_no_library(tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> None:
    with pytest.raises(NoData, match="recorded"):
        NvmlCollector(environment_of(tree_of({"x": ""}))).collect(1)


def test_rows_are_rows(machine: Machine) -> None:
    assert all(isinstance(row, Row) for row in machine.collector.collect(1))


def test_the_answer_layout_is_that_of_the_binding() -> None:
    pynvml = pytest.importorskip("pynvml")
    answer = pynvml.c_nvmlFieldValue_t
    assert ctypes.sizeof(answer) == 40
    offsets = [getattr(answer, name).offset for name in ("fieldId", "scopeId", "valueType", "nvmlReturn", "value")]
    assert offsets == [0, 4, 24, 28, 32]


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        (0, struct.pack("=d", 1.5), 1.5),
        (1, struct.pack("=II", 7, 0xFFFFFFFF), 7),
        (3, struct.pack("=Q", 2**63), 2**63),
        (4, struct.pack("=q", -2), -2),
        (5, struct.pack("=iI", -3, 9), -3),
        (6, struct.pack("=H6x", 65535), 65535),
        (99, struct.pack("=Q", 1), None),
    ],
)
def test_every_type_of_value(kind: int, raw: bytes, expected: float | None) -> None:
    def answer(handle: Any, count: int, buffer: Any) -> int:
        struct.pack_into("=IIqqII8s", buffer, 0, 82, 0, 0, 0, kind, 0, raw)
        return 0

    assert [value for _, _, value in Fields([(82, 0, "x")]).ask(Library(None, answer), None)] == [expected]


def test_an_interval_below_the_collectors_own_shows_all_links_in_every_call(
    fake_nvml: Any, tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    machine = Machine(fake_nvml, environment_of(tree_of({"x": ""}), settings={"link_interval_seconds": 0.0}))
    for _ in range(2):
        assert {row["device"] for row in machine.rows("sensor_samples")} == {0, 1}
