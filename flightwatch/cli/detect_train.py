"""`flightwatch detect train`: learn the autoencoder from a healthy time."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import flightwatch
from flightwatch.cli.backtest import read_files, read_store
from flightwatch.cli.demo_job import torch_python
from flightwatch.core.errors import ConfigError, Refused
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode
from flightwatch.detectors.autoencoder import COLUMNS, training_windows
from flightwatch.detectors.autoencoder_model import load_model

NEEDED = {"device_samples": {"ts", "node", "device", "job", *COLUMNS}}
TRAIN_SECONDS = 3600


def train(settings: Loaded, arguments: argparse.Namespace) -> int:
    """Read rows, make windows of them, train in a Python with torch, and check the file it wrote.

    Raises
    ------
    ConfigError: no --out, or a file cannot be read. Refused: no torch, too few rows, or training failed.
    """
    del settings
    if not arguments.out:
        raise ConfigError("detect train needs --out FILE for the model")
    python = torch_python()
    if python is None:
        raise Refused("there is no Python with torch here: pip install 'flightwatch[deep]'")
    frames = read_files(arguments.table)[0] if arguments.table else read_store(arguments, NEEDED)
    windows, columns = training_windows(frames)
    if not len(windows):
        raise Refused(
            "the rows have no window in which devices' readings are complete: a healthy hour or more is needed"
        )
    out = Path(arguments.out)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "windows.npz"
        np.savez(source, windows_NWC=windows.astype(np.float32), columns=np.array(columns))
        command = [python, "-m", "flightwatch.detectors.autoencoder_fit", str(source), str(out.absolute())]
        package = str(Path(flightwatch.__file__).parents[1])
        done = subprocess.run(
            command, cwd=package, capture_output=True, text=True, timeout=TRAIN_SECONDS, check=False
        )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise Refused(f"training failed: {reason}")
    model = load_model(out)
    print(
        f"{out}: version {model.version}, {model.trained_windows} windows of {', '.join(columns)};"
        " set [detect] autoencoder to this file"
    )
    sys.stdout.flush()
    return ExitCode.DONE
