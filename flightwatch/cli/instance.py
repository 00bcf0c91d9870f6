"""Everything one process of `flightwatch up` runs, started and stopped in order."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.local_client import LOCK_NAME
from flightwatch.core.errors import ConfigError, Refused

log = logging.getLogger(__name__)

AGENT_STOP_SECONDS = 20.0


class InstanceLock:
    """One running instance per data folder; a second start is refused with the first one's pid.

    Parameters
    ----------
    data_dir: created with mode 0700 when absent.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises
        ------
        Refused: another process holds it. ConfigError: the folder cannot be made or written.
        """
        path = self.data_dir / LOCK_NAME
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"flightwatch.data_dir = {self.data_dir}: cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
            self.release()
            raise Refused(
                f"already running on {self.data_dir} (pid {pid}); `flightwatch status` asks it, and another"
                " installation on this machine needs another flightwatch.data_dir"
            ) from error
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class AgentProcess:
    """This machine's agent as a child process, restarted when it dies.

    A child rather than a thread: the agent must stay light and alone with its files, and the embedded
    store's process cannot fork.
    """

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        # The agent ends with this process, however this process ends: nobody else would stop it, and it would keep the
        # next start's agent from the spool.
        parent = ["--parent", str(os.getpid())]
        self._command = [sys.executable, "-m", "flightwatch.cli", "agent", *arguments, *parent]
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="agent-watch", daemon=True)
        self.state = "starting"

    def start(self) -> None:
        """Start the agent and watch it."""
        self._thread.start()

    def _watch(self) -> None:
        wait_seconds = 1.0
        while not self._stop.is_set():
            started = time.monotonic()
            end = self._run_once()
            if self._stop.is_set():
                break
            wait_seconds = 1.0 if time.monotonic() - started > 60 else min(60.0, wait_seconds * 2)
            self.state = f"{end}; starting again in {wait_seconds:.0f} s"
            log.error("the agent %s; starting it again in %.0f s", end, wait_seconds)
            self._stop.wait(wait_seconds)

    def _run_once(self) -> str:
        """Run the agent to its end and say how it ended."""
        try:
            # A session of its own: Ctrl-C reaches this process, which stops the agent in its turn.
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            return f"cannot be started ({error.strerror})"
        self.state = "running"
        code = self._process.wait()
        return f"stopped with exit code {code}" if code >= 0 else f"was killed by signal {-code}"

    def stop(self) -> None:
        """Ask the agent to send what it has and end; kill it after 20 s."""
        self._stop.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(AGENT_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                log.error(
                    "the agent did not end within %.0f s and is killed; its spool keeps the rest", AGENT_STOP_SECONDS
                )
                process.kill()
                process.wait()
        if self._thread.is_alive():
            self._thread.join(5)


def child_environment(common: CommonSettings) -> dict[str, str]:
    """Return the environment of a child that must use the same folder and names as this process."""
    names = {"DATA_DIR": common.data_dir, "CLUSTER": common.cluster, "BUS": common.bus_url}
    return os.environ | {f"FLIGHTWATCH_FLIGHTWATCH_{name}": value for name, value in names.items()}


class Worker:
    """A loop in a thread whose death is noticed.

    Parameters
    ----------
    run: called once with an event that asks it to end.
    wake: called after that event is set, for loops that wait for something else.
    """

    def __init__(
        self, name: str, run: Callable[[threading.Event], Any], wake: Callable[[], None] | None = None
    ) -> None:
        self.name = name
        self.state = "running"
        self._wake = wake
        self._stop = threading.Event()
        self._run = run
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _guarded(self) -> None:
        try:
            self._run(self._stop)
        except Exception as error:  # a runner: the instance must say which part died and why
            self.state = f"stopped: {error}"
            log.exception("%s stopped", self.name)

    def stop(self, timeout_seconds: float) -> None:
        """Ask it to end and wait."""
        self._stop.set()
        if self._wake is not None:
            self._wake()
        with contextlib.suppress(RuntimeError):
            self._thread.join(timeout_seconds)
