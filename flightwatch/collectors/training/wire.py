"""Rows on their way to the node's agent: a bounded queue, a daemon thread, unix datagrams.

The training thread only appends to a deque. The thread encodes and sends without blocking; what the agent
does not take is kept for a while, then counted as dropped.

A datagram is JSON: {"v": 1, "job", "run", "rank", "pid", "rows": [[table, {column: value}], ...]}.
"""

import collections
import json
import os
import socket
import threading
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple, Union

#: A datagram is never longer.
MOST_BYTES = 60_000
#: Rows kept while the agent does not take them.
MOST_ROWS = 4096
FLUSH_SECONDS = 0.5
#: A row larger than this cannot be one of ours: it is dropped rather than sent.
_MOST_ROW_BYTES = 40_000

WireRow = Tuple[str, Dict[str, Any]]
#: Rows that are made when they are sent.
LaterRows = Callable[[], List[WireRow]]


class Wire:
    """Sends rows to one socket.

    Parameters
    ----------
    path: the agent's socket.
    header: job, run, rank, pid; read at every datagram.
    gather: called on the sending thread before each flush; may add rows by `put`.
    """

    def __init__(self, path: str, header: Callable[[], Dict[str, Any]], gather: Callable[[], None]) -> None:
        self.path = path
        self.sent_rows = 0
        self.sent_bytes = 0
        self.dropped = 0
        self.failed_sends = 0
        self._header = header
        self._gather = gather
        self._queue: Deque[Union[WireRow, LaterRows]] = collections.deque()
        self._held: List[Tuple[str, int]] = []
        self._socket: Optional[socket.socket] = None
        self._thread: Optional[threading.Thread] = None
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._stopping = False

    def put(self, row: Union[WireRow, LaterRows]) -> None:
        """Queue one row, or what makes rows on the sending thread; the oldest gives way when the queue is full."""
        if len(self._queue) >= MOST_ROWS:
            try:
                self._queue.popleft()
            except IndexError:
                pass
            self.dropped += 1
        self._queue.append(row)

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="flightwatch", daemon=True)
            self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Send what is left without waiting for the agent, and end the thread."""
        self._stopping = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_seconds)

    def forked(self) -> None:
        """Forget the parent's thread, locks and rows in a forked child."""
        self._thread = None
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._stopping = False
        self._queue.clear()
        self._held = []
        self._socket = None

    def _run(self) -> None:
        while True:
            last = self._stopping
            try:
                self._gather()
                self.flush()
            except Exception:  # A daemon thread inside someone else's process ends quietly or goes on.
                self.failed_sends += 1
            if last:
                return
            self._wake.wait(FLUSH_SECONDS)

    def flush(self) -> None:
        """Send what is queued; what the agent does not take now stays queued for the next flush."""
        with self._lock:
            while self._queue or self._held:
                datagram, rows = self._next_datagram()
                if not rows:
                    return
                if not self._send(datagram):
                    return
                self.sent_rows += rows
                self.sent_bytes += len(datagram)
                self._held = []

    def _next_datagram(self) -> Tuple[bytes, int]:
        """Fill up the held rows and return one datagram of them.

        Rows stay held, encoded, until a send succeeds; more are added to them up to the size of a datagram.
        """
        head = json.dumps(self._header(), separators=(",", ":"))[:-1]
        size = len(head) + 16 + sum(length + 1 for _, length in self._held)
        while self._queue:
            first = self._queue[0]
            if not isinstance(first, tuple):
                self._queue.popleft()
                self._queue.extendleft(reversed(first()))
                continue
            table, values = first
            text = json.dumps([table, values], separators=(",", ":"))
            if len(text) > _MOST_ROW_BYTES:
                self._queue.popleft()
                self.dropped += 1
                continue
            if size + len(text) + 1 > MOST_BYTES:
                break
            self._queue.popleft()
            self._held.append((text, len(text)))
            size += len(text) + 1
        body = ",".join(text for text, _ in self._held)
        return (head + ',"rows":[' + body + "]}").encode("ascii"), len(self._held)

    def _send(self, datagram: bytes) -> bool:
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(datagram, self.path)
            return True
        except OSError:
            # Absent, full, restarted or not ours: the next flush tries again, the queue's bound decides.
            self.failed_sends += 1
            return False


def process_header(job: str, run: str, rank: int) -> Dict[str, Any]:
    """Return the part of a datagram that says who sends."""
    return {"v": 1, "job": job, "run": run, "rank": rank, "pid": os.getpid()}
