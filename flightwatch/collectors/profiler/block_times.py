"""Times of blocks on demand: the agent's side. The probe's side is `training/asked.py`.

A request for a rank is a small file in a folder beside the receiver's socket (its path and `.requests`), named by the
word that the rank itself tells; answers come in datagrams, of which the kernel says who sent them. Nothing is written
into a training process, and what a probe answers counts only while this node asked that very rank.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flightwatch.collectors.profiler.requests import ProfileRequest, Progress, RankState
from flightwatch.core.clock import Clock
from flightwatch.core.errors import TransientError

logger = logging.getLogger(__name__)

FOLDER_ENDING = ".requests"
#: A stored row of level block.
ROW_BYTES = 60
#: A rank may be heard, or tell its word, so long after a request (the agent may just have started).
APPEAR_SECONDS = 15.0
#: A probe looks twice a second; one that holds the interpreter, or is older, never does.
TAKE_SECONDS = 15.0
#: On top of the request's time: its last rows and its answer are on their way.
GRACE_SECONDS = 5.0
#: A probe sends at least every 10 s; one that was silent so long has ended.
HEARD_SECONDS = 60.0
_MOST_HEARD = 4096
_TOKEN = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(r"[0-9a-f]{16}(?:\.new)?")
_LONGEST = 300
_Rank = tuple[str, str, int]
UNHEARD = (
    "its probe is not heard: the job runs without Flightwatch's probe, has not made a step yet, or sends to another"
    " agent's socket"
)
OLDER = "its probe is older than this agent and cannot be asked: update Flightwatch in the job's Python"
NOT_TAKEN = "its probe does not take the request: the interpreter is held, or the socket's folder is not the job's"


@dataclass(slots=True)
class _Asked:
    """One rank that was asked, `taken_s` None until its probe says so."""

    request: ProfileRequest
    rank: int
    begun_s: float
    run: str = ""
    path: str = ""
    asked_s: float = 0.0
    taken_s: float | None = None
    first: int | None = None


class BlockTimes:
    """Asks ranks of this node for times of their blocks. Thread-safe.

    Parameters
    ----------
    socket: path of the probes' receiver.
    report: tells the control server.
    """

    def __init__(self, socket: str, clock: Clock, report: Callable[[Progress], None]) -> None:
        self._folder = os.path.abspath(socket) + FOLDER_ENDING
        self._clock = clock
        self._report = report
        self._lock = threading.Lock()
        self._heard: OrderedDict[_Rank, tuple[str, float]] = OrderedDict()
        self._asked: dict[tuple[str, int], _Asked] = {}

    def start(self) -> None:
        """Remove what a former agent left behind; a request that goes on is written again."""
        with contextlib.suppress(OSError):
            # A folder behind a link or of another user would have us delete what is not ours.
            names = os.listdir(self._folder) if self._is_own() else ()
            for name in filter(_FILE.fullmatch, names):
                os.unlink(os.path.join(self._folder, name))

    def _is_own(self) -> bool:
        status = os.lstat(self._folder)
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()

    def hear(self, job: str, run: str, rank: int) -> None:
        """Note that a rank's probe sends."""
        with self._lock:
            known = self._heard.get((job, run, rank), ("", 0.0))[0]
            self._heard[job, run, rank] = known, self._clock.monotonic_s()
            self._heard.move_to_end((job, run, rank))
            while len(self._heard) > _MOST_HEARD:
                self._heard.popitem(last=False)

    def listens(self, job: str, run: str, rank: int, given: object) -> None:
        """Note under which name a rank, heard before, looks for requests."""
        token = given.get("token") if isinstance(given, dict) else None
        with self._lock:
            if isinstance(token, str) and _TOKEN.fullmatch(token) and (job, run, rank) in self._heard:
                self._heard[job, run, rank] = token, self._clock.monotonic_s()

    def begin(self, request: ProfileRequest) -> None:
        """Take a request. Repeating it changes nothing; a rank that another request holds is refused."""
        now_s = self._clock.monotonic_s()
        news = []
        with self._lock:
            busy = {(one.request.job, one.rank) for one in self._asked.values()}
            for rank in request.ranks:
                if (request.id, rank) in self._asked:
                    continue
                if (request.job, rank) in busy:
                    reason = "another request for times of this rank's blocks is running"
                    news.append(Progress(request.id, rank, RankState.FAILED, reason))
                    continue
                self._asked[request.id, rank] = _Asked(request, rank, now_s)
                news.append(Progress(request.id, rank, RankState.WAITING))
        self._tell(news)
        self.tick()

    def cancel(self, request_id: str, ranks: Iterable[int] | None = None) -> None:
        """Take a request back; what was sent until now stays."""
        wanted = None if ranks is None else set(ranks)
        with self._lock:
            found = [one for (name, rank), one in self._asked.items() if name == request_id and _in(rank, wanted)]
            news = [self._end(one, RankState.STOPPED, "stopped by request") for one in found]
        self._tell(news)

    def answer(self, job: str, run: str, rank: int, given: object) -> None:
        """Take what a rank's probe says; anything but an answer to a request of this agent is passed over."""
        if not isinstance(given, dict):
            return
        with self._lock:
            one = self._asked.get((str(given.get("request")), rank))
            if one is None or not one.path or (one.request.job, one.run) != (job, run):
                return
            news = self._take(one, given)
        self._tell([news] if news is not None else [])

    def _take(self, one: _Asked, given: dict[str, object]) -> Progress | None:
        said, first = given.get("reason"), given.get("first")
        reason = "".join(filter(str.isprintable, said))[:_LONGEST] if isinstance(said, str) else ""
        if type(first) is int and 0 <= first < 2**62:
            one.first = first
        if given.get("state") == "armed":
            one.taken_s = self._clock.monotonic_s()
            return Progress(one.request.id, one.rank, RankState.ARMED, reason, one.first)
        steps, rows = given.get("steps"), given.get("rows")
        if given.get("state") == "done" and type(steps) is int and type(rows) is int:
            text = f"{rows} rows of {steps} steps" + (f": {reason}" if reason else "")
            return self._end(one, RankState.DONE, text, steps)
        return self._end(one, RankState.FAILED, reason) if given.get("state") == "failed" else None

    def tick(self) -> None:
        """Ask what can be asked now, and give up on what does not answer. Call it every few seconds."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            found = [self._look(one, now_s) for one in list(self._asked.values())]
        self._tell([news for news in found if news is not None])

    def _look(self, one: _Asked, now_s: float) -> Progress | None:
        waited_s = now_s - one.begun_s
        if not one.path:
            return self._ask(one, now_s)
        if one.taken_s is None and now_s - one.asked_s > TAKE_SECONDS:
            return self._end(one, RankState.FAILED, NOT_TAKEN)
        if waited_s > one.request.max_seconds + GRACE_SECONDS:
            return self._end(one, RankState.FAILED, f"it made fewer steps within {one.request.max_seconds:.0f} s")
        return None

    def _ask(self, one: _Asked, now_s: float) -> Progress | None:
        request = one.request
        known = [
            (run, token)
            for (job, run, rank), (token, heard_s) in reversed(self._heard.items())
            if (job, rank) == (request.job, one.rank) and request.run in ("", run) and now_s - heard_s < HEARD_SECONDS
        ]
        if not known or not known[0][1]:
            if now_s - one.begun_s <= APPEAR_SECONDS:
                return None
            return self._end(one, RankState.FAILED, OLDER if known else UNHEARD)
        run, token = known[0]
        try:
            path = self._write(token, request)
        except OSError as error:
            return self._end(one, RankState.FAILED, f"{self._folder} of the agent: {error.strerror}")
        except TransientError as error:
            return self._end(one, RankState.FAILED, str(error))
        one.run, one.path, one.asked_s = run, path, now_s
        return None

    def _write(self, token: str, request: ProfileRequest) -> str:
        os.makedirs(self._folder, mode=0o711, exist_ok=True)
        if not self._is_own():
            raise TransientError(f"{self._folder} is no folder of the agent's own user")
        os.chmod(self._folder, 0o711)  # Not to be listed: who knows a name is its process.
        path = os.path.join(self._folder, token)
        until_ms = self._clock.now_ms() + round(request.max_seconds * 1000)
        body = {"v": 1, "request": request.id, "from": request.start_step, "steps": request.steps,
                "rows": max(1, request.max_bytes // ROW_BYTES), "until_ms": until_ms}  # fmt: skip
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(f"{path}.new", flags, 0o644), "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o644)  # Jobs of every user read theirs, whatever this process's mask is.
            json.dump(body, file)
        os.replace(f"{path}.new", path)
        return path

    def _end(self, one: _Asked, state: RankState, reason: str, steps: int | None = None) -> Progress:
        del self._asked[one.request.id, one.rank]
        if one.path:
            with contextlib.suppress(OSError):
                os.unlink(one.path)
        return Progress(one.request.id, one.rank, state, reason, one.first, steps)

    def _tell(self, news: Iterable[Progress]) -> None:
        for one in news:
            self._report(one)


def _in(rank: int, wanted: set[int] | None) -> bool:
    return wanted is None or rank in wanted
