"""The training job that `flightwatch up --demo` starts beside itself, where there is a torch to run it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from flightwatch.cli.demo_process import DemoProcess

RANKS = 4
JOB = "demo"


def torch_python() -> str | None:
    """Return a Python with torch: this one, FLIGHTWATCH_TEST_TORCH_PYTHON, or the `-torch` sibling of this
    environment that `make test` makes.
    """
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    for candidate in (os.environ.get("FLIGHTWATCH_TEST_TORCH_PYTHON", ""), f"{sys.prefix}-torch/bin/python"):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    return None


class DemoJob:
    """Four ranks under torchrun that send to one socket.

    Parameters
    ----------
    socket: path of the agent's socket.
    folder: where the job's output goes (`demo_job.log`).
    job: its name. equal_steps: steps before one rank becomes slow, None: about a minute of them.
    more: environment beside the probe's, as what makes it ask for profiles and the name of its attempt.
    """

    def __init__(
        self, socket: str, folder: Path, job: str = JOB, equal_steps: int | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._socket = socket
        self._folder = folder
        self._job, self._equal_steps, self._more = job, equal_steps, dict(more or {})
        self._process = DemoProcess("the demo's training job", folder / "demo_job.log")

    def start(self) -> str:
        """Start it; return one line about it."""
        python = torch_python()
        if python is None:
            return "no training job: there is no Python with torch here (make .venv-torch/.installed gets one)"
        # Found without importing it: the script needs torch, this process must not.
        package = importlib.util.find_spec("flightwatch.simulator")
        folders = list(package.submodule_search_locations or []) if package else []
        command = [
            python, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--master-port", "0",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(Path(folders[0]) / "demo_job.py"),
        ]  # fmt: skip
        own = {
            "FLIGHTWATCH": "1",
            "FLIGHTWATCH_SOCKET": self._socket,
            "FLIGHTWATCH_JOB": self._job,
            "OMP_NUM_THREADS": "1",
        }
        if self._equal_steps is not None:
            own["DEMO_EQUAL_STEPS"] = str(self._equal_steps)
        self._process.start(command, os.environ | own | self._more)
        when = "after a minute" if self._equal_steps is None else f"from step {self._equal_steps} on"
        told = f"training job '{self._job}': {RANKS} ranks, one of them slow {when}"
        return f"{told}; its output is in {self._folder}/demo_job.log"

    def stop(self) -> None:
        """End it and its ranks."""
        self._process.stop()
