"""SIGTERM and SIGINT, turned into one call on a thread that may take locks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType


def when_asked_to_stop(act: Callable[[], object]) -> None:
    """Call `act` once, on a thread of its own, when SIGTERM or SIGINT comes; call this on the main thread.

    A handler runs between any two steps of the main thread. `threading.Event.set` takes a lock that the interrupted
    step, or the handler of an earlier signal, may hold, and then waits for itself for ever. `SimpleQueue.put` is
    made to be called there.
    """
    asked: SimpleQueue[int] = SimpleQueue()

    def note(number: int, _frame: FrameType | None) -> None:
        asked.put(number)

    def wait() -> None:
        asked.get()
        act()

    threading.Thread(target=wait, name="stop-signal", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
