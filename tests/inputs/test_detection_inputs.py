"""Detectors on published recordings, read from the folder beside the checkout when it is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from flightwatch.core.vocabulary import FindingKind, FindingState
from flightwatch.detectors.anomaly import AnomalyDetector
from flightwatch.detectors.registry import all_detectors
from flightwatch.detectors.scalars import ScalarDetector
from flightwatch.pipeline.detection.run import run_detectors

INPUTS = Path(__file__).parents[2].parent / "shared" / "inputs"
pytestmark = [
    pytest.mark.inputs,
    pytest.mark.skipif(not INPUTS.exists(), reason=f"the recordings are not at {INPUTS}"),
]
START_MS = 1.7e12


def test_the_artificially_slow_worker_and_not_the_long_last_stage() -> None:
    rows = pd.read_csv(INPUTS / "l_datasets" / "bytedance_AR_step_rank_op.csv")
    compute = ("forward-compute", "backward-compute", "optimizer", "optimizer-clip-main-grad")
    ops = pd.DataFrame(
        {
            "ts": START_MS + rows["step"] * 60_000.0, "job": "ar", "run": "1", "step": rows["step"].astype(float),
            "rank": rows["rank"].astype(float), "op": rows["optype"], "dur_us": rows["sum"] * 1e6,
            "kind": ["compute" if op in compute else "comm" for op in rows["optype"]],
        }
    )  # fmt: skip
    places = rows.drop_duplicates("rank")
    placements = pd.DataFrame(
        {"ts": START_MS, "job": "ar", "run": "1", "rank": places["rank"].astype(float),
         "dp": places["dp_rank"].astype(float), "pp": places["stage"].astype(float)}
    )  # fmt: skip
    findings = run_detectors(all_detectors(), {"op_timings": ops, "placements": placements}).findings
    assert {one.rank for one in findings if one.blames_hardware} == {0}
    without = run_detectors(all_detectors(), {"op_timings": ops}).findings
    assert {one.kind for one in without} == {FindingKind.COVERAGE}


def test_the_worker_that_becomes_slow_in_mid_training() -> None:
    rows = pd.read_csv(INPUTS / "l_datasets" / "alibaba_pai_minibatch_job1_norm.csv")
    rows["step"] = rows.groupby("worker")["time"].rank(method="first") - 1
    steps = pd.DataFrame(
        {"ts": START_MS + rows["time"] * 1000.0, "job": "pai", "run": "1", "step": rows["step"],
         "rank": rows["worker"].astype(float), "step_us": rows["batch_time_norm"] * 1000.0, "mode": "async"}
    )  # fmt: skip
    findings = run_detectors(all_detectors(), {"rank_steps": steps}).findings
    assert {one.rank for one in findings if one.kind == FindingKind.SLOW and one.blames_hardware} == {6}


def test_the_gradient_norm_before_the_loss_spike() -> None:
    text = (INPUTS / "j_training" / "bloom176B_spike_iter31219.log").read_text(encoding="utf-8")
    found = re.findall(r"iteration\s+(\d+)/.*?lm loss:\s*(\S+).*?grad norm:\s*(\S+)", text)
    rows = [
        {"ts": START_MS + int(step) * 1e5, "job": "b", "run": "1", "step": float(step), "rank": -1.0,
         "name": name, "value": float(value)}
        for step, loss, norm in found
        for name, value in (("lm loss", loss), ("grad norm", norm))
    ]  # fmt: skip
    findings = ScalarDetector().score({"training_scalars": pd.DataFrame(rows)})
    raised = {one.kind: one.detected_step or 0 for one in findings if one.state == FindingState.RAISED}
    assert raised[FindingKind.LOSS_SPIKE] == 31219
    assert 31215 <= raised[FindingKind.GRAD_NORM] < 31219


def test_the_machine_temperature_windows() -> None:
    rows = pd.read_csv(INPUTS / "l_datasets" / "nab_machine_temperature_cut.csv")
    stamps = pd.to_datetime(rows["timestamp"], utc=True)
    ts = stamps.to_numpy(dtype="datetime64[ms]").astype("int64").astype(float)
    frame = pd.DataFrame({"ts": ts, "node": "machine", "chip": "m", "label": "t", "value": rows["value"]})
    findings = AnomalyDetector().score({"sensor_samples": frame})
    windows = json.loads((INPUTS / "l_datasets" / "nab_windows_machine_temperature.json").read_text(encoding="utf-8"))
    raised = [one for one in findings if one.state == FindingState.RAISED]
    for start, end in windows["realKnownCause/machine_temperature_system_failure.csv"][:2]:
        begin_ms, end_ms = (pd.Timestamp(moment, tz="UTC").timestamp() * 1000 for moment in (start, end))
        # The finding may begin up to six hours before the labelled window; it is open inside it.
        assert any(begin_ms - 6 * 3.6e6 <= (one.detected_at or 0) <= end_ms for one in raised)
    assert len(raised) <= 8
