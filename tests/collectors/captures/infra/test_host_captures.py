"""Host sensors: IPMI, Redfish, ibswinfo, rasdaemon, machine checks, facility."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Read = Callable[[str], Any]


def test_ipmitool_sensor(sample: Read) -> None:
    found = sample("ipmi_sensor.txt")
    (node,) = found.of("node_samples")
    assert (node["inlet_c"], node["outlet_c"], node["psu_w"]) == (24.0, 71.0, 5600.0)
    # A fan at 0 rpm that the BMC calls critical has failed; at 0 rpm and ok its bay is empty.
    assert node["fan_rpm_min"] == 0.0
    assert found.sensor("GPU Temp#2", "temperature")["value"] == 57.0
    assert found.sensor("GPU Temp#2", "temperature_crit")["value"] == 95.0
    assert found.sensor("DIMM Temp", "temperature")["value"] is None
    assert found.codes == ["sensor:warning", "fan:failed"]
    assert not found.errors


def test_ipmitool_sdr_and_elist(sample: Read) -> None:
    sdr = sample("ipmi_sdr.txt")
    assert sdr.of("node_samples")[0]["psu_w"] == 3010.0
    assert sdr.sensor("Intrusion", "state")["value"] is None
    assert sdr.said("Invalid argument")
    elist = sample("ipmi_elist.txt")
    assert (elist.sensor("Temp#1", "temperature")["value"], elist.sensor("Temp#2", "temperature")["value"]) == (
        46.0,
        48.0,
    )
    assert not elist.codes


def test_freeipmi_is_read_by_its_header(sample: Read) -> None:
    found = sample("ipmi_free.txt")
    assert found.sensor("CPU1 Temp", "temperature")["value"] == 45.0
    assert found.sensor("FAN1", "fan")["unit"] == "rpm"
    assert found.codes == ["sensor:critical"]


def test_dcmi(sample: Read) -> None:
    found = sample("ipmi_dcmi.txt")
    assert found.of("node_samples")[0]["psu_w"] == 5123.0
    assert not [note for note in found.notes if note.level != "info"]


def test_a_supply_without_reading_leaves_the_power_unknown(text: Read) -> None:
    found = text("PSU1 Input       | 1500 Watts        | ok\nPSU2 Input       | No Reading        | ns\n")
    assert not found.of("node_samples")
    assert found.sensor("PSU2 Input", "reading")["value"] is None


def test_redfish_thermal(sample: Read) -> None:
    found = sample("redfish_thermal.json")
    (node,) = found.of("node_samples")
    assert (node["inlet_c"], node["fan_rpm_min"]) == (27.5, 0.0)
    assert found.sensor("CPU2", "temperature")["value"] is None
    assert found.sensor("NVMe", "temperature")["value"] is None
    assert found.said("'hot'")
    assert found.sensor("Fan 1", "fan")["unit"] == "%"
    assert found.codes == ["sensor:warning", "fan:failed"]


def test_redfish_sensor_collection(sample: Read) -> None:
    found = sample("redfish_sensors.json")
    assert found.sensor("HGX GPU 1 TEMP", "temperature")["value"] == 34.875
    assert found.sensor("HGX GPU 1 TEMP", "temperature_crit")["value"] == 95.0
    assert found.of("node_samples")[0]["psu_w"] == 4321.0
    assert found.sensor("Fan Pump", "fan")["unit"] == "%"


def test_truncated_redfish_names_the_place(text: Read, sample: Read) -> None:
    whole = json.dumps(
        {"@odata.id": "/redfish/v1/Chassis/1/Thermal", "Temperatures": [{"Name": "a", "ReadingCelsius": 1}]}
    )
    found = text(whole[:-20])
    assert not found.of("sensor_samples")
    assert any("offset" in error for error in found.errors)


def test_redfish_supply_metrics_are_not_the_power_of_the_host(text: Read) -> None:
    found = text(json.dumps({
        "@odata.type": "#PowerSupplyMetrics.v1_1_0.PowerSupplyMetrics", "Name": "Supply 2",
        "Status": {"Health": "Warning"}, "InputPowerWatts": {"Reading": 400.5}, "OutputPowerWatts": {"Reading": 371.0},
        "FanSpeedPercent": {"Reading": 40, "SpeedRPM": 6100},
    }))  # fmt: skip
    assert found.sensor("Supply 2 InputPowerWatts", "power")["value"] == 400.5
    assert found.of("node_samples")[0]["psu_w"] is None
    assert not found.codes


def test_redfish_power_control_without_a_name_is_the_host(text: Read) -> None:
    control = {"MemberId": "0", "PowerConsumedWatts": 812, "PowerLimit": {"LimitInWatts": None}}
    links = [{"@odata.id": "/redfish/v1/Chassis/1/Power#/PowerSupplies/0"}]
    found = text(json.dumps({"@odata.id": "/redfish/v1/Chassis/1/Power", "PowerControl": [control], "Fans": links}))
    assert found.sensor("System Power", "power")["value"] == 812.0
    assert found.of("node_samples")[0]["psu_w"] == 812.0
    assert len(found.of("sensor_samples")) == 1


def test_ibswinfo(sample: Read) -> None:
    found = sample("ibswinfo.out")
    assert found.codes == ["psu:failed", "psu:failed"]
    assert found.of("node_samples")[0]["psu_w"] == 210.0
    assert found.sensor("fan#2", "fan")["value"] is None
    assert found.of("inventory")[0]["serial"] == "EX0001"


def test_ras_summary(sample: Read) -> None:
    found = sample("ras_summary.txt")
    (node,) = found.of("node_samples")
    assert (node["edac_corrected_total"], node["edac_uncorrected_total"]) == (17, 2)
    assert found.codes == ["ras:ce", "ras:ue", "ras:disk", "ras:mce"]
    assert found.said("not a disk")


def test_ras_errors_have_times_and_places(sample: Read) -> None:
    found = sample("ras_errors.txt")
    assert found.codes == ["ras:ce", "ras:ce", "aer:fatal", "aer:corrected"]
    first = found.of("events")[0]
    assert (first["ts"], first["attrs"]["addr"]) == (1735725600000, "0x1234000")


def test_machine_checks_by_status_bits(sample: Read) -> None:
    first, second = sample("mce.log").of("events")
    assert (first["code"], first["severity"], first["ts"]) == ("mce:uncorrected", "critical", 1735725600000)
    assert (second["code"], second["severity"], second["ts"]) == ("mce:corrected", "warning", None)


def test_a_storm_of_machine_checks_hides_no_other_line(text: Read) -> None:
    check = (
        "Mar  3 04:11:{0:02d} gpu-17 kernel: mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: bc00000000010090\n"
        "Mar  3 04:11:{0:02d} gpu-17 kernel: mce: [Hardware Error]: TSC 0 ADDR 123456{0} MISC 86 \n"
    )
    found = text(
        "".join(check.format(second) for second in range(20))
        + "Mar  3 04:11:21 gpu-17 kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid=1, GPU has fallen off the bus.\n"
        + "Mar  3 04:11:22 gpu-17 kernel: {1}[Hardware Error]: Hardware error from APEI Generic Source: 5\n"
        + "Mar  3 04:11:22 gpu-17 kernel: {1}[Hardware Error]: event severity: fatal\n"
    )
    assert found.codes.count("mce:uncorrected") == 20
    assert [code for code in found.codes if not code.startswith("mce")] == ["xid:79", "apei:fatal"]
    first = found.of("events")[0]
    assert (first["node"], first["attrs"]["addr"], first["attrs"]["clock"]) == ("gpu-17", "1234560", "Mar 3 04:11:00")


def test_facility_csv(sample: Read) -> None:
    found = sample("facility_wide.csv")
    readings = {(row["label"], row["ts"]): row for row in found.of("facility_samples")}
    at, later = 1735689600000, 1735689660000
    assert readings["supply_temp_c", at]["value"] == 18.5
    assert (readings["power_kw", at]["value"], readings["power_kw", at]["unit"]) == (12500.0, "W")
    assert readings["flow_lpm", at]["quantity"] == "flow"
    assert [readings[name, later]["value"] for name in ("supply_temp_c", "flow_lpm", "humidity_pct")] == [None] * 3
    assert found.said("'foo'")
    long = sample("facility_long.csv").of("facility_samples")
    assert [(row["zone"], row["value"], row["unit"]) for row in long] == [
        ("crac-2", 29.25, "C"),
        ("pdu-3", 3500.0, "W"),
    ]


def test_facility_over_redfish(sample: Read) -> None:
    rows = sample("redfish_cdu.json").of("facility_samples")
    assert {(row["zone"], row["quantity"], row["value"]) for row in rows} == {
        ("7", "flow", 310.5), ("7", "temperature", 21.5), ("7", "heat_removed", 88.0),
    }  # fmt: skip
