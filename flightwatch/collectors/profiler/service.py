"""The agent's profiler: broker, uploads and what the control server is told, joined."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flightwatch.collectors.profiler.block_times import BlockTimes
from flightwatch.collectors.profiler.broker import ProfilerBroker
from flightwatch.collectors.profiler.counter_pause import CounterPause
from flightwatch.collectors.profiler.processes import NO_DAEMON, Process, training_processes
from flightwatch.collectors.profiler.requests import ProfileRequest, Progress, RankJob, RankState, request_of
from flightwatch.collectors.profiler.summarise import summarise
from flightwatch.collectors.profiler.unfinished import Unfinished
from flightwatch.collectors.profiler.uploads import Uploads
from flightwatch.core.clock import Clock
from flightwatch.core.errors import Backpressure, ConfigError
from flightwatch.core.protocols import BlobSink, Command, Sink

if TYPE_CHECKING:
    from flightwatch.collectors.training_micro import MicroTraces

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
    node: name of this node, written into traces.
    pause: holds the devices' profiling counters while ranks record; None: they are left alone.
    probe_socket: path of the probes' receiver; beside it ranks look for requests for times of their blocks.
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
        node: str = "",
        pause: CounterPause | None = None,
        probe_socket: str = "",
        processes: Callable[[], Any] = training_processes,
        summarise: Callable[[str, int], dict[str, Any]] = summarise,
    ) -> None:
        self._blobs = blobs
        self._clock = clock
        self._processes = processes
        self._pause = pause
        self.broker = ProfilerBroker(
            socket_dir,
            clock,
            self._found,
            self.report,
            "dynolog" if abstract else "",
            pause.want if pause is not None else lambda _recording: None,
        )
        copies = os.path.join(state_dir, "profiles")
        self.uploads = Uploads(copies, blobs, sink, clock, self.broker.finish, summarise, node)
        self._unfinished = Unfinished(os.path.join(state_dir, "profile_requests"))
        self.blocks = BlockTimes(probe_socket, clock, self.report) if probe_socket else None
        self._sent_roster: tuple[str, float] = ("", float("-inf"))
        self._numbers = 0
        #: Requests that this agent makes itself; their traces and news stay here.
        self.micro: MicroTraces | None = None
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
        if self._pause is not None:
            self._pause.start()
        self.uploads.start()
        if self.blocks is not None:
            self.blocks.start()
        self._thread.start()
        self._go_on()

    def _go_on(self) -> None:
        """Take up what a former agent left unfinished; its ranks may have recorded already, and record once more."""
        for request, begun_ms in list(self._unfinished.left_behind()):
            if self._clock.now_ms() - begun_ms < request.max_seconds * 1000:
                self._begin(request, attempts=1)
                continue
            for rank in request.ranks:
                reason = "the agent was restarted meanwhile and the time for it is over"
                self.report(Progress(request.id, rank, RankState.FAILED, reason))

    def stop(self) -> None:
        """Stop."""
        self._stop.set()
        for part in (self.broker, self.uploads):
            if self._thread.is_alive():
                part.stop()
        if self._pause is not None:
            self._pause.stop()

    def profile_start(self, command: Command) -> None:
        """Take a request. Raises BadRecord when the command is malformed."""
        request = request_of(command)
        self._unfinished.add(request, self._clock.now_ms())
        self._begin(request, attempts=0)

    def _begin(self, request: ProfileRequest, attempts: int) -> None:
        if not request.blocks:
            self.broker.begin(request, attempts)
        elif self.blocks is not None:
            self.blocks.begin(request)
        else:
            for rank in request.ranks:
                self.report(Progress(request.id, rank, RankState.FAILED, "this agent receives from no probe"))

    def profile_stop(self, command: Command) -> None:
        """End a request's ranks that wait."""
        given = command.arguments.get("ranks")
        name, ranks = str(command.arguments.get("request", "")), given if isinstance(given, list) else None
        self.broker.cancel(name, ranks)
        if self.blocks is not None:
            self.blocks.cancel(name, ranks)

    def _found(self, job: RankJob, name: str) -> None:
        if self.micro is not None and self.micro.owns(job.request.id):
            self.micro.put(job, name)
        else:
            self.uploads.put(job, name)

    def report(self, progress: Progress) -> None:
        """Send one state of one rank."""
        if self.micro is not None and self.micro.owns(progress.request):
            self.micro.told(progress)
            return
        self._unfinished.take(progress)
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
            if self.blocks is not None:
                self.blocks.tick()

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
