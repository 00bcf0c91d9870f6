"""The folder of the sockets: shared with every user's jobs, so nothing in it is trusted.

Processes bind sockets of their own in it, so it is open to all and sticky like /tmp. Below it the agent
keeps `traces/`, where each request gets a folder that belongs to the job's user alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat

from flightwatch.core.errors import ConfigError

SOCKET = "dynolog"
TRACES = "traces"
CLIENT = "dynoconfigclient"
#: The kernel's limit of a unix socket's path (107) less a slash and the names of clients' sockets (52).
LONGEST = 54


def prepare(folder: str) -> None:
    """Make the folder, or check the one that is there.

    Raises
    ------
    ConfigError: it is not an absolute path without links, belongs to another user, or cannot be made.
    """
    problem = problem_of(folder)
    if problem:
        raise ConfigError(problem)
    try:
        os.makedirs(folder, exist_ok=True)
        own(folder, 0o1777)
        traces = os.path.join(folder, TRACES)
        os.makedirs(traces, exist_ok=True)
        own(traces, 0o711)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be used as the folder of sockets: {error.strerror}") from error


def problem_of(folder: str) -> str:
    """Say what is wrong with a path as folder of sockets, "" when nothing is.

    libkineto compares addresses with the text of KINETO_IPC_SOCKET_DIR and ends the training process when they
    differ: what the kernel would resolve to something else is refused here.
    """
    if not folder.startswith("/") or os.path.normpath(folder) != folder or folder == "/":
        return f"{folder!r}: the folder of sockets must be an absolute path without '..' and without a '/' at its end"
    if len(folder.encode()) > LONGEST:
        return f"{folder}: the folder of sockets may have at most {LONGEST} characters"
    if os.path.realpath(folder) != folder:
        return f"{folder}: the folder of sockets must not go through a symbolic link (it is {os.path.realpath(folder)})"
    return ""


def own(path: str, mode: int) -> None:
    """Set the mode of a folder that must be ours. Raises ConfigError when it is a link or somebody else's."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigError(f"{path}: it is not a folder of the agent's user; remove it")
    if stat.S_IMODE(found.st_mode) != mode:
        os.chmod(path, mode)


def bind_file(folder: str) -> socket.socket | None:
    """Return the socket in the folder, None when another daemon answers there.

    Raises
    ------
    ConfigError: it cannot be bound.
    """
    path = os.path.join(folder, SOCKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)
            return None
        except OSError:
            pass
    bound = _socket()
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        bound.bind(path)
        os.chmod(path, 0o666)
    except OSError as error:
        bound.close()
        raise ConfigError(f"{path}: cannot be bound: {error.strerror}") from error
    return bound


def sweep(folder: str) -> None:
    """Remove sockets of clients that have ended: libkineto leaves one behind for every process."""
    for name in os.listdir(folder):
        if not name.startswith(CLIENT):
            continue
        path = os.path.join(folder, name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            except OSError:
                continue


def bind_abstract(name: str = SOCKET) -> socket.socket | None:
    """Return the socket of processes without a folder, None when another daemon (dynolog) has its name."""
    bound = _socket()
    try:
        # The NUL at the end is part of the name that clients use.
        bound.bind(b"\0" + name.encode() + b"\0")
    except OSError:
        bound.close()
        return None
    return bound


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    # Before bind: every datagram then carries who sent it.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return made
