"""Live collectors of BMC, ports and Lustre, with commands and a service that answer from memory."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.ethtool_live import EthtoolCollector
from flightwatch.collectors.infiniband import InfinibandCollector
from flightwatch.collectors.ipmi_live import IpmiCollector
from flightwatch.collectors.lustre_live import LustreCollector
from flightwatch.collectors.redfish_live import RedfishClient, RedfishCollector
from flightwatch.collectors.redfish_settings import RedfishSettings
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.errors import ConfigError, NoData, TransientError

ELIST = b"Inlet Temp       | 04h | ok  |  7.1 | 25 degrees C\nFan1             | 30h | cr  |  7.1 | 0 RPM\n"
DCMI = b"    Instantaneous power reading:                   500 Watts\n"


def live(root: Path, answers: dict[str, bytes | Exception], settings: RedfishSettings | None = None) -> Environment:
    def run(words: Sequence[str], timeout_seconds: float) -> bytes:
        answer = answers[" ".join(words)]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Environment(FolderTree(str(root)), True, AgentSettings(), run, redfish=settings or RedfishSettings())


def put(root: Path, path: str, content: str = "") -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


def test_ipmi_sends_readings_offers_the_node_part_and_reports_a_fault_once(tmp_path: Path) -> None:
    put(tmp_path, "dev/ipmi0")
    environment = live(tmp_path, {"ipmitool sdr elist full": ELIST, "ipmitool dcmi power reading": DCMI})
    collector = IpmiCollector(environment)
    first = list(collector.collect(1000))
    assert [row.values["code"] for row in first if row.table == "events"] == ["fan:failed"]
    assert environment.summary.merged(1000, 10) == {"inlet_c": 25.0, "fan_rpm_min": 0.0, "psu_w": 500.0}
    assert not [row for row in collector.collect(31000) if row.table == "events"]


def test_a_bmc_without_dcmi_is_asked_for_it_once(tmp_path: Path) -> None:
    put(tmp_path, "dev/ipmi0")
    answers: dict[str, bytes | Exception] = {
        "ipmitool sdr elist full": ELIST, "ipmitool dcmi power reading": TransientError("no"),
    }  # fmt: skip
    collector = IpmiCollector(live(tmp_path, answers))
    list(collector.collect(1000))
    del answers["ipmitool dcmi power reading"]
    assert list(collector.collect(2000))


def test_ipmi_without_device_or_answer(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        IpmiCollector(live(tmp_path, {})).collect(1)
    put(tmp_path, "dev/ipmi0")
    with pytest.raises(TransientError, match="ipmi"):
        IpmiCollector(live(tmp_path, {"ipmitool sdr elist full": b"\n", "ipmitool dcmi power reading": b""})).collect(1)


def test_ethtool_counters_travel_once_in_the_ports_own_row(tmp_path: Path) -> None:
    put(tmp_path, "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "10\n")
    put(tmp_path, "sys/class/infiniband/mlx5_0/device/net/ens1/mtu", "1")
    environment = live(tmp_path, {
        "ethtool -S ens1": b"NIC statistics:\n     rx_prio3_pause: 7\n     rx_bytes: 5\n",
        "ethtool -m ens1": b"\tIdentifier  : 0x11\n\tModule temperature   : 40.00 degrees C\n"
        b"\tRcvr signal avg optical power(Channel 1)  : 0.5 mW / -3.00 dBm\n"})  # fmt: skip
    lanes = list(EthtoolCollector(environment).collect(1000))
    assert {row.values["chip"] for row in lanes} == {"optics.mlx5_0"}
    ports = InfinibandCollector(environment)
    (row,) = ports.collect(1500)
    assert (row.values["pfc_rx_pause_total"], row.values["optics_rx_power_dbm"]) == (7, -3.0)
    assert row.values["rx_bytes_total"] == 40
    (row,) = ports.collect(6500)
    assert row.values.get("pfc_rx_pause_total") is None


def test_ethtool_without_ports_or_answers(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        EthtoolCollector(live(tmp_path, {})).collect(1)
    put(tmp_path, "sys/class/infiniband/mlx5_0/device/net/ens1/mtu", "1")
    answers: dict[str, bytes | Exception] = {
        f"ethtool {option} ens1": TransientError("busy") for option in ("-S", "-m")
    }
    with pytest.raises(TransientError):
        EthtoolCollector(live(tmp_path, answers)).collect(1)


def test_lustre_times_are_of_the_interval(tmp_path: Path) -> None:
    path = "proc/fs/lustre/osc/fs-OST0000-osc-ffff88105db50000/stats"
    text = "req_active {n} samples [reqs] 1 9 {active}\nost_write {n} samples [usec] 1 9 {micros}\n"
    put(tmp_path, path, text.format(n=10, active=10, micros=10_000))
    environment = live(tmp_path, {})
    collector = LustreCollector(environment)
    (row,) = collector.collect(1000)
    assert (row.values["write_ms"], row.values["queue_depth"]) == (None, None)
    put(tmp_path, path, text.format(n=14, active=30, micros=30_000))
    (row,) = collector.collect(6000)
    assert (row.values["write_ms"], row.values["queue_depth"]) == (5.0, 5.0)
    assert environment.summary.merged(6000, 10) == {"fs_write_ms": 5.0}


RESOURCES: dict[str, object] = {
    "/redfish/v1/Chassis": {"Members": [{"@odata.id": "/redfish/v1/Chassis/1"}]},
    "/redfish/v1/Chassis/1": {"Thermal": {"@odata.id": "/redfish/v1/Chassis/1/Thermal"}},
    "/redfish/v1/Chassis/1/Thermal": {
        "@odata.id": "/redfish/v1/Chassis/1/Thermal",
        "Temperatures": [{"Name": "Inlet", "ReadingCelsius": 22, "PhysicalContext": "Intake"}],
    },
    "/redfish/v1/ThermalEquipment/CDUs": {"Members": [{"@odata.id": "/redfish/v1/ThermalEquipment/CDUs/1"}]},
    "/redfish/v1/ThermalEquipment/CDUs/1": {
        "EnvironmentMetrics": {"@odata.id": "/redfish/v1/ThermalEquipment/CDUs/1/EnvironmentMetrics"}
    },
    "/redfish/v1/ThermalEquipment/CDUs/1/EnvironmentMetrics": {
        "@odata.id": "/redfish/v1/ThermalEquipment/CDUs/1/EnvironmentMetrics",
        "Name": "CDU",
        "PowerWatts": {"Reading": 900},
    },
}


@pytest.fixture
def service() -> Iterator[str]:
    """A Redfish service on loopback that wants the user reader with the password pw."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wanted = "Basic " + base64.b64encode(b"reader:pw").decode()
            status = 200 if self.path in RESOURCES else 404
            if self.headers.get("Authorization") != wanted:
                status = 401
            body = json.dumps(RESOURCES.get(self.path, {})).encode()
            if self.path == "/redfish/v1/redirect":
                status = 302
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_redfish_reads_the_node_and_the_plant(service: str, tmp_path: Path) -> None:
    settings = RedfishSettings(url=service, facility_urls=(service,), username="reader", password="pw")
    environment = live(tmp_path, {}, settings)
    # One address in both places is the node's: a second name for it is the plant's.
    settings = RedfishSettings(url=service, facility_urls=(service + "/",), username="reader", password="pw")
    environment.redfish = settings
    rows = list(RedfishCollector(environment).collect(1000))
    assert [(row.table, row.values["value"]) for row in rows] == [("sensor_samples", 22.0), ("facility_samples", 900.0)]
    assert rows[1].values["zone"] == "1"
    assert environment.summary.merged(1000, 10) == {"inlet_c": 22.0}


def test_redfish_refusals_are_one_sentence(service: str, tmp_path: Path) -> None:
    environment = live(tmp_path, {}, RedfishSettings(url=service, username="reader", password="wrong"))
    with pytest.raises(TransientError, match="refuses the user 'reader'") as caught:
        RedfishCollector(environment).collect(1)
    assert "wrong" not in str(caught.value)
    with pytest.raises(NoData):
        RedfishCollector(live(tmp_path, {})).collect(1)
    with pytest.raises(ConfigError):
        RedfishClient("http://192.0.2.1", RedfishSettings(), 1e12)
    client = RedfishClient(service, RedfishSettings(username="reader", password="pw"), 1e12)
    with pytest.raises(TransientError, match="302"):
        client.get("/redfish/v1/redirect")
    client.close()
    with pytest.raises(TransientError, match="in time"):
        RedfishClient(service, RedfishSettings(), 0.0).get("/redfish/v1/Chassis")
