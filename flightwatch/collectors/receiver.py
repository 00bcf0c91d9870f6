"""The agent's side of the training probe: takes datagrams of every user's jobs and makes rows of them.

A thread of its own reads the socket; `collect` hands over what it made. Who sends is what the kernel says
(SCM_CREDENTIALS), never what the message says. Nothing a sender does stops the thread, grows its memory beyond
fixed bounds, or changes another user's rows.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.ownership.process_words import slurm_job_of
from flightwatch.collectors.receiver_detail import KEPT_EVERY, Names, rows_of
from flightwatch.collectors.receiver_jobs import Jobs
from flightwatch.collectors.receiver_limits import Bucket, Limits
from flightwatch.collectors.receiver_rows import Message, Read, read_message, read_rows
from flightwatch.collectors.receiver_settings import DEFAULT_SOCKET
from flightwatch.collectors.receiver_socket import MOST_BYTES, Datagram, ReceiverSocket
from flightwatch.collectors.receiver_waits import WaitSplitter
from flightwatch.core.errors import BadRecord, NoData
from flightwatch.core.protocols import Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource, RunPhase

logger = logging.getLogger(__name__)

#: Rows kept between two calls of `collect`; more are dropped and counted.
MOST_ROWS = 50_000
MOST_PLACEMENTS = 1024
FIGURES_SECONDS = 60.0
FLOOD_SECONDS = 300.0
#: A rank whose process is gone, or that was silent so long, has left its place.
SILENT_SECONDS = 120.0
_LOOK_SECONDS = 10.0


class ReceiverCollector:
    """Receives from training processes on this node."""

    name = "probe"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = 0.5
        self._environment = environment
        self._settings = environment.receiver
        self._intake = Intake(environment, time.monotonic)
        self._socket: ReceiverSocket | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._total = Bucket(self._settings.datagrams_total_per_second, 0.0, time.monotonic())

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Return rows received since the last call. Raises NoData where the socket cannot be made."""
        if not self._environment.live:
            raise NoData("training processes send to live agents only")
        if self._socket is not None and not self._socket.in_place():
            logger.warning("%s was removed by someone; it is made again", self._socket.path)
            self.close()
        if self._thread is None or not self._thread.is_alive():
            self._open()
        ring = self._environment.op_ring
        if ring is not None:
            ring.flush()
        return self._intake.take(now_ms)

    def _open(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = ReceiverSocket(self._settings.socket or DEFAULT_SOCKET)
        self._stop.clear()
        self._thread = threading.Thread(target=self._receive, args=(self._socket,), name="probe", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop receiving and remove the socket."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
        if self._socket is not None:
            self._socket.close()
        self._socket = self._thread = None

    def _receive(self, source: ReceiverSocket) -> None:
        while not self._stop.is_set():
            try:
                datagram = source.receive()
            except OSError as error:
                if not self._stop.is_set():
                    logger.warning("%s cannot be read: %s", source.path, error.strerror)
                return
            if datagram is None:
                continue
            try:
                self._intake.accept(datagram, time.time_ns() // 1_000_000)
            except Exception:  # A message nobody thought of costs itself alone.
                logger.exception("a message of a training process could not be read")
            # A flood leaves its messages in the socket's queue, which is its senders' loss and not our CPU's.
            while not self._total.take(1, time.monotonic()) and not self._stop.wait(0.02):
                pass


class Intake:
    """From datagrams to rows; thread-safe between `accept` and `take`.

    Parameters
    ----------
    monotonic_s: seconds that never go back.
    """

    def __init__(self, environment: Environment, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._environment = environment
        self._limits = Limits(environment.receiver)
        self._jobs = Jobs(lambda pid: slurm_job_of(environment.tree, pid))
        self._waits = WaitSplitter()
        self._ring = environment.op_ring
        self._names = Names()
        self._rows: deque[Row] = deque()
        self._lock = threading.Lock()
        self._places: OrderedDict[tuple[str, str, int], _Place] = OrderedDict()
        self._told: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._counts = dict.fromkeys(
            ("datagrams", "rows", "refused_datagrams", "malformed_datagrams", "refused_values", "refused_jobs",
             "dropped_rows", "details"), 0
        )  # fmt: skip
        self._figures_at_s = self._look_at_s = monotonic_s()
        self._refused_jobs: OrderedDict[tuple[str, int], None] = OrderedDict()

    def accept(self, datagram: Datagram, now_ms: int) -> None:
        """Take one datagram: rows of it are there at the next `take`, or it is counted as refused."""
        now_s = self._monotonic_s()
        with self._lock:
            self._counts["datagrams"] += 1
            if datagram.cut or len(datagram.data) > MOST_BYTES:
                self._counts["malformed_datagrams"] += 1
                return
            if not self._limits.admit(datagram.uid, len(datagram.data), now_s):
                self._counts["refused_datagrams"] += 1
                return
            try:
                message = read_message(datagram.data)
            except BadRecord:
                self._counts["malformed_datagrams"] += 1
                return
            job = self._jobs.job_of(message.job, datagram.uid, datagram.pid, now_s)
            if job is None or not self._limits.name(datagram.uid, f"{job}\0{message.run}", now_s):
                self._refuse(message.job, datagram.uid, now_ms)
                return
            read = read_rows(message, job, now_ms, lambda name: self._limits.name(datagram.uid, name, now_s))
            self._counts["refused_values"] += read.refused
            self._keep(read, message, job, datagram, now_s)
            asks = self._environment.block_times
            if asks is not None:
                asks.hear(job, message.run, message.rank)
            for kind, one in read.others:
                if kind == "names":
                    self._counts["refused_values"] += not self._names.learn(one, message, job)
                elif kind == "detail":
                    self._keep_detail(one, message, job, datagram.uid, now_ms, now_s)
                elif kind == "left":
                    self._leave(job, message, now_ms)
                elif asks is not None and kind == "listens":
                    asks.listens(job, message.run, message.rank, one)
                elif asks is not None:
                    asks.answer(job, message.run, message.rank, one)

    def take(self, now_ms: int) -> list[Row]:
        """Return the rows that are ready, and from time to time the receiver's own figures."""
        now_s = self._monotonic_s()
        with self._lock:
            rows = [*self._rows, *self._waits.ready(now_s)]
            self._rows.clear()
            for uid, refused in self._limits.tell(FLOOD_SECONDS, now_s):
                rows.append(_flood(uid, refused, now_ms))
            if now_s >= self._look_at_s:
                self._look_at_s = now_s + _LOOK_SECONDS
                rows.extend(self._left(now_s))
            if now_s >= self._figures_at_s and self._counts["datagrams"]:
                self._figures_at_s = now_s + FIGURES_SECONDS
                rows.extend(_figure(now_ms, name, count) for name, count in self._counts.items())
        return rows

    def _refuse(self, job: str, uid: int, now_ms: int) -> None:
        self._counts["refused_jobs"] += 1
        if (job, uid) not in self._refused_jobs and len(self._refused_jobs) < 256:
            self._refused_jobs[job, uid] = None
            self._put(_event("probe:refused", now_ms, f"uid {uid} sends for job {job}, which is another user's or"
                             " beyond its names; it is not stored", uid))  # fmt: skip

    def _keep(self, read: Read, message: Message, job: str, datagram: Datagram, now_s: float) -> None:
        place = self._places.get((job, message.run, message.rank))
        if place is not None:
            place.seen_s, place.pid = now_s, datagram.pid
            self._places.move_to_end((job, message.run, message.rank))
        for index, row in enumerate(read.rows):
            self._counts["rows"] += 1
            if row.table == "rank_steps" and index in read.groups:
                self._waits.add(row, read.groups[index], now_s)
            elif row.table == "placements":
                self._placed(row, message, job, datagram, now_s)
            elif row.table == "process_groups":
                self._grouped(row, message, job)
            elif row.table == "runs" and message.rank != 0:
                self._watch(row.values)
            else:
                if row.table == "runs":
                    attrs = row.values.get("attrs")
                    row.values["attrs"] = {**(attrs if isinstance(attrs, dict) else {}), "uid": str(datagram.uid)}
                self._put(row)

    def _keep_detail(self, one: object, message: Message, job: str, uid: int, now_ms: int, now_s: float) -> None:
        """Keep a step's ops on this node; one step in KEPT_EVERY goes to the store as well."""
        detail = self._names.detail(one, message, job, uid, now_ms)
        if detail is None:
            self._counts["refused_values"] += 1
            return
        self._counts["details"] += 1
        if self._ring is not None:
            self._ring.put(detail)
        if detail.step % KEPT_EVERY == 0:
            for row in rows_of(detail, lambda name: self._limits.name(uid, name, now_s)):
                self._put(row)

    def _put(self, row: Row) -> None:
        if len(self._rows) >= MOST_ROWS:
            self._counts["dropped_rows"] += 1
        else:
            self._rows.append(row)

    def _placed(self, row: Row, message: Message, job: str, datagram: Datagram, now_s: float) -> None:
        """Pass on a placement that is new or has changed; the probe repeats it every minute."""
        key = (job, message.run, message.rank)
        known = self._places.get(key)
        told = {name: value for name, value in row.values.items() if name != "ts"}
        if known is None or known.told != told:
            self._places[key] = _Place(row, told, datagram.pid, now_s)
            self._put(row)
            while len(self._places) > MOST_PLACEMENTS:
                self._places.popitem(last=False)

    def _grouped(self, row: Row, message: Message, job: str) -> None:
        name, members = str(row.values["process_group"]), row.values["members"]
        if isinstance(members, list):
            self._waits.learn(job, message.run, name, members)
        if (job, message.run, name) not in self._told:
            self._told[job, message.run, name] = None
            self._put(row)
            while len(self._told) > MOST_PLACEMENTS:
                self._told.popitem(last=False)

    def _left(self, now_s: float) -> Iterable[Row]:
        """Yield the ends of placements whose process is gone."""
        for key, place in list(self._places.items()):
            gone = place.pid is not None and not os.path.exists(f"/proc/{place.pid}")
            if gone or now_s - place.seen_s > SILENT_SECONDS:
                del self._places[key]
                yield place.end(int(time.time() * 1000 - (now_s - place.seen_s) * 1000))

    def _leave(self, job: str, message: Message, now_ms: int) -> None:
        """End the placement of a rank that says that it has ended properly; with the node's last one its run ends."""
        place = self._places.pop((job, message.run, message.rank), None)
        if place is not None:
            self._put(place.end(now_ms))
        if not any(other[:2] == (job, message.run) for other in self._places):
            self._watch({"ts": now_ms, "job": job, "run": message.run, "phase": RunPhase.TRAIN.value,
                         "started_at": now_ms, "ended_at": now_ms})  # fmt: skip

    def _watch(self, values: dict[str, Value]) -> None:
        """Show a phase to the hang watch alone: rank 0 of the job tells the store."""
        if self._environment.run_watch is not None:
            self._environment.run_watch(Row("runs", values))


class _Place:
    __slots__ = ("pid", "row", "seen_s", "told")

    def __init__(self, row: Row, told: dict[str, Value], pid: int | None, seen_s: float) -> None:
        self.row, self.told, self.pid, self.seen_s = row, told, pid, seen_s

    def end(self, ended_ms: int) -> Row:
        """Return the placement with its end."""
        started = self.row.values["ts"]
        begun_ms = started if isinstance(started, int) else ended_ms
        return Row("placements", {**self.row.values, "valid_until": max(ended_ms, begun_ms)})


def _figure(now_ms: int, name: str, count: int) -> Row:
    values: dict[str, Value] = {"component": "agent", "instance": "probe", "name": f"{name}_total"}
    return Row("self_metrics", {"ts": now_ms, **values, "value": float(count)})


def _flood(uid: int, refused: int, now_ms: int) -> Row:
    text = f"uid {uid} sends more than receiver.bytes_per_second or receiver.datagrams_per_second: {refused} refused"
    return _event("probe:flood", now_ms, text, uid)


def _event(code: str, now_ms: int, message: str, uid: int) -> Row:
    return Row(
        "events",
        {
            "ts": now_ms,
            "source": EventSource.AGENT.value,
            "code": code,
            "severity": EventSeverity.WARNING.value,
            "message": message,
            "attrs": {"uid": str(uid)},
        },
    )
