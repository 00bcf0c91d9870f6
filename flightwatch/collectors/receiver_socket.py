"""The unix datagram socket that probes send to, and who the kernel says sent each datagram."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from dataclasses import dataclass

from flightwatch.core.errors import NoData

#: A datagram may be this long; a longer one arrives cut and is refused.
MOST_BYTES = 65_536
_CREDENTIALS = struct.Struct("3i")
_LONGEST_PATH = 107
_QUEUE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Datagram:
    """One message and its sender.

    Attributes
    ----------
    pid: as this process's pid namespace knows the sender; None when it does not (a sender outside of it).
    uid: as this process's user namespace knows it.
    cut: the message was longer than MOST_BYTES.
    """

    data: bytes
    pid: int | None
    uid: int
    cut: bool


class ReceiverSocket:
    """A bound socket. Only messages whose sender the kernel names are returned.

    Raises
    ------
    NoData: the folder cannot be used; the text says why.
    """

    def __init__(self, path: str) -> None:
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise NoData(f"receiver.socket = {path} is longer than {_LONGEST_PATH} bytes, the limit of unix sockets")
        self.path = path
        _prepare_folder(os.path.dirname(path) or ".")
        _refuse_taken(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)
            self._socket.settimeout(0.5)
            self._bind(path)
        except OSError as error:
            self._socket.close()
            raise NoData(f"receiver.socket = {path}: cannot be made: {error.strerror}") from error
        self._inode = os.lstat(path).st_ino

    def _bind(self, path: str) -> None:
        """Bind beside the path and move into place: a sender finds the old socket or the new one, never a file."""
        beside = f"{path[: _LONGEST_PATH - 8]}.{os.getpid() % 10**6}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        self._socket.bind(beside)
        os.chmod(beside, 0o666)  # Every user's training may send; the folder decides who reaches it.
        os.replace(beside, path)

    def receive(self) -> Datagram | None:
        """Return the next datagram, None when none came within half a second."""
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(MOST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        except (TimeoutError, InterruptedError):
            return None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(content) >= _CREDENTIALS.size:
                pid, uid, _ = _CREDENTIALS.unpack_from(content)
                return Datagram(data, pid if pid > 0 else None, uid & 0xFFFFFFFF, bool(flags & socket.MSG_TRUNC))
        return Datagram(b"", None, 0xFFFFFFFE, True)

    def in_place(self) -> bool:
        """Say whether the path still leads to this socket: someone may have removed the folder."""
        try:
            return os.lstat(self.path).st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Close, and remove the path when it is still ours."""
        if self.in_place():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self._socket.close()


def _prepare_folder(folder: str) -> None:
    """Make the folder, and refuse one in which another user could put a socket in place of ours."""
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        status = os.lstat(folder)
    except OSError as error:
        raise NoData(f"folder {folder} of receiver.socket cannot be made: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        raise NoData(f"folder {folder} of receiver.socket is a link or no folder: give its real path")
    if status.st_uid not in (os.geteuid(), 0):
        raise NoData(f"folder {folder} of receiver.socket belongs to another user (uid {status.st_uid})")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise NoData(f"folder {folder} of receiver.socket can be written by other users: chmod go-w")


def _refuse_taken(path: str) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise NoData(f"receiver.socket = {path}: cannot be looked at: {error.strerror}") from error
    if not stat.S_ISSOCK(status.st_mode):
        raise NoData(f"receiver.socket = {path} is there and is no socket; it is left alone")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(path)
        except OSError:
            return  # Left behind by an agent that is gone.
    raise NoData(f"receiver.socket = {path} is in use by another agent")
