from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.collectors.hwmon import HwmonCollector, read_hwmon
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row

CHIP = "sys/class/hwmon/hwmon2"
NVME = "sys/class/hwmon/hwmon10"


def _rows(items: Any) -> dict[tuple[Any, Any], dict[str, Any]]:
    return {(row.values["chip"], row.values["label"]): row.values for row in items if isinstance(row, Row)}


def test_every_quantity_in_its_unit(tree_of: Callable[..., Any]) -> None:
    tree = tree_of(
        {
            f"{CHIP}/name": "nct6798\n",
            f"{CHIP}/temp1_input": "43850\n",
            f"{CHIP}/temp1_label": "SYSTIN\n",
            f"{CHIP}/in0_input": "1047\n",
            f"{CHIP}/fan2_input": "1998\n",
            f"{CHIP}/power1_average": "203500000\n",
            f"{CHIP}/power2_average": "1\n",
            f"{CHIP}/power2_input": "2000000\n",
            f"{CHIP}/curr1_input": "7200\n",
            f"{CHIP}/humidity1_input": "45000\n",
            f"{CHIP}/freq1_input": "214000000\n",
            f"{CHIP}/energy1_input": "123456789012345\n",
            f"{CHIP}/bogus1_input": "1\n",
        }
    )
    rows = _rows(read_hwmon(tree, 9))
    assert {(label, row["quantity"], row["unit"], row.get("value"), row.get("counter"))
            for (_, label), row in rows.items()} == {
        ("SYSTIN", "temperature", "C", 43.85, None),
        ("in0", "voltage", "mV", 1047, None),
        ("fan2", "fan", "rpm", 1998, None),
        ("power1", "power", "W", 203.5, None),
        ("power2", "power", "W", 2.0, None),
        ("curr1", "current", "A", 7.2, None),
        ("humidity1", "humidity", "%", 45.0, None),
        ("freq1", "clock", "MHz", 214.0, None),
        ("energy1", "energy", "uJ", None, 123456789012345),
    }  # fmt: skip


def test_an_unset_limit_is_no_limit(tree_of: Callable[..., Any]) -> None:
    tree = tree_of(
        {f"{NVME}/name": "nvme", f"{NVME}/temp2_input": "43850", f"{NVME}/temp2_max": "65261850",
         f"{NVME}/temp2_min": "-273150"}
    )  # fmt: skip
    assert _rows(read_hwmon(tree))["nvme", "temp2"]["status"] is None


@pytest.mark.parametrize(
    ("files", "value", "status"),
    [
        ({"temp1_crit": "95000"}, 43.0, "ok"),
        ({"temp1_crit": "43000"}, 43.0, "critical"),
        ({"temp1_crit": "95000", "temp1_max": "40000"}, 43.0, "warning"),
        ({"temp1_crit": "95000", "temp1_crit_alarm": "1"}, 43.0, "critical"),
        ({"temp1_alarm": "1"}, 43.0, "warning"),
        ({"temp1_alarm": "0"}, 43.0, "ok"),
        ({"temp1_fault": "1"}, None, "absent"),
    ],
)
def test_status(tree_of: Callable[..., Any], files: dict[str, str], value: float | None, status: str) -> None:
    row = _rows(
        read_hwmon(tree_of({f"{CHIP}/name": "k10temp", f"{CHIP}/temp1_input": "43000",
                            **{f"{CHIP}/{name}": content for name, content in files.items()}}))
    )["k10temp", "temp1"]  # fmt: skip
    assert (row["value"], row["status"]) == (value, status)


def test_equal_names_are_numbered_in_the_kernels_order(tree_of: Callable[..., Any]) -> None:
    tree = tree_of(
        {
            "sys/class/hwmon/hwmon9/name": "coretemp",
            "sys/class/hwmon/hwmon9/temp1_input": "9000",
            "sys/class/hwmon/hwmon9/temp1_label": "Core 0",
            "sys/class/hwmon/hwmon10/name": "coretemp",
            "sys/class/hwmon/hwmon10/temp1_input": "10000",
            "sys/class/hwmon/hwmon10/temp1_label": "Core 0",
            "sys/class/hwmon/hwmon10/temp2_input": "11000",
            "sys/class/hwmon/hwmon11/device/name": "applesmc",
            "sys/class/hwmon/hwmon11/device/fan1_input": "0",
        }
    )
    found = {key: row["value"] for key, row in _rows(read_hwmon(tree)).items()}
    assert found == {
        ("coretemp", "Core 0#1"): 9.0,
        ("coretemp", "Core 0#2"): 10.0,
        ("coretemp", "temp2"): 11.0,
        ("applesmc", "fan1"): 0,
    }


def test_a_sensor_without_a_number_is_null_with_a_note(tree_of: Callable[..., Any]) -> None:
    items = list(read_hwmon(tree_of({f"{CHIP}/name": "x", f"{CHIP}/temp1_input": "n/a"})))
    assert [item.values["value"] for item in items if isinstance(item, Row)] == [None]
    assert [item.text for item in items if isinstance(item, Note)] == ["x temp1 gives no reading"]


def test_the_worst_readings_reach_the_nodes_row(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    tree = tree_of(
        {
            f"{CHIP}/name": "bmc",
            f"{CHIP}/temp1_input": "21000",
            f"{CHIP}/temp1_label": "Inlet Temp",
            f"{CHIP}/temp2_input": "24000",
            f"{CHIP}/temp2_label": "Inlet 2",
            f"{CHIP}/temp3_input": "38000",
            f"{CHIP}/temp3_label": "Exhaust Temp",
            f"{CHIP}/fan1_input": "5000",
            f"{CHIP}/fan2_input": "4000",
            f"{CHIP}/fan3_input": "0",
            f"{CHIP}/fan4_input": "0",
            f"{CHIP}/fan4_min": "500",
            f"{NVME}/name": "power_meter",
            f"{NVME}/power1_average": "900000000",
        }
    )
    environment = environment_of(tree)
    collector = HwmonCollector(environment)
    collector.collect(1000)
    assert environment.summary.merged(1000, 0) == {
        "inlet_c": 24.0, "outlet_c": 38.0, "fan_rpm_min": 0, "psu_w": 900.0,
    }  # fmt: skip
    assert environment.summary.merged(20_000, 10_000) == {}


def test_a_fan_that_stops_counts_and_an_empty_header_does_not(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    environment = environment_of(tree_of({f"{CHIP}/fan1_input": "900", f"{CHIP}/fan2_input": "0"}))
    collector = HwmonCollector(environment)
    collector.collect(1)
    assert environment.summary.merged(1, 0) == {"fan_rpm_min": 900}
    tree_of({f"{CHIP}/fan1_input": "0"})
    collector.collect(2)
    assert environment.summary.merged(2, 0) == {"fan_rpm_min": 0}


def test_no_sensor_is_no_data(tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> None:
    with pytest.raises(NoData, match="no sensor"):
        HwmonCollector(environment_of(tree_of({"sys/class/hwmon/hwmon0/name": "x"}))).collect(1)
