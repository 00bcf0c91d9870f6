"""What a process's environment and cgroup say about its job, by an allow-list of names.

An environment holds secrets: only the values of the names below are ever looked at, and nothing else
of it is kept, sent or logged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from flightwatch.collectors.tree import Tree

#: Names that may be read, by what they say. The first that is set counts.
JOB_NAMES = ("FLIGHTWATCH_JOB", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID", "JOB_NAME")
RUN_NAMES = ("FLIGHTWATCH_RUN", "SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
LOCAL_RANK_NAMES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
ARRAY_NAMES = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
ALLOWED = frozenset((*JOB_NAMES, *RUN_NAMES, *RANK_NAMES, *LOCAL_RANK_NAMES, *ARRAY_NAMES))
_LONGEST = 256
_SLURM_CGROUP = re.compile(r"/job_(\d{1,10})(?:/|$)")
_POD_CGROUP = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")


def allowed_words(tree: Tree, pid: int) -> dict[str, str]:
    """Return the allowed names of a process's environment; empty when it cannot be read."""
    content = tree.read(f"proc/{pid}/environ")
    found: dict[str, str] = {}
    for entry in (content or b"").split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and len(name) < 40 and name.decode("ascii", "replace") in ALLOWED:
            text = value[:_LONGEST].decode("utf-8", "replace")
            if text.isprintable() and text:
                found[name.decode("ascii")] = text
    return found


def first(words: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Return the first of some names that is set."""
    return next((words[name] for name in names if name in words), None)


def number(text: str | None) -> int | None:
    """Return a rank; None for what is not a plain number below a million."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 6 else None


def slurm_job_of(tree: Tree, pid: int) -> str | None:
    """Return the Slurm job whose cgroup (v1 or v2) holds a process: it stands even where the environment does not."""
    match = _SLURM_CGROUP.search(_cgroup(tree, pid))
    return match[1] if match else None


def pod_of(tree: Tree, pid: int) -> str | None:
    """Return the uid of the Kubernetes pod whose cgroup holds a process (systemd writes it with underscores)."""
    match = _POD_CGROUP.search(_cgroup(tree, pid))
    return match[1].replace("_", "-") if match else None


def _cgroup(tree: Tree, pid: int) -> str:
    return (tree.read(f"proc/{pid}/cgroup") or b"").decode("utf-8", "replace")
