"""Micro-traces: now and then two steps of every job here through its own profiler, for compute times per op.

Each trace is summed by a child process of low priority and bounded memory and then thrown away; the sums are rows
of `op_timings` of level op. A profile that a person asks for goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flightwatch.collectors.profiler.broker import ProfilerBroker
from flightwatch.collectors.profiler.requests import ProfileRequest, Progress, RankJob, RankState
from flightwatch.collectors.profiler.summarise import summarise
from flightwatch.collectors.profiler.trace_files import open_trace_file
from flightwatch.collectors.training_micro_schedule import Due, MicroSchedule
from flightwatch.collectors.training_micro_settings import MicroTraceSettings
from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.protocols import Row, Sink, Value
from flightwatch.core.vocabulary import OpKind, OpLevel

logger = logging.getLogger(__name__)

PREFIX = "micro-"
MOST_BYTES = 500_000_000
#: The dearest ops of a rank; the rest is one row.
MOST_OPS = 200
TICK_SECONDS = 2.0
_KINDS = {kind.value for kind in OpKind}


class MicroTraces:
    """Asks the broker for traces and makes rows of them.

    Parameters
    ----------
    folder: the agent's own, for a trace while it is read.
    summarise: returns the sums of a trace file; injected in tests.
    """

    def __init__(
        self,
        settings: MicroTraceSettings,
        broker: ProfilerBroker,
        folder: str,
        sink: Sink,
        clock: Clock,
        summarise: Callable[[str, int], dict[str, Any]] = summarise,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._folder = folder
        self._sink = sink
        self._clock = clock
        self._summarise = summarise
        self.schedule = MicroSchedule(settings)
        self._due: dict[str, Due] = {}
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[RankJob, str] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._run, "micro-traces"), (self._read, "micro-trace-sums"))
        ]

    def start(self) -> None:
        """Start asking and reading; what a former agent left behind is removed."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                os.unlink(os.path.join(self._folder, name))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; a trace that is on its way is left to its job's profiler."""
        self._stop.set()
        self._queue.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(2.0)

    def see(self, row: Row) -> None:
        """Take a row on its way to the sink; only steps count."""
        values = row.values
        step_us = values.get("step_us")
        if row.table != "rank_steps" or not isinstance(step_us, (int, float)):
            return
        rank, step, ts = values.get("rank"), values.get("step"), values.get("ts")
        if isinstance(rank, int) and isinstance(step, int) and isinstance(ts, int):
            with self._lock:
                job, run = str(values.get("job")), str(values.get("run"))
                self.schedule.step(job, run, rank, step, ts, float(step_us), self._clock.monotonic_s())

    def owns(self, request: str) -> bool:
        """Say whether a request is one of these."""
        return request.startswith(PREFIX)

    def put(self, job: RankJob, name: str) -> None:
        """Take a rank whose trace is written."""
        self._queue.put((job, name))

    def told(self, progress: Progress) -> None:
        """Take news of a rank."""
        if progress.state is RankState.FAILED:
            logger.debug("micro-trace %s of rank %d: %s", progress.request, progress.rank, progress.reason)

    def _run(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            try:
                self.tick()
            except Exception:  # A thread of the agent: the next look is another one.
                logger.exception("micro-traces")

    def tick(self) -> None:
        """Ask for what is due; tell what was measured."""
        with self._lock:
            due = self.schedule.due(self._clock.now_ms(), self._clock.monotonic_s())
            measured = self.schedule.measured()
        now_ms = self._clock.now_ms()
        if measured:
            self._sink.emit(_cost_row(now_ms, job, share) for job, _, share in measured)
        for one in due:
            request = self._request(one)
            self._due[request.id] = one
            while len(self._due) > 256:
                del self._due[next(iter(self._due))]
            self._broker.begin(request)

    def _request(self, due: Due) -> ProfileRequest:
        digest = hashlib.sha256(f"{due.job}\0{due.run}".encode()).hexdigest()[:12]
        return ProfileRequest(
            id=f"{PREFIX}{digest}-{due.start_step}", job=due.job, run=due.run, ranks=due.ranks,
            steps=self._settings.steps, start_step=due.start_step, roundup=min(10**6, due.cycle), max_seconds=120.0,
            max_bytes=MOST_BYTES, stacks=False, shapes=False, memory=False,
        )  # fmt: skip

    def _read(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            job, name = item
            state, reason = RankState.DONE, ""
            try:
                self.take(job, name)
            except FlightwatchError as error:
                state, reason = RankState.FAILED, str(error)
            except Exception as error:  # One trace must not end the thread for the others.
                logger.exception("micro-trace of rank %d of job %s", job.rank, job.request.job)
                state, reason = RankState.FAILED, str(error)
            self._broker.finish(job, Progress(job.request.id, job.rank, state, reason))

    def take(self, job: RankJob, name: str) -> None:
        """Sum up one trace and send its rows.

        Raises
        ------
        FlightwatchError: it may not be read, or cannot be analysed.
        """
        path = self._copy(job, name)
        try:
            sums = self._summarise(path, job.rank)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
        due = self._due.get(job.request.id)
        if due is not None:
            with self._lock:
                self.schedule.traced(due.job, due.run, due.start_step)
        # Another number of steps, or a second attempt: other steps than those of the other ranks.
        if due is not None and sums.get("steps") == job.request.steps and job.attempts == 1:
            self._sink.emit(self._rows(job, due, sums.get("ops", ())))

    def _copy(self, job: RankJob, name: str) -> str:
        assert job.process is not None
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        path = os.path.join(self._folder, f"{job.request.id}-rank{job.rank}.json")
        left = MOST_BYTES
        with (
            open_trace_file(job.folder, name, job.process.uid, MOST_BYTES) as source,
            open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as target,
        ):
            while left > 0 and (data := source.read(min(left, 1 << 20))):
                target.write(data)
                left -= len(data)
        return path

    def _rows(self, job: RankJob, due: Due, ops: Iterable[Any]) -> Iterator[Row]:
        """Yield one row for each op; idle time and what the host does around kernels is no compute of an op."""
        base: dict[str, Value] = {
            "ts": self._clock.now_ms(), "level": OpLevel.OP.value, "job": due.job,
            "run": job.process.run if job.process else due.run, "rank": job.rank,
            # libkineto counts finished steps: the first one recorded follows the start.
            "step": due.start_step + 1, "steps": job.request.steps,
        }  # fmt: skip
        rest: dict[str, tuple[int, float]] = {}
        for place, (op, kind, calls, self_us) in enumerate(one for one in ops if one[1] in _KINDS):
            if place < MOST_OPS:
                yield Row("op_timings", base | {"op": op[:200], "kind": kind, "count": calls, "dur_us": self_us})
            else:
                count, us = rest.get(kind, (0, 0.0))
                rest[kind] = (count + calls, us + self_us)
        for kind, (count, us) in rest.items():
            yield Row("op_timings", base | {"op": "other", "kind": kind, "count": count, "dur_us": round(us, 3)})


class MicroSink:
    """A sink in front of another that shows rows to micro-traces."""

    def __init__(self, sink: Sink, micro: MicroTraces) -> None:
        self._sink = sink
        self._micro = micro

    def emit(self, rows: Iterable[Row]) -> None:
        """Show and pass on."""
        self._sink.emit(self._shown(rows))

    def _shown(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._micro.see(row)
            yield row

    def flush(self, timeout_seconds: float) -> bool:
        """Flush the sink behind."""
        return self._sink.flush(timeout_seconds)


def _cost_row(now_ms: int, job: str, share: float) -> Row:
    values: dict[str, Value] = {"component": "agent", "instance": f"micro/{job}"[:200]}
    return Row("self_metrics", {"ts": now_ms, **values, "name": "micro_trace_cost_ratio", "value": share})
