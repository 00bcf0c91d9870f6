from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.collectors.infiniband import InfinibandCollector, read_infiniband
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row

PORT = "sys/class/infiniband/mlx5_3/ports/1"
HEALTHY = {
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)\n",
    f"{PORT}/link_layer": "InfiniBand\n",
    f"{PORT}/counters/port_rcv_data": "1000\n",
    f"{PORT}/counters/port_xmit_data": "4611686018427387903\n",
    f"{PORT}/counters/link_downed": "2\n",
    f"{PORT}/counters/VL15_dropped": "6\n",
    f"{PORT}/hw_counters/lifespan": "10\n",
    f"{PORT}/hw_counters/np_cnp_sent": "77\n",
    f"{PORT}/hw_counters/duplicate_request": "41\n",
}


def _split(items: Any) -> tuple[list[Row], list[Note]]:
    found = list(items)
    return [item for item in found if isinstance(item, Row)], [item for item in found if isinstance(item, Note)]


def test_a_healthy_port(tree_of: Callable[..., Any]) -> None:
    rows, notes = _split(read_infiniband(tree_of(HEALTHY), 5))
    assert notes == []
    assert rows[0].values == {
        "ts": 5,
        "hca": "mlx5_3",
        "port": 1,
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "rate_gbps": 400.0,
        "rx_bytes_total": 4000,
        "tx_bytes_total": 4611686018427387903 * 4,
        "link_downed_total": 2,
        "cnp_sent_total": 77,
        "extra_counters": {"infiniband.VL15_dropped": 6, "infiniband.duplicate_request": 41},
    }


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("N/A (no PMA)\n", "the driver answers 'N/A (no PMA)'"),
        ("", "the file is empty"),
        ("-3", "the driver answers '-3'"),
    ],
)
def test_what_is_no_number_is_null_with_a_reason(tree_of: Callable[..., Any], content: str, reason: str) -> None:
    rows, notes = _split(read_infiniband(tree_of({**HEALTHY, f"{PORT}/counters/port_rcv_errors": content})))
    assert rows[0].values["rcv_errors_total"] is None
    assert "symbol_errors_total" not in rows[0].values
    assert [note.text for note in notes] == [f"rcv_errors_total is unknown: {reason}"]


def test_a_full_register_is_kept_as_read_and_noted(tree_of: Callable[..., Any]) -> None:
    files = {f"{PORT}/counters/port_xmit_wait": "4294967295", f"{PORT}/counters/port_rcv_data": str(2**64 - 1)}
    rows, notes = _split(read_infiniband(tree_of({**HEALTHY, **files})))
    assert rows[0].values["xmit_wait_total"] == 4294967295
    assert rows[0].values["rx_bytes_total"] == 2**64 - 1
    assert {note.text for note in notes} == {
        "xmit_wait_total is saturated at 4294967295",
        f"rx_bytes_total is saturated at {2**64 - 1}",
    }


def test_the_64_bit_twin_replaces_a_full_32_bit_counter_only(tree_of: Callable[..., Any]) -> None:
    files = {
        f"{PORT}/counters/port_rcv_data": "4294967295",
        f"{PORT}/counters_ext/port_rcv_data_64": "5000000000",
        f"{PORT}/counters_ext/port_xmit_data_64": "1",
        f"{PORT}/counters_ext/port_rcv_packets_64": "9",
    }
    rows, _ = _split(read_infiniband(tree_of({**HEALTHY, **files})))
    assert rows[0].values["rx_bytes_total"] == 20_000_000_000
    assert rows[0].values["tx_bytes_total"] == 4611686018427387903 * 4
    assert rows[0].values.get("rx_packets_total") is None


def test_a_port_without_any_file_still_has_a_row(tree_of: Callable[..., Any]) -> None:
    rows, _ = _split(read_infiniband(tree_of({f"{PORT}/gid": "", "sys/class/infiniband/mlx5_3/ports/x/state": ""})))
    assert rows[0].values == {
        "ts": None, "hca": "mlx5_3", "port": 1, "link_layer": None, "state": None, "rate_gbps": None,
    }  # fmt: skip


def test_live_counters_grow_and_a_new_adapter_is_found_later(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    collector = InfinibandCollector(environment_of(tree_of({"proc/x": ""})))
    with pytest.raises(NoData):
        collector.collect(1)
    tree_of(HEALTHY)
    assert [row.values["rx_bytes_total"] for row in collector.collect(2)] == [4000]
    tree_of({f"{PORT}/counters/port_rcv_data": "1001"})
    assert [row.values["rx_bytes_total"] for row in collector.collect(3)] == [4004]
