"""How jobs ended: Slurm's accounting and the error files that torchrun's workers leave.

Both are off until the settings name them: accounting is asked by one node of a cluster (a head node), error files lie
where `torchrun --log-dir` puts them. What had ended before the agent started is not told.
"""

from __future__ import annotations

import glob
import json
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.nodelist import expand_nodes
from flightwatch.core.errors import BadRecord, NoData
from flightwatch.core.protocols import Row, Value
from flightwatch.core.vocabulary import EventSeverity, EventSource

SACCT = (
    "sacct", "--allusers", "--noheader", "--parsable2", "--starttime", "now-30minutes", "--endtime", "now", "--state",
    "FAILED,NODE_FAIL,OUT_OF_MEMORY,TIMEOUT", "--format", "JobID,State,ExitCode,NodeList",
)  # fmt: skip
#: State of a job step to event code; a step that ran into its time limit is no crash.
CODES = {"FAILED": "slurm:failed", "OUT_OF_MEMORY": "slurm:killed", "NODE_FAIL": "slurm:node_fail",
         "TIMEOUT": "slurm:timeout"}  # fmt: skip
MOST_FILES, MOST_BYTES, MOST_REMEMBERED, LONGEST = 4096, 256_000, 20_000, 500


class JobExitsCollector:
    """Tells each end once."""

    name = "job-exits"
    #: Accounting can take seconds.
    own_thread = True

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.command_interval_seconds
        self._environment = environment
        self._settings = environment.settings
        self._steps: dict[str, None] | None = None
        self._files: dict[str, float] | None = None

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Ask once.

        Raises
        ------
        NoData: neither is set, sacct is not installed, or a recorded tree.
        TransientError: sacct failed.
        """
        if not self._environment.live:
            raise NoData("a recorded tree runs no command")
        if not (self._settings.slurm_accounting or self._settings.torchelastic_error_files):
            raise NoData("agent.slurm_accounting and agent.torchelastic_error_files are not set")
        rows = [*self._from_files(now_ms)] if self._settings.torchelastic_error_files else []
        return rows + ([*self._from_slurm(now_ms)] if self._settings.slurm_accounting else [])

    def _from_slurm(self, now_ms: int) -> Iterator[Row]:
        output = self._environment.run_command(SACCT, self._settings.command_timeout_seconds)
        first, seen = self._steps is None, self._steps or {}
        for line in output.decode("utf-8", "replace").splitlines():
            cells = line.split("|")
            if len(cells) != 4 or cells[0] in seen or cells[1].split(" ")[0] not in CODES:
                continue
            seen[cells[0]] = None
            # A batch job is told by its steps; its own line and that of its script only repeat them.
            if not first and "." in cells[0] and not cells[0].endswith((".batch", ".extern")):
                yield _slurm_event(cells, now_ms)
        while len(seen) > MOST_REMEMBERED:
            del seen[next(iter(seen))]
        self._steps = seen

    def _from_files(self, now_ms: int) -> Iterator[Row]:
        first, known = self._files is None, self._files or {}
        found: dict[str, float] = {}
        for pattern in self._settings.torchelastic_error_files:
            for path in sorted(glob.iglob(pattern, recursive=True))[:MOST_FILES]:
                status = _status(path)
                if status is None:
                    continue
                found[path] = status.st_mtime
                if not first and known.get(path) != status.st_mtime:
                    yield _file_event(path, int(status.st_mtime * 1000), now_ms)
        self._files = found


def _slurm_event(cells: list[str], now_ms: int) -> Row:
    step, state, exit_code, nodes = cells
    code, _, signal = exit_code.partition(":")
    word = state.split(" ")[0]
    status = code if code not in ("", "0") else f"-{signal}" if signal not in ("", "0") else code
    try:
        named = expand_nodes(nodes)
    except BadRecord:
        named = []
    values: dict[str, Value] = {
        "ts": now_ms, "job": step.split(".")[0], "source": EventSource.SCHEDULER.value, "code": CODES[word],
        "severity": EventSeverity.ERROR.value, "message": f"Slurm step {step} ended: {state}, exit code {exit_code}",
        "attrs": {"step": step, "state": word, "exit_code": status, "nodes": nodes[:LONGEST]},
    }  # fmt: skip
    if named:
        values["node"] = named[0]
    return Row("events", values)


def _status(path: str) -> os.stat_result | None:
    """Return the status of a regular file that is no link."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _file_event(path: str, ended_ms: int, now_ms: int) -> Row:
    """Return the event of one error file; what cannot be read still tells that its rank failed."""
    message, rank = _told(path)
    folder = os.path.dirname(path)
    local, attempt = os.path.basename(folder), os.path.basename(os.path.dirname(folder))
    attrs = {"attempt": attempt, "source": "torchelastic error file"}
    if local.isdigit():
        attrs["local_rank"] = local
    values: dict[str, Value] = {
        "ts": min(ended_ms, now_ms), "source": EventSource.SCHEDULER.value, "code": "elastic:rank_failed",
        "severity": EventSeverity.ERROR.value, "message": message[:LONGEST], "attrs": attrs, "rank": rank,
    }  # fmt: skip
    return Row("events", values)


def _told(path: str) -> tuple[str, int | None]:
    """Return the message and global rank in an error file."""
    fallback = "a worker of torchrun failed"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, encoding="utf-8", errors="replace") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return fallback, None
            document: Any = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return fallback, None
    told = document.get("message") if isinstance(document, dict) else None
    inner = told.get("message") if isinstance(told, dict) else told
    extra = told.get("extraInfo") if isinstance(told, dict) else None
    rank = extra.get("rank") if isinstance(extra, dict) else None
    line = str(inner).strip().splitlines()
    return (line[0] if inner is not None and line else fallback), rank if type(
        rank
    ) is int and 0 <= rank < 2**31 else None
