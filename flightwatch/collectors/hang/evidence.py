"""Collects what a hang's verdict needs from every rank of this node, on command or when a job stands still.

Full dumps stay on the node (`<state>/evidence/<capture>/`, which `flightwatch hang` reads); the store gets
unfinished collectives, the last finished one of each group, and a digest of the main thread's stack. Every
collection is two captures 5 s apart (`NAME` and `NAME.2`): what waits in both is what hangs. A standstill that
goes on is captured once more (`NAME.3`), by when evidence of other nodes is late rather than on its way.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flightwatch.collectors.command import run_command
from flightwatch.collectors.hang import stacks
from flightwatch.collectors.hang.progress import Progress
from flightwatch.collectors.hang.reduced import rows_of
from flightwatch.collectors.hang.worker_server import FLIGHT_RECORDER, STACKS, ask, worker_sockets
from flightwatch.collectors.profiler.processes import Process, training_processes
from flightwatch.core.clock import Clock
from flightwatch.core.errors import BadRecord, FlightwatchError
from flightwatch.core.protocols import Command, Sink

logger = logging.getLogger(__name__)

WATCH_SECONDS = 5.0
#: Between the two captures of one collection.
AGAIN_SECONDS = 5.0
#: From the second to the third capture of a standstill.
LATER_SECONDS = 10.0
#: Each question to a rank may take so long; ranks are asked at once, so a node answers within 5 s.
ASK_SECONDS = 1.5
KEPT_CAPTURES = 20
_THREADS = 16
_WORD = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """What one rank gave.

    Attributes
    ----------
    dump: flight recorder as JSON, None when there was no answer.
    stack: None when neither py-spy nor torch could tell.
    problem: why the dump is missing.
    """

    process: Process
    rank: int
    dump: bytes | None
    stack: stacks.StackText | None
    problem: str = ""


class HangCollector:
    """Evidence of the ranks of this node.

    Parameters
    ----------
    socket_dirs: folders with the ranks' worker servers (`worker-PID.sock`).
    state_dir: the agent's own folder.
    hang_seconds: shortest standstill after which evidence is collected unasked; 0: never.
    again_seconds, later_seconds: from the first capture of a collection to its second, from that to its third.

    Attributes
    ----------
    progress: shown every row by the agent's sink.
    """

    def __init__(
        self,
        socket_dirs: Sequence[str],
        state_dir: str,
        sink: Sink,
        clock: Clock,
        hang_seconds: float,
        run: stacks.RunCommand = run_command,
        processes: Callable[[], Iterable[Process]] = training_processes,
        again_seconds: float = AGAIN_SECONDS,
        later_seconds: float = LATER_SECONDS,
    ) -> None:
        self._socket_dirs = tuple(socket_dirs)
        self._folder = os.path.join(state_dir, "evidence")
        self._sink = sink
        self._clock = clock
        self._run_command = run
        self._processes = processes
        self._again_s, self._later_s = again_seconds, later_seconds
        self._watches = hang_seconds > 0
        self.progress = Progress(clock, hang_seconds)
        self._stop = threading.Event()
        self._one_at_a_time = threading.Lock()

    def start(self) -> None:
        """Watch for jobs that stand still."""
        if self._watches:
            threading.Thread(target=self._watch, name="hang-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()

    def collect_evidence(self, command: Command) -> None:
        """Collect twice on command, on a thread of its own. Raises BadRecord when the command names no request."""
        given = command.arguments
        request, ranks = given.get("request"), given.get("ranks")
        if not isinstance(request, str) or not request:
            raise BadRecord(f"command {command.id}: it names no request")
        wanted = {rank for rank in ranks if isinstance(rank, int)} if isinstance(ranks, list) else None
        run = given.get("run")

        def work() -> None:
            self._collect(request, command.job, str(run) if run else None, wanted, (self._again_s,), lambda: True)

        threading.Thread(target=work, name="hang-evidence", daemon=True).start()

    def _watch(self) -> None:
        while not self._stop.wait(WATCH_SECONDS):
            for job, run in self.progress.standing():
                logger.warning("job %s stands still: evidence is collected", job)
                still = functools.partial(self.progress.stands, (job, run))
                self._collect(f"h{self._clock.now_ms()}-{job}", job, run, None, (self._again_s, self._later_s), still)

    def _collect(
        self,
        name: str,
        job: str,
        run: str | None,
        ranks: set[int] | None,
        pauses: Sequence[float],
        wanted: Callable[[], bool],
    ) -> None:
        """Capture, and again after each pause while that is still wanted."""
        self._guarded(name, job, run, ranks)
        for number, pause_s in enumerate(pauses, 2):
            if self._stop.wait(pause_s) or not wanted():
                return
            self._guarded(f"{name}.{number}", job, run, ranks)

    def _guarded(self, capture: str, job: str, run: str | None, ranks: set[int] | None) -> None:
        try:
            with self._one_at_a_time:
                self.capture(capture, job, run, ranks)
        except Exception:  # A thread of the agent: what it could not do is said, the agent goes on.
            logger.exception("hang evidence %s of job %s is incomplete", capture, job)

    def capture(self, name: str, job: str, run: str | None = None, ranks: set[int] | None = None) -> list[RankEvidence]:
        """Collect from the ranks of a job, keep the dumps, send the reduced form; return what was found.

        Parameters
        ----------
        job: "" takes every job.
        run: attempt, None takes every.
        ranks: None takes all.
        """
        sockets = {process.pid: path for path, process in worker_sockets(self._socket_dirs)}
        wanted = [
            (process, process.rank)
            for process in self._processes()
            if process.rank is not None
            and job in ("", process.job)
            and run in (None, process.run)
            and (ranks is None or process.rank in ranks)
        ]
        # Of two processes that say they are one rank (an attempt that has not ended yet) the one that answers counts.
        by_rank = {
            (process.job, process.run, rank): (process, rank)
            for process, rank in sorted(wanted, key=lambda one: (one[0].pid in sockets, one[0].started))
        }
        wanted = list(by_rank.values())
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(lambda one: self._of_rank(one[0], one[1], sockets.get(one[0].pid)), wanted))
        folder = self._keep(name, found)
        now_ms = self._clock.now_ms()
        for evidence in found:
            self._sink.emit(rows_of(evidence, name, now_ms, folder))
        return found

    def _of_rank(self, process: Process, rank: int, socket_path: str | None) -> RankEvidence:
        dump, problem = None, "its worker server is not open: the probe is not in the process, or torch is too old"
        if socket_path is not None:
            try:
                dump, problem = ask(socket_path, FLIGHT_RECORDER, ASK_SECONDS), ""
            except FlightwatchError as error:
                problem = str(error)
        stack = stacks.by_py_spy(process.pid, self._run_command)
        if stack is None and socket_path is not None:
            with contextlib.suppress(FlightwatchError):
                stack = stacks.by_torch(ask(socket_path, STACKS, ASK_SECONDS))
        return RankEvidence(process, rank, dump, stack, problem)

    def _keep(self, name: str, found: Iterable[RankEvidence]) -> str:
        """Write the full dumps; the oldest captures give way."""
        folder = os.path.join(self._folder, _WORD.sub("_", name)[:120])
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for evidence in found:
            if evidence.dump is not None:
                _write(os.path.join(folder, f"dump_rank_{evidence.rank}.json"), evidence.dump)
            if evidence.stack is not None:
                head = f"Process {evidence.process.pid}: rank {evidence.rank}\n".encode()
                text = head + evidence.stack.text.encode("utf-8", "replace")
                _write(os.path.join(folder, f"stack_rank_{evidence.rank}.txt"), text)
        captures = sorted(os.scandir(self._folder), key=lambda entry: entry.stat().st_mtime)
        for entry in captures[:-KEPT_CAPTURES]:
            with contextlib.suppress(OSError):
                for kept in os.listdir(entry.path):
                    os.unlink(os.path.join(entry.path, kept))
                os.rmdir(entry.path)
        return folder


def _write(path: str, content: bytes) -> None:
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
