"""The simulated cluster that `flightwatch up --demo` starts beside itself: a process of its own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.demo_process import DemoProcess
from flightwatch.cli.instance import child_environment

GPUS = 1024
#: Healthy past: what detectors compare with.
HISTORY_SECONDS = 900
#: A demo leaves the machine to its user.
SAMPLE_SECONDS = 15


class DemoCluster:
    """`flightwatch simulate` as a child process with the bus of this instance.

    Parameters
    ----------
    config: the configuration file this instance was given, None without one.
    """

    def __init__(self, common: CommonSettings, config: str | None) -> None:
        output = Path(common.data_dir) / "demo_cluster.log"
        self._command = [
            sys.executable, "-m", "flightwatch.cli", "simulate", "--gpus", str(GPUS), "--history",
            str(history_seconds(output, time.time())), "--sample-seconds", str(SAMPLE_SECONDS),
            "--parent", str(os.getpid()), *(["--config", config] if config else []),
        ]  # fmt: skip
        self._environment = child_environment(common) | {"FLIGHTWATCH_FLIGHTWATCH_CONTROL": common.control_url}
        self._output = output
        self._process = DemoProcess("the demo's simulated cluster", output)

    def start(self) -> str:
        """Start it; return one line about it."""
        self._process.start(self._command, self._environment)
        return f"simulated cluster 'sim': {GPUS} GPUs, three faults within a minute; its output is in {self._output}"

    def stop(self) -> None:
        """End it: it tells that its jobs have ended, so that nobody waits for them."""
        self._process.stop()


def history_seconds(output: Path, now_s: float) -> int:
    """Return how much healthy past to send: none of the time in which an earlier demo here, as its output says, ran."""
    try:
        ended_s = output.stat().st_mtime
    except OSError:
        return HISTORY_SECONDS
    return max(0, min(HISTORY_SECONDS, int(now_s - ended_s)))
