"""For every detector, rows in which it finds something: a contract checked on silence is not checked."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd

from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.scenarios import START_MS, build
from flightwatch.simulator.telemetry import TelemetryModel, TelemetrySpec

Frames = dict[str, pd.DataFrame]
CLUSTER = Cluster(nodes=4)
JOB = Job(tp=4, pp=2, dp=4, step_ms=1500)
SLOW_GPU = Fault("slow_gpu", 1, 3, start_step=60, severity=0.25)


def timing(job: Job = JOB, *faults: Fault, steps: int = 120) -> Frames:
    """One job on four nodes."""
    return build("test", CLUSTER, job, list(faults), 5, steps).frames


def telemetry(kind: str, device: int | None = 3) -> Frames:
    """Twenty minutes of sixteen nodes, one of them with a fault."""
    fault = Fault(kind, 5, device, start_step=200)
    job = Job(tp=4, pp=2, dp=8, first_node=2)
    return TelemetryModel(Cluster(nodes=16), [job], [fault], 3, START_MS, TelemetrySpec(samples=250)).frames()


def slower_rerun(factor: float = 1.15) -> Frames:
    """One job twice, an hour apart; the second run's steps and compute take `factor` times as long."""
    frames = timing(steps=80)
    rows = frames["rank_steps"]
    again = rows.assign(run="again", ts=rows["ts"] + 3_600_000.0)
    again[["step_us", "compute_us"]] *= factor
    placed = frames["placements"]
    placements = pd.concat([placed, placed.assign(run="again")], ignore_index=True)
    return {**frames, "rank_steps": pd.concat([rows, again], ignore_index=True), "placements": placements}


def _half_a_job() -> Frames:
    frames = timing()
    rows = frames["rank_steps"]
    return {**frames, "rank_steps": rows[rows["rank"] < 20]}


def _one_old_driver() -> Frames:
    facts = [{"ts": START_MS, "node": f"n{i}", "name": "driver", "value": "550" if i else "535"} for i in range(8)]
    return {"config_facts": pd.DataFrame(facts)}


def _three_xids() -> Frames:
    common = {"node": "n1", "device": 3.0, "source": "kernel", "severity": "critical", "message": "NVRM: Xid"}
    rows = [
        {"ts": START_MS + 10.0 * i, "code": code, **common} for i, code in enumerate(("xid:48", "xid:63", "xid:94"))
    ]
    return {"events": pd.DataFrame(rows)}


def crash_rows() -> Frames:
    """A device falls off the bus; its rank fails, the other ranks are terminated."""
    placements = [
        {"ts": START_MS, "node": f"n{i // 2}", "job": "j", "run": "1", "rank": float(i), "device": float(i % 2)}
        for i in range(4)
    ]
    late = START_MS + 900_000.0
    lost = {"ts": late, "node": "n1", "device": 0.0, "source": "kernel", "code": "xid:79", "severity": "critical",
            "message": "NVRM: Xid 79"}  # fmt: skip
    ends = [
        {"ts": late + 1000 * (i + 1), "node": node, "source": "comm", "code": "elastic:rank_failed",
         "severity": "error", "message": "failed", "attrs.exitcode": code, "attrs.local_rank": local}
        for i, (node, local, code) in enumerate((("n1", "0", "1"), ("n0", "0", "-15"), ("n0", "1", "-15")))
    ]  # fmt: skip
    return {"events": pd.DataFrame([lost, *ends]), "placements": pd.DataFrame(placements)}


def _a_hung_rank() -> Frames:
    """Rank 2 of four does not enter the all_reduce in which the others wait, in two captures."""
    group = {"job": "j", "run": "1", "process_group": "default_pg:1"}
    dumps, entries = [], []
    for name, late_ms in (("h1", 0.0), ("h1.2", 5000.0)):
        for rank in range(4):
            base = {**group, "ts": START_MS + late_ms, "capture_id": name, "rank": float(rank), "node": f"n{rank // 2}"}
            dumps.append({**base, "status": "ok"})
            entries.append({**base, "seq": 6.0, "op": "unknown", "retired": 1.0, "is_p2p": 0.0, "record_id": None})
            if rank != 2:
                entries.append(
                    {**base, "seq": 7.0, "op": "all_reduce", "retired": 0.0, "is_p2p": 0.0, "record_id": 0.0}
                )
    groups = pd.DataFrame([{**group, "ts": START_MS, "members": (0, 1, 2, 3)}])
    return {"dumps": pd.DataFrame(dumps), "collectives": pd.DataFrame(entries), "process_groups": groups}


