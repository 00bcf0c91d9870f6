"""Evidence "ring": per-op detail of some ranks around a finding, from the node's ring into `op_timings`, on command."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from flightwatch.collectors.op_ring import OpRing
from flightwatch.collectors.receiver_detail import KEPT_EVERY, Detail, rows_of
from flightwatch.core.clock import Clock
from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import Command, Row, Sink
from flightwatch.core.vocabulary import EventSeverity, EventSource

logger = logging.getLogger(__name__)

#: Rows of one command; the window's beginning is kept.
MOST_ROWS = 200_000
MOST_NAMES = 5000
MOST_WINDOW_MS = 3_600_000
#: Steps of ranks that were uploaded already and are not sent again.
_MOST_SENT = 50_000
_ROWS_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class RingRequest:
    """What a command asks of the ring.

    Attributes
    ----------
    run: attempt, "" for every. ranks: None for all. from_step, to_step: None for any.
    """

    id: str
    job: str
    run: str
    ranks: Collection[int] | None
    since_ms: int
    until_ms: int
    from_step: int | None = None
    to_step: int | None = None

    def wants(self, detail: Detail) -> bool:
        """Say whether a step of a rank is asked for."""
        return (
            detail.job == self.job
            and self.run in ("", detail.run)
            and (self.ranks is None or detail.rank in self.ranks)
            and (self.from_step is None or detail.step >= self.from_step)
            and (self.to_step is None or detail.step <= self.to_step)
        )


def request_of(command: Command) -> RingRequest:
    """Return the request in a verified command.

    Raises
    ------
    BadRecord: no job, no window, or one longer than an hour.
    """
    given = command.arguments
    since_ms, until_ms, ranks = given.get("since_ms"), given.get("until_ms"), given.get("ranks")
    if not command.job or not isinstance(since_ms, int) or not isinstance(until_ms, int):
        raise BadRecord(f"command {command.id}: op detail is asked for by job, since_ms and until_ms")
    if not 0 <= until_ms - since_ms <= MOST_WINDOW_MS:
        raise BadRecord(f"command {command.id}: op detail of more than {MOST_WINDOW_MS // 60_000} min is asked for")
    first, last = given.get("from_step"), given.get("to_step")
    return RingRequest(
        str(given.get("request", command.id)), command.job, str(given.get("run", "")),
        frozenset(one for one in ranks if isinstance(one, int)) if isinstance(ranks, list) else None,
        since_ms, until_ms,
        first if isinstance(first, int) else None, last if isinstance(last, int) else None,
    )  # fmt: skip


class RingUpload:
    """Uploads from a ring; one command at a time."""

    def __init__(self, ring: OpRing, sink: Sink, clock: Clock) -> None:
        self._ring = ring
        self._sink = sink
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._sent: OrderedDict[tuple[str, str, int, int], None] = OrderedDict()

    def collect_evidence(self, command: Command) -> None:
        """Upload on a thread of its own. Raises BadRecord when the command is malformed."""
        request = request_of(command)
        threading.Thread(target=self._guarded, args=(request,), name="op-ring", daemon=True).start()

    def _guarded(self, request: RingRequest) -> None:
        try:
            self.upload(request)
        except Exception:  # A thread of the agent: what it could not do is said, the agent goes on.
            logger.exception("op detail %s of job %s is incomplete", request.id, request.job)

    def upload(self, request: RingRequest) -> int:
        """Send what the ring has of a request, and an event that says how much; return the number of rows."""
        with self._one_at_a_time:
            sent, ranks, cut = 0, set(), False
            batch: list[Row] = []
            for detail, rows in self._found(request):
                cut = sent + len(rows) > MOST_ROWS
                if cut:
                    break
                sent += len(rows)
                ranks.add(detail.rank)
                self._note(detail)
                batch += rows
                if len(batch) >= _ROWS_AT_ONCE:
                    self._sink.emit(batch)
                    batch = []
            self._sink.emit([*batch, self._event(request, sent, len(ranks), cut)])
            return sent

    def _found(self, request: RingRequest) -> Iterator[tuple[Detail, list[Row]]]:
        names: set[str] = set()

        def may_name(name: str) -> bool:
            if name not in names and len(names) >= MOST_NAMES:
                return False
            names.add(name)
            return True

        for detail in self._ring.read(request.since_ms, request.until_ms):
            if request.wants(detail) and not self._is_stored(detail):
                yield detail, rows_of(detail, may_name)

    def _is_stored(self, detail: Detail) -> bool:
        """Say whether a step was sent before, by itself or for another request."""
        return detail.step % KEPT_EVERY == 0 or (detail.job, detail.run, detail.rank, detail.step) in self._sent

    def _note(self, detail: Detail) -> None:
        self._sent[detail.job, detail.run, detail.rank, detail.step] = None
        while len(self._sent) > _MOST_SENT:
            self._sent.popitem(last=False)

    def _event(self, request: RingRequest, rows: int, ranks: int, cut: bool) -> Row:
        text = f"{rows} rows of op detail of {ranks} ranks of job {request.job} are sent for {request.id}"
        if cut:
            text += f"; what lies beyond {MOST_ROWS} rows stays on the node"
        return Row(
            "events",
            {
                "ts": self._clock.now_ms(), "source": EventSource.AGENT.value, "code": "evidence:ring",
                "severity": EventSeverity.INFO.value, "job": request.job, "message": text,
                "attrs": {"request": request.id, "rows": str(rows), "ranks": str(ranks)},
            },
        )  # fmt: skip
