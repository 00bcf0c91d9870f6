"""Asking the running instance of this machine over its unix socket."""

from __future__ import annotations

import fcntl
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flightwatch.core.errors import FlightwatchError, Refused

SOCKET_NAME = "flightwatch.sock"
#: Held by the instance for as long as it runs.
LOCK_NAME = "instance.lock"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise


class LocalClient:
    """Requests to the instance that owns a data folder. The socket is open to that user only (0600).

    Parameters
    ----------
    data_dir: the instance's folder.
    timeout_seconds: for connecting and for each read.
    """

    def __init__(self, data_dir: str, timeout_seconds: float = 60.0) -> None:
        self.path = Path(data_dir) / SOCKET_NAME
        self._timeout_seconds = timeout_seconds

    @contextmanager
    def request(self, method: str, path: str, body: bytes | None = None) -> Iterator[http.client.HTTPResponse]:
        """Send a request; yields the response, whose body is not read yet, and closes the connection afterwards.

        Raises
        ------
        Refused: nothing runs on that folder, or this user may not ask it.
        """
        connection = _UnixConnection(self.path, self._timeout_seconds)
        try:
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise self._explained(error) from error
            with response:
                yield response
        finally:
            connection.close()

    def _explained(self, error: Exception) -> FlightwatchError:
        folder = self.path.parent
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return Refused(not_answering(folder) or f"nothing runs on {folder}; `flightwatch up` starts it")
        if isinstance(error, PermissionError):
            return Refused(f"{self.path} belongs to another user: run this as the user that runs Flightwatch")
        if isinstance(error, TimeoutError):
            return Refused(f"the instance on {folder} did not answer in {self._timeout_seconds:.0f} s")
        return FlightwatchError(f"asking the instance on {folder} failed: {error}")

    def get_json(self, path: str) -> Any:
        """Return the JSON body of a GET; raises FlightwatchError with the instance's reason when it refuses."""
        with self.request("GET", path) as response:
            body, code = response.read(), response.status
        if code != 200:
            raise FlightwatchError(error_text(body, code))
        return json.loads(body)


def not_answering(folder: Path) -> str | None:
    """Return one sentence when an instance holds the folder, which then starts or stops; None when nothing runs."""
    pid = lock_holder(folder / LOCK_NAME)
    return pid and f"the instance on {folder} (pid {pid}) is starting or stopping: try again in a moment"


def lock_holder(path: Path) -> str | None:
    """Return the pid of the process that holds a lock file, "unknown" when it names none; None when nobody does."""
    try:
        with path.open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read(32).decode(errors="replace").strip() or "unknown"
    except OSError:
        return None
    return None


def error_text(body: bytes, status: int) -> str:
    """Return the reason in an error body, or the status where there is none."""
    try:
        document = json.loads(body)
        return str(document["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the instance answered with status {status}"
