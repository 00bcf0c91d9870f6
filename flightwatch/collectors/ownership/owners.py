"""Who owns each device of a node, put together from what schedulers, cgroups and processes say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flightwatch.collectors.ownership.process_words import (
    ARRAY_NAMES,
    JOB_NAMES,
    LOCAL_RANK_NAMES,
    RANK_NAMES,
    RUN_NAMES,
    allowed_words,
    first,
    number,
    pod_of,
    slurm_job_of,
)
from flightwatch.collectors.tree import Tree


@dataclass(frozen=True, slots=True)
class Owner:
    """The job on one device.

    Attributes
    ----------
    rank: global rank, None where only the job is known.
    source: what said so: process, prolog, slurm, kubelet.
    """

    job: str
    run: str
    rank: int | None
    source: str


def owner_of_process(tree: Tree, pid: int, pods: Mapping[str, Owner]) -> Owner | None:
    """Return the owner that a process belongs to.

    The cgroup, which a job cannot change, beats the environment for the job's id; ranks come from the
    environment.

    Parameters
    ----------
    pods: pod uid to owner, for processes in pods.
    """
    words = allowed_words(tree, pid)
    job = slurm_job_of(tree, pid)
    if job is not None and all(name in words for name in ARRAY_NAMES) and words.get("SLURM_JOB_ID") == job:
        job = "_".join(words[name] for name in ARRAY_NAMES)
    pod = pod_of(tree, pid)
    by_pod = pods.get(pod) if pod is not None else None
    if job is None and by_pod is not None:
        job = by_pod.job
    if job is None:
        job = first(words, JOB_NAMES)
    if job is None:
        return None
    run = first(words, RUN_NAMES) or (by_pod.run if by_pod else "0")
    return Owner(job, run, number(first(words, RANK_NAMES)), "process")


def find_owners(
    tree: Tree,
    processes: Mapping[int, Iterable[int]],
    declared: Mapping[int, Owner],
    pods: Mapping[str, Owner],
) -> dict[int, Owner]:
    """Return device to owner.

    Parameters
    ----------
    processes: process id to the devices it has opened, as the vendor library or /proc says.
    declared: device to owner as a prolog file, Slurm or the kubelet says; used where no process tells more.
    pods: pod uid to owner.

    Notes
    -----
    A process with a rank beats what is declared, which beats a process without one (a monitor). Two
    ranks on one device give the lower one.
    """
    owners: dict[int, Owner] = dict(declared)
    for pid in sorted(processes):
        owner = owner_of_process(tree, pid, pods)
        if owner is None:
            continue
        for device in processes[pid]:
            if _better(owner, owners.get(device)):
                owners[device] = _with_run(owner, declared.get(device))
    return owners


def _better(owner: Owner, known: Owner | None) -> bool:
    if known is None:
        return True
    return owner.rank is not None and (known.source != "process" or known.rank is None or owner.rank < known.rank)


def _with_run(owner: Owner, declared: Owner | None) -> Owner:
    """Take the attempt from the scheduler where it names the same job: a process may not know it was restarted."""
    return replace(owner, run=declared.run) if declared is not None and declared.job == owner.job else owner


def local_rank_devices(tree: Tree, pids: Iterable[int]) -> dict[int, list[int]]:
    """Return process to device by local rank, for processes whose devices no library tells: one rank, one device."""
    found: dict[int, list[int]] = {}
    for pid in pids:
        local = number(first(allowed_words(tree, pid), LOCAL_RANK_NAMES))
        if local is not None and local < 64:
            found[pid] = [local]
    return found
