"""The daemon that libkineto asks: knows the processes of jobs, hands out configurations, finds their traces.

One thread. A process is identified by the credentials the kernel attaches to its datagram and by its
environment in /proc. **Nothing is answered to a process whose KINETO_IPC_SOCKET_DIR is not exactly the bound
folder**: libkineto would end the training process over an answer from an address it does not expect.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flightwatch.collectors.profiler import datagrams, folder
from flightwatch.collectors.profiler.config_text import config_text
from flightwatch.collectors.profiler.processes import NO_DAEMON, Process, is_same, read_process, training_processes
from flightwatch.collectors.profiler.requests import ENDED, ProfileRequest, Progress, RankJob, RankState
from flightwatch.collectors.profiler.trace_files import find_trace, make_folder, remove_folder
from flightwatch.core.clock import Clock
from flightwatch.core.errors import BadRecord, FlightwatchError
from flightwatch.core.logs import Occasionally

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.2
#: A process that has not asked for so long is not there any more; libkineto asks every 5 s.
FORGET_SECONDS = 60.0
#: A rank that is not known yet may announce itself so long after a request (the agent may just have started).
APPEAR_SECONDS = 15.0
MOST_PROCESSES = 4096
_PER_UID_AND_SECOND = 500
_CREDENTIALS = struct.Struct("iii")


@dataclass(slots=True)
class Seen:
    """A process that asks."""

    process: Process
    last_s: float


class ProfilerBroker:
    """Answers training processes of this node.

    Parameters
    ----------
    socket_dir: folder of the socket, exactly as jobs have it in KINETO_IPC_SOCKET_DIR.
    found: takes a rank whose trace lies in its folder (called on the broker's thread; must return at once).
    report: tells the control server (called on the broker's thread or the caller's of `begin`).
    abstract: name of the abstract socket for jobs without a folder, "" for none.
    busy: told whether a rank of this node waits to record or records (called often; must return at once).

    Attributes
    ----------
    yielded: another daemon answers on a socket we would have used.
    """

    def __init__(
        self,
        socket_dir: str,
        clock: Clock,
        found: Callable[[RankJob, str], None],
        report: Callable[[Progress], None],
        abstract: str = folder.SOCKET,
        busy: Callable[[bool], None] = lambda _recording: None,
    ) -> None:
        self.socket_dir = socket_dir
        self.yielded = False
        self._abstract_name = abstract
        self._clock = clock
        self._found = found
        self._report = report
        self._busy = busy
        self._lock = threading.Lock()
        self._seen: dict[int, Seen] = {}
        self._silent: dict[int, Process] = {}
        self._jobs: dict[tuple[str, int], RankJob] = {}
        self._sockets: list[tuple[socket.socket, bool]] = []
        self._uid_counts: Counter[int] = Counter()
        self._uid_second = 0
        self._trouble = Occasionally(60.0)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind and answer.

        Raises
        ------
        ConfigError: the folder cannot be used.
        """
        folder.prepare(self.socket_dir)
        folder.sweep(self.socket_dir)
        self.bind()
        self._thread = threading.Thread(target=self._run, name="profiler", daemon=True)
        self._thread.start()

    def bind(self) -> None:
        """Bind the sockets that no other daemon has."""
        in_folder = folder.bind_file(self.socket_dir)
        abstract = folder.bind_abstract(self._abstract_name) if self._abstract_name else None
        self.yielded = in_folder is None or (abstract is None and bool(self._abstract_name))
        if self.yielded:
            where = "in its folder" if in_folder is None else "on the abstract name"
            logger.warning("another profiler daemon (dynolog) answers %s: its jobs are left to it", where)
        self._sockets = [(one, is_file) for one, is_file in ((in_folder, True), (abstract, False)) if one is not None]

    def stop(self) -> None:
        """Stop answering; training goes on, its profiler asks in vain."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
        for one, _ in self._sockets:
            one.close()
        self._sockets = []

    def begin(self, request: ProfileRequest, attempts: int = 0) -> None:
        """Take a request; each of its ranks gets its configuration when it asks next.

        A rank that another request holds is refused. Repeating a request changes nothing.

        Parameters
        ----------
        attempts: how often its ranks were asked already, by an agent that was killed.
        """
        now_s = self._clock.monotonic_s()
        refused = []
        with self._lock:
            running = [job for job in self._jobs.values() if job.state not in ENDED]
            busy = {job.rank for job in running if job.request.job == request.job}
            taken = []
            for rank in request.ranks:
                if (request.id, rank) in self._jobs:
                    continue
                if rank in busy:
                    refused.append(rank)
                    continue
                self._jobs[request.id, rank] = RankJob(request, rank, now_s, attempts=attempts)
                taken.append(rank)
        for rank in taken:
            self._report(Progress(request.id, rank, RankState.WAITING))
        for rank in refused:
            self._report(Progress(request.id, rank, RankState.FAILED, "another profile of this rank is running"))

    def cancel(self, request_id: str, ranks: Iterable[int] | None = None) -> None:
        """End ranks of a request that have no trace yet; a configuration already taken cannot be called back."""
        wanted = None if ranks is None else set(ranks)
        with self._lock:
            ended = [
                job
                for (name, rank), job in self._jobs.items()
                if name == request_id and (wanted is None or rank in wanted) and job.state not in ENDED
            ]
        for job in ended:
            self._end(job, RankState.STOPPED, "stopped by request")

    def roster(self) -> list[tuple[Process, bool]]:
        """Return ranks that ask, and those that ask from a folder that differs (False)."""
        with self._lock:
            heard = [(seen.process, True) for seen in self._seen.values() if seen.process.rank is not None]
            return heard + [(process, False) for process in self._silent.values() if process.rank is not None]

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.step(TICK_SECONDS)
            except Exception:  # The thread that answers must outlive any one request.
                if self._trouble.due():
                    logger.exception("the profiler broker went on after a failure")
                self._stop.wait(TICK_SECONDS)

    def step(self, timeout_seconds: float) -> None:
        """Answer what has come, then look after requests."""
        ready, _, _ = select.select([one for one, _ in self._sockets], [], [], timeout_seconds)
        for one, is_file in self._sockets:
            if one in ready:
                self._receive(one, is_file)
        self._tick()

    def _receive(self, one: socket.socket, is_file: bool) -> None:
        for _ in range(256):
            try:
                data, ancillary, _, address = one.recvmsg(datagrams.MOST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except (BlockingIOError, InterruptedError):
                return
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(content) >= _CREDENTIALS.size:
                    pid, uid, _ = _CREDENTIALS.unpack_from(content)
                    self._answer(one, is_file, data, address, pid, uid)

    def _answer(self, one: socket.socket, is_file: bool, data: bytes, address: Any, pid: int, uid: int) -> None:
        if pid <= 0 or not address or not self._admit(uid):
            return
        try:
            datagram = datagrams.parse(data)
        except BadRecord as error:
            if self._trouble.due():
                logger.warning("a process of user %d sent what is not a profiler's datagram: %s", uid, error)
            return
        process = self._identify(pid, is_file)
        if process is None:
            return
        if datagram.kind == "ctxt":
            reply = datagrams.context_reply(len(self._seen))
        else:
            reply = datagrams.config_reply(self._config_for(process))
        try:
            one.sendto(reply, address)
        except OSError:
            # Its socket is full or gone; a configuration it did not get is handed out again after a while.
            logger.debug("process %d did not take its answer", pid)

    def _admit(self, uid: int) -> bool:
        second = int(self._clock.monotonic_s())
        if second != self._uid_second:
            self._uid_second = second
            self._uid_counts.clear()
        self._uid_counts[uid] += 1
        return self._uid_counts[uid] <= _PER_UID_AND_SECOND

    def _identify(self, pid: int, is_file: bool) -> Process | None:
        """Return the sender when it may be answered: its folder is exactly the socket's."""
        now_s = self._clock.monotonic_s()
        seen = self._seen.get(pid)
        if seen is not None and is_same(seen.process):
            seen.last_s = now_s
            return seen.process
        process = read_process(pid)
        if process is None:
            return None
        with self._lock:
            self._seen.pop(pid, None)
            if process.folder != (self.socket_dir if is_file else None):
                if pid not in self._silent and len(self._silent) < MOST_PROCESSES:
                    self._silent[pid] = process
                    logger.warning("process %d is not answered: its folder of sockets is not %s", pid, self.socket_dir)
                return None
            if len(self._seen) < MOST_PROCESSES:
                self._seen[pid] = Seen(process, now_s)
        return process

    def _config_for(self, process: Process) -> str:
        if process.rank is None:
            return ""  # a launcher, or a helper of a rank
        with self._lock:
            job = next(
                (
                    job
                    for job in self._jobs.values()
                    if job.state is RankState.WAITING
                    and job.rank == process.rank
                    and job.request.job == process.job
                    and job.request.run in ("", process.run)
                ),
                None,
            )
            if job is None:
                return ""
            job.process, job.state, job.armed_s = process, RankState.ARMED, self._clock.monotonic_s()
            job.attempts += 1
        request = job.request
        try:
            job.folder = make_folder(os.path.join(self.socket_dir, folder.TRACES), request.id, process.uid)
            text = config_text(
                os.path.join(job.folder, f"{job.file_stem}.json"),
                steps=request.steps,
                start_step=request.start_step if job.attempts == 1 else 0,
                roundup=request.roundup,
                stacks=request.stacks,
                shapes=request.shapes,
                memory=request.memory,
            )
        except FlightwatchError as error:
            self._end(job, RankState.FAILED, str(error))
            return ""
        note = "" if job.attempts == 1 else "no trace came (a profiler of the job's own may be active): asked again"
        self._report(Progress(request.id, job.rank, RankState.ARMED, note))
        return text

    def _tick(self) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:
            jobs = [job for job in self._jobs.values() if job.state not in ENDED]
            for pid in [pid for pid, seen in self._seen.items() if now_s - seen.last_s > FORGET_SECONDS]:
                del self._seen[pid]
            for pid in [pid for pid, process in self._silent.items() if not is_same(process)]:
                del self._silent[pid]
            ended = [key for key, job in self._jobs.items() if job.state in ENDED and now_s - job.begun_s > 3600]
            for key in ended:
                del self._jobs[key]
        self._busy(any(job.state in (RankState.WAITING, RankState.ARMED) for job in jobs))
        for job in jobs:
            if job.state is RankState.WAITING:
                self._look_for_process(job, now_s)
            elif job.state is RankState.ARMED:
                self._look_for_trace(job, now_s)

    def _look_for_process(self, job: RankJob, now_s: float) -> None:
        waited_s = now_s - job.begun_s
        if job.attempts == 0 and waited_s > APPEAR_SECONDS and not self._is_known(job):
            self._end(job, RankState.FAILED, why_not(job, self.socket_dir, self.yielded))
        elif waited_s > job.request.max_seconds:
            self._end(job, RankState.FAILED, "the process did not ask for its configuration in time")

    def _is_known(self, job: RankJob) -> bool:
        wanted = (job.request.job, job.rank)
        return any((seen.process.job, seen.process.rank) == wanted for seen in self._seen.values())

    def _look_for_trace(self, job: RankJob, now_s: float) -> None:
        assert job.process is not None
        name = find_trace(job.folder, job.file_stem, job.process.uid)
        if name is not None:
            job.state = RankState.READING
            self._report(Progress(job.request.id, job.rank, RankState.READING))
            self._found(job, name)
        elif not is_same(job.process):
            self._end(job, RankState.FAILED, "the process ended before it wrote its trace")
        elif now_s - job.begun_s > job.request.max_seconds:
            self._end(
                job,
                RankState.FAILED,
                f"no trace within {job.request.max_seconds:.0f} s: no optimizer step was taken, or a profiler of the"
                " job's own is active",
            )
        elif now_s - job.armed_s > max(30.0, job.request.max_seconds / 3):
            with self._lock:
                job.state = RankState.WAITING

    def finish(self, job: RankJob, progress: Progress) -> None:
        """Take the outcome of a rank whose trace was read, and tell it; WAITING asks for another trace."""
        with self._lock:
            job.state = progress.state
        self._clean(job)
        self._report(progress)

    def _end(self, job: RankJob, state: RankState, reason: str) -> None:
        with self._lock:
            if job.state in ENDED:
                return
            job.state = state
        self._clean(job)
        self._report(Progress(job.request.id, job.rank, state, reason))

    def _clean(self, job: RankJob) -> None:
        with self._lock:
            shared = any(other.folder == job.folder and other.state not in ENDED for other in self._jobs.values())
        if job.folder and not shared and job.process is not None:
            remove_folder(job.folder, job.process.uid)


def why_not(job: RankJob, socket_dir: str, yielded: bool) -> str:
    """Say why a rank does not ask, from what runs on this node."""
    mine = [process for process in training_processes() if process.job == job.request.job]
    ranks = [process for process in mine if process.rank == job.rank]
    if not mine:
        return f"no process of job {job.request.job} runs here"
    if not ranks:
        return f"rank {job.rank} does not run here" + (
            ": only the launcher does" if all(process.rank is None for process in mine) else ""
        )
    process = ranks[0]
    if not process.daemon:
        return NO_DAEMON
    if process.folder not in (None, socket_dir):
        return f"the job's KINETO_IPC_SOCKET_DIR ({process.folder!r}) differs from the agent's ({socket_dir})"
    if yielded:
        return "another profiler daemon (dynolog) answers on this node"
    return "the process has not asked: torch is not imported yet, was started before the agent, or has no Kineto"
