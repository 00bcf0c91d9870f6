"""Who a training process is: from the kernel and its environment in /proc, never from what it says."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flightwatch.collectors.ownership.process_words import JOB_NAMES, RANK_NAMES, RUN_NAMES, first, number

DAEMON_NAME = "KINETO_USE_DAEMON"
FOLDER_NAME = "KINETO_IPC_SOCKET_DIR"
WORLD_NAME = "WORLD_SIZE"
NO_DAEMON = (
    "KINETO_USE_DAEMON is not set in the process: start the job with the variables that `flightwatch doctor` prints"
)
#: Values that are looked at; an environment holds secrets, so nothing else of it is kept.
_NAMES = frozenset((*JOB_NAMES, *RUN_NAMES, *RANK_NAMES, DAEMON_NAME, FOLDER_NAME, WORLD_NAME, "MASTER_PORT"))
_LONGEST = 512


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a job.

    Attributes
    ----------
    pid: in the agent's pid namespace.
    started: kernel's start time of the process (ticks since boot): tells a reused pid apart.
    uid: effective user.
    rank: global rank, None for launchers and for helpers of a rank (data-loader workers).
    daemon: KINETO_USE_DAEMON is set to something else than 0.
    folder: KINETO_IPC_SOCKET_DIR as the process was started with, None when unset.
    """

    pid: int
    started: int
    uid: int
    job: str
    run: str
    rank: int | None
    daemon: bool
    folder: str | None


def read_process(pid: int, proc: str = "/proc") -> Process | None:
    """Return what is known about a process; None when it is gone or may not be read."""
    words = _words(pid, proc)
    place = _parent_and_start(pid, proc)
    if words is None or place is None:
        return None
    parent, started = place
    try:
        uid = os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return None
    rank = number(first(words, RANK_NAMES))
    if rank is not None and number(first(_words(parent, proc) or {}, RANK_NAMES)) == rank and WORLD_NAME in words:
        rank = None  # its parent has the same rank: it is a worker of that rank, not the rank
    return Process(
        pid=pid,
        started=started,
        uid=uid,
        job=_job(words, pid, proc),
        run=first(words, RUN_NAMES) or "0",
        rank=rank,
        daemon=words.get(DAEMON_NAME, "0") not in ("0", ""),
        folder=words.get(FOLDER_NAME),
    )


def is_same(process: Process, proc: str = "/proc") -> bool:
    """Say whether the process still runs (its pid was not given to another)."""
    place = _parent_and_start(process.pid, proc)
    return place is not None and place[1] == process.started


def training_processes(proc: str = "/proc") -> Iterator[Process]:
    """Yield the processes that carry a rank, or ask for a profiler daemon; others are passed over."""
    for name in os.listdir(proc):
        if name.isdigit():
            words = _words(int(name), proc)
            if words and (WORLD_NAME in words or DAEMON_NAME in words):
                process = read_process(int(name), proc)
                if process is not None:
                    yield process


def _job(words: Mapping[str, str], pid: int, proc: str) -> str:
    """Return the job; one that no launcher named is named after its script and rendezvous port."""
    name = first(words, JOB_NAMES)
    if name and not (name == "none" and "FLIGHTWATCH_JOB" not in words):
        return name[:200]
    return f"{_script(pid, proc)}-{words.get('MASTER_PORT') or pid}"[:200]


def _script(pid: int, proc: str) -> str:
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            parts = file.read(4096).split(b"\0")[1:]
    except OSError:
        return "python"
    for part in parts:
        if part and not part.startswith(b"-"):
            return os.path.basename(part).decode("utf-8", "replace")
    return "python"


def _words(pid: int, proc: str) -> dict[str, str] | None:
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            content = file.read(1_000_000)
    except OSError:
        return None
    found: dict[str, str] = {}
    for entry in content.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and len(name) < 40:
            key = name.decode("ascii", "replace")
            if key in _NAMES and key not in found:
                # Exactly what the process was given: the folder is compared byte by byte.
                found[key] = value[:_LONGEST].decode("utf-8", "surrogateescape")
    return found


def _parent_and_start(pid: int, proc: str) -> tuple[int, int] | None:
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        return int(fields[1]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
