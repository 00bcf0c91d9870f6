"""Pauses the device's profiling counters while a trace is recorded.

NVIDIA devices let one reader at their profiling counters: while DCGM samples them (its fields 1001-1014), CUPTI, the
tracer inside torch, is slowed down or refused. `dcgmi profile --pause` and `--resume` are DCGM's own way to give way.
Collectors of this agent read no such counters themselves. Where there is no dcgmi nothing is done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence

from flightwatch.core.errors import FlightwatchError, NoData

logger = logging.getLogger(__name__)

RunCommand = Callable[[Sequence[str], float], bytes]
_SECONDS = 10.0


class CounterPause:
    """Holds the counters while at least one request wants it. Commands run on a thread of its own, in order.

    Parameters
    ----------
    marker: file that is there while the counters are paused, so that an agent that was killed resumes them.
    """

    def __init__(self, marker: str, run_command: RunCommand) -> None:
        self._marker = marker
        self._run_command = run_command
        self._wanted = False
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="profiler-counters", daemon=True)

    def start(self) -> None:
        """Start; counters that a former agent left paused are resumed."""
        self._thread.start()
        if os.path.exists(self._marker):
            self._queue.put("--resume")

    def stop(self) -> None:
        """Resume what is paused and end."""
        self.want(False)
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(2 * _SECONDS)

    def want(self, paused: bool) -> None:
        """Say whether the counters should be paused now; returns at once."""
        if paused != self._wanted:
            self._wanted = paused
            self._queue.put("--pause" if paused else "--resume")

    def _run(self) -> None:
        while (word := self._queue.get()) is not None:
            self._do(word)

    def _do(self, word: str) -> None:
        try:
            if word == "--pause":
                with open(os.open(self._marker, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb"):
                    pass
            self._run_command(["dcgmi", "profile", word], _SECONDS)
            logger.info("profiling counters of the devices: dcgmi profile %s", word)
        except NoData:
            logger.debug("no dcgmi on this node: no counters to pause")
        except (FlightwatchError, OSError) as error:
            logger.warning("dcgmi profile %s failed: %s; the trace can lack device events", word, error)
            if word == "--resume":
                return  # the marker stays: the next start tries again
        if word == "--resume":
            with contextlib.suppress(OSError):
                os.unlink(self._marker)
