"""Stacks of one process: py-spy from outside (never with locals), else torch's own dump, reduced to a digest."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flightwatch.collectors.captures.base import Lines
from flightwatch.collectors.captures.comm.stacks import StackDump, parse_stacks
from flightwatch.core.errors import FlightwatchError

_PYSPY_SECONDS = 3.0
_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.{1,400})", line (\d{1,9}) in (.{1,200})$')
FRAMES_IN_MESSAGE = 6

RunCommand = Callable[[Sequence[str], float], bytes]


@dataclass(frozen=True, slots=True)
class StackText:
    """One process's stacks in the form that py-spy prints.

    Attributes
    ----------
    source: py-spy or torch.
    main: the main thread; the first thread where none is called so; None when no thread was told.
    """

    text: str
    source: str
    main: StackDump | None

    @property
    def message(self) -> str:
        """The innermost frames of the main thread in one line."""
        return " < ".join(self.main.frames[:FRAMES_IN_MESSAGE]) if self.main else ""


def py_spy_path() -> str:
    """Return the py-spy beside this Python, else the name to look for in PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else "py-spy"


def by_py_spy(pid: int, run_command: RunCommand) -> StackText | None:
    """Return stacks read from outside, without stopping the process; None when py-spy cannot."""
    try:
        output = run_command([py_spy_path(), "dump", "--nonblocking", "--pid", str(pid)], _PYSPY_SECONDS)
    except FlightwatchError:
        return None
    text = output.decode("utf-8", "replace")
    return StackText(text, "py-spy", _main(text))


def by_torch(dump: bytes) -> StackText:
    """Return stacks out of torch's own dump (Python's faulthandler), rewritten as py-spy prints them.

    The last thread it lists is the oldest: the main thread.
    """
    threads: list[tuple[str, list[str]]] = []
    for line in dump.decode("utf-8", "replace").splitlines():
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread:
            threads.append((thread.group(1), []))
        elif frame and threads:
            threads[-1][1].append(f"{frame.group(3)} ({frame.group(1)}:{frame.group(2)})")
    lines = []
    for index, (name, frames) in enumerate(threads):
        main = index == len(threads) - 1
        lines.append(f'Thread {name} (idle): "{"MainThread" if main else "thread"}"')
        lines += [f"    {frame}" for frame in frames]
    text = "\n".join(lines) + "\n"
    return StackText(text, "torch", _main(text))


def _main(text: str) -> StackDump | None:
    threads = list(parse_stacks(Lines(io.BytesIO(text.encode("utf-8", "replace")))))
    return next((thread for thread in threads if thread.is_main), threads[0] if threads else None)
