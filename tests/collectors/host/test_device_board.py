"""Addresses of devices reach the events of the kernel's log."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from flightwatch.collectors.device_board import DeviceBoard
from flightwatch.collectors.kernel_log import KernelLine, captures_parser
from flightwatch.collectors.live_rows import LiveRows
from flightwatch.collectors.nvml import NvmlCollector
from flightwatch.collectors.nvml_device import Library
from flightwatch.core.protocols import Row

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, GPU has fallen off the bus."


def test_an_xid_gets_the_index_that_nvml_knows(
    fake_nvml: Any, tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    environment = environment_of(tree_of({"x": ""}), live=True)
    fake_nvml.answers["PciInfo"] = SimpleNamespace(busId=b"00000000:9B:00.0")
    fake_nvml.count = 1
    list(NvmlCollector(environment, load=lambda: Library(fake_nvml, fake_nvml.field_values)).collect(1))
    rows = list(captures_parser()([(KernelLine(7, 3, 5, XID), 4242)]))
    environment.devices.fill(rows)
    assert rows[0].values["device"] == 0


def test_inventory_of_any_vendor_teaches_addresses(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    environment = environment_of(tree_of({"x": ""}), live=True)
    LiveRows(environment, "amd").keep([Row("inventory", {"device": 3, "attrs": {"pci_bus_id": "0000:1c:00.0"}})], 1)
    text = "amdgpu 0000:1c:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"
    rows = list(captures_parser()([(KernelLine(7, 3, 5, text), 4242)]))
    environment.devices.fill(rows)
    assert (rows[0].values["code"], rows[0].values["device"]) == ("ras:ue", 3)


def test_unknown_and_contested_addresses_give_no_index() -> None:
    board = DeviceBoard()
    board.offer("one", {"0000:9b:00.0": 1, "": 2})
    assert board.index_of("9B:00") == 1
    assert board.index_of("0000:9c:00.0") is None
    assert board.index_of("0001:9b:00.0") is None
    board.offer("other", {"0000:9b:00.0": 4})
    assert board.index_of("0000:9b:00.0") is None
    board.offer("other", {})
    assert board.index_of("0000:9b:00.0") == 1


def test_an_index_that_the_line_names_stays() -> None:
    board = DeviceBoard()
    board.offer("nvml", {"0000:9b:00.0": 1})
    rows = [Row("events", {"device": 4, "attrs": {"pci_bus_id": "0000:9b:00"}}), Row("events", {"attrs": {}})]
    board.fill(rows)
    assert [row.values.get("device") for row in rows] == [4, None]
