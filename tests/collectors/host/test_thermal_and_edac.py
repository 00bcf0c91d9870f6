from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.collectors.edac import EdacCollector, read_edac
from flightwatch.collectors.thermal import ThermalCollector, read_thermal
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row

ZONE = "sys/class/thermal/thermal_zone"
MC = "sys/devices/system/edac/mc"


def test_thermal_zones(tree_of: Callable[..., Any]) -> None:
    tree = tree_of(
        {
            f"{ZONE}0/type": "x86_pkg_temp",
            f"{ZONE}0/temp": "51000",
            f"{ZONE}0/trip_point_0_type": "critical",
            f"{ZONE}0/trip_point_0_temp": "51000",
            f"{ZONE}1/type": "x86_pkg_temp",
            f"{ZONE}1/temp": "49500",
            f"{ZONE}1/trip_point_3_type": "critical",
            f"{ZONE}1/trip_point_3_temp": "100000",
            f"{ZONE}2/temp": "",
            "sys/class/thermal/cooling_device0/type": "Fan",
        }
    )
    rows = [item.values for item in read_thermal(tree, 1) if isinstance(item, Row)]
    assert [(row["label"], row["value"], row["status"]) for row in rows] == [
        ("x86_pkg_temp#1", 51.0, "critical"),
        ("x86_pkg_temp#2", 49.5, "ok"),
        ("thermal_zone2", None, None),
    ]


def test_edac_controllers_rows_and_dimms(tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> None:
    tree = tree_of(
        {
            f"{MC}/mc0/ce_count": "1",
            f"{MC}/mc0/ue_count": "5",
            f"{MC}/mc0/ce_noinfo_count": "2",
            f"{MC}/mc0/mc_name": "skx",
            f"{MC}/mc0/csrow1/ue_count": "4",
            f"{MC}/mc0/csrow1/ch0_ce_count": "3",
            f"{MC}/mc0/dimm7/dimm_ce_count": "9",
            f"{MC}/mc1/ce_count": "10",
            f"{MC}/mc1/ue_count": "garbage",
            f"{MC}/power/ce_count": "1000",
        }
    )
    environment = environment_of(tree)
    rows = list(EdacCollector(environment).collect(7))
    found = {(row.values["chip"], row.values["label"], row.values["quantity"]): row.values["counter"] for row in rows}
    assert found == {
        ("edac.mc0", "total", "corrected"): 1,
        ("edac.mc0", "noinfo", "corrected"): 2,
        ("edac.mc0", "total", "uncorrected"): 5,
        ("edac.mc0", "csrow1", "uncorrected"): 4,
        ("edac.mc0", "csrow1.ch0", "corrected"): 3,
        ("edac.mc0", "dimm7", "corrected"): 9,
        ("edac.mc1", "total", "corrected"): 10,
        ("edac.mc1", "total", "uncorrected"): None,
    }
    assert environment.summary.merged(7, 0) == {"edac_corrected_total": 11, "edac_uncorrected_total": 5}
    notes = [item.where for item in read_edac(tree) if isinstance(item, Note)]
    assert notes == [f"{MC}/mc1/ue_count"]


def test_absent_hardware_is_no_data(tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> None:
    environment = environment_of(tree_of({"proc/x": ""}))
    for collector in (ThermalCollector(environment), EdacCollector(environment)):
        with pytest.raises(NoData):
            collector.collect(1)
