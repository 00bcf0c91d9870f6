"""Ports: rdma, ethtool, mlxlink, perfquery, nicctl."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.collectors.captures.ethtool import EthtoolParser
from flightwatch.collectors.captures.perfquery import PerfqueryParser
from flightwatch.core.protocols import CaptureContext, Note

Read = Callable[[str], Any]


def test_rdma_names_of_every_driver_fill_the_same_columns(sample: Read) -> None:
    mlx5, ionic = sample("rdma_statistic.json").of("port_samples")
    assert [mlx5[name] for name in ("out_of_sequence_total", "packet_seq_err_total", "ack_timeout_total")] == [3, 4, 5]
    assert [mlx5[name] for name in ("ecn_marked_total", "cnp_sent_total", "cnp_handled_total")] == [17, 18, 19]
    assert mlx5["extra_counters"] == {"rdma.rx_write_requests": 71}
    assert [ionic[name] for name in ("out_of_sequence_total", "ecn_marked_total", "cnp_sent_total")] == [8, 9, 10]
    bnxt, irdma = sample("rdma_statistic.txt").of("port_samples")
    assert [bnxt[name] for name in ("out_of_sequence_total", "retransmits_total", "ecn_marked_total")] == [12, 15, 16]
    assert [irdma[name] for name in ("cnp_sent_total", "cnp_handled_total", "retransmits_total")] == [21, 22, 24]
    assert ionic["extra_counters"] is None


def test_rdma_link_states(sample: Read) -> None:
    first, second = sample("rdma_link.txt").of("port_samples")
    assert (first["hca"], first["state"]) == ("mlx5_0", "DOWN")
    assert (second["hca"], second["state"]) == ("mlx5_1", "ACTIVE")


def test_ethtool_prefers_the_port_over_the_driver_and_sums_priorities(sample: Read) -> None:
    found = sample("ethtool_mlx5.txt")
    (port,) = found.of("port_samples")
    assert (port["rx_bytes_total"], port["tx_bytes_total"], port["rx_packets_total"]) == (9000, 8000, 90)
    assert (port["pfc_rx_pause_total"], port["pfc_tx_pause_total"]) == (42, 12)
    assert (port["symbol_errors_total"], port["link_downed_total"], port["xmit_discards_total"]) == (5, 3, 7)
    assert port["extra_counters"]["ethtool.rx_bytes"] == 1000
    assert port["extra_counters"]["ethtool.rx_prio3_pause_duration"] == 999
    assert not any("rx0_packets" in name for name in port["extra_counters"])
    assert found.said("rx_corrected_bits_phy is saturated")
    assert found.said("counters of single queues")


def test_ethtool_bnxt_totals_are_not_added_to_their_parts(sample: Read) -> None:
    (port,) = sample("ethtool_bnxt.txt").of("port_samples")
    assert (port["pfc_rx_pause_total"], port["pfc_tx_pause_total"]) == (9, 2)
    assert (port["fec_corrected_total"], port["fec_uncorrected_total"], port["rcv_errors_total"]) == (70, 1, 1)


def test_optics_show_the_weakest_lit_lane_and_name_the_dark_one(sample: Read) -> None:
    found = sample("ethtool_module.txt")
    (port,) = found.of("port_samples")
    assert (port["optics_rx_power_dbm"], port["optics_tx_power_dbm"]) == (-7.8, -0.42)
    assert (port["optics_bias_ma"], port["optics_temp_c"]) == (7.1, 47.5)
    assert found.said("lane 1: rx_power measures no light")
    assert found.sensor("lane 1", "rx_power")["value"] is None


def test_ethtool_fec_and_settings_pages(sample: Read, text: Read) -> None:
    (port,) = sample("ethtool_fec.txt").of("port_samples")
    assert (port["hca"], port["fec_corrected_total"], port["fec_uncorrected_total"]) == ("ens6f1", 4242, 3)
    found = text("Settings for eth1:\n\tSpeed: 200000Mb/s\n\tDuplex: Full\n\tLink detected: no\n")
    (port,) = found.of("port_samples")
    assert (port["rate_gbps"], port["state"]) == (200.0, "DOWN")


def test_ethtool_json(text: Read) -> None:
    (port,) = text('[{"ifname": "eth9", "rx_bytes": 7, "tx_bytes": 8, "tx_prio1_pause": 2}]').of("port_samples")
    assert (port["hca"], port["rx_bytes_total"], port["pfc_tx_pause_total"]) == ("eth9", 7, 2)


@pytest.mark.parametrize(
    ("source", "hca"),
    [("ethtool-S-ens1f0np0.txt", "ens1f0np0"), ("a.tar!n1/mlx5_3_ethtool.txt", "mlx5_3"), ("mlx5_notes.txt", None)],
)
def test_the_interface_comes_from_the_file_name_when_it_names_one(source: str, hca: str | None) -> None:
    data = io.BytesIO(b"NIC statistics:\n     rx_bytes: 1\n")
    row = next(item for item in EthtoolParser().parse(data, CaptureContext(source)) if not isinstance(item, Note))
    assert row.values["hca"] == hca


def test_mlxlink_text_and_json(sample: Read) -> None:
    found = sample("mlxlink.txt")
    (port,) = found.of("port_samples")
    assert (port["state"], port["rate_gbps"], port["ber_ratio"]) == ("ACTIVE", 400.0, 3e-14)
    assert (port["link_downed_total"], port["link_recovered_total"], port["symbol_errors_total"]) == (5, 1, 2)
    assert (port["optics_rx_power_dbm"], port["optics_bias_ma"], port["optics_temp_c"]) == (-9.5, 7.9, 51.0)
    assert port["extra_counters"]["mlxlink.raw_physical_errors_lane_4"] == 400
    assert found.sensor("lane 3", "bias")["value"] is None
    (port,) = sample("mlxlink.json").of("port_samples")
    assert (port["rate_gbps"], port["optics_rx_power_dbm"], port["link_downed_total"]) == (200.0, -3.3, 2)
    assert 0 < port["ber_ratio"] < 1e-250


def test_perfquery_words_saturation_and_garbage(sample: Read) -> None:
    found = sample("perfquery.out")
    (port,) = found.of("port_samples")
    assert (port["port"], port["tx_bytes_total"]) == (3, 4000)
    # A full register is kept as it is: multiplied by 4 it would look like an ordinary count.
    assert port["rx_bytes_total"] == port["xmit_wait_total"] == 4294967295
    assert port["rx_packets_total"] is None
    assert found.said("'foo'")
    assert found.said("PortRcvData is saturated: the true count is at least 4294967295")
    assert port["extra"] == {"perfquery.lid": 7.0}


@pytest.mark.parametrize("data", [b"", b"\n\n"])
def test_an_empty_query_is_a_failure_and_no_row(data: bytes) -> None:
    (note,) = PerfqueryParser().parse(io.BytesIO(data), CaptureContext())
    assert isinstance(note, Note)
    assert note.level == "error"


def test_nicctl_strings(sample: Read) -> None:
    found = sample("nicctl.json")
    (port,) = found.of("port_samples")
    assert (port["rx_packets_total"], port["pfc_rx_pause_total"], port["link_downed_total"]) == (100, 4, 2)
    assert port["fec_uncorrected_total"] == 1
    assert found.errors


def test_nicctl_port_state_and_rates(text: Read) -> None:
    port = {"spec": {"id": "p"}, "status": {
        "operational_status": "UP", "port_speed": "400G", "number_of_lanes": "4", "number_of_link_down_events": "3",
        "transceiver_temperature": "0",
    }}  # fmt: skip
    (row,) = text(json.dumps({"nic": [{"id": "a", "port": [port]}]})).of("port_samples")
    assert (row["state"], row["rate_gbps"], row["link_downed_total"]) == ("UP", 400.0, 3)
    assert row["optics_temp_c"] is None
    rates = {"statistics": {"tx_pps": "3.83 Mpps", "rx_bps": "1.02 Kbps"}}
    found = text(json.dumps({"nic": [{"id": "a", "port": [rates]}]}))
    assert not found.rows
    assert not found.errors
