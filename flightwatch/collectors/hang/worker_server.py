"""Asking torch's worker server (C++ threads inside a rank, HTTP over a unix socket) for dumps.

Its answers do not need the GIL, so a rank that hangs in Python or in a collective still answers. The socket
belongs to the job's user; who answers is taken from the kernel, never from the socket's name.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Iterable, Iterator

from flightwatch.collectors.profiler.processes import Process, read_process
from flightwatch.core.errors import TransientError

_NAME = re.compile(r"worker-\d{1,10}\.sock")
_CREDENTIALS = struct.Struct("iii")
_MOST_SOCKETS = 256
MOST_BYTES = 64_000_000
FLIGHT_RECORDER, STACKS = "fr_trace_json", "dump_traceback"


def worker_sockets(folders: Iterable[str]) -> Iterator[tuple[str, Process]]:
    """Yield the sockets of ranks in some folders, each with the process that answers there.

    Sockets that processes left behind are removed where this process may.
    """
    for folder in dict.fromkeys(folders):
        try:
            names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))[:_MOST_SOCKETS]
        except OSError:
            continue
        for name in names:
            path = os.path.join(folder, name)
            process = _owner(path)
            if process is not None and process.rank is not None:
                yield path, process


def _owner(path: str) -> Process | None:
    try:
        found = os.lstat(path)
        if not stat.S_ISSOCK(found.st_mode):
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)  # its process has ended
                return None
            pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError:
        return None
    process = read_process(pid) if pid > 0 else None
    # A socket that another user put there could answer in a rank's name.
    return process if process is not None and process.uid == uid == found.st_uid else None


def ask(path: str, handler: str, timeout_seconds: float) -> bytes:
    """Return one handler's answer.

    Raises
    ------
    TransientError: no answer in time, an error, or more than MOST_BYTES.
    """
    import http.client  # only when evidence is wanted

    connection = http.client.HTTPConnection("localhost", timeout=timeout_seconds)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(timeout_seconds)
    try:
        connection.sock.connect(path)
        connection.request("POST", f"/handler/{handler}")
        response = connection.getresponse()
        body = response.read(MOST_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        raise TransientError(f"{handler}: no answer within {timeout_seconds:g} s ({error})") from error
    finally:
        connection.close()
    if response.status != 200 or len(body) > MOST_BYTES:
        raise TransientError(f"{handler}: answered with status {response.status} and {len(body)} bytes")
    return body
