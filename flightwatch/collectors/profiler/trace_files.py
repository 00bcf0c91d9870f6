"""Traces written by a user's process, read without trusting it.

The folder of a request belongs to the job's user alone and is made by the agent below its own; a file is
opened as that user, never through a link, and only when it is a regular file of that user.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from flightwatch.core.errors import BadRecord, Refused

_FILES = 256


def make_folder(base: str, request: str, uid: int) -> str:
    """Make the folder of one request and user, and return it.

    Raises
    ------
    Refused: the agent may not give files to that user, or the folder cannot be made.
    """
    if os.geteuid() not in (0, uid):
        raise Refused(f"the agent runs as user {os.geteuid()} and cannot read traces of user {uid}")
    path = os.path.join(base, f"{request}-{uid}")
    try:
        os.mkdir(path, 0o700)
        os.chown(path, uid, -1)
    except FileExistsError:
        pass
    except OSError as error:
        raise Refused(f"{path}: the folder of the traces cannot be made: {error.strerror}") from error
    return path


def find_trace(folder: str, stem: str, uid: int) -> str | None:
    """Return the name of the finished trace in a folder, None when there is none.

    libkineto writes `stem_PID.json` under another name and renames it when it is complete.
    """
    pattern = re.compile(rf"{re.escape(stem)}_\d{{1,10}}\.json")
    try:
        with acting_as(uid), os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(_FILES), entries, strict=False)]
    except OSError:
        return None
    return next((name for name in sorted(names) if pattern.fullmatch(name)), None)


@contextmanager
def open_trace_file(folder: str, name: str, uid: int, max_bytes: int) -> Iterator[BinaryIO]:
    """Open a trace as its user.

    Raises
    ------
    BadRecord: it is not a regular file of the user with one name, or larger than `max_bytes`.
    """
    try:
        with acting_as(uid):
            handle = os.open(
                os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            )
    except OSError as error:
        raise BadRecord(f"the trace cannot be opened as its user: {error.strerror}") from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_nlink != 1:
            raise BadRecord("the trace is not a plain file of the job's user")
        if found.st_size > max_bytes:
            raise BadRecord(f"the trace of {found.st_size} bytes is larger than the {max_bytes} allowed")
        with open(handle, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(handle)


def remove_folder(folder: str, uid: int) -> None:
    """Remove a request's folder and the plain files in it; what cannot be removed stays."""
    try:
        with acting_as(uid):
            for _, name in zip(range(_FILES), os.listdir(folder), strict=False):
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        return


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Let this thread alone touch files as another user; does nothing when it is that user.

    setfsuid is per thread and drops root's rights over files with it. The group is the process's own.
    """
    if os.geteuid() == uid or os.geteuid() != 0:
        yield
        return
    library = ctypes.CDLL(None)
    library.setfsuid(uid)
    try:
        yield
    finally:
        library.setfsuid(0)
