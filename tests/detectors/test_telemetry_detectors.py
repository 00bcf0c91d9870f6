"""Each telemetry fault of the simulator is named by the right detector at the right place; clean hours are silent."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.anomaly import AnomalyDetector
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.cooling import CoolingDetector
from flightwatch.detectors.hosts import ClockSkewDetector, ConfigDriftDetector, DeadNodeDetector
from flightwatch.detectors.memory_errors import MemoryErrorDetector
from flightwatch.detectors.overheat import OverheatDetector
from flightwatch.detectors.ports import PortDetector
from flightwatch.detectors.registry import all_detectors
from flightwatch.detectors.sensors import SensorDetector
from flightwatch.detectors.storage import StorageDetector
from flightwatch.detectors.throttle import ThrottleDetector
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.scenarios import START_MS
from flightwatch.simulator.telemetry import TelemetryModel, TelemetrySpec

CLUSTER = Cluster(nodes=16)
JOB = Job(tp=4, pp=2, dp=8, first_node=2)
BEGIN_MS = START_MS + 200 * 5 * 1000


def frames_of(*faults: Fault, samples: int = 250, seed: int = 3) -> dict[str, pd.DataFrame]:
    return TelemetryModel(CLUSTER, [JOB], list(faults), seed, START_MS, TelemetrySpec(samples=samples)).frames()


def raised(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.state == FindingState.RAISED]


def only(findings: list[Finding]) -> Finding:
    (found,) = raised(findings)
    assert found.detected_at is not None
    assert BEGIN_MS < found.detected_at < BEGIN_MS + 900_000
    return found


def test_a_clean_hour_is_silent() -> None:
    frames = frames_of(samples=360)
    assert [one.summary for made in all_detectors() for one in made.score(frames)] == []


@pytest.mark.parametrize(("kind", "cause"), [("fan_failure", "fan slowed"), ("paste_failure", "paste")])
def test_a_device_hotter_than_its_power_explains(kind: str, cause: str) -> None:
    found = only(OverheatDetector().score(frames_of(Fault(kind, 5, 3, start_step=200))))
    assert (found.kind, found.scope, found.node, found.device) == (
        FindingKind.OVERHEAT,
        FindingScope.DEVICE,
        "n0005",
        3,
    )
    assert cause in found.summary
    assert found.evidence["residual_k"] >= 5


def test_all_fans_of_a_node_are_one_finding() -> None:
    found = only(OverheatDetector().score(frames_of(Fault("fan_failure", 5, start_step=200))))
    assert (found.scope, found.node, found.device) == (FindingScope.NODE, "n0005", None)


def test_a_warming_zone_silences_its_devices() -> None:
    frames = frames_of(Fault("cooling_zone", 9, start_step=200))
    found = only(CoolingDetector().score(frames))
    assert (found.kind, found.scope, found.targets) == (FindingKind.COOLING, FindingScope.COOLING_ZONE, ("z01",))
    assert found.evidence["inlet_rise_k"] > 2
    assert OverheatDetector().score(frames) == []


def test_one_warm_rack_is_the_rack_and_not_the_zone() -> None:
    found = only(CoolingDetector().score(frames_of(Fault("thermal_rack", 5, start_step=200))))
    assert (found.scope, found.targets) == (FindingScope.RACK, ("r001",))


def test_warm_idle_devices_like_all_their_peers_are_fine() -> None:
    frames = frames_of()
    rows = frames["device_samples"].copy()
    rows["temp_c"] += 30.0
    assert OverheatDetector().score({**frames, "device_samples": rows}) == []


def test_throttling_and_caps() -> None:
    hot = only(ThrottleDetector().score(frames_of(Fault("thermal_gpu", 5, 3, start_step=200))))
    assert (hot.kind, hot.node, hot.device) == (FindingKind.THROTTLE, "n0005", 3)
    cap = only(ThrottleDetector().score(frames_of(Fault("power_cap", 5, start_step=200))))
    assert (cap.kind, cap.scope, cap.node) == (FindingKind.POWER, FindingScope.NODE, "n0005")
    droop = only(ThrottleDetector().score(frames_of(Fault("voltage_droop", 5, 3, start_step=200))))
    assert (droop.kind, droop.node, droop.device, droop.severity) == (FindingKind.POWER, "n0005", 3, Severity.P4)


def test_memory_errors() -> None:
    ramp = only(MemoryErrorDetector().score(frames_of(Fault("ecc_ramp", 5, 3, start_step=200))))
    assert (ramp.kind, ramp.node, ramp.device) == (FindingKind.ECC, "n0005", 3)
    remap = raised(MemoryErrorDetector().score(frames_of(Fault("row_remap", 5, 3, start_step=200))))
    assert {one.evidence.get("remap_pending") for one in remap} == {True, None}
    assert len({one.id for one in remap}) == 2


def test_a_few_corrected_errors_are_no_ramp() -> None:
    frames = frames_of()
    rows = frames["device_samples"].copy()
    rows.loc[(rows["node"] == "n0005") & (rows["ts"] > BEGIN_MS), "ecc_corrected_total"] += 50
    assert MemoryErrorDetector().score({**frames, "device_samples": rows}) == []


def test_ports() -> None:
    loss = only(PortDetector().score(frames_of(Fault("packet_loss", 5, start_step=200))))
    assert (loss.kind, loss.scope, loss.node, loss.hca, loss.port) == (
        FindingKind.RDMA,
        FindingScope.PORT,
        "n0005",
        "mlx5_0",
        1,
    )
    flap = only(PortDetector().score(frames_of(Fault("link_flap", 5, start_step=200))))
    assert (flap.kind, flap.node) == (FindingKind.LINK_FLAP, "n0005")


def test_a_port_that_was_never_up_is_unused() -> None:
    frames = frames_of()
    rows = frames["port_samples"].copy()
    rows.loc[rows["node"] == "n0005", "state"] = "DOWN"
    assert PortDetector().score({**frames, "port_samples": rows}) == []


def test_congestion_needs_peers_at_equal_traffic() -> None:
    frames = frames_of()
    rows = frames["port_samples"].copy()
    rows["cnp_handled_total"] *= 500
    assert PortDetector().score({**frames, "port_samples": rows}) == []


@pytest.mark.parametrize("kind", ["stuck", "missing", "noisy", "implausible"])
def test_sensors_that_cannot_be_trusted_blame_no_hardware(kind: str) -> None:
    found = raised(SensorDetector().score(frames_of(Fault(f"{kind}_sensor", 5, 3, start_step=200))))
    assert {(one.class_, one.node, one.device, one.blames_hardware) for one in found} == {(kind, "n0005", 3, False)}


def test_a_counter_that_starts_again_is_information() -> None:
    frames = frames_of()
    rows = frames["device_samples"].copy()
    at = (rows["node"] == "n0005") & (rows["device"] == 3) & (rows["ts"] > BEGIN_MS)
    rows.loc[at, "throttle_power_us_total"] -= rows.loc[at, "throttle_power_us_total"].min()
    found = raised(SensorDetector().score({**frames, "device_samples": rows}))
    assert [(one.class_, one.severity) for one in found] == [("reset", Severity.INFO)]


def test_a_saturated_counter_is_not_quiet_and_blames_nobody() -> None:
    frames = frames_of(Fault("counter_saturation", 5, start_step=200))
    ports = frames["port_samples"]
    assert ports[ports["node"] == "n0005"]["xmit_wait_total"].iloc[-20:].tolist() == [2.0**32 - 1] * 20
    found = only(SensorDetector().score(frames))
    assert (found.kind, found.scope, found.node, found.hca, found.port) == (
        FindingKind.SENSOR, FindingScope.PORT, "n0005", "mlx5_0", 1,
    )  # fmt: skip
    assert "xmit_wait_total is saturated, not quiet" in found.summary
    assert [one.summary for made in all_detectors() for one in made.score(frames) if one.blames_hardware] == []


def test_a_counter_saturated_on_most_ports_is_told_once() -> None:
    rows = frames_of()["port_samples"].copy()
    rows["symbol_errors_total"] = 65535.0
    (found,) = raised(SensorDetector().score({"port_samples": rows}))
    assert found.targets == ("symbol_errors_total",)
    assert "16 of 16" in found.summary
    rows["symbol_errors_total"] = 255.0
    assert SensorDetector().score({"port_samples": rows}) == []


def test_a_reading_is_not_carried_on_for_ever() -> None:
    rows = frames_of(Fault("fan_failure", 5, 3, start_step=200))["device_samples"]
    rows = rows[(rows["node"] != "n0005") | (rows["ts"] < BEGIN_MS + 60_000)]
    assert OverheatDetector().score({"device_samples": rows}) == []


def test_nodes_that_report_at_their_own_pace_are_judged_alike() -> None:
    frames = frames_of(Fault("fan_failure", 5, 3, start_step=200))
    rows = frames["device_samples"]
    slow = rows["node"].isin(["n0004", "n0005", "n0006"])
    rows = rows[~slow | ((rows["ts"] - START_MS) % 60_000 == 0)]
    found = only(OverheatDetector().score({**frames, "device_samples": rows}))
    assert (found.node, found.device) == ("n0005", 3)
    assert DeadNodeDetector().score({"device_samples": rows}) == []


def test_a_job_that_starts_on_devices_never_seen_at_work_makes_none_hot() -> None:
    """Own kelvin per watt: a device that has idled so far is not judged by what others need."""
    frames = frames_of()
    rows = frames["device_samples"].sort_values(["ts", "node", "device"]).copy()
    late = rows["node"].isin(["n0012", "n0013", "n0014", "n0015"])
    since_s = np.maximum(rows["ts"] - BEGIN_MS, 0) / 1000
    busy = late & (rows["ts"] >= BEGIN_MS)
    watts, kelvin_per_watt = 520.0, 0.055 * (1 + 0.02 * (rows["device"] - 3.5))
    rows["power_w"] += watts * busy
    rows["util_pct"] = np.where(busy, 92.0, rows["util_pct"])
    rows["temp_c"] += np.round(watts * kelvin_per_watt * 1.2 * (1 - np.exp(-since_s / 60)) * late)
    assert OverheatDetector().score({**frames, "device_samples": rows}) == []
    assert CoolingDetector().score({**frames, "device_samples": rows}) == []


def test_storage_slow_for_one_node_or_for_all() -> None:
    one = only(StorageDetector().score(frames_of(Fault("storage_latency", 5, 0, start_step=200))))
    assert (one.scope, one.node) == (FindingScope.NODE, "n0005")
    shared = only(StorageDetector().score(frames_of(Fault("storage_latency", 5, start_step=200))))
    assert (shared.scope, shared.node, shared.targets) == (FindingScope.STORAGE_TARGET, None, ("/data",))


def test_storage_slow_because_it_takes_more_load_is_busy() -> None:
    frames = frames_of(Fault("storage_latency", 5, start_step=200))
    rows = frames["storage_samples"].copy()
    after = np.maximum(rows["ts"] - BEGIN_MS, 0) / 1000
    rows["write_ops_total"] += after * 2000
    assert StorageDetector().score({**frames, "storage_samples": rows}) == []


def test_a_dead_node_and_one_that_comes_back() -> None:
    frames = frames_of(Fault("dead_node", 5, start_step=200))
    found = only(DeadNodeDetector().score(frames))
    assert (found.node, found.severity, found.blames_hardware) == ("n0005", Severity.P2, True)
    gap = {name: rows for name, rows in frames_of().items() if "ts" in rows}
    back = {
        name: rows[(rows["node"] != "n0005") | (rows["ts"] < BEGIN_MS) | (rows["ts"] > BEGIN_MS + 300_000)]
        for name, rows in gap.items()
    }
    assert [one.state for one in DeadNodeDetector().score(back)] == [FindingState.RAISED, FindingState.CLEARED]


def test_when_most_nodes_are_silent_the_pipeline_is_blind() -> None:
    frames = frames_of()
    names = {f"n{i:04d}" for i in range(10)}
    cut = {name: rows[~rows["node"].isin(names) | (rows["ts"] < BEGIN_MS)] for name, rows in frames.items()}
    assert DeadNodeDetector().score(cut) == []


def test_a_replica_that_leaves_its_job_is_not_dead() -> None:
    frames = frames_of()
    frames["placements"] = frames["placements"][frames["placements"]["dp"] != 3]
    assert DeadNodeDetector().score(frames) == []


def test_clock_skew() -> None:
    found = only(ClockSkewDetector().score(frames_of(Fault("clock_skew", 5, start_step=200))))
    assert (found.node, found.blames_hardware, found.evidence["clock_offset_us"] > 1e6) == ("n0005", False, True)


def test_config_drift_is_the_minority() -> None:
    facts = [{"ts": 1.0, "node": f"n{i}", "name": "driver", "value": "550" if i else "535"} for i in range(8)]
    facts += [{"ts": 1.0, "node": f"n{i}", "name": "asset_tag", "value": str(i)} for i in range(8)]
    (found,) = ConfigDriftDetector().score({"config_facts": pd.DataFrame(facts)})
    assert (found.node, found.evidence["majority"], found.blames_hardware) == ("n0", "550", False)
    assert ConfigDriftDetector().score({"config_facts": pd.DataFrame(facts[:3])}) == []


def test_a_job_that_starts_or_ends_on_some_nodes_is_no_fault() -> None:
    idle = TelemetryModel(CLUSTER, [], [], 3, START_MS, TelemetrySpec(samples=180)).frames()
    # The same seed: the same devices in the same slots.
    loaded = TelemetryModel(CLUSTER, [JOB], [], 3, START_MS + 1_800_000, TelemetrySpec(samples=180)).frames()
    for first, second in ((idle, loaded), (loaded, idle)):
        joined = {"inventory": first["inventory"]}
        for table in ("device_samples", "node_samples"):
            early, late = first[table].copy(), second[table].copy()
            early["ts"] += START_MS - early["ts"].min()
            late["ts"] += START_MS + 1_800_000 - late["ts"].min()
            # Counters go on where they were; resets are another test's business.
            counters = [name for name in early if str(name).endswith("_total")]
            joined[table] = pd.concat([early, late], ignore_index=True).drop(columns=counters)
        assert [one.summary for made in all_detectors() for one in made.score(joined)] == []


def test_counters_of_a_whole_cluster_that_start_again_are_told_of_no_device() -> None:
    frames = frames_of()
    rows = frames["device_samples"].copy()
    late = rows["ts"] > BEGIN_MS
    rows.loc[late, "throttle_power_us_total"] -= rows.loc[rows["ts"] <= BEGIN_MS, "throttle_power_us_total"].max()
    assert SensorDetector().score({**frames, "device_samples": rows}) == []


def test_a_zone_that_warms_is_no_anomaly_of_its_nodes() -> None:
    cluster, spec = Cluster(nodes=48), TelemetrySpec(samples=180)
    zone = Fault("cooling_zone", 8, start_step=220)
    frames = TelemetryModel(cluster, [Job(tp=4, pp=2, dp=40)], [zone], 3, START_MS, spec).frames()
    assert AnomalyDetector().score(frames) == []
    # Where nobody knows of zones the same readings are said of nodes.
    told = raised(AnomalyDetector().score({name: rows for name, rows in frames.items() if name != "inventory"}))
    assert {one.node for one in told} <= {f"n{node:04d}" for node in range(8, 16)}
    assert told


def test_ports_whose_peers_have_not_arrived_yet_are_not_congested() -> None:
    frames = frames_of(Fault("packet_loss", 5, start_step=200))
    rows = frames["port_samples"]
    late = BEGIN_MS - 600_000
    arrived = rows[(rows["ts"] < late) | rows["node"].isin(["n0001", "n0003", "n0004", "n0009"])]
    assert PortDetector().score({**frames, "port_samples": arrived[arrived["ts"] < BEGIN_MS]}) == []
    # Where most have arrived, they are judged.
    most = rows[~rows["node"].isin(["n0001", "n0003", "n0004"]) | (rows["ts"] < late)]
    assert only(PortDetector().score({**frames, "port_samples": most})).node == "n0005"