def _loss_spike() -> Frames:
    steps = np.arange(200.0)
    noise = np.random.default_rng(1).normal(0, 0.02, len(steps))
    loss = (2 + 8 * np.exp(-steps / 60)) * np.exp(noise)
    loss[150:153] *= 2.3
    rows = {"ts": START_MS + 1000 * steps, "job": "j", "run": "1", "rank": -1.0, "name": "loss", "step": steps}
    return {"training_scalars": pd.DataFrame({**rows, "value": loss})}


def _fp8_amax_jumps() -> Frames:
    steps = np.arange(100.0)
    amax = 3.0 * np.exp(np.random.default_rng(1).normal(0, 0.1, len(steps))) * np.where(steps >= 60, 30.0, 1.0)
    rows = {"ts": START_MS + 1000 * steps, "job": "j", "run": "1", "rank": -1.0, "name": "fp8.amax.mlp", "step": steps}
    return {"training_scalars": pd.DataFrame({**rows, "value": amax})}


def _first_nan() -> Frames:
    frames = timing(steps=80)
    rows = frames["rank_steps"]
    rows["nonfinite_count"] = 0.0
    rows.loc[(rows["rank"] == 9) & (rows["step"] == 50), "nonfinite_count"] = 3
    rows.loc[rows["step"] > 50, "nonfinite_count"] = 8
    return frames


def _weak_signs() -> Frames:
    cluster, fault = Cluster(nodes=4), Fault("ecc_ramp", 2, 3, start_step=100)
    frames = TelemetryModel(cluster, [Job(dp=32)], [fault], 3, START_MS).frames()
    rows = frames["device_samples"]
    at = (rows["node"] == "n0002") & (rows["device"] == 3)
    rows["pcie_replay_total"] = np.where(at, (rows["ts"] - START_MS) / 20_000, 0.0)
    rows.loc[at & (rows["ts"] > START_MS + 10**6), "remapped_rows_total"] = 5
    return frames


def _one_digest_differs() -> Frames:
    ranks, values = [0.0, 1.0, 2.0, 3.0], [7.0, 7.0, 8.0, 7.0]
    rows = {"ts": START_MS, "job": "j", "run": "1", "step": 3.0, "name": "replica_digest.tp0", "rank": ranks}
    return {"training_scalars": pd.DataFrame({**rows, "value": values})}


def _odd_node() -> Frames:
    frames = TelemetryModel(Cluster(nodes=12), [Job(dp=64)], [], 3, START_MS, TelemetrySpec(samples=200)).frames()
    rows = frames["node_samples"]
    rows.loc[(rows["node"] == "n0004") & (rows["ts"] > START_MS + 1_400_000), "cpu_pct"] += 60
    return frames


#: Detector to rows that make it speak; a new detector needs an entry.
SPEAKING: dict[str, Callable[[], Frames]] = {
    "slow": lambda: timing(JOB, SLOW_GPU),
    "fail_slow": lambda: timing(JOB, SLOW_GPU),
    "job_regression": slower_rerun,
    "imbalance": lambda: timing(Job(tp=2, pp=4, dp=4, stage_imbalance=0.4), steps=200),
    "coverage": _half_a_job,
    "cooling": lambda: telemetry("thermal_rack", None),
    "overheat": lambda: telemetry("fan_failure"),
    "throttle": lambda: telemetry("thermal_gpu"),
    "memory_errors": lambda: telemetry("ecc_ramp"),
    "device_errors": _three_xids,
    "hang": _a_hung_rank,
    "crash": crash_rows,
    "ports": lambda: telemetry("packet_loss", None),
    "storage": lambda: telemetry("storage_latency", None),
    "sensors": lambda: telemetry("stuck_sensor"),
    "dead_node": lambda: telemetry("dead_node", None),
    "clock_skew": lambda: telemetry("clock_skew", None),
    "config_drift": _one_old_driver,
    "scalars": _loss_spike,
    "nonfinite": _first_nan,
    "numerics": _fp8_amax_jumps,
    "sdc_precursor": _weak_signs,
    "replica_digest": _one_digest_differs,
    "anomaly": _odd_node,
}


@cache
def speaking_frames(name: str) -> Frames:
    """Return rows in which the detector of that name finds something; shared, so not to be changed."""
    return SPEAKING[name]()
