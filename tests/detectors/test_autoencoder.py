"""The autoencoder: trained in a Python with torch on healthy simulated windows, read and run without it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flightwatch.cli import main
from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import FindingKind, Severity
from flightwatch.detectors.autoencoder import AutoencoderDetector, training_windows
from flightwatch.detectors.autoencoder_model import load_model, save_model
from flightwatch.detectors.registry import all_detectors
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.scenarios import START_MS
from flightwatch.simulator.telemetry import TelemetryModel, TelemetrySpec

TORCH = os.environ.get("FLIGHTWATCH_TEST_TORCH_PYTHON", f"{sys.prefix}-torch/bin/python")
needs_torch = pytest.mark.skipif(not os.access(TORCH, os.X_OK), reason="there is no Python with torch beside this one")
COLUMNS = ("temp_c", "power_w")


def healthy(seed: int = 3, samples: int = 200) -> dict[str, pd.DataFrame]:
    job = Job(tp=4, pp=2, dp=4, first_node=1)
    return TelemetryModel(Cluster(nodes=6), [job], [], seed, START_MS, TelemetrySpec(samples=samples)).frames()


def odd(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """A busy device gets warmer while it draws less: each alone is within what its peers do over time."""
    rows = frames["device_samples"]
    late = (rows["node"] == "n0002") & (rows["device"] == 3) & (rows["ts"] > START_MS + 1_400_000)
    rows.loc[late, "temp_c"] += 6
    rows.loc[late, "power_w"] -= 60
    return frames


def by_hand(path: Path) -> Path:
    """A model that gives back nothing: the error is the size of the residual."""
    zeros = [(np.zeros((12, 2)), np.zeros(2)), (np.zeros((2, 12)), np.zeros(12))]
    save_model(path, COLUMNS, np.zeros(2), np.array([1.0, 10.0]), 6, 2.0, zeros, 100)
    return path


def test_it_is_off_without_a_model_and_names_the_readings_with_one(tmp_path: Path) -> None:
    assert "autoencoder" not in {one.name for one in all_detectors()}
    model = load_model(by_hand(tmp_path / "m.npz"))
    (detector,) = (one for one in all_detectors(model=model) if one.name == "autoencoder")
    (finding,) = detector.score(odd(healthy()))
    assert (finding.kind, finding.severity, finding.blames_hardware) == (FindingKind.ANOMALY, Severity.P4, False)
    assert (finding.node, finding.device) == ("n0002", 3)
    assert finding.detector_version == f"1-{model.version}"
    assert finding.evidence["readings"] == ["power_w", "temp_c"] or finding.evidence["readings"] == [
        "temp_c",
        "power_w",
    ]
    assert detector.score(healthy()) == []
    assert detector.score({}) == []
    assert detector.score({"device_samples": healthy()["device_samples"].drop(columns=["power_w"])}) == []


def test_windows_leave_out_what_is_not_known() -> None:
    frames = healthy()
    windows, columns = training_windows(frames)
    assert {"temp_c", "power_w", "sm_clock_mhz"} <= set(columns)
    assert windows.shape[1:] == (6, len(columns))
    assert np.isfinite(windows).all()
    assert len(windows) > 500
    assert training_windows({})[0].size == 0


@pytest.mark.parametrize("damage", ["missing", "text", "object", "shape", "format"])
def test_a_bad_file_is_one_sentence(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "m.npz"
    arrays = dict(np.load(by_hand(path)))
    if damage == "missing":
        path.unlink()
    elif damage == "text":
        path.write_text("no archive")
    else:
        broken = {"object": ("mean_C", np.array([{}, {}], dtype=object)), "shape": ("weight_1", np.zeros((3, 12))),
                  "format": ("format", np.array(2))}[damage]  # fmt: skip
        np.savez(path, **(arrays | {broken[0]: broken[1]}))
    with pytest.raises(ConfigError, match="model"):
        load_model(path)


@needs_torch
@pytest.mark.torch
def test_trained_on_healthy_windows_it_finds_what_goes_together_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLIGHTWATCH_TEST_TORCH_PYTHON", TORCH)
    rows = healthy(seed=11, samples=300)["device_samples"]
    rows.to_parquet(tmp_path / "healthy.parquet")
    out = tmp_path / "model.npz"
    words = ["detect", "train", "--out", str(out), "--table", f"device_samples={tmp_path / 'healthy.parquet'}"]
    assert main(words) == 0
    assert "set [detect] autoencoder" in capsys.readouterr().out
    detector = AutoencoderDetector(load_model(out))
    assert {(one.node, one.device) for one in detector.score(odd(healthy()))} == {("n0002", 3)}
    assert detector.score(healthy(seed=5)) == []
