"""Running a vendor's command: argument lists only, bounded time and output."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flightwatch.core.errors import NoData, TransientError

#: Longest output read from a command.
MAX_OUTPUT_BYTES = 16 << 20


def run_command(words: Sequence[str], timeout_seconds: float) -> bytes:
    """Run a program without a shell and return its standard output.

    The environment is reduced to the search path and the C locale, so that output is the same everywhere.

    Raises
    ------
    NoData: the program is not installed.
    TransientError: it failed, printed too much or took longer than `timeout_seconds` (it is killed then).
    """
    path = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    if not _is_installed(words[0], path):
        # Looked up here: finding out by a failed start would copy this process each time.
        raise NoData(f"{words[0]} is not installed")
    import subprocess

    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            env={"PATH": path, "LC_ALL": "C"},
            check=False,
        )
    except FileNotFoundError as error:
        raise NoData(f"{words[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise TransientError(f"{words[0]} did not answer in {timeout_seconds:g} s and was killed") from error
    except OSError as error:
        raise TransientError(f"{words[0]} could not be started: {error.strerror}") from error
    if done.returncode != 0:
        raise TransientError(f"{words[0]} ended with status {done.returncode}")
    if len(done.stdout) > MAX_OUTPUT_BYTES:
        raise TransientError(f"{words[0]} printed more than {MAX_OUTPUT_BYTES >> 20} MB")
    return done.stdout


def _is_installed(program: str, path: str) -> bool:
    if "/" in program:
        return os.access(program, os.X_OK)
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in path.split(":") if folder)
