"""From a file in a user's folder to checked chunks on the bus and op sums in the store."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flightwatch.collectors.profiler.requests import Progress, RankJob, RankState
from flightwatch.collectors.profiler.trace_files import open_trace_file
from flightwatch.core.clock import Clock
from flightwatch.core.errors import Backpressure, FlightwatchError
from flightwatch.core.protocols import BlobSink, Row, Sink, Value

logger = logging.getLogger(__name__)

TRACE_KIND = "profile_trace"
#: A full blobs lane is tried again so long: traces wait, rows of the agent do not.
ROOM_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Copied:
    """The agent's own copy of a trace: path, bytes and checksum of the compressed file."""

    path: str
    bytes: int
    sha256: str


class Uploads:
    """Reads and sends traces one after the other, on a thread of its own.

    Parameters
    ----------
    folder: the agent's own folder for copies on their way.
    finish: takes the outcome.
    summarise: returns the sums of a trace file (see `summarise`); injected in tests.
    node: name of this node, written into the traces.
    """

    def __init__(
        self,
        folder: str,
        blobs: BlobSink,
        sink: Sink,
        clock: Clock,
        finish: Callable[[RankJob, Progress], None],
        summarise: Callable[[str, int], dict[str, Any]],
        node: str = "",
    ) -> None:
        self._folder = folder
        self._blobs = blobs
        self._sink = sink
        self._clock = clock
        self._finish = finish
        self._summarise = summarise
        self._node = node
        self._queue: queue.SimpleQueue[tuple[RankJob, str] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profiler-traces", daemon=True)

    def start(self) -> None:
        """Start; copies left behind by a former agent are removed."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                os.unlink(os.path.join(self._folder, name))
        self._thread.start()

    def stop(self) -> None:
        """End after the trace in work."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(5.0)

    def put(self, job: RankJob, name: str) -> None:
        """Queue one trace."""
        self._queue.put((job, name))

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            job, name = item
            try:
                progress = self.take(job, name)
            except FlightwatchError as error:
                progress = _failed(job, str(error))
            except Exception as error:  # One trace must not end the thread for the others.
                logger.exception("trace of rank %d of profile %s", job.rank, job.request.id)
                progress = _failed(job, f"the trace could not be taken: {error}")
            self._finish(job, progress)

    def take(self, job: RankJob, name: str) -> Progress:
        """Copy, send and sum up one trace; return the outcome.

        Raises
        ------
        FlightwatchError: it may not be read, or there was no room for it.
        """
        copied = self._copy(job, name)
        try:
            sums, problem = self._sums(job, copied.path)
            steps, request = sums.get("steps") or None, job.request
            if not problem and steps != request.steps:
                if job.attempts == 1:
                    # libkineto records 500 ms instead of steps when none was taken yet; by now some were.
                    return Progress(
                        request.id, job.rank, RankState.WAITING, "recorded before the first step: asked again"
                    )
                problem = f"the trace holds {steps or 'no'} optimizer steps instead of {request.steps}"
            self._emit(job, sums)
            self._send(job, copied)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(copied.path)
        if not problem and job.attempts > 1:
            problem = "asked again: its steps can be other ones than those of other ranks"
        # libkineto counts finished steps: the first one recorded follows the start.
        first = request.start_step + 1 if request.start_step and not problem else None
        return Progress(request.id, job.rank, RankState.DONE, problem, first, steps, copied.bytes)

    def _copy(self, job: RankJob, name: str) -> Copied:
        import gzip  # an agent that never sends a trace does not pay for it

        assert job.process is not None
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        path = os.path.join(self._folder, f"{job.request.id}-rank{job.rank}.json.gz")
        with (
            open_trace_file(job.folder, name, job.process.uid, job.request.max_bytes) as source,
            open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as target,
            gzip.GzipFile("", "wb", compresslevel=3, fileobj=target, mtime=0) as packed,
        ):
            left = job.request.max_bytes  # its writer could make it longer than it was when it was opened
            head = source.read(min(left, 4096))
            packed.write(with_identity(head, self._identity(job)))
            left -= len(head)
            while left > 0 and (data := source.read(min(left, 1 << 20))):
                packed.write(data)
                left -= len(data)
        whole = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                whole.update(chunk)
        return Copied(path, os.stat(path).st_size, whole.hexdigest())

    def _identity(self, job: RankJob) -> dict[str, Any]:
        """Return what the profiler does not know about its own trace."""
        request = job.request
        first = request.start_step + 1 if request.start_step and job.attempts == 1 else None
        return {
            "profile": request.id,
            "job": request.job,
            "run": job.process.run if job.process else request.run,
            "rank": job.rank,
            "node": self._node,
            "first_step": first,
            "last_step": first + request.steps - 1 if first is not None else None,
        }

    def _sums(self, job: RankJob, path: str) -> tuple[dict[str, Any], str]:
        try:
            sums = self._summarise(path, job.rank)
        except FlightwatchError as error:
            return {}, str(error)
        return sums, str(sums.get("damage", ""))

    def _emit(self, job: RankJob, sums: dict[str, Any]) -> None:
        now_ms, run = self._clock.now_ms(), job.process.run if job.process else None
        base: dict[str, Value] = {
            "ts": now_ms,
            "id": job.request.id,
            "job": job.request.job,
            "run": run,
            "rank": job.rank,
        }
        self._sink.emit(
            Row("profile_ops", base | {"op": op, "kind": kind, "calls": calls, "self_us": self_us})
            for op, kind, calls, self_us in sums.get("ops", ())
        )

    def _send(self, job: RankJob, copied: Copied) -> None:
        deadline_s = self._clock.monotonic_s() + ROOM_SECONDS
        attributes = {"request": job.request.id, "rank": str(job.rank), "job": job.request.job}
        for attempt in range(1_000_000):
            try:
                with open(copied.path, "rb") as file:
                    self._blobs.put(f"{job.request.id}-rank{job.rank}-{attempt}", TRACE_KIND, file, attributes)
                return
            except Backpressure:
                if self._stopping.is_set() or self._clock.monotonic_s() >= deadline_s:
                    raise
                self._clock.sleep_s(2.0)


def with_identity(head: bytes, identity: Mapping[str, Any]) -> bytes:
    """Return the beginning of a trace with who it is of in front: `flightwatch`, and the rank as libkineto writes it.

    A trace that is no JSON object, or says its rank itself further on (which then counts), stays as it is.
    """
    begin = head.lstrip(b" \t\r\n")
    rest = begin[1:].lstrip(b" \t\r\n")
    if not begin.startswith(b"{") or not rest.startswith(b'"'):
        return head
    known = {"flightwatch": identity, "distributedInfo": {"rank": identity["rank"]}}
    return json.dumps(known).encode()[:-1] + b",\n" + rest


def _failed(job: RankJob, reason: str) -> Progress:
    return Progress(job.request.id, job.rank, RankState.FAILED, reason)
