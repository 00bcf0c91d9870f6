"""Asking the running instance of this machine over its unix socket."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from flightwatch.core.errors import FlightwatchError, Refused

SOCKET_NAME = "flightwatch.sock"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_seconds: float) -> None:
        super().__init__("localhost", timeout=timeout_seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


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

    def request(self, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        """Send a request and return the response, whose body is not read yet.

        Raises
        ------
        Refused: nothing runs on that folder, or this user may not ask it.
        """
        connection = _UnixConnection(self.path, self._timeout_seconds)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            return connection.getresponse()
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise Refused(f"nothing runs on {self.path.parent}; `flightwatch up` starts it") from error
        except PermissionError as error:
            raise Refused(f"{self.path} belongs to another user: run this as the user that runs Flightwatch") from error
        except TimeoutError as error:
            raise Refused(
                f"the instance on {self.path.parent} did not answer in {self._timeout_seconds:.0f} s"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise FlightwatchError(f"asking the instance on {self.path.parent} failed: {error}") from error

    def get_json(self, path: str) -> Any:
        """Return the JSON body of a GET; raises FlightwatchError with the instance's reason when it refuses."""
        response = self.request("GET", path)
        body = response.read()
        if response.status != 200:
            raise FlightwatchError(error_text(body, response.status))
        return json.loads(body)


def error_text(body: bytes, status: int) -> str:
    """Return the reason in an error body, or the status where there is none."""
    try:
        document = json.loads(body)
        return str(document["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the instance answered with status {status}"
