"""The agent's profiler: broker, uploads and what the control server is told, joined."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from flightwatch.collectors.profiler.broker import ProfilerBroker
from flightwatch.collectors.profiler.processes import NO_DAEMON, Process, training_processes
from flightwatch.collectors.profiler.requests import Progress, request_of
from flightwatch.collectors.profiler.summarise import summarise
from flightwatch.collectors.profiler.uploads import Uploads
from flightwatch.core.clock import Clock
from flightwatch.core.errors import Backpressure, ConfigError
from flightwatch.core.protocols import BlobSink, Command, Sink

logger = logging.getLogger(__name__)

PROGRESS_KIND = "profile_progress"
ROSTER_KIND = "profile_roster"
ROSTER_SECONDS = 5.0
#: An unchanged roster is sent again this often: the control server forgets nodes that are silent.
ROSTER_REPEAT_SECONDS = 60.0
_MOST_RANKS = 512


class Profiler:
    """Does profile commands and keeps the control server informed of ranks that can be profiled.

    Parameters
    ----------
    socket_dir: folder of the socket, see `settings.profiler_folder`.
    state_dir: the agent's own folder.
    processes: returns training processes of this node; injected in tests.
    """

    def __init__(
        self,
        socket_dir: str,
        state_dir: str,
        blobs: BlobSink,
        sink: Sink,
        clock: Clock,
        *,
        abstract: bool = True,
        processes: Callable[[], Any] = training_processes,
        summarise: Callable[[str, int], dict[str, Any]] = summarise,
    ) -> None:
        self._blobs = blobs
        self._clock = clock
        self._processes = processes
        self.broker = ProfilerBroker(
            socket_dir, clock, lambda job, name: self.uploads.put(job, name), self.report, "dynolog" if abstract else ""
        )
        copies = os.path.join(state_dir, "profiles")
        self.uploads = Uploads(copies, blobs, sink, clock, self.broker.finish, summarise)
        self._sent_roster: tuple[str, float] = ("", float("-inf"))
        self._numbers = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profiler-roster", daemon=True)

    def start(self) -> None:
        """Start; a folder that cannot be used leaves everything else of the agent running."""
        try:
            self.broker.start()
        except ConfigError as error:
            logger.error("profiles are off on this node: %s", error)
            return
        self.uploads.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
        self._stop.set()
        for part in (self.broker, self.uploads):
            if self._thread.is_alive():
                part.stop()

    def profile_start(self, command: Command) -> None:
        """Take a request. Raises BadRecord when the command is malformed."""
        self.broker.begin(request_of(command))

    def profile_stop(self, command: Command) -> None:
        """End a request's ranks that wait."""
        ranks = command.arguments.get("ranks")
        self.broker.cancel(str(command.arguments.get("request", "")), ranks if isinstance(ranks, list) else None)

    def report(self, progress: Progress) -> None:
        """Send one state of one rank."""
        body = {
            "request": progress.request,
            "rank": progress.rank,
            "state": progress.state.value,
            "reason": progress.reason,
            "first_step": progress.first_step,
            "steps": progress.steps,
            "bytes": progress.bytes,
            "ts": self._clock.now_ms(),
        }
        self._send(PROGRESS_KIND, body)

    def _run(self) -> None:
        while not self._stop.wait(ROSTER_SECONDS):
            self.send_roster()

    def send_roster(self) -> None:
        """Tell which ranks run here and whether they can be profiled, when that changed or a minute ago."""
        asking = {process.pid: answered for process, answered in self.broker.roster()}
        ranks = [
            _entry(process, asking.get(process.pid), self.broker.socket_dir)
            for process in self._processes()
            if process.rank is not None
        ][:_MOST_RANKS]
        body = {"ranks": sorted(ranks, key=lambda one: (one["job"], one["rank"])), "yielded": self.broker.yielded}
        text = json.dumps(body)
        now_s = self._clock.monotonic_s()
        if text != self._sent_roster[0] or now_s - self._sent_roster[1] >= ROSTER_REPEAT_SECONDS:
            if text == self._sent_roster[0] and not ranks:
                return
            self._sent_roster = (text, now_s)
            self._send(ROSTER_KIND, body | {"ts": self._clock.now_ms()})

    def _send(self, kind: str, body: dict[str, Any]) -> None:
        with self._lock:
            self._numbers += 1
            name = f"{kind}-{self._clock.now_ms()}-{self._numbers}"
        try:
            self._blobs.put(name, kind, io.BytesIO(json.dumps(body).encode()), {})
        except Backpressure as error:
            logger.warning("the control server is not told: %s", error)


def _entry(process: Process, answered: bool | None, socket_dir: str) -> dict[str, Any]:
    """Describe one rank: `problem` is "" when it can be profiled."""
    problem = ""
    if not process.daemon:
        problem = NO_DAEMON
    elif answered is False or (answered is None and process.folder not in (None, socket_dir)):
        problem = f"KINETO_IPC_SOCKET_DIR ({process.folder!r}) differs from the agent's ({socket_dir})"
    elif answered is None:
        problem = "it has not asked yet: torch is not imported yet, was started before the agent, or has no Kineto"
    return {"job": process.job, "run": process.run, "rank": process.rank, "pid": process.pid, "problem": problem}
