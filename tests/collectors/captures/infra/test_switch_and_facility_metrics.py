"""Switch ports and facility equipment in the text of their exporters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flightwatch.collectors.captures.sonic import port_number

Read = Callable[[str], Any]
SWITCH = """# TYPE sonic_interface_received_bytes_total counter
sonic_interface_received_bytes_total{device="Ethernet48",switch="leaf-1"} 1000
sonic_interface_transmitted_bytes_total{device="Ethernet48",switch="leaf-1"} 2000
sonic_port_SAI_PORT_STAT_PFC_3_RX_PKTS{port="Ethernet48",switch="leaf-1"} 7
sonic_port_SAI_PORT_STAT_PFC_4_RX_PKTS{port="Ethernet48",switch="leaf-1"} 5
sonic_port_SAI_PORT_STAT_PFC_3_TX_PKTS{port="Ethernet48",switch="leaf-1"} 2
sonic_port_SAI_PORT_STAT_PFC_3_RX_PAUSE_DURATION_US{port="Ethernet48",switch="leaf-1"} 99
sonic_port_SAI_PORT_STAT_ECN_MARKED_PACKETS{port="Ethernet48",switch="leaf-1"} 44
sonic_queue_dropped_packets{port="Ethernet48",queue="3",switch="leaf-1"} 6
sonic_transceiver_dom_rx_power_dbm{port="Ethernet48",lane="1",switch="leaf-1"} -3.5
sonic_transceiver_dom_rx_power_dbm{port="Ethernet48",lane="2",switch="leaf-1"} -8.25
sonic_interface_speed_bytes{device="Ethernet48",switch="leaf-1"} 5e+10
sonic_interface_mtu{device="Ethernet48",switch="leaf-1"} 9100
sonic_interface_oper_status{device="Ethernet48",switch="leaf-1"} 1
sonic_device_uptime_seconds 5
node_load1 0.5
"""
SNMP = """ifHCInOctets{ifName="Ethernet1/5",instance="192.0.2.1"} 18446744073709551615
ifHCOutUcastPkts{ifName="Ethernet1/5",instance="192.0.2.1"} 5
ifHCOutMulticastPkts{ifName="Ethernet1/5",instance="192.0.2.1"} 6
ifHighSpeed{ifName="Ethernet1/5",instance="192.0.2.1"} 400000
"""
PLANT = """# TYPE cdu_supply_temperature_celsius gauge
cdu_supply_temperature_celsius{cdu="cdu-4",loop="secondary"} 31.5
cdu_flow_lpm{cdu="cdu-4"} 512
pdu_power_kw{pdu="pdu-9",phase="2"} 3.25
crac_humidity_percent{unit="c1"} NaN
"""


def test_switch_ports(text: Read) -> None:
    found = text(SWITCH)
    (port,) = found.of("port_samples")
    assert (port["node"], port["hca"], port["port"], port["state"]) == ("leaf-1", "", 48, "ACTIVE")
    assert (port["rx_bytes_total"], port["tx_bytes_total"], port["rate_gbps"]) == (1000, 2000, 400.0)
    assert (port["pfc_rx_pause_total"], port["pfc_tx_pause_total"], port["ecn_marked_total"]) == (12, 2, 44)
    assert port["optics_rx_power_dbm"] == -8.25
    assert port["extra_counters"]["switch.sonic_queue_dropped_packets.3"] == 6
    (mtu,) = found.of("config_facts")
    assert (mtu["node"], mtu["name"], mtu["value"]) == ("leaf-1", "Ethernet48.mtu", "9100")
    assert found.of("node_samples")[0]["load1"] == 0.5


def test_switch_ports_over_snmp(text: Read) -> None:
    (port,) = text(SNMP).of("port_samples")
    assert (port["port"], port["tx_packets_total"], port["rate_gbps"]) == (5, 11, 400.0)
    assert port["rx_bytes_total"] == 2**64 - 1


@pytest.mark.parametrize(
    ("name", "number"),
    [("Ethernet48", 48), ("swp12s1", 12), ("Eth1/5/1", 5), ("eth0", 0), ("lo", None)],
)
def test_port_numbers(name: str, number: int | None) -> None:
    assert port_number(name) == number


def test_facility_metrics(text: Read) -> None:
    found = text(PLANT)
    rows = {(row["zone"], row["quantity"]): (row["value"], row["unit"]) for row in found.of("facility_samples")}
    assert rows == {
        ("cdu-4", "temperature"): (31.5, "C"),
        ("cdu-4", "flow"): (512.0, "l/min"),
        ("pdu-9", "power"): (3250.0, "W"),
    }
    assert found.said("without a usable number")
