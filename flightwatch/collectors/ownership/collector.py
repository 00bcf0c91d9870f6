"""Which job and rank owns each device, without the training probe: placements when they change."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.ownership import declared, device_processes
from flightwatch.collectors.ownership.owners import Owner, find_owners, local_rank_devices
from flightwatch.core.errors import NoData, TransientError
from flightwatch.core.protocols import Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource

#: Slurm's controller is asked this often at most, and only while a job's devices are not known otherwise.
SLURM_EVERY_ROUNDS = 10
_SLURM_JOBS = "sys/fs/cgroup/system.slice/slurmstepd.scope"


class OwnershipCollector:
    """Finds owners every few seconds and tells the other collectors' rows (`environment.owners`).

    Rows are sent only on change: `placements` where the rank is known (one when it begins, one with
    `valid_until` when it ends), an event of the scheduler where only the job is.
    """

    name = "ownership"
    own_thread = True

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = max(10.0, environment.settings.sysfs_interval_seconds)
        self._environment = environment
        self._known: dict[int, Owner] = {}
        self._started: dict[int, int] = {}
        self._rounds = 0
        self._from_slurm: dict[int, Owner] = {}

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Look once. Raises NoData when nothing on this machine says who owns devices."""
        owners = self._find()
        if not owners and not self._known:
            raise NoData("no job owns a device of this machine")
        self._environment.owners.replace(owners)
        rows = [
            *self._ended(owners, now_ms),
            *(
                self._began(device, owner, now_ms)
                for device, owner in owners.items()
                if self._known.get(device) != owner
            ),
        ]
        self._known = owners
        return rows

    def _find(self) -> dict[int, Owner]:
        tree = self._environment.tree
        processes: Mapping[int, list[int]] = {}
        uuids: Mapping[str, int] = {}
        if not self._environment.live:
            processes = local_rank_devices(tree, self._pids())
        elif device_processes.has_device_files(tree.listdir("dev")):
            processes, uuids = device_processes.from_nvml()
            # NVML's where there is NVML, else what a vendor's collector left, else open device files.
            processes = processes or self._environment.devices.processes() or device_processes.from_open_files()
        pods = declared.pod_owners(tree)
        given = declared.pod_devices(tree)
        assigned = declared.from_pods(given, pods, {**uuids, **self._by_address(given)})
        return find_owners(tree, processes, {**assigned, **self._slurm(), **declared.from_job_files(tree)}, pods)

    def _by_address(self, given: Mapping[str, list[str]]) -> dict[str, int]:
        """Return the indices of devices that a device plugin names by PCI address, as AMD's does."""
        names = {name for part in given.values() for name in part if ":" in name and "::" not in name}
        found = {name: self._environment.devices.index_of(name) for name in names}
        return {name: index for name, index in found.items() if index is not None}

    def _pids(self) -> list[int]:
        return [int(name) for name in self._environment.tree.listdir("proc") if name.isdigit()][:4096]

    def _slurm(self) -> dict[int, Owner]:
        """Return owners as `scontrol show job -d` tells them, for the jobs that have a cgroup here."""
        environment = self._environment
        self._rounds += 1
        jobs = [name.removeprefix("job_") for name in environment.tree.listdir(_SLURM_JOBS) if name.startswith("job_")]
        if not jobs or not environment.live:
            self._from_slurm = {}
        elif self._rounds % SLURM_EVERY_ROUNDS == 1 or not {owner.job for owner in self._from_slurm.values()} & set(
            jobs
        ):
            self._from_slurm = self._ask_slurm(jobs)
        return self._from_slurm

    def _ask_slurm(self, jobs: list[str]) -> dict[int, Owner]:
        import socket

        from flightwatch.collectors.captures.slurm import SlurmJob, parse_jobs

        names = {socket.gethostname(), socket.gethostname().split(".")[0]}
        owners: dict[int, Owner] = {}
        for job_id in jobs[:32]:
            try:
                output = self._environment.run_command(
                    ("scontrol", "show", "job", "-d", job_id), self._environment.settings.command_timeout_seconds
                )
            except (NoData, TransientError):
                return owners
            for job in parse_jobs(io.TextIOWrapper(io.BytesIO(output), "utf-8", "replace").read()):
                if isinstance(job, SlurmJob):
                    for node in names & set(job.devices):
                        owners.update({index: Owner(job.job, job.run, None, "slurm") for index in job.devices[node]})
        return owners

    def _began(self, device: int, owner: Owner, now_ms: int) -> Row:
        self._started[device] = now_ms
        if owner.rank is not None:
            return Row("placements", _placement(device, owner, now_ms, None))
        return _event(device, owner, "began", now_ms)

    def _ended(self, owners: Mapping[int, Owner], now_ms: int) -> Iterable[Row]:
        for device, owner in self._known.items():
            if owners.get(device) == owner:
                continue
            started_ms = self._started.pop(device, now_ms)
            if owner.rank is not None:
                yield Row("placements", _placement(device, owner, started_ms, now_ms))
            else:
                yield _event(device, owner, "ended", now_ms)


def _placement(device: int, owner: Owner, ts: int, valid_until: int | None) -> dict[str, Value]:
    return {
        "ts": ts,
        "job": owner.job,
        "run": owner.run,
        "rank": owner.rank,
        "device": device,
        "valid_until": valid_until,
    }


def _event(device: int, owner: Owner, what: str, now_ms: int) -> Row:
    return Row(
        "events",
        {
            "ts": now_ms,
            "device": device,
            "job": owner.job,
            "run": owner.run,
            "source": EventSource.SCHEDULER.value,
            "code": f"owner:{what}",
            "severity": EventSeverity.INFO.value,
            "message": f"job {owner.job} {what} on device {device} (said by {owner.source})",
            "attrs": {"said_by": owner.source},
        },
    )
