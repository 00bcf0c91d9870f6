"""Signals that come twice, and while the main thread holds the lock of what they set."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, signal, threading
from flightwatch.cli.stopping import when_asked_to_stop

stop = threading.Event()
when_asked_to_stop(stop.set)
with stop._cond:  # where `Event.wait` is interrupted
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)
print(stop.wait(300))
"""


def test_several_signals_at_the_worst_moment_stop_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
