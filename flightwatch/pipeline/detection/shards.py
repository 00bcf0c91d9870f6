"""How several detection processes share the work: shards with leases, each owned by the member that a hash names.

Detectors of jobs are sharded by job, those of the fleet (which compare nodes with nodes) are one shard. Every
process holds a lease as a member; the members alive decide by rendezvous hashing who should own which shard, so
that all of them agree without talking and a member that comes or goes moves only its own share. The shard's lease
makes it exclusive: a process that was paused and comes back finds its epoch over and starts again from the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from flightwatch.core.errors import StaleGeneration
from flightwatch.detectors.contract import Detector
from flightwatch.pipeline.control.leases import Lease, Leases

#: Tables that belong to jobs: a detector that reads one of them is sharded by job.
JOB_TABLES = frozenset(("rank_steps", "op_timings", "training_scalars", "collectives", "dumps"))
ROLE = "detection"
_MEMBER = f"{ROLE}:member:"


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the work.

    Attributes
    ----------
    fleet: it holds the detectors of the fleet, else those of jobs. number, of: which jobs; of = 1: all.
    """

    name: str
    fleet: bool
    number: int = 0
    of: int = 1

    def has(self, detector: Detector) -> bool:
        """Say whether a detector runs in this shard."""
        return self.fleet != is_of_jobs(detector)


def is_of_jobs(detector: Detector) -> bool:
    """Say whether a detector looks at one job at a time."""
    return not JOB_TABLES.isdisjoint(detector.needs.tables)


def all_shards(job_shards: int) -> tuple[Shard, ...]:
    """Return the fleet's shard and as many shards of jobs as wanted."""
    jobs = (Shard(f"jobs:{number}", False, number, job_shards) for number in range(job_shards))
    return (Shard("fleet", fleet=True), *jobs)


def owner_of(shard: str, members: Sequence[str]) -> str | None:
    """Return which member should own a shard (rendezvous hashing); None without members."""
    return max(members, key=lambda member: hashlib.sha256(f"{shard}|{member}".encode()).digest(), default=None)


class Membership:
    """The leases of one process.

    Parameters
    ----------
    holder: name of this process, unique among all. lease_seconds: how long a silent process keeps its shards.
    """

    def __init__(self, leases: Leases, holder: str, lease_seconds: float, shards: Sequence[Shard]) -> None:
        self._leases, self._holder, self._seconds = leases, holder, lease_seconds
        self._shards = tuple(shards)
        self._member: Lease | None = None
        self._held: dict[str, Lease] = {}

    def shards(self) -> list[tuple[Shard, int]]:
        """Renew, take what this process should own, give up what it should not; return shards held and their epochs.

        Raises
        ------
        TransientError: the control database is away; nothing may be done until it answers.
        """
        self._member = self._kept(f"{_MEMBER}{self._holder}", self._member)
        members = [role[len(_MEMBER) :] for role in self._leases.held(_MEMBER)]
        for shard in self._shards:
            role = f"{ROLE}:{shard.name}"
            if owner_of(shard.name, members) == self._holder:
                lease = self._kept(role, self._held.get(shard.name))
                if lease is not None:
                    self._held[shard.name] = lease
                    continue
            elif shard.name in self._held:
                self._leases.release(self._held[shard.name])
            self._held.pop(shard.name, None)
        return [(shard, self._held[shard.name].epoch) for shard in self._shards if shard.name in self._held]

    def still_holds(self, shard: Shard) -> bool:
        """Say whether a shard is ours at this moment, just before something is published."""
        lease = self._held.get(shard.name)
        try:
            if lease is not None:
                self._held[shard.name] = self._leases.renew(lease, self._seconds)
                return True
        except StaleGeneration:
            self._held.pop(shard.name, None)
        return False

    def leave(self) -> None:
        """Give everything up at once."""
        for lease in (*self._held.values(), *([self._member] if self._member is not None else [])):
            self._leases.release(lease)
        self._held.clear()
        self._member = None

    def _kept(self, role: str, lease: Lease | None) -> Lease | None:
        try:
            if lease is not None:
                return self._leases.renew(lease, self._seconds)
        except StaleGeneration:
            pass
        return self._leases.acquire(role, self._holder, self._seconds)
