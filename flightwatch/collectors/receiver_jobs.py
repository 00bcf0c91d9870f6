"""Whose job a datagram belongs to: what a scheduler's cgroup says counts more than what a sender says.

A process inside a Slurm job's cgroup sends for that job, whatever it says. A name that nothing proves belongs
to the user who used it first on this node, until that user's senders have been silent for an hour or a
process proves it. root may send for any job.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MOST_JOBS = 1024
MOST_PROCESSES = 4096
SILENT_SECONDS = 3600.0
#: A pid is looked up again this often: numbers are used again.
LOOK_UP_SECONDS = 60.0


@dataclass(slots=True)
class _Claim:
    uid: int
    proven: bool
    seen_s: float


class Jobs:
    """Claims on job names.

    Parameters
    ----------
    scheduler_job: returns the job whose cgroup holds a pid, None outside of any.
    """

    def __init__(self, scheduler_job: Callable[[int], str | None]) -> None:
        self._scheduler_job = scheduler_job
        self._claims: OrderedDict[str, _Claim] = OrderedDict()
        self._processes: OrderedDict[tuple[int, int], tuple[str | None, float]] = OrderedDict()

    def job_of(self, said: str, uid: int, pid: int | None, now_s: float) -> str | None:
        """Return the job under which the sender's rows are stored; None: the name is another user's."""
        proven = self._proven(uid, pid, now_s) if pid is not None else None
        job = said if proven is None else proven
        claim = self._claims.get(job)
        free = claim is None or now_s - claim.seen_s > SILENT_SECONDS or (claim.uid == 0 and not claim.proven)
        if claim is None or free or (proven is not None and not claim.proven):
            claim = self._claims[job] = _Claim(uid, proven is not None, now_s)
            while len(self._claims) > MOST_JOBS:
                self._claims.popitem(last=False)
        if uid not in (claim.uid, 0):
            return None
        if uid == claim.uid:
            claim.seen_s = now_s
            self._claims.move_to_end(job)
        return job

    def _proven(self, uid: int, pid: int, now_s: float) -> str | None:
        known = self._processes.get((uid, pid))
        if known is None or now_s - known[1] > LOOK_UP_SECONDS:
            known = self._processes[uid, pid] = (self._scheduler_job(pid), now_s)
            while len(self._processes) > MOST_PROCESSES:
                self._processes.popitem(last=False)
        return known[0]
