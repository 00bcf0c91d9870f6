"""A child process of a demo: its output goes to a file, and it ends with the demo."""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

log = logging.getLogger(__name__)
STOP_SECONDS = 15.0


class DemoProcess:
    """Not started by being made.

    Parameters
    ----------
    what: what it is, as a warning names it ("the demo's training job"). output: file its output is appended to.
    """

    def __init__(self, what: str, output: Path) -> None:
        self._what, self._output = what, output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError when the program or the file cannot be opened."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal's Ctrl-C is the demo's to pass on
            )

    def stop(self) -> None:
        """Ask it to end, wait, and kill it when it does not; nothing when it was never started."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        elif process.returncode:
            log.warning("%s had ended with exit code %s", self._what, process.returncode)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
