"""What the fleet map draws: blocks, values, outliers, scale."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from flightwatch.dashboard.components import fleet_view
from flightwatch.pipeline.store.fleet_reads import HOST, DeviceValues, Roster, joined, only_nodes


def roster(racks: list[str]) -> Roster:
    """One node of two devices a rack, and a host without any."""
    nodes = [f"n{i}" for i in range(len(racks)) for _ in range(2)] + ["z-host"]
    devices = np.array([0, 1] * len(racks) + [HOST], dtype=np.uint16)
    places = [rack for rack in racks for _ in range(2)] + [""]
    keys = np.arange(100, 100 + len(nodes), dtype=np.uint64)[::-1].copy()
    return Roster(nodes, devices, keys, ["nvidia X"] * len(nodes), {"rack": places})


def numbers(text: str, kind: str) -> list[float]:
    return [float(value) for value in np.frombuffer(base64.b64decode(text), dtype=kind)]


def values(found: Roster, known: list[float], age: float = 1.0) -> DeviceValues:
    return DeviceValues(found.keys[: len(known)], np.array(known, np.float32), np.full(len(known), age, np.float32))


def test_blocks_are_sorted_and_what_is_unknown_stands_last() -> None:
    found = fleet_view.arrange(roster(["b", "a", "b"]), "rack", "?")
    assert found.payload["groups"] == ["a", "b", "?"]
    assert numbers(found.payload["group_sizes"], "<u4") == [1, 2, 1]
    assert found.payload["nodes"] == ["n1", "n0", "n2", "z-host"]
    assert numbers(found.payload["counts"], "<u2") == [2, 2, 2, 1]
    assert numbers(found.payload["devices"], "<u2") == [0, 1, 0, 1, 0, 1, HOST]


def test_blocks_are_numbered_as_people_count() -> None:
    found = fleet_view.arrange(roster(["r10", "r9", "r100"]), "rack", "?")
    assert found.payload["groups"] == ["r9", "r10", "r100", "?"]


def test_the_key_changes_with_the_fleet_and_its_order_alone() -> None:
    same = fleet_view.arrange(roster(["a", "b"]), "rack", "?").payload["key"]
    assert fleet_view.arrange(roster(["a", "b"]), "rack", "?").payload["key"] == same
    assert fleet_view.arrange(roster(["a", "c"]), "rack", "?").payload["key"] != same


def test_values_find_their_device_and_what_is_missing_is_not_a_number() -> None:
    fleet = roster(["b", "a"])
    arrangement = fleet_view.arrange(fleet, "rack", "?")
    drawn = fleet_view.drawn(arrangement, "temp_c", "T", values(fleet, [50.0, 51.0, 60.0]), {})
    shown = numbers(drawn.payload["v"], "<f4")
    assert shown[:1] == [60.0]
    assert np.isnan(shown[1])
    assert shown[2:4] == [50.0, 51.0]
    # The host has no accelerator whose temperature could be missing.
    assert (drawn.unknown, drawn.stale, drawn.devices) == (1, 0, 4)
    assert (drawn.payload["low"], drawn.payload["high"]) == (35, 95)


def test_old_values_are_marked() -> None:
    fleet = roster(["a"])
    arrangement = fleet_view.arrange(fleet, "rack", "?")
    drawn = fleet_view.drawn(arrangement, "temp_c", "T", values(fleet, [50.0, 51.0], age=61.0), {})
    assert drawn.stale == 2
    assert numbers(drawn.payload["flags"], "u1") == [2, 2, 0]


def test_an_outlier_is_one_against_its_cohort_and_small_scatter_is_none() -> None:
    quiet = np.array([50.0, 51, 50, 51, 50, 51, 50, 51, 80, np.nan], dtype=np.float32)
    one = np.zeros(10, dtype=np.int64)
    assert np.flatnonzero(fleet_view.outliers(quiet, one, 1.5)).tolist() == [8]
    # The same value in a hot cohort is nothing special; fewer than eight peers say nothing.
    two = np.array([0] * 8 + [1, 1])
    assert not fleet_view.outliers(quiet, two, 1.5).any()
    assert not fleet_view.outliers(quiet, one, 30.0).any()


def test_findings_colour_their_device_or_the_whole_node() -> None:
    fleet = roster(["a", "b"])
    arrangement = fleet_view.arrange(fleet, "rack", "?")
    findings: list[dict[str, Any]] = [
        {"node": "n0", "device": 1, "severity": "P2"}, {"node": "n0", "device": 1, "severity": "P4"},
        {"node": "n1", "device": None, "severity": "P1"}, {"node": "", "device": None, "severity": "P1"},
    ]  # fmt: skip
    worst = fleet_view.worst_by_target(findings)
    drawn = fleet_view.drawn(arrangement, "findings", "F", values(fleet, [1.0]), worst)
    assert numbers(drawn.payload["v"], "<f4") == [0.0, 3.0, 4.0, 4.0, 0.0]


def test_a_scale_is_never_empty() -> None:
    spec = fleet_view.METRICS["sm_clock_mhz"]
    for known in ([], [1750.0] * 9, [np.nan], [1.0, 2.0, np.inf]):
        low, high = fleet_view.scale(np.array(known, dtype=np.float32), spec)
        assert low < high


def test_an_empty_fleet_is_drawn_as_nothing() -> None:
    nothing = only_nodes(roster(["a"]), set())
    arrangement = fleet_view.arrange(nothing, "rack", "?")
    none = DeviceValues(nothing.keys, np.array([], np.float32), np.array([], np.float32))
    drawn = fleet_view.drawn(arrangement, "temp_c", "T", joined(none, none), {})
    assert (drawn.devices, drawn.oldest_of_fresh_s, arrangement.payload["groups"]) == (0, None, [])


def test_an_arrangement_is_drawn_from_the_roster_that_it_arranged() -> None:
    fleet = roster(["b", "a"])
    arrangement = fleet_view.arrange(fleet, "rack", "?")
    # Remembered by the id of the roster: as long as it is, no other tenant's roster can have that id.
    assert arrangement.roster is fleet
