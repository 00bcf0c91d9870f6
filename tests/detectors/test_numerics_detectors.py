"""Loss, gradient norm, non-finite origins, precursors, replica digests, any-metric anomaly, joint analysis."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.anomaly import AnomalyDetector
from flightwatch.detectors.joint import explain
from flightwatch.detectors.nonfinite import NonfiniteDetector
from flightwatch.detectors.precursors import PrecursorDetector, ReplicaDigestDetector
from flightwatch.detectors.registry import all_detectors
from flightwatch.detectors.scalars import ScalarDetector, kind_of_scalar
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.scenarios import START_MS, build
from flightwatch.simulator.telemetry import TelemetryModel, TelemetrySpec


def scalars(name: str, values: list[float], first_step: int = 0) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "ts": START_MS + 1000.0 * np.arange(len(values)), "job": "j", "run": "1", "rank": -1.0, "name": name,
            "step": first_step + np.arange(len(values), dtype=float), "value": values,
        }
    )  # fmt: skip


def loss_curve(steps: int, seed: int = 1) -> list[float]:
    rng = np.random.default_rng(seed)
    return list((2 + 8 * np.exp(-np.arange(steps) / 60)) * np.exp(rng.normal(0, 0.02, steps)))


def test_a_spike_of_two_times_is_found_and_cleared() -> None:
    values = loss_curve(200)
    values[150:153] = [values[150] * 2.3, values[150] * 1.8, values[150] * 1.5]
    found = ScalarDetector().score({"training_scalars": scalars("lm loss", values)})
    assert [(one.kind, one.state) for one in found] == [
        (FindingKind.LOSS_SPIKE, FindingState.RAISED), (FindingKind.LOSS_SPIKE, FindingState.CLEARED),
    ]  # fmt: skip
    assert found[0].detected_step == 150
    assert not found[0].blames_hardware


@pytest.mark.parametrize("seed", range(5))
def test_an_ordinary_curve_is_silent(seed: int) -> None:
    assert ScalarDetector().score({"training_scalars": scalars("loss", loss_curve(400, seed))}) == []
    norms = list(np.exp(np.random.default_rng(seed).normal(-1, 0.35, 400)))
    assert ScalarDetector().score({"training_scalars": scalars("grad_norm", norms)}) == []


def test_the_gradient_norm_speaks_before_the_loss_in_a_recording_that_starts_late() -> None:
    norm = scalars("grad norm", [0.25, 0.9, 2.4, 16.0, 145.0, 960.0], 31214)
    loss = scalars("lm loss", [2.2, 2.21, 2.5, 2.25, 2.3, 5.1], 31214)
    found = ScalarDetector().score({"training_scalars": pd.concat([norm, loss])})
    at = {one.kind: one.detected_step or 0 for one in found}
    assert at[FindingKind.GRAD_NORM] < at[FindingKind.LOSS_SPIKE] == 31219


def test_a_loss_that_is_not_a_number_is_serious() -> None:
    values = loss_curve(60)
    values[50] = math.inf
    (first, *_rest) = ScalarDetector().score({"training_scalars": scalars("loss", values)})
    assert (first.severity, first.detected_step) == (Severity.P2, 50)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("loss", "loss_spike"), ("train/lm loss", "loss_spike"), ("grad_norm", "grad_norm"), ("loss_scale", None),
     ("lr", None), ("validation loss", None)],
)  # fmt: skip
def test_names_of_scalars(name: str, kind: str | None) -> None:
    found = kind_of_scalar(name)
    assert (found.value if found else None) == kind


def steps_of(job: Job) -> dict[str, pd.DataFrame]:
    frames = build("test", Cluster(nodes=4), job, [], 3, 80, lost=0.0).frames
    frames["rank_steps"]["nonfinite_count"] = 0.0
    return frames


def test_one_rank_that_began_it_is_a_suspect() -> None:
    frames = steps_of(Job(tp=4, pp=2, dp=4))
    rows = frames["rank_steps"]
    rows.loc[(rows["rank"] == 9) & (rows["step"] == 50), "nonfinite_count"] = 3
    rows.loc[rows["step"] > 50, "nonfinite_count"] = 8
    (found,) = NonfiniteDetector().score(frames)
    assert (found.scope, found.rank, found.node, found.blames_hardware) == (FindingScope.RANK, 9, "n0001", True)
    assert found.detected_step == 50


def test_all_ranks_at_once_name_nobody_and_a_scale_search_is_no_alarm() -> None:
    frames = steps_of(Job(tp=4, pp=2, dp=4))
    rows = frames["rank_steps"]
    rows.loc[rows["step"] == 50, "nonfinite_count"] = 5
    (found,) = NonfiniteDetector().score(frames)
    assert (found.scope, found.rank, found.blames_hardware) == (FindingScope.JOB, None, False)
    rows["nonfinite_count"] = 0.0
    rows.loc[rows["step"] < 10, "nonfinite_count"] = 1
    assert NonfiniteDetector().score(frames) == []


def test_events_name_the_first_in_dependency_order() -> None:
    events = pd.DataFrame(
        [
            {
                "ts": 1.0,
                "node": "b",
                "rank": 5.0,
                "code": "nonfinite:backward",
                "attrs.step": "7",
                "attrs.module": "mlp",
            },
            {
                "ts": 2.0,
                "node": "a",
                "rank": 3.0,
                "code": "nonfinite:forward",
                "attrs.step": "7",
                "attrs.module": "attn",
            },
        ]
    )
    (found,) = NonfiniteDetector().score({"events": events})
    assert (found.rank, found.node, found.evidence["op"]) == (3, "a", "attn")


def test_one_rank_with_its_own_gradient_norm() -> None:
    frames = steps_of(Job(dp=32))
    rows = frames["rank_steps"]
    rng = np.random.default_rng(4)
    rows["grad_norm"] = np.exp(rng.normal(0, 0.05, len(rows)))
    rows.loc[(rows["rank"] == 13) & (rows["step"] >= 50), "grad_norm"] *= 4
    found = [one for one in ScalarDetector().score(frames) if one.scope == FindingScope.RANK]
    assert [(one.rank, one.node, one.kind) for one in found] == [(13, "n0001", FindingKind.GRAD_NORM)]


def test_replicas_that_differ() -> None:
    rows = pd.DataFrame(
        {"ts": 1.0, "job": "j", "run": "1", "step": 3.0, "name": "replica_digest.tp0", "rank": [0.0, 1.0, 2.0, 3.0],
         "value": [7.0, 7.0, 8.0, 7.0]}
    )  # fmt: skip
    (found,) = ReplicaDigestDetector().score({"training_scalars": rows})
    assert (found.rank, found.blames_hardware, found.severity) == (2, True, Severity.P2)
    (pair,) = ReplicaDigestDetector().score({"training_scalars": rows[rows["rank"] >= 2]})
    assert (pair.rank, pair.blames_hardware) == (None, False)


def test_several_weak_signs_make_a_precursor_and_one_does_not() -> None:
    cluster, job = Cluster(nodes=4), Job(dp=32)
    frames = TelemetryModel(cluster, [job], [Fault("ecc_ramp", 2, 3, start_step=100)], 3, START_MS).frames()
    assert PrecursorDetector().score(frames) == []
    rows = frames["device_samples"]
    at = (rows["node"] == "n0002") & (rows["device"] == 3)
    rows["pcie_replay_total"] = np.where(at, (rows["ts"] - START_MS) / 20_000, 0.0)
    rows.loc[at & (rows["ts"] > START_MS + 10**6), "remapped_rows_total"] = 5
    (found,) = PrecursorDetector().score(frames)
    assert (found.node, found.device, found.severity, found.blames_hardware) == ("n0002", 3, Severity.P4, False)


def test_an_odd_node_is_an_anomaly_that_says_what_moved() -> None:
    model = TelemetryModel(Cluster(nodes=12), [Job(dp=64)], [], 3, START_MS, TelemetrySpec(samples=200))
    frames = model.frames()
    assert AnomalyDetector().score(frames) == []
    rows = frames["node_samples"]
    rows.loc[(rows["node"] == "n0004") & (rows["ts"] > START_MS + 1_400_000), "cpu_pct"] += 60
    found = [one for one in AnomalyDetector().score(frames) if one.state == FindingState.RAISED]
    assert [(one.node, one.severity, one.blames_hardware) for one in found] == [("n0004", Severity.P4, False)]
    assert "cpu_pct" in found[0].evidence["moved"]


def test_a_warm_rack_explains_throttling_and_the_slow_stage() -> None:
    cluster, job = Cluster(nodes=8, nodes_per_rack=2, racks_per_zone=2), Job(tp=4, pp=2, dp=8, step_ms=4000)
    frames = build(
        "x", cluster, job, [Fault("thermal_rack", 2, start_step=100, severity=0.15)], 3, 250, telemetry="all"
    ).frames
    findings = [one for made in all_detectors() for one in made.score(frames)]
    causes = explain(findings, frames)
    warm = next(one for one in causes if one.root.kind == FindingKind.COOLING)
    kinds = {one.kind for one, _ in warm.consequences}
    assert {FindingKind.THROTTLE, FindingKind.SLOW} <= kinds
    assert sum(len(one.consequences) + 1 for one in causes) == len({one.id for one in findings})


def test_findings_far_apart_do_not_explain_each_other() -> None:
    frames = TelemetryModel(
        Cluster(nodes=8),
        [Job(dp=64)],
        [Fault("fan_failure", 2, 1, start_step=200), Fault("power_cap", 6, start_step=200)],
        3,
        START_MS,
    ).frames()
    findings = [one for made in all_detectors() for one in made.score(frames)]
    roots = {one.root.node for one in explain(findings, frames)}
    assert {"n0002", "n0006"} <= roots
